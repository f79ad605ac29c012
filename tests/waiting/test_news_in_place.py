"""What comes in for a wait in place ends it, also where another thread or branch of the process has read it first."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from doubtless import Doubtless, NotSent, TaskFailed
from doubtless.orders import order_cancelling

PATIENCE = 20.0


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = Doubtless(f"sqlite:///{tmp_path}/t.db")  # on the clock of this machine: it stands for an hour
    yield app
    app.close()


def ended(work: Any) -> Any:
    """What `work` raises or returns, in a thread of its own, within PATIENCE."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "it waits on"
    return found[0]


def standing(app: Doubtless) -> threading.Event:
    """Set as soon as something of this app waits in place."""
    stands, runtime = threading.Event(), app.runtime
    pause, apause = runtime.pause, runtime.apause

    def seen_pause(seconds: float, stop: threading.Event | None) -> None:
        stands.set()
        pause(seconds, stop)

    async def seen_apause(seconds: float) -> None:
        stands.set()
        await apause(seconds)

    runtime.pause, runtime.apause = seen_pause, seen_apause
    return stands


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("what", ["sleep", "question", "backoff", "child"])
def test_a_cancel_of_the_same_process_ends_a_wait_in_place_at_any_depth(app: Doubtless, what: str, how: str) -> None:
    @app.step(effect="read")
    def look() -> int:
        raise NotSent("down", retry_after="PT1H")

    def wait() -> Any:
        return look if what == "backoff" else app.wait_for("q", deadline="PT1H") if what == "question" else app.sleep("PT1H")

    @app.task
    def child() -> Any:
        waits = wait()
        return waits() if what == "backoff" else waits

    @app.task
    def task() -> Any:
        return app.parallel(child, lambda: child()) if what == "child" else child.fn()

    @app.task
    async def atask() -> Any:
        if what == "child":
            return await app.parallel(lambda: child.acall(), lambda: child.acall())
        return await (look.acall() if what == "backoff" else wait())

    stands = standing(app)
    run = threading.Thread(target=lambda: ended(lambda: app.run(task if how == "sync" else atask, "t")), daemon=True)
    run.start()
    assert stands.wait(PATIENCE)
    app.cancel("t", by="anna", why="not wanted")
    run.join(PATIENCE)
    assert not run.is_alive()
    assert {head.status for head in app.tasks()} == {"cancelled"}


def test_a_child_that_is_accepted_while_its_parent_is_cancelled_is_cancelled_too(app: Doubtless) -> None:
    @app.task
    def child() -> Any:
        return app.sleep("PT1H")

    @app.task
    def task() -> Any:
        return child()

    store = app.runtime.store
    accept = store.accept

    def late(accepted: Any, blobs: Any = ()) -> Any:
        if accepted.task_id == "t/1":  # who cancels has looked for children already
            order_cancelling(app.runtime, "t", "anna", "not wanted")
        return accept(accepted, blobs)

    store.accept = late  # type: ignore[method-assign]
    error = ended(lambda: app.run(task, "t"))
    assert isinstance(error, TaskFailed)
    assert {head.status for head in app.tasks()} == {"cancelled"}


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_event_that_another_branch_has_read_ends_the_wait_for_it(app: Doubtless, how: str) -> None:
    @app.step(effect="non_idem_write")
    def send() -> dict[str, int]:
        assert stands.wait(PATIENCE)  # the other branch, for its answer
        app.send_event("t", "q", "yes")  # the row that records this call finds it in the log, and takes it in
        return {"sent": 1}

    def question() -> Any:
        return app.wait_for("q", deadline="PT1H")

    @app.task
    def task() -> Any:
        return app.parallel(question, send)

    @app.task
    async def atask() -> Any:
        return list(await asyncio.gather(question(), send.acall()))

    stands = standing(app)
    assert ended(lambda: app.run(task if how == "sync" else atask, "t")) == ["yes", {"sent": 1}]
