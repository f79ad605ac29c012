"""The reconciliation example as a child of the kill sweep: its own app and steps, with points in them and a clock to turn.

    python -m crash.reconciliation FOLDER SERVER BOOKS     exit code 0: done; 3: it needs a person; 4: it has failed

With ``long`` after that the chat answers with a long receipt; with ``full`` also the disk is full from that moment until
the task is run again, by the same process.
BOOKS holds ``statement.csv`` and ``orders.csv``, FOLDER the store and the clock of one run, SERVER is the other side.
"""

from __future__ import annotations

import csv
import io
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from examples.reconciliation import app as example
from examples.reconciliation import generate
from examples.reconciliation.actions import Actions
from examples.reconciliation.app import Recon

from doubtless import Doubtless, NeedsHuman, StoreUnavailable, TaskFailed, blobs

from .clock import TurnedClock
from .sweep import Points

TASK, DAY = "recon", str(generate.DAY)
BIG = 8 << 10
"""From this size on content is a file of its own here: small books are to do what a year's do from 1 MiB on."""

READS = ("load_statement", "load_orders", "match_orders")
WRITES = ("create_adjustment", "submit_approval", "notify", "close_run")
QUERIES = ("find_adjustment", "find_approval")
WITHDRAWALS = ("withdraw_adjustment", "withdraw_approval")

NEEDS_HUMAN, FAILED = 3, 4
RECEIPT = "r" * (6 << 10)
"""What the chat answers at length: more than fits into the pages that the store has."""

_building = threading.Lock()


class Watched(Actions):
    """The example's actions, with a point before and after each of them."""

    def __init__(self, server: str | None, points: Points, more: str, fill: Callable[[], None]) -> None:
        super().__init__(server)
        self._more, self._fill = more, fill
        for name in (*READS, *WRITES, *QUERIES, *WITHDRAWALS):
            setattr(self, name, points.around(getattr(self, name)))

    def notify(self, run: str, text: str) -> Any:
        sent = super().notify(run, text)
        if self._more == "full":
            self._fill()
        return {**sent, "receipt": RECEIPT} if self._more else sent


def build(folder: Path, server: str, points: Points | None = None, *, more: str = "", read_only: bool = False) -> Recon:
    """The example's app as its own `build` makes it, on this folder's store and clock; with points, killed where they say."""

    def fill() -> None:
        recon.app.store.limit_pages(recon.app.store.pages())

    clock = TurnedClock(folder / "clock")
    made = partial(Doubtless, clock=clock, namespace="sweep", hooks=points, store_patience="PT1S", read_only=read_only)
    actions = Actions if points is None else partial(Watched, points=points, more=more, fill=fill)
    with _building, mock.patch.object(example, "Doubtless", made), mock.patch.object(example, "Actions", actions):
        recon = example.build(f"sqlite:///{folder / 'recon.db'}", server)
    return recon


def write_books(folder: Path, seed: int, keep: int) -> None:
    """A generated statement and ledger of which only `keep` true differences are left: fewer sheets, fewer points."""
    made = generate.write(folder, seed, rows=1)
    gone = {name for truth in made.truth[keep:] for name in (truth.order, *truth.entries)}
    for name, content, column in (("statement", made.statement, "entry_id"), ("orders", made.orders, "document_id")):
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            left = csv.DictWriter(file, rows.fieldnames or ())
            left.writeheader()
            left.writerows(row for row in rows if row[column] not in gone)


def main() -> int:
    folder, server, books, more = (*sys.argv[1:], "")[:4]
    recon = build(Path(folder), server, Points.from_environment(), more=more)
    files = {name: str(Path(books) / f"{name}.csv") for name in ("statement", "orders")}
    try:
        with mock.patch.object(blobs, "DATABASE_BYTES", BIG):
            try:
                recon.app.run(recon.reconcile, TASK, day=DAY, **files)
            except StoreUnavailable:
                if more != "full":
                    raise
                recon.app.store.limit_pages(None)
                recon.app.run(recon.reconcile, TASK, day=DAY, **files)
        return 0
    except NeedsHuman:
        return NEEDS_HUMAN
    except TaskFailed:
        return FAILED
    finally:
        recon.app.close()


if __name__ == "__main__":
    sys.exit(main())
