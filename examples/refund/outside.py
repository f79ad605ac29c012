"""Start the gateway as a process of its own, tell it what to break, and ask it what was really done."""

from __future__ import annotations

from collections.abc import Mapping

from ..reconciliation.outside import Outside


class Till(Outside):
    """The gateway while a test or a scene runs; it ends with the `with` block, or when this process dies."""

    server = f"{__package__}.gateway"

    def capture(self, order_id: str, lines: Mapping[int, int], currency: str = "EUR") -> None:
        """The shop's act: an order is paid. Shapes: ``capture("SO-1", {1: 5000, 2: 1200})``, in cents by line."""
        self._control("PUT", f"/orders/{order_id}", {"currency": currency, "lines": {str(k): v for k, v in lines.items()}})

    def pay_out(self, refund_id: str) -> None:
        """The bank's act: from now on the refund cannot be cancelled."""
        self._control("POST", f"/refunds/{refund_id}/pay_out", {})
