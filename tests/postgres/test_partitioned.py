"""A log whose events are split by task id, with the statements that docs/scale.md shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.postgres.server import Server
from tests.postgres.test_connections import accepted, handles

from doubtless import Doubtless, injected
from doubtless.errors import Moved
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"


@pytest.fixture
def split(server: Server) -> Callable[[str], None]:
    """Splits the events of a schema."""

    def run(schema: str) -> None:
        (text,) = re.findall(r"```sql\n(BEGIN;\n.*?COMMIT;\n)```", PAGE.read_text(encoding="utf-8"), re.S)
        with server.connect() as connection:
            connection.execute(text.replace("doubtless.", f"{schema}.").encode())

    return run


def test_a_split_log_keeps_what_was_there_and_refuses_what_a_whole_one_refuses(
    open_store: Callable[..., PostgresStore], server: Server, split: Callable[[str], None], clock: FakeClock
) -> None:
    store = open_store()
    for n in range(20):
        store.accept(accepted(clock, f"t-{n}"))
    claim = store.claim("t-1")
    store.append(handles(store, clock, claim.epoch))
    before = store.rows("t-1")
    split(store.place.schema)
    assert store.rows("t-1") == before
    assert len([n for n in range(20) if store.rows(f"t-{n}")]) == 20
    (row,) = handles(store, clock, claim.epoch)
    store.append([row])
    with pytest.raises(Moved):
        store.append([row._replace(data='{"handle":2}')])
    with pytest.raises(Moved):
        store.append([row._replace(event_seq=9)])
    shared = [store.submit(handles(store, clock, claim.epoch))]
    store.flush()
    for ticket in shared:
        assert ticket is not None
        store.landed(ticket)
    assert store.verify() == []
    with server.connect() as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'events%%'", (store.place.schema,)
            ).fetchall()
        ]
        assert len(tables) == 9
        for name in tables:
            for deed in (f"UPDATE {store.place.schema}.{name} SET step_name = 'x'", f"DELETE FROM {store.place.schema}.{name}"):
                with pytest.raises(psycopg.Error, match="append-only"):
                    connection.execute(deed.encode())


def test_a_task_goes_on_in_a_log_that_was_split(
    make_app: Callable[..., Doubtless], split: Callable[[str], None], url: str
) -> None:
    app = make_app()
    called: list[int] = []

    @app.step(effect="non_idem_write")
    def pay(order: int, idempotency_key: str = injected()) -> dict[str, int]:
        called.append(order)
        return {"order": order}

    @app.task
    def many(count: int) -> int:
        for order in range(count):
            pay(order=order)
        app.wait_for("go", deadline="PT1H")
        for order in range(count):
            pay(order=order)
        return count

    app.start(many, "t-1", count=3)
    with pytest.raises(Exception, match="t-1"):
        app.resume("t-1", wait=False)
    split(app.store.place.schema)  # type: ignore[attr-defined]
    app.send_event("t-1", "go", {}, event_id="e-1")
    assert app.resume("t-1") == 3
    assert called == [0, 1, 2, 0, 1, 2]
    assert app.verify() == []
