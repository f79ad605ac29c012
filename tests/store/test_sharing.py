"""Rows that share a commit: all durable with it, and what is refused is said to whom it concerns alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, accepted, intended, settled

from doubtless.errors import Frozen, KeyHeld, Moved, StaleEpoch, TaskBusy
from doubtless.events import STORE_TASK, Event, Kind, draft, row_hash, seal
from doubtless.store.base import Blob
from doubtless.store.beginning import hand_back
from doubtless.store.sqlite import SqliteStore


def put(w: Writer, store: Any, *drafts: Event, guard: str | None = None, blobs: tuple[Blob, ...] = ()) -> object:
    """Put a row down, and go on as if it stood."""
    rows = w.seal(*drafts)
    ticket = store.submit(rows, guard=guard, blobs=blobs)
    w.seq, w.hash = rows[-1].event_seq, row_hash(rows[-1])
    return ticket


@contextmanager
def counted(store: Any) -> Iterator[list[int]]:
    """How many commits were made: of a file they are counted by SQLite, of a server each statement is one."""
    commits: list[int] = []
    if isinstance(store, SqliteStore):
        made: list[int] = []
        connection = store._link._connection
        assert connection is not None
        connection.set_commit_hook(lambda: bool(made.append(1)))
        yield commits
        connection.set_commit_hook(None)
        commits.append(len(made))
    else:
        before = store._link.statements
        yield commits
        commits.append(store._link.statements - before)


def kinds(store: Any, task_id: str) -> list[str]:
    return [row.kind for row in store.rows(task_id)]


def test_rows_of_many_tasks_are_written_in_one_commit_and_stand_when_they_have_landed(
    begin: Begin, store: Any, make_store: MakeStore, clock: TurnClock
) -> None:
    writers = [begin(f"recon-{n}") for n in range(5)]
    other = make_store()
    tickets = [put(w, store, intended(w.task_id, clock(), w.epoch), guard="pay") for w in writers]
    assert all(kinds(other, w.task_id) == [Kind.TASK_ACCEPTED] for w in writers)  # nobody sees them yet
    with counted(store) as commits:
        store.flush()
    assert commits == [1]
    for w, ticket in zip(writers, tickets, strict=True):
        store.landed(ticket)
        assert kinds(other, w.task_id) == [Kind.TASK_ACCEPTED, Kind.STEP_INTENDED]


def test_landed_makes_the_commit_itself_when_nobody_has(begin: Begin, store: Any, clock: TurnClock) -> None:
    w = begin()
    ticket = put(w, store, intended("recon-1", clock(), w.epoch))
    store.landed(ticket)
    assert kinds(store, "recon-1")[-1] == Kind.STEP_INTENDED


def test_content_is_written_with_the_row_that_names_it(begin: Begin, store: Any, clock: TurnClock) -> None:
    w = begin()
    put(w, store, intended("recon-1", clock(), w.epoch))
    ticket = put(w, store, settled("recon-1", clock(), w.epoch, ref=b"d" * 32), blobs=(Blob(b"d" * 32, b"content"),))
    store.landed(ticket)
    assert store.blob(b"d" * 32) == b"content"
    assert kinds(store, "recon-1") == [Kind.TASK_ACCEPTED, Kind.STEP_INTENDED, Kind.STEP_SETTLED]


def test_a_row_whose_place_is_taken_is_refused_alone(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b, c = begin("a"), begin("b"), begin("c")
    tickets = [put(w, store, intended(w.task_id, clock(), w.epoch)) for w in (a, b, c)]
    store.add("b", [draft("b", Kind.CANCEL_REQUESTED, clock(), data={"by": "anna", "why": "no longer wanted"})])
    store.flush()
    store.landed(tickets[0])
    store.landed(tickets[2])
    with pytest.raises(Moved):
        store.landed(tickets[1])
    assert kinds(store, "b") == [Kind.TASK_ACCEPTED, Kind.CANCEL_REQUESTED]
    assert kinds(store, "a") == kinds(store, "c") == [Kind.TASK_ACCEPTED, Kind.STEP_INTENDED]


def test_a_row_of_an_owner_that_was_replaced_is_refused_alone(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b = begin("a"), begin("b")
    tickets = [put(w, store, intended(w.task_id, clock(), w.epoch)) for w in (a, b)]
    store.release("a", a.epoch)
    store.claim("a")
    store.flush()
    store.landed(tickets[1])
    with pytest.raises(StaleEpoch):
        store.landed(tickets[0])
    assert kinds(store, "a") == [Kind.TASK_ACCEPTED]


def test_a_row_of_a_step_that_is_frozen_meanwhile_is_refused_alone(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b = begin("a"), begin("b")
    guarded = put(a, store, intended("a", clock(), a.epoch), guard="pay")
    other = put(b, store, intended("b", clock(), b.epoch))
    store.add(STORE_TASK, [draft(STORE_TASK, Kind.STORE_FROZEN, clock(), data={"step": "pay", "by": "anna", "why": "wrong prices"})])
    store.flush()
    store.landed(other)
    with pytest.raises(Frozen):
        store.landed(guarded)
    assert kinds(store, "a") == [Kind.TASK_ACCEPTED]


def test_a_row_that_nobody_committed_is_written_when_it_is_asked_for(begin: Begin, store: Any, clock: TurnClock) -> None:
    w = begin()
    ticket = put(w, store, intended("recon-1", clock(), w.epoch))
    store._sharing.waiting.clear()
    store.landed(ticket)
    assert kinds(store, "recon-1")[-1] == Kind.STEP_INTENDED


def test_rows_that_change_a_head_or_take_a_key_share_a_commit_whole(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b, c = begin("a"), begin("b"), begin("c")
    row = put(a, store, intended("a", clock(), a.epoch))
    ended = draft("b", Kind.TASK_ENDED, clock(), status="failed", epoch=b.epoch, error='{"kind":"abort"}')
    whole = store.submit(b.seal(intended("b", clock(), b.epoch), ended))
    keyed = store.submit(c.seal(_keyed("c", clock, c.epoch)))
    store.flush()
    for ticket in (row, whole, keyed):
        assert ticket.done and not ticket.alone
        store.landed(ticket)
    assert kinds(store, "b")[1:] == [Kind.STEP_INTENDED, Kind.TASK_ENDED]
    assert (store.head("b").status, store.head("b").owner) == ("failed", None)
    assert store.key("refund:1").task_id == "c"
    assert [problem for problem in store.verify() if "content of its policy" not in problem.what] == []


def test_what_is_refused_of_several_rows_is_refused_whole_and_harms_no_other(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b, c = begin("a"), begin("b"), begin("c")
    c.append(_keyed("c", clock, c.epoch))
    row = put(a, store, intended("a", clock(), a.epoch))
    first = intended("b", clock(), b.epoch, 2)
    whole = store.submit(b.seal(first, _keyed("b", clock, b.epoch)))
    store.flush()
    store.landed(row)
    with pytest.raises(KeyHeld):
        store.landed(whole)
    assert kinds(store, "a")[1:] == [Kind.STEP_INTENDED]
    assert kinds(store, "b") == [Kind.TASK_ACCEPTED]


of_a_process = pytest.mark.parametrize("earlier", [False, True], ids=["the first claim of a process", "a later one"])
"""SQLite writes a beginning together with others once this process has a lock file to name."""


@of_a_process
def test_tasks_that_are_begun_share_a_commit_and_of_one_id_there_is_one(store: Any, clock: TurnClock, earlier: bool) -> None:
    if earlier:
        store.begin(accepted("earlier", clock()))
    tickets = [store.submit_begin(accepted(name, clock())) for name in ("a", "b", "a")]
    claims = [store.landed(ticket) for ticket in tickets]
    assert [claim and (claim.head.task_id, claim.takeover) for claim in claims] == [("a", False), ("b", False), None]
    for claim in claims[:2]:
        assert store.head(claim.head.task_id) == claim.head
        with pytest.raises(TaskBusy):
            store.claim(claim.head.task_id)
        assert store.rows(claim.head.task_id) == list(claim.begun[:2])
        assert [row.kind for row in claim.begun[:2]] == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED]
        store.append(seal([intended(claim.head.task_id, clock(), claim.epoch)], 2, claim.begun.digest))
    assert store.begin(accepted("a", clock())) is None
    assert store.verify() == []


class Breaks:
    """Breaks in at one of the store's points, once, as a signal's handler would; the test says when."""

    def __init__(self) -> None:
        self.at = ""

    def __call__(self, point: str) -> None:
        if point == self.at:
            self.at = ""
            raise KeyboardInterrupt


@of_a_process
def test_a_beginning_that_is_broken_into_after_its_commit_has_begun_the_task(
    make_store: MakeStore, clock: TurnClock, earlier: bool
) -> None:
    breaks = Breaks()
    store: Any = make_store(hooks=breaks)
    store.info()
    if earlier:
        store.begin(accepted("earlier", clock()))
    ticket = store.submit_begin(accepted("a", clock()))
    breaks.at = "mark:write"
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    claim = store.landed(ticket)
    assert claim is not None and claim.head == store.head("a")
    assert store.rows("a") == list(claim.begun[:2])
    hand_back(store, claim)
    assert store.claim("a").takeover is False
    assert store.verify() == []


def test_a_task_whose_beginning_by_itself_is_broken_into_after_its_commit_is_no_longer_this_process_own(
    make_store: MakeStore, clock: TurnClock
) -> None:
    breaks = Breaks()
    store: Any = make_store(hooks=breaks)
    store.info()
    breaks.at = "mark:write"
    with pytest.raises(KeyboardInterrupt):
        store.begin(accepted("a", clock()))
    assert kinds(store, "a") == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED]
    if not isinstance(store, SqliteStore):
        clock.wall += 2 * store.place.lease_us
        store.leases.beat()  # renews nothing of it
    assert store.claim("a").takeover is True
    assert store.verify() == []


@of_a_process
def test_a_beginning_that_is_broken_into_before_its_commit_leaves_nothing_where_somebody_was_faster(
    make_store: MakeStore, clock: TurnClock, earlier: bool
) -> None:
    breaks = Breaks()
    store: Any = make_store(hooks=breaks)
    store.info()
    if earlier:
        store.begin(accepted("earlier", clock()))
    ticket = store.submit_begin(accepted("a", clock()))
    breaks.at = "accept:before"
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    assert make_store().accept(accepted("a", clock())) is None
    assert store.landed(ticket) is None
    store.check_chain("a")
    assert make_store().info().suspect is False  # the mark counts nothing that was taken back
    claim = store.claim("a")
    assert claim.takeover is False
    (first,) = store.rows("a")
    rows = seal([intended("a", clock(), claim.epoch), settled("a", clock(), claim.epoch)], 1, row_hash(first))
    store.append(rows)
    store.check_chain("a")  # what this process remembers of the log is what stands there
    assert store.verify() == []


@pytest.mark.parametrize("since", ["nothing", "a cancel", "another owner"])
def test_a_claim_that_has_begun_a_task_is_handed_back_once_however_often_it_is_tried(
    store: Any, clock: TurnClock, since: str
) -> None:
    claim = store.begin(accepted("a", clock()))
    if since == "a cancel":
        store.add("a", [draft("a", Kind.CANCEL_REQUESTED, clock(), data={"by": "anna", "why": "no longer wanted"})])
    elif since == "another owner":
        store.release("a", claim.epoch)
        other = store.claim("a")
    hand_back(store, claim)
    before = store.head("a"), kinds(store, "a")
    hand_back(store, claim)  # whoever was not told what came of it does it again
    assert (store.head("a"), kinds(store, "a")) == before
    if since == "another owner":
        assert store.head("a").epoch == other.epoch
    else:
        assert store.claim("a").takeover is False


def test_a_task_that_has_rows_and_no_head_is_not_begun_and_harms_no_other(
    store: Any, clock: TurnClock, tamper: Callable[[str], None]
) -> None:
    store.accept(accepted("b", clock()))
    tamper("DELETE FROM tasks")
    tickets = [store.submit_begin(accepted(name, clock())) for name in ("a", "b", "c")]
    store.flush()
    for ticket in (tickets[0], tickets[2]):
        assert store.landed(ticket) is not None
    with pytest.raises(Moved):
        store.landed(tickets[1])
    with pytest.raises(Moved):
        store.begin(accepted("b", clock()))
    assert store.head("b") is None and kinds(store, "b") == [Kind.TASK_ACCEPTED]


def test_an_end_that_waits_for_a_commit_is_written_also_when_suspect_mode_is_ended_meanwhile(
    begin: Begin, store: Any, clock: TurnClock
) -> None:
    w = begin("a")
    ticket = store.submit(w.seal(draft("a", Kind.TASK_ENDED, clock(), status="done", epoch=w.epoch, output_ref="inline:1")))
    store.end_suspect(by="anna", why="I have looked")
    flush = threading.Thread(target=store.flush, daemon=True)
    flush.start()
    flush.join(30)
    if flush.is_alive():
        store._link.lock = threading.Lock()  # so that the test's end is not held up too
        pytest.fail("whoever commits for many waits for itself")
    store.landed(ticket)
    assert store.head("a").status == "done"
    assert store.verify() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_waits_for_a_commit_is_not_the_childs_of_a_fork(begin: Begin, store: Any, clock: TurnClock) -> None:
    w = begin("a")
    row, ticket = put(w, store, intended("a", clock(), w.epoch)), store.submit_begin(accepted("b", clock()))
    child = os.fork()
    if child == 0:
        try:
            store.flush()
            os._exit(0 if store.head("b") is None and kinds(store, "a") == [Kind.TASK_ACCEPTED] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.landed(ticket) is not None
    store.landed(row)
    assert kinds(store, "a") == [Kind.TASK_ACCEPTED, Kind.STEP_INTENDED]


def resumed(w: Writer, clock: TurnClock) -> list[Event]:
    """The first rows of a run that goes on with a task: they change its head, and nothing else."""
    claimed = draft(w.task_id, Kind.TASK_CLAIMED, clock(), status="running", epoch=w.epoch, data={"owner": "x"})
    return w.seal(claimed, intended(w.task_id, clock(), w.epoch))


def test_rows_that_change_heads_alone_share_one_commit(begin: Begin, store: Any, clock: TurnClock) -> None:
    writers = [begin(name) for name in ("c", "a", "b")]
    tickets = [store.submit(resumed(w, clock), guard="pay") for w in writers]
    with counted(store) as commits:
        store.flush()
    assert commits == [1]
    for w, ticket in zip(writers, tickets, strict=True):
        assert ticket.done and not ticket.alone
        store.landed(ticket)
        assert kinds(store, w.task_id)[1:] == [Kind.TASK_CLAIMED, Kind.STEP_INTENDED]
        head = store.head(w.task_id)
        assert (head.status, head.epoch) == ("running", w.epoch)
    assert [problem for problem in store.verify() if "content of its policy" not in problem.what] == []


def test_an_end_that_shares_a_commit_gives_the_task_back(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b = begin("a"), begin("b")
    parked = draft("a", Kind.TASK_PARKED, clock(), status="ready", epoch=a.epoch, data={"wake_at": 5, "why": "a\0b"})
    ended = draft("b", Kind.TASK_ENDED, clock(), status="done", epoch=b.epoch, output_ref="inline:1")
    tickets = [store.submit(w.seal(row)) for w, row in ((a, parked), (b, ended))]
    store.flush()
    for ticket in tickets:
        assert ticket.done and not ticket.alone
        store.landed(ticket)
    a_head, b_head = store.head("a"), store.head("b")
    assert (a_head.status, a_head.owner, a_head.epoch, a_head.wake_at) == ("ready", None, None, 5)
    assert (b_head.status, b_head.owner, b_head.epoch) == ("done", None, None)
    assert [problem for problem in store.verify() if "why" not in problem.what] == []
    assert store.claim("a").takeover is False


@pytest.mark.parametrize("trouble", ["its place is taken", "it was replaced", "its step is frozen"])
def test_of_rows_that_change_heads_what_is_refused_is_refused_whole_and_harms_no_other(
    begin: Begin, store: Any, clock: TurnClock, trouble: str
) -> None:
    a, b, c = begin("a"), begin("b"), begin("c")
    tickets = [store.submit(resumed(w, clock), guard="pay" if w is b else None) for w in (a, b, c)]
    if trouble == "its place is taken":
        store.add("b", [draft("b", Kind.CANCEL_REQUESTED, clock(), data={"by": "anna", "why": "no longer wanted"})])
    elif trouble == "it was replaced":
        store.release("b", b.epoch)
        store.claim("b")
    else:
        freeze = draft(STORE_TASK, Kind.STORE_FROZEN, clock(), data={"step": "pay", "by": "anna", "why": "wrong prices"})
        store.add(STORE_TASK, [freeze])
    before = store.head("b"), kinds(store, "b")
    store.flush()
    for ticket, w in ((tickets[0], a), (tickets[2], c)):
        store.landed(ticket)
        assert kinds(store, w.task_id)[1:] == [Kind.TASK_CLAIMED, Kind.STEP_INTENDED]
    errors = {"its place is taken": Moved, "it was replaced": StaleEpoch, "its step is frozen": Frozen}
    with pytest.raises(errors[trouble]):
        store.landed(tickets[1])
    assert (store.head("b"), kinds(store, "b")) == before


def ended(w: Writer, clock: TurnClock) -> list[Event]:
    return w.seal(draft(w.task_id, Kind.TASK_ENDED, clock(), status="done", epoch=w.epoch, output_ref="inline:1"))


def test_what_begins_what_ends_and_what_goes_on_share_one_commit(begin: Begin, store: Any, clock: TurnClock) -> None:
    a, b, c = begin("a"), begin("b"), begin("c")
    tickets = [
        store.submit_begin(accepted("x", clock())),
        store.submit(ended(a, clock)),
        put(b, store, intended("b", clock(), b.epoch), guard="pay"),
        store.submit(resumed(c, clock)),
        store.submit_begin(accepted("y", clock())),
    ]
    with counted(store) as commits:
        store.flush()
    if isinstance(store, SqliteStore):
        assert commits == [1]
    for ticket in tickets:
        assert ticket.done and not ticket.alone
    claims = [store.landed(ticket) for ticket in tickets]
    for claim in (claims[0], claims[4]):
        assert store.head(claim.head.task_id) == claim.head
        store.append(seal([intended(claim.head.task_id, clock(), claim.epoch)], 2, claim.begun.digest))
    assert (store.head("a").status, store.head("a").owner) == ("done", None)
    assert kinds(store, "b") == [Kind.TASK_ACCEPTED, Kind.STEP_INTENDED]
    assert kinds(store, "c") == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED, Kind.STEP_INTENDED]
    assert store.head("c").status == "running"
    assert [problem for problem in store.verify() if "content of its policy" not in problem.what] == []


@pytest.mark.parametrize("refused", ["y", "b", "d"], ids=["a task that exists", "an end after a cancel", "a row whose place is taken"])
def test_of_what_begins_ends_and_goes_on_together_what_is_refused_harms_no_other(
    begin: Begin, store: Any, make_store: MakeStore, clock: TurnClock, refused: str
) -> None:
    a, b, c, d = begin("a"), begin("b"), begin("c"), begin("d")
    new = [store.submit_begin(accepted(name, clock())) for name in ("x", "y")]
    ends = [store.submit(ended(w, clock)) for w in (a, b)]
    rows = [put(w, store, intended(w.task_id, clock(), w.epoch)) for w in (c, d)]
    if refused == "y":
        assert make_store().accept(accepted("y", clock())) is None
    else:
        store.add(refused, [draft(refused, Kind.CANCEL_REQUESTED, clock(), data={"by": "anna", "why": "no longer wanted"})])
    store.flush()
    claim = store.landed(new[0])
    assert store.head("x") == claim.head and store.rows("x") == list(claim.begun[:2])
    store.landed(ends[0])
    assert (store.head("a").status, store.head("a").owner) == ("done", None)
    store.landed(rows[0])
    assert kinds(store, "c") == [Kind.TASK_ACCEPTED, Kind.STEP_INTENDED]
    if refused == "y":
        assert store.landed(new[1]) is None
        assert kinds(store, "y") == [Kind.TASK_ACCEPTED]
        assert store.claim("y").takeover is False
    else:
        with pytest.raises(Moved):
            store.landed({"b": ends[1], "d": rows[1]}[refused])
        assert kinds(store, refused) == [Kind.TASK_ACCEPTED, Kind.CANCEL_REQUESTED]
        assert store.head(refused).owner is not None
    assert [problem for problem in store.verify() if "content of its policy" not in problem.what] == []


def test_a_part_of_what_waits_is_the_oldest_of_each_kind(begin: Begin, store: Any, clock: TurnClock) -> None:
    writers = [begin(name) for name in "abcd"]
    begun = [store.submit_begin(accepted(name, clock())) for name in ("x", "y")]
    heads = [store.submit(resumed(w, clock)) for w in writers[:2]]
    rows = [put(w, store, intended(w.task_id, clock(), w.epoch)) for w in writers[2:]]
    store.flush(1)
    assert [ticket.done for ticket in (*begun, *rows)] == [True, False] * 2
    assert not all(ticket.done for ticket in heads)
    for _ in range(3):  # of a file, tasks that are begun and heads that change are one kind
        store.flush(1)
    assert all(ticket.done and not ticket.alone for ticket in (*begun, *heads, *rows))


def test_a_commit_leaves_what_is_put_down_meanwhile_and_says_how_many_rows_one_call_would_commit(
    begin: Begin, store: Any, clock: TurnClock
) -> None:
    first, second, third = (begin(name) for name in "abc")
    sharing, later = store._sharing, []
    commit = sharing._commit

    def meanwhile(*how: Any) -> None:
        sharing._commit = commit
        later.append(put(second, store, intended("b", clock(), second.epoch)))
        commit(*how)

    sharing._commit = meanwhile
    early: Any = put(first, store, intended("a", clock(), first.epoch))
    assert store.flush(5) == 1
    assert (early.done, later[0].done) == (True, False)
    begun = [store.submit_begin(accepted(name, clock())) for name in ("x", "y")]
    last: Any = put(third, store, intended("c", clock(), third.epoch))
    assert store.flush(1) == 0  # what begins takes more than one call, between which a busy interpreter would be in the way
    assert (later[0].done, last.done, begun[0].done, begun[1].done) == (True, False, True, False)
    assert store.flush() == 0
    assert last.done and begun[1].done


def _keyed(task: str, clock: TurnClock, epoch: int) -> Event:
    return intended(task, clock(), epoch)._replace(data='{"once":"refund:1","policy":"' + "00" * 32 + '","turn":1}')
