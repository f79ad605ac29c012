"""Tasks that run side by side share commits: durable at return as before, and one refused row does not harm the others."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tasks_ground import PATIENCE, Deploys, World, kinds, outcomes, raised, rows, settle, statuses, until

from doubtless import Answer, Doubtless, NeedsHuman, StoreUnavailable, TaskFrozen, injected
from doubtless.errors import DoubtlessError, InputDiffers, StoreRefused
from doubtless.events import Kind, draft
from doubtless.log import TaskLog
from doubtless.passes import Pass
from doubtless.store.pg.migrate import migrate
from doubtless.store.postgres import PostgresStore
from doubtless.store.sqlite import SqliteStore
from doubtless.store.tickets import Waits
from doubtless.tasks import TaskRun
from doubtless.testing import FakeClock

SIDE_BY_SIDE = 20


@pytest.fixture(params=["sqlite", "postgres"])
def deploy(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Deploys]:
    """Apps on one store of each kind; at the end it has to be sound."""
    url = None
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server").url(mark=str(tmp_path / "mark"))
        migrate(url, state=str(tmp_path), namespace=b"tests")
    deploys = Deploys(tmp_path, clock, url)
    yield deploys
    deploys.end()


@pytest.fixture
def app(deploy: Deploys) -> Doubtless:
    return deploy()


class Commits:
    """Counts the commits of an app's store: of a server, each statement that writes is one."""

    def __init__(self, app: Doubtless) -> None:
        app.store.info()
        self.count = 0
        if isinstance(app.store, SqliteStore):
            connection = app.store._link._connection
            assert connection is not None
            connection.set_commit_hook(self._committed)
        else:
            assert isinstance(app.store, PostgresStore)
            self._write, app.store._link.write = app.store._link.write, self._counted  # type: ignore[method-assign]

    def _committed(self) -> bool:
        self.count += 1
        return False

    def _counted(self, *args: Any) -> Any:
        self.count += 1
        return self._write(*args)


def paths_on_disk(app: Doubtless, task_id: str) -> list[tuple[str, str | None]]:
    """The kinds and places of a task's rows, as another process would read them."""
    if isinstance(app.store, PostgresStore):
        place = app.store.place
        with psycopg.connect(place.conninfo, options=f"-c search_path={place.schema}") as connection:
            asked = "SELECT kind, path FROM events WHERE task_id = %s ORDER BY event_seq"
            return [(str(kind), path) for kind, path in connection.execute(asked, (task_id,)).fetchall()]
    assert isinstance(app.store, SqliteStore)
    other = apsw.Connection(app.store.path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        asked = "SELECT kind, path FROM events WHERE task_id = ? ORDER BY event_seq"
        return [(str(kind), path) for kind, path in other.execute(asked, (task_id,)).fetchall()]
    finally:
        other.close()


def on_disk(app: Doubtless, task_id: str) -> list[str]:
    """The kinds of a task's rows, as another process would read them."""
    return [kind for kind, _ in paths_on_disk(app, task_id)]


def full_disk(store: Any, full: bool) -> None:
    """Let the store take no more rows; or let it again."""
    if isinstance(store, SqliteStore):
        store.limit_pages(1 if full else None)
        return

    def refuse(*_: Any) -> Any:
        raise StoreUnavailable("no space left on device", written=False)

    if full:
        store._link.write = refuse
    else:
        store._link.__dict__.pop("write", None)


def paying(
    app: Doubtless, world: World, steps: int = 3, seen: list[list[str]] | None = None, threaded: bool = False
) -> Any:  # fmt: skip
    """An async task of some writes, each of which looks from outside at what is durable when it is called."""

    def paid(task: str, n: int, key: str) -> dict[str, Any]:
        if seen is not None:
            seen.append(on_disk(app, task))
        return world.do(f"{task}:{n}", None, key)

    @app.step(effect="idem_write")
    async def pay(task: str, n: int, idempotency_key: str = injected()) -> dict[str, Any]:
        await asyncio.sleep(0)
        return paid(task, n, idempotency_key)

    @app.step(effect="idem_write")
    def pay_aside(task: str, n: int, idempotency_key: str = injected()) -> dict[str, Any]:
        return paid(task, n, idempotency_key)

    @app.step(effect="read")
    async def look(task: str) -> int:
        return len(task)

    @app.task
    async def task(name: str) -> int:
        await look(task=name)
        for n in range(steps):
            await (pay_aside.acall if threaded else pay)(task=name, n=n)
            if seen is not None:
                assert on_disk(app, name)[-1] == Kind.STEP_SETTLED
        return steps

    return task


def test_tasks_of_one_event_loop_share_their_commits(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=10)
    app.run(task, "warm", name="warm")
    commits = Commits(app)

    async def alone() -> None:
        await app.arun(task, "alone", name="alone")

    async def together() -> None:
        await asyncio.gather(*[app.arun(task, f"t{n}", name=f"t{n}") for n in range(SIDE_BY_SIDE)])

    asyncio.run(alone())
    one, commits.count = commits.count, 0
    asyncio.run(together())
    own = one - 20  # accept, claim, the first row and the end are each task's own; those of the ten writes are shared
    assert one >= 20
    assert commits.count <= 2 * 20 + SIDE_BY_SIDE * own  # a half of them while the loop works for the other
    assert world.n() == (SIDE_BY_SIDE + 2) * 10


def test_reads_of_one_event_loop_share_their_commits(app: Doubtless) -> None:
    @app.step(effect="read")
    async def look(n: int) -> int:
        return n

    @app.task
    async def looking(steps: int) -> list[int]:
        return [await look(n=n) for n in range(steps)]

    app.run(looking, "warm", steps=1)
    commits = Commits(app)

    async def together() -> list[list[int]]:
        return await asyncio.gather(*[app.arun(looking, f"t{n}", steps=10) for n in range(SIDE_BY_SIDE)])

    assert asyncio.run(together()) == [list(range(10))] * SIDE_BY_SIDE
    assert commits.count <= 2 * 10 + 2 * SIDE_BY_SIDE  # the beginnings and ends of tasks share theirs as well
    assert all(kinds(app, f"t{n}").count(Kind.STEP_SETTLED) == 10 for n in range(SIDE_BY_SIDE))


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "threaded"])
def test_on_the_event_loop_the_intent_is_durable_before_the_call_and_the_result_before_it_is_handed_on(
    app: Doubtless, world: World, threaded: bool
) -> None:
    seen: list[list[str]] = []
    task = paying(app, world, seen=seen, threaded=threaded)

    async def together() -> None:
        await asyncio.gather(*[app.arun(task, f"t{n}", name=f"t{n}") for n in range(SIDE_BY_SIDE)])

    asyncio.run(together())
    assert len(seen) == SIDE_BY_SIDE * 3
    assert all(kinds[-1] == Kind.STEP_INTENDED for kinds in seen)


@pytest.mark.parametrize("threaded", [False, True], ids=["async", "threaded"])
def test_in_branches_too_the_intent_is_durable_before_the_call_and_the_result_before_it_is_handed_on(
    app: Doubtless, world: World, threaded: bool
) -> None:
    seen: list[tuple[str, str]] = []

    def last_of(task: str, path: str) -> str:
        return [kind for kind, at in paths_on_disk(app, task) if at == path][-1]

    @app.step(effect="idem_write")
    async def pay(task: str, path: str, idempotency_key: str = injected()) -> dict[str, Any]:
        seen.append(("called", last_of(task, path)))
        await asyncio.sleep(0)
        return world.do(f"{task}:{path}", None, idempotency_key)

    @app.step(effect="idem_write")
    def pay_aside(task: str, path: str, idempotency_key: str = injected()) -> dict[str, Any]:
        seen.append(("called", last_of(task, path)))
        return world.do(f"{task}:{path}", None, idempotency_key)

    @app.task
    async def task(name: str) -> None:
        paid = [(pay_aside.acall if threaded else pay)(task=name, path=str(n + 1)) for n in range(5)]

        async def after(n: int) -> None:
            await paid[n]
            seen.append(("handed on", last_of(name, str(n + 1))))

        await asyncio.gather(*[after(n) for n in range(5)])

    app.run(task, "t", name="t")
    assert sorted(set(seen)) == [("called", Kind.STEP_INTENDED), ("handed on", Kind.STEP_SETTLED)]
    assert len(seen) == 10


def test_threads_that_come_while_another_one_syncs_share_the_next_commit(app: Doubtless, world: World) -> None:
    @app.step(effect="idem_write")
    def pay(n: int, idempotency_key: str = injected()) -> dict[str, Any]:
        met.wait(PATIENCE)  # all of them are called before the first returns, and all return at once
        return world.do("pay", n, idempotency_key)

    @app.task
    def task(n: int) -> int:
        pay(n=n)
        return n

    met = threading.Barrier(SIDE_BY_SIDE)
    commits = Commits(app)
    store = app.store
    turn = store._link.lock if isinstance(store, SqliteStore) else store._sharing.turn  # type: ignore[attr-defined]
    held = threading.Event()
    waiting = app.store._sharing.waiting  # type: ignore[attr-defined]

    def hold() -> None:
        with turn:
            commits.count = 0
            held.set()
            for _ in range(10_000):  # until all results are there
                if len(waiting) == SIDE_BY_SIDE:
                    return
                gate.wait(0.005)

    gate = threading.Event()
    threads = [threading.Thread(target=app.run, args=(task, f"t{n}"), kwargs={"n": n}) for n in range(SIDE_BY_SIDE)]
    holder = threading.Thread(target=hold)
    original = met.wait

    def wait(timeout: float | None = None) -> int:
        number = original(timeout)
        if number == 0:
            holder.start()
        assert held.wait(PATIENCE)
        return number

    met.wait = wait  # type: ignore[method-assign]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    holder.join(PATIENCE)
    assert world.n("pay") == SIDE_BY_SIDE
    assert all(app.show(f"t{n}").status == "done" for n in range(SIDE_BY_SIDE))
    assert commits.count <= 1 + SIDE_BY_SIDE  # the results in one, and each task's end


def test_a_row_that_is_refused_does_not_harm_those_beside_it(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=2)

    async def together() -> list[Any]:
        begun = [asyncio.ensure_future(app.arun(task, f"t{n}", name=f"t{n}")) for n in range(3)]
        flush = app.store.flush

        def meddled(*how: Any) -> int:  # between the moment when a row is put down and its commit, somebody else writes
            if app.store.head("t1") is None or Kind.STEP_SETTLED not in kinds(app, "t1"):
                return flush(*how)  # the tasks begin, or look
            app.store.flush = flush  # type: ignore[method-assign]
            app.cancel("t1", by="anna", why="no longer wanted")
            return flush(*how)

        app.store.flush = meddled  # type: ignore[method-assign]
        return await asyncio.gather(*begun, return_exceptions=True)

    ended = asyncio.run(together())
    assert [ended[0], ended[2]] == [2, 2]
    assert isinstance(ended[1], DoubtlessError)
    assert app.show("t1").status == "cancelled"
    assert world.n("t1:0") == 0
    assert kinds(app, "t1").count(Kind.STEP_INTENDED) == 0
    assert world.n() == 4


def test_a_freeze_that_comes_before_the_commit_stops_the_write(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)

    async def frozen() -> None:
        flush = app.store.flush

        def meddled(*how: Any) -> int:
            app.store.flush = flush  # type: ignore[method-assign]
            app.freeze("pay", by="anna", why="a wrong price list")
            return flush(*how)

        app.store.flush = meddled  # type: ignore[method-assign]
        with pytest.raises(TaskFrozen):
            await app.arun(task, "t", name="t", wait=False)

    asyncio.run(frozen())
    assert world.n() == 0
    app.thaw("pay", by="anna", why="corrected")
    app.run(task, "t", name="t")
    assert world.n() == 1


def test_when_the_shared_commit_fails_nothing_was_called_and_what_was_done_is_recorded_later(
    deploy: Deploys, world: World
) -> None:
    app = deploy(store_patience=0.001)
    task = paying(app, world, steps=1)
    store = app.store
    app.run(task, "warm", name="warm")

    async def together(at: int) -> list[Any]:
        flush, turn = store.flush, 0

        def full(*how: Any) -> int:
            nonlocal turn
            turn += 1
            if turn == at:
                full_disk(store, True)
            return flush(*how)

        store.flush = full  # type: ignore[method-assign]
        try:
            return await asyncio.gather(
                *[app.arun(task, f"{at}-{n}", name=f"{at}-{n}" + "x" * 3000) for n in range(5)], return_exceptions=True
            )
        finally:
            store.flush = flush  # type: ignore[method-assign]
            full_disk(store, False)

    for at in (1, 2, 3, 4):  # the commit of what begins, of the reads, of the intents, of what the writes came to
        before = world.n()
        ended = asyncio.run(together(at))
        assert any(isinstance(one, StoreUnavailable) for one in ended), ended
        assert (world.n() > before) == (at == 4)
        for n in range(5):
            app.run(task, f"{at}-{n}", name=f"{at}-{n}" + "x" * 3000)
        assert world.n() == before + 5  # each once


def test_a_new_task_of_a_loop_is_not_looked_for_and_one_that_exists_is_found_by_the_commit(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)
    head, looks = app.store.head, []

    def look(task_id: str) -> Any:
        looks.append(task_id)
        return head(task_id)

    app.store.head = look  # type: ignore[method-assign]
    assert asyncio.run(app.arun(task, "t", name="t")) == 1
    assert looks == []
    assert asyncio.run(app.arun(task, "t", name="t")) == 1
    assert world.n() == 1 and kinds(app, "t").count(Kind.TASK_ACCEPTED) == 1
    before = kinds(app, "t")
    with pytest.raises(InputDiffers):
        asyncio.run(app.arun(task, "t", name="another"))
    assert kinds(app, "t") == before


def test_what_a_task_has_come_to_is_given_also_while_the_store_takes_no_writes(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)
    assert asyncio.run(app.arun(task, "t", name="t")) == 1

    def refused(*given: Any, **more: Any) -> Any:
        raise StoreRefused("it takes no writes", hint="wait")

    app.store.submit_begin = refused  # type: ignore[method-assign]
    assert asyncio.run(app.arun(task, "t", name="t")) == 1
    with pytest.raises(StoreRefused):
        asyncio.run(app.arun(task, "new", name="new"))
    assert app.store.head("new") is None


def test_cancelled_while_it_is_begun_a_task_is_recorded_and_nobodys(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)

    async def cancelled() -> None:
        running = asyncio.ensure_future(app.arun(task, "t", name="t"))
        submit = app.store.submit_begin

        def and_cancel(*args: Any) -> Any:
            running.cancel()
            return submit(*args)

        app.store.submit_begin = and_cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    head = app.store.head("t")
    assert head is not None
    assert (head.status, head.owner) == ("ready", None)
    assert kinds(app, "t") == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED, Kind.TASK_PARKED]
    assert app.run(task, "t", name="t") == 1
    assert app.verify() == []


def test_a_signal_that_breaks_in_as_a_claim_is_taken_in_leaves_a_new_task_to_nobody(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)
    store: Any = app.store
    landed = store.landed

    def break_in(ticket: Any) -> Any:
        store.landed = landed
        raise KeyboardInterrupt

    store.landed = break_in
    assert isinstance(raised(lambda: asyncio.run(app.arun(task, "t", name="t"))), KeyboardInterrupt)
    head = app.store.head("t")
    assert head is not None
    assert (head.status, head.owner) == ("ready", None)
    assert app.run(task, "t", name="t") == 1
    assert app.verify() == []


def test_cancelled_while_it_is_begun_a_task_that_cannot_be_given_back_is_given_back_later(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)

    async def cancelled() -> None:
        running = asyncio.ensure_future(app.arun(task, "t", name="t"))
        submit, landed = app.store.submit_begin, app.store.landed

        def and_cancel(*args: Any) -> Any:
            running.cancel()
            return submit(*args)

        def and_no_more(ticket: Any) -> Any:
            claim = landed(ticket)
            full_disk(app.store, True)
            return claim

        app.store.submit_begin = and_cancel  # type: ignore[method-assign]
        app.store.landed = and_no_more  # type: ignore[method-assign]
        try:
            with pytest.raises(asyncio.CancelledError):
                await running
        finally:
            del app.store.submit_begin, app.store.landed
            full_disk(app.store, False)

    asyncio.run(cancelled())
    assert world.n() == 0
    assert app.run(task, "t", name="t") == 1
    assert app.verify() == []


def test_cancelled_while_its_end_waits_for_the_commit_a_task_is_done_and_its_caller_is_told(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)

    async def cancelled() -> None:
        running = asyncio.ensure_future(app.arun(task, "t", name="t"))
        submit = app.store.submit

        def and_cancel(events: Any, **options: Any) -> Any:
            if events[-1].kind == Kind.TASK_ENDED:
                running.cancel()
            return submit(events, **options)

        app.store.submit = and_cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert kinds(app, "t").count(Kind.TASK_ENDED) == 1
    assert app.run(task, "t", name="t") == 1
    assert world.n() == 1
    assert app.verify() == []


def test_a_task_whose_end_is_refused_because_it_was_cancelled_meanwhile_ends_cancelled(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=0)

    async def run() -> Any:
        submit = app.store.submit

        def meddled(events: Any, **options: Any) -> Any:
            if events[-1].kind == Kind.TASK_ENDED:
                app.store.submit = submit  # type: ignore[method-assign]
                app.cancel("t", by="anna", why="no longer wanted")
            return submit(events, **options)

        app.store.submit = meddled  # type: ignore[method-assign]
        return await asyncio.gather(app.arun(task, "t", name="t"), return_exceptions=True)

    assert isinstance(asyncio.run(run())[0], DoubtlessError)
    assert app.show("t").status == "cancelled"
    assert kinds(app, "t").count(Kind.TASK_ENDED) == 1
    assert app.verify() == []


def test_cancelled_while_its_intent_waits_for_the_commit_a_write_is_not_sent(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)

    async def cancelled() -> None:
        running = asyncio.ensure_future(app.arun(task, "t", name="t", wait=False))
        submit = app.store.submit

        def and_cancel(*args: Any, **options: Any) -> Any:
            ticket = submit(*args, **options)
            if ticket is None or args[0][0].kind != Kind.STEP_INTENDED:
                return ticket
            app.store.submit = submit  # type: ignore[method-assign]
            running.cancel()
            return ticket

        app.store.submit = and_cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert world.n() == 0
    assert outcomes(app, "t", "2") == [("not_sent", "interrupted")]
    app.run(task, "t", name="t")
    assert world.n() == 1


def test_cancelled_while_its_result_waits_for_the_commit_a_write_is_done_and_the_task_is_cancelled_later(
    app: Doubtless, world: World
) -> None:
    task = paying(app, world, steps=2)

    async def cancelled() -> None:
        running = asyncio.ensure_future(app.arun(task, "t", name="t", wait=False))
        submit = app.store.submit

        def and_cancel(events: Any, **options: Any) -> Any:
            ticket = submit(events, **options)
            if events[0].kind == Kind.STEP_SETTLED and events[0].path == "2":
                app.store.submit = submit  # type: ignore[method-assign]
                running.cancel()
            return ticket

        app.store.submit = and_cancel  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert statuses(app, "t")["2"] == "done"
    assert world.n("t:0") == 1
    assert world.n("t:1") == 0
    app.run(task, "t", name="t")
    assert world.n() == 2


def test_cancelled_while_its_result_is_refused_a_write_is_not_sent_again_and_the_caller_is_told(deploy: Deploys, world: World) -> None:
    app = deploy(store_patience=0.001)
    task = paying(app, world, steps=1)

    async def cancelled() -> None:
        running = asyncio.ensure_future(app.arun(task, "t", name="t", wait=False))
        submit = app.store.submit

        def refuse(events: Any, **options: Any) -> Any:
            if (events[0].kind, events[0].path) != (Kind.STEP_SETTLED, "2"):
                return submit(events, **options)
            full_disk(app.store, True)
            running.cancel()
            raise StoreUnavailable("no space left on device", written=False)

        app.store.submit = refuse  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await running
        app.store.submit = submit  # type: ignore[method-assign]
        full_disk(app.store, False)

    asyncio.run(cancelled())
    assert world.n() == 1
    app.run(task, "t", name="t")
    assert world.n() == 1
    assert statuses(app, "t")["2"] == "done"


@pytest.mark.parametrize("refused", [False, True])
def test_what_a_call_came_to_that_asked_for_its_own_cancellation_is_recorded(app: Doubtless, world: World, refused: bool) -> None:
    @app.step(effect="non_idem_write")
    async def pay(idempotency_key: str = injected()) -> int:
        world.do("pay", None, idempotency_key)
        for each in asyncio.all_tasks():
            if each is asyncio.current_task():
                each.cancel()
        return 7

    @app.step(effect="non_idem_write")
    async def lose(idempotency_key: str = injected()) -> int:
        await pay.fn(idempotency_key)
        raise ConnectionError("no answer")

    @app.task
    async def task(well: bool) -> int:
        return await (pay if well else lose)()

    store, submit = app.store, app.store.submit

    def refuse(events: Any, **options: Any) -> Any:
        ticket = submit(events, **options)
        if refused and events[0].kind == Kind.STEP_SETTLED:
            store.add("t", [draft("t", Kind.CANCEL_REQUESTED, store.now(), data={"by": "anna", "why": "no longer wanted"})])
        return ticket

    store.submit = refuse  # type: ignore[method-assign]
    if refused:
        assert isinstance(raised(lambda: asyncio.run(app.arun(task, "t", True))), DoubtlessError)
        assert statuses(app, "t")["1"] == "done"
    else:
        assert asyncio.run(app.arun(task, "t", True)) == 7
    with pytest.raises(NeedsHuman):
        asyncio.run(app.arun(task, "u", False))
    assert outcomes(app, "u", "1") == [("unknown", "ConnectionError")]
    assert world.n("pay") == 2


def test_a_signal_that_breaks_in_as_a_thread_tells_its_loop_of_a_result_loses_nothing_and_keeps_nobody_waiting(
    app: Doubtless, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = paying(app, world, steps=1, threaded=True)
    loop = asyncio.new_event_loop()
    running = loop.create_task(app.arun(task, "t", name="t", wait=False))

    def break_in(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("doubtless.acalls._set", break_in)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(running)
    running.cancel()
    loop.run_until_complete(asyncio.wait({running}, timeout=PATIENCE))
    assert running.cancelled()
    loop.close()
    app.run(task, "t", name="t")
    assert world.n() == 1
    assert statuses(app, "t")["2"] == "done"


def test_an_event_loop_that_is_torn_down_while_a_result_waits_for_the_commit_leaves_the_write_done(
    app: Doubtless, world: World
) -> None:
    task = paying(app, world, steps=1)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it says that tasks were destroyed; so they were
    running = app.arun(task, "t", name="t")
    future, submit, torn = loop.create_task(running), app.store.submit, False

    def and_stop(events: Any, **options: Any) -> Any:
        nonlocal torn
        ticket = submit(events, **options)
        if (events[0].kind, events[0].path) == (Kind.STEP_SETTLED, "2"):
            torn = True
            loop.stop()
        return ticket

    app.store.submit = and_stop  # type: ignore[method-assign]
    loop.run_forever()
    assert torn
    app.store.submit = submit  # type: ignore[method-assign]
    running.close()
    for left in asyncio.all_tasks(loop):
        left.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    del future
    assert statuses(app, "t")["2"] == "done"
    assert app.show("t").owner is None
    app.run(task, "t", name="t")
    assert world.n() == 1


def test_a_row_that_nobody_committed_is_never_taken_for_written(app: Doubtless, world: World, tmp_path: Path) -> None:
    task = paying(app, world, steps=1)
    store: Any = app.store

    async def lost() -> None:
        flush = store.flush

        def forgotten(*how: Any) -> int:
            store.flush = flush  # type: ignore[method-assign]
            store._sharing.waiting.clear()
            return 0

        store.flush = forgotten  # type: ignore[method-assign]
        await app.arun(task, "t", name="t")

    asyncio.run(lost())
    assert kinds(app, "t").count(Kind.STEP_INTENDED) == 1
    assert [row.event_seq for row in rows(app, "t")] == list(range(1, len(rows(app, "t")) + 1))


def test_a_row_whose_landing_a_signal_breaks_into_is_not_taken_for_durable(app: Doubtless, world: World) -> None:
    seen: list[list[str]] = []

    @app.step(effect="non_idem_write")
    async def pay(task: str, path: str) -> dict[str, Any]:
        seen.append([kind for kind, at in paths_on_disk(app, task) if at == path])
        return world.do(path)

    @app.task
    async def task(name: str) -> None:
        await asyncio.gather(pay(task=name, path="1"), pay(task=name, path="2"))

    landed = app.store.landed

    def broken_into(ticket: Any) -> Any:
        if getattr(ticket, "event", None) is None or ticket.event.path != "1":
            return landed(ticket)
        app.store.landed = landed  # type: ignore[method-assign]
        store: Any = app.store
        store._sharing.waiting.remove(ticket)  # as a commit leaves it that is broken into: to be written by itself
        ticket.alone = ticket.done = True
        raise KeyboardInterrupt

    app.store.landed = broken_into  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):  # the second branch's row makes the first one's land
        asyncio.run(app.arun(task, "t", name="t", wait=False))
    assert all(kinds == [Kind.STEP_INTENDED] for kinds in seen)
    assert kinds(app, "t", "1")[0] == Kind.STEP_INTENDED


def test_what_is_kept_for_an_event_loop_goes_when_the_loop_is_gone(app: Doubtless, world: World) -> None:
    task, loops = paying(app, world, steps=1), []

    async def noted(n: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await app.arun(task, f"t{n}", name=f"t{n}")

    for n in range(3):
        asyncio.run(noted(n))

    def gone() -> bool:  # the thread that made a loop's last commit knows it until it waits for the next one
        gc.collect()
        return [loop() for loop in loops] == [None] * 3

    until(gone, "the end of what is kept with three loops")


def test_a_run_that_has_ended_goes_at_once_and_needs_no_garbage_collector(app: Doubtless, world: World) -> None:
    task = paying(app, world, steps=1)

    async def side_by_side() -> None:
        await asyncio.gather(*(app.arun(task, f"recon-{n}", name=f"recon-{n}") for n in range(4)))

    gc.collect()
    before = sum(isinstance(one, TaskRun | Pass | TaskLog | Waits) for one in gc.get_objects())  # of other tests
    gc.disable()
    try:
        asyncio.run(side_by_side())
        assert sum(isinstance(one, TaskRun | Pass | TaskLog | Waits) for one in gc.get_objects()) == before
    finally:
        gc.enable()


def test_a_task_that_exists_is_found_by_the_commit_that_would_begin_it_and_nothing_is_counted(
    deploy: Deploys, world: World
) -> None:
    app = deploy()
    if not isinstance(app.store, SqliteStore):
        pytest.skip("a server counts in the statement that begins it")
    task, link = paying(app, world, steps=1), app.store._link
    app.run(task, "t", name="t")
    counted = link.one("SELECT generation FROM meta")
    asyncio.run(app.arun(task, "t", name="t"))
    assert app.store.begin(app.store.first("t")) is None
    assert link.one("SELECT generation FROM meta") == counted
    assert world.n() == 1


def test_another_thread_sees_the_parts_that_a_run_works_with_when_they_are_whole(app: Doubtless) -> None:
    seen: list[Any] = []

    class Children:
        call = None

        def __getattribute__(self, name: str) -> Any:
            if name == "call":
                seen.append(app._runtime)
            return object.__getattribute__(self, name)

    app._children = Children()  # type: ignore[assignment]
    assert app.runtime.run_child is app._children
    assert seen == [None]


@pytest.mark.parametrize("effect", ["read", "non_idem_write"])
@pytest.mark.parametrize("meanwhile", ["nothing", "news"])
def test_an_output_that_does_not_fit_is_recorded_and_asked_for_at_once_on_a_loop_too(
    app: Doubtless, world: World, effect: Any, meanwhile: str
) -> None:
    asked: list[str] = []

    @app.on_case
    def tell(case: Any) -> None:
        asked.append(case.kind)

    @app.step(effect=effect)
    async def pay(name: str) -> int:
        if meanwhile == "news" and not world.n():  # the row that says what came of the call is not refused for good
            app.send_event(name, "news")
        return world.do(name)  # type: ignore[return-value]

    @app.task
    async def task(name: str) -> int:
        return await pay(name=name)

    assert isinstance(raised(asyncio.run, app.arun(task, "t", name="t")), NeedsHuman)
    assert kinds(app, "t", "1")[-2:] == [Kind.STEP_SETTLED, Kind.CASE_OPENED]
    assert asked == ["output"]
    settle(app, Answer(7))
    assert app.run(task, "t", name="t") == 7
    assert world.n("t") == 1


def test_branches_of_one_task_keep_one_log(app: Doubtless, world: World) -> None:
    @app.step(effect="idem_write")
    async def pay(n: int, idempotency_key: str = injected()) -> dict[str, Any]:
        await asyncio.sleep(0)
        return world.do("pay", n, idempotency_key)

    @app.task
    async def task() -> int:
        await asyncio.gather(*[pay(n=n) for n in range(10)])
        return 10

    async def together() -> None:
        await asyncio.gather(*[app.arun(task, f"t{n}") for n in range(5)])

    asyncio.run(together())
    assert world.n("pay") == 50
    assert all(set(statuses(app, f"t{n}").values()) == {"done"} for n in range(5))


def test_a_doubt_in_one_task_is_no_doubt_of_those_that_share_its_commits(app: Doubtless, world: World) -> None:
    @app.step(effect="non_idem_write")
    async def pay(n: int) -> dict[str, Any]:
        world.do("pay", n)
        if n == 1:
            raise ConnectionResetError("the reply was lost")
        return {"n": n}

    @app.task
    async def task(n: int) -> int:
        await pay(n=n)
        return n

    async def together() -> list[Any]:
        return await asyncio.gather(*[app.arun(task, f"t{n}", n=n) for n in range(3)], return_exceptions=True)

    ended = asyncio.run(together())
    assert [ended[0], ended[2]] == [0, 2]
    assert isinstance(ended[1], NeedsHuman)
    assert raised(app.run, task, "t1", n=1).__class__ is NeedsHuman
    assert world.n("pay") == 3
