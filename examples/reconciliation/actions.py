"""What the steps do, as plain functions of one class: the other side's address is the only thing that they share.

Each makes one request and catches nothing that it has no better word for. The keys come from Doubtless and are
written where the other side can be asked for them later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any, TypeVar
from urllib.error import HTTPError

from doubtless import NotSent, NotUndoable, Rejected, Several, injected

from . import client
from .load import BadInput, Entry, Order, load_orders, load_statement
from .match import Difference, match

Record = TypeVar("Record")


class Actions:
    """The steps' functions. `server`: the other side's address; None: $RECON_SERVER, read at each call."""

    def __init__(self, server: str | None = None) -> None:
        self._server = server

    # reads

    def load_statement(self, path: str) -> list[Entry]:
        try:
            return load_statement(path)
        except BadInput as bad:
            # Rejected, so that it fails at once: the file will not be better when it is read again.
            raise Rejected("bad_input", str(bad)) from bad

    def load_orders(self, path: str) -> list[Order]:
        try:
            return load_orders(path)
        except BadInput as bad:
            raise Rejected("bad_input", str(bad)) from bad

    def match_orders(self, statement: list[Entry], orders: list[Order], day: str) -> list[Difference]:
        return match(statement, orders, date.fromisoformat(day))

    # writes, each with what finds it again and what takes it back

    def create_adjustment(
        self, run: str, difference: dict[str, Any], requested_at: str = "", idempotency_key: str = injected()
    ) -> client.Sheet:
        return client.create_sheet(
            self._address(), difference=difference, run=run, reference=idempotency_key, requested_at=requested_at
        )

    def find_adjustment(self, idempotency_key: str) -> client.Sheet | Several | None:
        return _only(client.find_sheet(self._address(), reference=idempotency_key))

    def withdraw_adjustment(self, result: client.Sheet) -> client.Sheet:
        with _may_be_too_late():
            return client.withdraw_sheet(self._address(), result["id"])

    def submit_approval(self, run: str, sheets: list[str], idempotency_key: str = injected()) -> client.Approval:
        return client.submit_approval(self._address(), run=run, sheets=sheets, reference=idempotency_key)

    def find_approval(self, idempotency_key: str) -> client.Approval | Several | None:
        return _only(client.find_approval(self._address(), reference=idempotency_key))

    def withdraw_approval(self, result: client.Approval) -> client.Approval:
        with _may_be_too_late():
            return client.withdraw_approval(self._address(), result["id"])

    def notify(self, run: str, text: str) -> client.Message:
        return client.send_chat(self._address(), run=run, text=text)

    def close_run(self, run: str, approval: str, idempotency_key: str = injected()) -> client.Closing:
        return client.close_run(self._address(), run=run, approval=approval, key=idempotency_key)

    def _address(self) -> str:
        address = self._server or os.environ.get("RECON_SERVER")
        if not address:
            raise NotSent("RECON_SERVER is not set")
        return address


@contextmanager
def _may_be_too_late() -> Iterator[None]:
    """A 409 from a withdrawal says that somebody has used the thing meanwhile. Nobody may pretend that away."""
    try:
        yield
    except HTTPError as error:
        if error.code != 409:
            raise
        raise NotUndoable(json.load(error)["error"]) from error


def _only(found: Sequence[Record]) -> Record | Several | None:
    """None where nothing bears our key; several records with it are a question for a person, not a choice."""
    if len(found) > 1:
        return Several(list(found))
    return found[0] if found else None
