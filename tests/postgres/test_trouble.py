"""A server that is killed and comes back, results that it does not take, and heartbeats while a step blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.postgres.server import Server

from doubtless import Doubtless, injected
from doubtless.errors import StoreUnavailable, TaskBusy
from doubtless.events import Kind
from doubtless.store.pg.migrate import migrate

MakeApp = Callable[..., Doubtless]


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server()
    yield server.start()
    server.remove()


def test_a_server_that_is_killed_in_the_middle_of_a_task_costs_no_effect_and_doubles_none(
    own_server: Server, tmp_path: Path, make_app: MakeApp
) -> None:
    url = own_server.url(mark=str(tmp_path / "mark"))
    migrate(url, state=str(tmp_path))
    seen = {"append:before": 0}
    back: list[threading.Thread] = []

    def hooks(point: str) -> None:
        if point == "append:before":
            seen[point] += 1
            if seen[point] in (6, 17):
                own_server.stop(kill=True)
                back.append(threading.Thread(target=own_server.start))
                back[-1].start()
                back[-1].join()  # it is there again when the append is tried again; this connection is gone

    calls: list[int] = []
    app = make_app(url, hooks=hooks)

    @app.step(effect="non_idem_write")
    def pay(amount: int, idempotency_key: str = injected()) -> dict[str, int]:
        calls.append(amount)
        return {"paid": amount}

    @app.task
    def settle() -> int:
        return sum(pay(amount=n)["paid"] for n in range(15))

    assert app.run(settle, "t-1") == sum(range(15))
    assert calls == list(range(15))
    assert len(back) == 2
    assert app.verify() == []


def test_a_result_that_the_server_does_not_take_is_spilled_on_this_machine_and_taken_in_later_and_the_write_is_not_sent_again(
    make_app: MakeApp,
) -> None:
    calls: list[str] = []

    def build() -> tuple[Doubtless, Any]:
        app = make_app(store_patience=0.01)

        @app.step(effect="non_idem_write")
        def pay(idempotency_key: str = injected()) -> dict[str, str]:
            calls.append(idempotency_key)
            refuse(app)
            return {"sheet": "s" * 3000}

        @app.task
        def settle() -> dict[str, str]:
            return pay()

        return app, settle

    def refuse(app: Doubtless) -> None:
        store: Any = app.store

        def write(what: str, *args: Any) -> Any:
            raise StoreUnavailable("the server is away", written=False)

        store._link.write = write

    app, task = build()
    with pytest.raises(StoreUnavailable, match="its result is kept in"):
        app.run(task, "t-1")
    del app.store._link.write  # type: ignore[attr-defined]
    assert len(app.store.spilled("t-1")) == 1
    app.close()
    app.store._leases.held.clear()  # type: ignore[attr-defined]
    other, task = build()
    other.store._link.one(f'UPDATE "{other.store.place.schema}".tasks SET lease_until = 0 RETURNING 1')  # type: ignore[attr-defined]
    assert other.run(task, "t-1") == {"sheet": "s" * 3000}
    assert len(calls) == 1
    assert other.store.spilled("t-1") == []
    assert other.verify() == []


def test_leases_are_renewed_while_a_step_blocks_its_thread(url: str, make_app: MakeApp) -> None:
    began, go = threading.Event(), threading.Event()
    where = url + "&lease=PT1S"

    def build() -> tuple[Doubtless, Any]:
        app = make_app(where)

        @app.step(effect="non_idem_write", timeout="PT20S")
        def pay() -> dict[str, int]:
            began.set()
            assert go.wait(30)
            return {"paid": 1}

        @app.task
        def settle() -> dict[str, int]:
            return pay()

        return app, settle

    app, task = build()
    store: Any = app.store
    beats = threading.Event()
    real, seen = store._renew, []

    def renew(claims: Any) -> Any:
        stand = real(claims)
        seen.append(stand)
        if len(seen) >= 4:
            beats.set()
        return stand

    store._leases._renew = renew
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(app.run(task, "t-1")))
    thread.start()
    assert began.wait(30)
    assert beats.wait(30)
    other, other_task = build()
    with pytest.raises(TaskBusy):
        other.run(other_task, "t-1")
    go.set()
    thread.join(30)
    assert done == [{"paid": 1}]
    assert all(len(stand) == 1 for stand in seen)
    assert [row.kind for row in other.store.rows("t-1")].count(Kind.TASK_CLAIMED) == 1
