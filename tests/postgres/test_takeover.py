"""What a takeover makes of a write, with leases: nothing is sent by one who may have lost them, and nothing is believed too early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from doubtless import Doubtless, TaskBusy, TaskWaiting, injected
from doubtless.errors import DoubtlessError, StaleEpoch, StoreUnavailable
from doubtless.events import STORE_TASK, Event, Kind, draft
from doubtless.store.postgres import PostgresStore
from doubtless.testing import FakeClock

MakeApp = Callable[..., Doubtless]
Hook = Callable[[str], None]


class World:
    """What the step did, and what is found of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.found: dict[str, str] | None = None
        self.during: Callable[[], None] = lambda: None


def build(make_app: MakeApp, clock: FakeClock, world: World, hooks: Hook | None = None) -> tuple[Doubtless, Any]:
    app = make_app(clock=clock, hooks=hooks)

    @app.step(effect="non_idem_write", query=lambda idempotency_key: world.found, absent_after="PT1M", timeout="PT20S")
    def pay(amount: int, idempotency_key: str = injected()) -> dict[str, str]:
        world.calls.append(idempotency_key)
        world.during()
        return {"sheet": idempotency_key}

    @app.task
    def settle() -> dict[str, str]:
        return pay(amount=5)

    return app, settle


def at_intent(deed: Callable[[], None]) -> Hook:
    """Calls `deed` once, when the intent is committed and the write is not called yet."""
    seen = {"append": 0}

    def hook(point: str) -> None:
        if point == "append:after":
            seen["append"] += 1
            if seen["append"] == 1:
                deed()

    return hook


def test_an_owner_whose_task_was_taken_over_between_intent_and_call_sends_nothing(make_app: MakeApp, clock: FakeClock) -> None:
    world = World()
    other, _ = build(make_app, clock, world)

    def taken() -> None:
        clock.advance(120)
        assert other.store.claim("t-1").takeover

    app, task = build(make_app, clock, world, at_intent(taken))
    with pytest.raises(StaleEpoch, match="nothing was sent"):
        app.run(task, "t-1")
    assert world.calls == []


def test_an_owner_that_slept_longer_than_its_lease_and_has_its_task_still_renews_before_it_sends(
    make_app: MakeApp, clock: FakeClock
) -> None:
    world = World()
    app, task = build(make_app, clock, world, at_intent(lambda: clock.advance(3600)))
    assert set(app.run(task, "t-1")) == {"sheet"}
    assert len(world.calls) == 1


def test_an_owner_that_cannot_renew_a_lease_that_is_too_short_sends_nothing_and_says_so_in_the_log(
    make_app: MakeApp, clock: FakeClock
) -> None:
    world = World()

    def cut_off() -> None:
        clock.advance(25)
        store: Any = app.store
        real = store.leases._renew

        def away(claims: Any) -> set[tuple[str, int]]:
            store.leases._renew = real
            raise StoreUnavailable("the server is away")

        store.leases._renew = away

    app, task = build(make_app, clock, world, at_intent(cut_off))
    with pytest.raises(TaskWaiting):
        app.run(task, "t-1", wait=False)
    assert world.calls == []
    ended = [row for row in app.store.rows("t-1") if row.kind == Kind.ATTEMPT_ENDED]
    assert [(row.error or "") for row in ended if '"not_sent"' in (row.error or "")] != []
    clock.advance(10)
    assert set(app.run(task, "t-1")) == {"sheet"}
    assert len(world.calls) == 1


def test_what_a_dead_owner_had_in_flight_is_in_doubt_and_an_absence_counts_from_its_lease_s_end_and_the_timeout(
    make_app: MakeApp, clock: FakeClock
) -> None:
    world, died = World(), threading.Event()
    dead, task = build(make_app, clock, world)
    go = threading.Event()

    def hang() -> None:
        died.set()
        go.wait(60)

    world.during = hang
    thread = threading.Thread(target=lambda: _quietly(lambda: dead.run(task, "t-1")))
    thread.start()
    assert died.wait(30)
    store: Any = dead.store
    store.leases._renew = lambda claims: (_ for _ in ()).throw(StoreUnavailable("gone"))  # its heartbeats reach nobody
    lease_end = _until(store)
    clock.advance((lease_end - clock.now().wall) / 1e6)
    other, task = build(make_app, clock, world)
    with pytest.raises(TaskWaiting) as caught:
        other.run(task, "t-1", wait=False)
    takeover = next(row for row in other.store.rows("t-1") if row.kind == Kind.TASK_CLAIMED and "lease_until" in row.details)
    assert takeover.details["lease_until"] == lease_end
    assert caught.value.until.wall == lease_end + 20_000_000 + 60_000_000
    assert len(world.calls) == 1
    # The zombie comes back with a result: evidence, which settles what is unsettled.
    store.leases._renew = store._renew
    go.set()
    thread.join(30)
    kinds = [row.kind for row in other.store.rows("t-1")]
    assert Kind.EVIDENCE_STORED in kinds
    assert other.run(task, "t-1") == {"sheet": world.calls[0]}
    assert len(world.calls) == 1
    assert other.verify() == []


def test_a_task_that_parks_while_somebody_looks_at_it_is_not_said_to_be_a_dead_owner_s(make_app: MakeApp, clock: FakeClock) -> None:
    """The head is read first and the lease looked at afterwards: found by the engines' cells on PostgreSQL."""
    from doubtless.inbox import read_inbox
    from doubtless.timeline import view

    world, seen = World(), []

    def reset() -> None:
        seen.append(app.store.head("t-1"))
        raise ConnectionResetError

    world.during = reset
    app, task = build(make_app, clock, world)
    with pytest.raises(TaskWaiting):
        app.run(task, "t-1", wait=False)
    (head,) = seen
    assert head is not None
    assert (head.owner is not None, head.wake_at) == (True, None)
    shown = view(app.runtime, head)
    assert (shown.owner, shown.status) == (None, "waiting")
    assert shown.wake_at is not None
    store: Any = app.store
    store.heads = lambda **said: [head]
    assert read_inbox(app.runtime, lambda step: 3_600_000_000).doubts == []
    store.head = lambda task_id: head  # of one whose owner did die the head stays what it was
    (doubt,) = read_inbox(app.runtime, lambda step: 3_600_000_000).doubts
    assert "its owner died" in doubt.why


def _quietly(deed: Callable[[], object]) -> None:
    try:
        deed()
    except DoubtlessError:
        pass


def _until(store: PostgresStore) -> int:
    row = store._link.one(f'SELECT lease_until FROM "{store.place.schema}".tasks')
    assert row is not None
    return int(row[0])


def test_a_freeze_that_has_returned_is_seen_by_every_attempt_that_is_written_after_it(url: str, tmp_path: Any) -> None:
    from doubtless.clocks import SystemClock
    from doubtless.errors import Frozen
    from doubtless.events import TaskStatus, row_hash, seal

    stores = [PostgresStore(url, clock=SystemClock("b").now, state=str(tmp_path), heartbeat=False) for _ in range(3)]
    frozen_at: list[int] = []
    late: list[Event] = []
    started = threading.Barrier(3)

    def work(store: PostgresStore, task_id: str) -> None:
        row = draft(
            task_id, Kind.TASK_ACCEPTED, store.now(), step_name="task", status=TaskStatus.READY, input_hash=b"h" * 32,
            input_ref="inline:{}",
        )  # fmt: skip
        store.accept(row)
        claim = store.claim(task_id)
        started.wait()
        for number in range(1, 400):
            after = bool(frozen_at)
            last = store.last(task_id)
            assert last is not None
            attempt = draft(
                task_id, Kind.STEP_INTENDED, store.now(), step_seq=number, path=str(number), step_name="pay", status="uncertain",
                attempt=1, effect_class="non_idem_write", idempotency_key=b"k" * 32, input_hash=b"i" * 32, input_ref="inline:{}",
                started_at=store.now().wall, epoch=claim.epoch,
            )  # fmt: skip
            rows = seal([attempt], last.event_seq, row_hash(last))
            try:
                store.append(rows, guard="pay")
            except Frozen:
                return
            if after:
                late.extend(rows)

    threads = [threading.Thread(target=work, args=(store, f"t-{n}")) for n, store in enumerate(stores[:2])]
    for thread in threads:
        thread.start()
    started.wait()
    stores[2].add(
        STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, stores[2].now(), step_name="pay", data={"by": "a", "why": "b"})]
    )
    frozen_at.append(1)
    for thread in threads:
        thread.join()
    assert late == []
    for store in stores:
        store._leases.held.clear()
        store.close()


def test_a_write_that_waited_for_a_thread_until_another_owner_had_its_task_is_not_sent(
    make_app: MakeApp, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    import doubtless.turns

    monkeypatch.setattr(doubtless.turns, "SEATS", 1)
    world = World()
    other, _ = build(make_app, clock, world)
    app, _ = build(make_app, clock, world)
    inside, go_on = threading.Event(), threading.Event()

    @app.step(effect="read")
    def hold() -> int:
        inside.set()
        assert go_on.wait(20)
        return 1

    @app.task
    async def holding() -> int:
        return await hold.acall()

    @app.task
    async def paying() -> Any:
        return await app.steps["pay"].acall(amount=5)

    async def both() -> None:
        first = asyncio.ensure_future(app.arun(holding, "t-0"))
        await asyncio.to_thread(inside.wait, 20)
        second = asyncio.ensure_future(app.arun(paying, "t-1"))
        while (head := app.store.head("t-1")) is None or not app.store.rows_of("t-1", [Kind.STEP_INTENDED]):
            await asyncio.sleep(0)
        assert head.owner is not None
        while not doubtless.turns.seats()._waiters:  # its row has landed, and it waits for a thread
            await asyncio.sleep(0)
        clock.advance(120)
        assert other.store.claim("t-1").takeover
        go_on.set()
        assert await first == 1
        with pytest.raises(StaleEpoch):
            await second

    asyncio.run(both())
    assert world.calls == []


def test_a_claim_that_was_decided_on_before_another_one_came_is_refused_and_looks_again(
    open_store: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = open_store(), open_store()
    ours.accept(draft("t-1", Kind.TASK_ACCEPTED, ours.now(), step_name="settle", status="ready", input_hash=b"i" * 32))
    claim, first = PostgresStore._claim, []

    def late(store: PostgresStore, *args: Any) -> Any:
        if not first:
            first.append(theirs)
            first.append(theirs.claim("t-1"))
        return claim(store, *args)

    monkeypatch.setattr(PostgresStore, "_claim", late)
    with pytest.raises(TaskBusy):
        ours.claim("t-1")
    head = ours.head("t-1")
    assert head is not None
    assert head.epoch == first[1].epoch
