"""What every section stands on: folders, stores of both kinds, floors, and the app that is measured."""

from __future__ import annotations

import itertools
import tempfile
from typing import Any, NamedTuple, Protocol

import apsw

from doubtless import Doubtless, injected
from floor import Floor
from others import Others
from postgres import Cluster
from postgres_floor import PostgresFloor

TASK_ID = "recon-2026-11-28"  # 16 characters
DIFFERENCE = {"order": "A-17", "kind": "missing"}
SHOWN = {"sqlite": "SQLite", "postgres": "PostgreSQL"}

_numbers = itertools.count(1)


def create_adjustment(difference: dict[str, Any], amount: int, idempotency_key: str = injected()) -> dict[str, Any]:
    """A write's body: nothing but an answer, so that the log is all that is measured."""
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": idempotency_key[:8]}


def match_orders(difference: dict[str, Any], amount: int) -> dict[str, Any]:
    """A read's body."""
    return {"id": "sheet-4711", "amount": amount, "state": "open", "key": "12345678"}


def notify(text: str) -> dict[str, Any]:
    """The write before which a task stands while it is resumed again and again."""
    return {"sent": text}


class Log(Protocol):
    """A log by hand."""

    def write(self, task: str, seq: int, step: str, fn: Any, **params: Any) -> Any: ...

    def read(self, task: str, seq: int, step: str, fn: Any, **params: Any) -> Any: ...


class Ground(NamedTuple):
    """Where a run measures. `quick`: few rounds, for a look."""

    folder: str
    cluster: Cluster | None
    others: Others
    quick: bool

    @property
    def stores(self) -> list[str]:
        """The kinds of stores that can be had here."""
        return ["sqlite", "postgres"] if self.cluster is not None else ["sqlite"]

    def fresh(self, name: str) -> str:
        """A folder of a section's own."""
        return tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder)

    def url(self, store: str) -> str:
        """An empty store."""
        if store == "sqlite":
            return f"sqlite:///{self.fresh('store')}/log.db"
        assert self.cluster is not None
        return self.cluster.store()

    def floor(self, store: str, *, prepare: bool = True) -> Log:
        """An empty log by hand."""
        if store == "sqlite":
            return Floor(f"{self.fresh('floor')}/log.db")
        assert self.cluster is not None
        return PostgresFloor(self.cluster.plain, f"floor_{next(_numbers)}", prepare=prepare)

    def app(self, store: str) -> tuple[Doubtless, dict[str, Any]]:
        """An app on an empty store, with one step of each kind that is measured."""
        app = Doubtless(self.url(store))
        return app, {
            "write": app.step(effect="non_idem_write")(create_adjustment),
            "read": app.step(effect="read")(match_orders),
            "notify": app.step(effect="non_idem_write")(notify),
        }


def unsynced(app: Doubtless) -> None:
    """Fill a SQLite database faster: its syncs are not what is measured here."""
    path = getattr(app.store, "path", None)
    if path is None:
        return
    apsw.Connection(path).close()
    with app.store._link.lock:  # type: ignore[attr-defined]
        app.store._link.ready().execute("PRAGMA synchronous = OFF")  # type: ignore[attr-defined]
