"""A worker's next tasks: in one look, by priority, each at most one worker's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from store_ground import MakeStore, TurnClock, Writer, accepted, case_opened, forget_claims, parked

from doubtless.events import IDLE, STORE_TASK, Kind, TaskStatus, draft
from doubtless.store.base import Due, Store, Wanted
from doubtless.store.postgres import PostgresStore

WANTED = Wanted(("reconcile",))
Expire = Callable[[], None]


def accept(store: Store, clock: TurnClock, task_id: str, name: str = "reconcile", **place: object) -> None:
    assert store.accept(accepted(task_id, clock())._replace(step_name=name, data=None)._replace(**_data(place))) is None


def _data(place: dict[str, object]) -> dict[str, object]:
    from doubtless.events import dump

    return {"data": dump(place)} if place else {}


def look(store: Store, clock: TurnClock, limit: int = 10, wanted: Wanted = WANTED) -> list[str]:
    """The ids of what is due, in order; what is claimed with it is given back."""
    due = store.due(wanted, limit=limit, now=clock().wall)
    for claim in due.claims:
        assert store.head(claim.head.task_id).epoch == claim.epoch  # type: ignore[union-attr]
        store.release(claim.head.task_id, claim.epoch)
    return ids(due)


def ids(due: Due) -> list[str]:
    return [claim.head.task_id for claim in due.claims] + [head.task_id for head in due.heads]


def own(store: Store, task_id: str) -> Writer:
    return Writer(store, task_id, store.claim(task_id))


def test_the_smaller_priority_comes_first_then_the_older_task(store: Store, clock: TurnClock) -> None:
    accept(store, clock, "plain-1")
    accept(store, clock, "late", priority=7)
    accept(store, clock, "plain-2")
    accept(store, clock, "urgent", priority=-3)
    assert look(store, clock) == ["urgent", "plain-1", "plain-2", "late"]
    assert look(store, clock, limit=2) == ["urgent", "plain-1"]


def test_only_the_queues_and_the_names_that_are_wanted_are_given(store: Store, clock: TurnClock) -> None:
    accept(store, clock, "here")
    accept(store, clock, "mail", queue="mail")
    accept(store, clock, "foreign", name="other")
    assert look(store, clock) == ["here", "mail"]
    assert look(store, clock, wanted=WANTED._replace(queues=("mail", "none"))) == ["mail"]
    assert look(store, clock, wanted=Wanted(("nobody",))) == []
    assert [head.task_id for head in store.strangers(WANTED)] == ["foreign"]
    assert store.strangers(WANTED._replace(queues=("mail",))) == []
    assert [(head.queue, head.priority) for head in store.heads()] == [("default", 0), ("mail", 0), ("default", 0)]


def test_nothing_is_given_before_its_time_and_the_next_time_is_told(store: Store, clock: TurnClock) -> None:
    soon, later = clock().wall + 1_000_000, clock().wall + 9_000_000
    accept(store, clock, "soon", not_before=soon)
    accept(store, clock, "later", not_before=later)
    assert look(store, clock) == []
    assert store.next_due(clock().wall) == soon
    clock.wall = soon
    assert look(store, clock) == ["soon"]
    assert store.next_due(clock().wall) == later
    clock.wall = later
    assert store.next_due(clock().wall) is None


def test_what_waits_for_a_time_a_person_or_its_host_is_left_alone(store: Store, clock: TurnClock) -> None:
    for task_id in ("sleeps", "asks", "idle", "drained", "ended"):
        accept(store, clock, task_id)
    own(store, "sleeps").append(parked("sleeps", clock(), store.head("sleeps").epoch, wake_at=clock().wall + 10**9))  # type: ignore[union-attr]
    asks = own(store, "asks")
    asks.append(case_opened("asks", clock(), asks.epoch), parked("asks", clock(), asks.epoch, status="needs_human"))
    own(store, "idle").append(parked("idle", clock(), store.head("idle").epoch))  # type: ignore[union-attr]
    own(store, "drained").append(parked("drained", clock(), store.head("drained").epoch, status="ready"))  # type: ignore[union-attr]
    end = draft("ended", Kind.TASK_ENDED, clock(), status=TaskStatus.DONE)
    w = own(store, "ended")
    w.append(end._replace(epoch=w.epoch))
    assert look(store, clock, wanted=WANTED._replace(idle=("to look again",))) == ["drained"]
    assert look(store, clock) == ["idle", "drained"]


def test_a_session_between_two_openings_has_nothing_to_do_for_a_worker_and_for_a_sweep(store: Store, clock: TurnClock) -> None:
    for number, why in enumerate((*IDLE, "to look again")):
        accept(store, clock, f"t{number}")
        w = own(store, f"t{number}")
        row = draft(f"t{number}", Kind.TASK_PARKED, clock(), status="waiting", epoch=w.epoch, data={"wake_at": None, "why": why})
        w.append(row)
    accept(store, clock, "ready")
    assert look(store, clock, wanted=WANTED._replace(idle=IDLE)) == ["t2", "ready"]
    assert [head.task_id for head in store.heads(due=clock().wall)] == ["t2", "ready"]
    assert [head.task_id for head in store.heads(due=clock().wall, status=["waiting"], limit=5)] == ["t2"]
    assert len(store.heads()) == 4


@pytest.mark.parametrize("step", ["pay", None])
def test_what_stands_before_a_freeze_is_left_alone_until_the_thaw(store: Store, clock: TurnClock, step: str | None) -> None:
    accept(store, clock, "t")
    accept(store, clock, "parent")
    freeze = draft(STORE_TASK, Kind.STORE_FROZEN, clock(), step_name=step, data={"why": "stop", "by": "ann"})
    store.add(STORE_TASK, [freeze])
    for task_id, why in (("t", "frozen: step pay is frozen: stop"), ("parent", "child parent/1 waits: frozen: step pay is frozen: stop")):
        w = own(store, task_id)
        row = draft(task_id, Kind.TASK_PARKED, clock(), status="waiting", epoch=w.epoch, data={"wake_at": None, "why": why})
        w.append(row)
    assert look(store, clock) == []
    store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_THAWED, clock(), step_name=step, data={"why": "", "by": "ann"})])
    assert look(store, clock) == ["t", "parent"]


def test_a_task_that_somebody_has_is_not_given_and_a_dead_owners_task_is(
    store: Store, make_store: MakeStore, clock: TurnClock, expire: Expire
) -> None:
    accept(store, clock, "busy")
    accept(store, clock, "dead")
    own(store, "busy")
    lost = make_store()
    own(lost, "dead")
    assert look(store, clock) == [] or not isinstance(store, PostgresStore)
    if isinstance(store, PostgresStore):
        forget_claims(lost)
        clock.wall += lost.place.lease_us + 1  # type: ignore[attr-defined]
        store.leases.renew([("busy", store.leases.held["busy"])])
        assert look(store, clock) == ["dead"]
        assert store.claim("dead").takeover


def test_a_child_that_is_due_is_given_although_its_root_is_not(store: Store, clock: TurnClock) -> None:
    accept(store, clock, "root")
    w = own(store, "root")
    accept(store, clock, "root/1", name="inner")
    w.append(parked("root", clock(), w.epoch, wake_at=clock().wall + 10**9))
    due = store.due(WANTED, limit=10, now=clock().wall)
    assert (due.claims, [head.task_id for head in due.heads]) == ([], ["root/1"])


def test_the_rows_of_a_claim_that_came_with_the_look_are_taken(store: Store, clock: TurnClock) -> None:
    accept(store, clock, "t")
    due = store.due(WANTED, limit=1, now=clock().wall)
    claim = due.claims[0] if due.claims else store.claim("t")
    w = Writer(store, "t", claim)
    w.append(parked("t", clock(), w.epoch, status="ready"))
    assert store.head("t").owner is None  # type: ignore[union-attr]
    assert store.verify() == []


@pytest.mark.parametrize("make_store", ["postgres"], indirect=True)
@pytest.mark.parametrize("due_by", ["nothing", "its time", "its key"])
def test_a_task_that_another_worker_is_claiming_is_passed_over_without_waiting(
    store: Store, clock: TurnClock, due_by: str
) -> None:
    assert isinstance(store, PostgresStore)
    for number in range(4):
        accept(store, clock, f"t{number}", **({"not_before": clock().wall + 1} if due_by == "its time" else {}))
    if due_by == "its key":
        with psycopg.connect(store.place.conninfo) as other:
            tables = store.place.schema
            other.execute(f"INSERT INTO {tables}.keys VALUES ('k', 1, 'o', '1', 'freed')".encode())
            other.execute(f"UPDATE {tables}.tasks SET status = 'waiting', awaits = 'k', wake_at = {1 << 52}".encode())
    with psycopg.connect(store.place.conninfo) as other:
        other.execute(f"SELECT 1 FROM {store.place.schema}.tasks WHERE task_id IN ('t0', 't2') FOR UPDATE".encode())  # another worker
        looking = ThreadPoolExecutor(1)
        seen = looking.submit(look, store, clock, 2)
        try:
            assert seen.result(10) == ["t1", "t3"]
        finally:
            other.rollback()
            looking.shutdown()


@pytest.mark.parametrize("make_store", ["postgres"], indirect=True)
def test_a_look_whose_connection_was_cut_after_its_commit_gives_the_claims_that_stand(
    store: Store, clock: TurnClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, PostgresStore)
    accept(store, clock, "t0")
    accept(store, clock, "t1")
    real, cut = store._link._execute, [True]

    def execute(connection: psycopg.Connection[tuple[object, ...]], sql: str, args: object) -> object:
        rows = real(connection, sql, args)  # type: ignore[arg-type]
        if ".due_1(" in sql and cut:
            cut.pop()
            connection.close()
            raise psycopg.OperationalError("cut")
        return rows

    monkeypatch.setattr(store._link, "_execute", execute)
    due = store.due(WANTED, limit=5, now=clock().wall)
    assert [claim.head.task_id for claim in due.claims] == ["t0", "t1"]
    assert not cut
    assert all(store.leases.owns(claim.head.task_id, claim.epoch) for claim in due.claims)
