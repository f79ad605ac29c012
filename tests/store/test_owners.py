"""Who is alive: dead owners are taken over at once, living ones (a paused one too) never."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_ground import (
    Begin,
    Child,
    MakeStore,
    TurnClock,
    Writer,
    accepted,
    case_opened,
    forget_claims,
    intended,
    only_sqlite,
    parked,
)

from doubtless.errors import StaleEpoch, TaskBusy
from doubtless.events import Kind, draft, seal
from doubtless.store.base import Claim, Store
from doubtless.store.owners import alive

StartChild = Callable[..., Child]
Expire = Callable[[], None]


def test_a_claim_of_a_free_task_writes_no_row(begin: Begin, store: Store) -> None:
    w = begin()
    assert [row.kind for row in store.rows("recon-1")] == [Kind.TASK_ACCEPTED]
    head = store.head("recon-1")
    assert head is not None
    assert head.epoch == w.epoch
    assert head.status == "ready"
    assert store.owner_alive(head.owner)


def test_every_claim_has_an_epoch_of_its_own(begin: Begin, store: Store) -> None:
    w = begin()
    epochs = {w.epoch}
    for _ in range(20):
        store.release("recon-1", max(epochs, key=lambda e: store.head("recon-1").epoch == e))  # type: ignore[union-attr]
        epochs.add(store.claim("recon-1").epoch)
    assert len(epochs) == 21


def test_the_task_of_a_killed_process_is_taken_over_with_a_row(
    store: Store, child: StartChild, clock: TurnClock, expire: Expire
) -> None:
    one = child("claim", "recon-1", "1")
    _, pid, epoch = one.hear().split()
    before = store.head("recon-1")
    assert before is not None
    assert store.owner_alive(before.owner)
    os.kill(int(pid), signal.SIGKILL)
    one.process.wait()
    expire()
    assert not store.owner_alive(before.owner)
    claim = store.claim("recon-1")
    assert claim.takeover
    assert claim.epoch != int(epoch)
    assert claim.head.status == "running"
    row = store.last("recon-1")
    assert row is not None
    assert (row.kind, row.epoch) == (Kind.TASK_CLAIMED, claim.epoch)
    assert {name: row.details[name] for name in ("owner", "was")} == {"owner": claim.head.owner, "was": before.owner}
    Writer(store, "recon-1", claim).append(intended("recon-1", clock(), claim.epoch, 2))
    assert store.verify() == []


def test_the_task_of_a_living_process_is_busy_and_it_says_how_to_end_it(store: Store, child: StartChild) -> None:
    one = child("claim", "recon-1")
    _, pid, _ = one.hear().split()
    with pytest.raises(TaskBusy) as caught:
        store.claim("recon-1")
    said = str(caught.value)
    assert f"process {pid}" in said
    assert "child.py" in said
    assert socket.gethostname() in said
    assert f"kill {pid}" in said
    assert caught.value.context["pid"] == int(pid)
    assert caught.value.context["since"] > 1_700_000_000_000_000
    assert len(store.rows("recon-1")) == 1


def test_the_task_of_a_stopped_process_is_busy_and_it_says_how_to_wake_it(store: Store, child: StartChild) -> None:
    one = child("claim", "recon-1")
    pid = int(one.hear().split()[1])
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    with pytest.raises(TaskBusy) as caught:
        store.claim("recon-1")
    assert f"kill -CONT {pid}" in str(caught.value)
    assert "it is stopped" in str(caught.value)
    os.kill(pid, signal.SIGCONT)


@only_sqlite
def test_a_process_that_ended_normally_leaves_no_lock_file_but_what_it_had_is_taken_over(
    store: Store, child: StartChild
) -> None:
    one = child("claim", "recon-1")
    one.hear()
    one.say()
    assert one.process.wait() == 0
    claim = store.claim("recon-1")
    assert claim.takeover
    assert os.listdir(store.path + ".owners") == [claim.head.owner]


def test_two_stores_of_one_process_do_not_share_a_task(begin: Begin, make_store: MakeStore) -> None:
    w = begin()
    other = make_store()
    with pytest.raises(TaskBusy) as caught:
        other.claim("recon-1")
    assert "this process" in str(caught.value)
    w.store.release("recon-1", w.epoch)
    assert not other.claim("recon-1").takeover


def test_of_many_threads_that_claim_one_task_one_gets_it(store: Store, make_store: MakeStore, clock: TurnClock) -> None:
    store.accept(accepted("recon-1", clock()))
    stores = [make_store() for _ in range(4)]
    results: list[str] = []

    def claim(store: Store) -> None:
        try:
            store.claim("recon-1")
            results.append("got it")
        except TaskBusy:
            results.append("busy")

    threads = [threading.Thread(target=claim, args=(stores[n % 4],)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["busy"] * 15 + ["got it"]
    assert len(store.rows("recon-1")) == 1


@only_sqlite
def test_a_closed_store_keeps_the_lock_while_a_thread_has_a_task(begin: Begin, make_store: MakeStore, clock: TurnClock) -> None:
    w = begin()
    make_store().close()
    w.store.close()
    head = make_store().head("recon-1")
    assert head is not None
    assert make_store().owner_alive(head.owner)
    w.append(intended("recon-1", clock(), w.epoch))
    w.store.release("recon-1", w.epoch)
    w.store.close()
    assert not make_store().owner_alive(head.owner)
    assert os.listdir(w.store.path + ".owners") == []


def test_a_task_that_ended_under_a_dead_owner_is_claimed_without_a_row(
    store: Store, child: StartChild, clock: TurnClock, expire: Expire
) -> None:
    one = child("claim", "recon-1")
    one.hear()
    one.end()
    expire()
    w = Writer(store, "recon-1", store.claim("recon-1"))
    w.append(draft("recon-1", Kind.TASK_ENDED, clock(), status="done", epoch=w.epoch), keep_owner=True)
    forget_claims(store)  # its thread is gone, and the release never came
    expire()
    before = store.rows("recon-1")
    claim = store.claim("recon-1")
    assert not claim.takeover
    assert claim.head.status == "done"
    assert store.rows("recon-1") == before


@only_sqlite
@pytest.mark.parametrize("trouble", ["the lock file was removed", "the store was closed"])
def test_a_task_that_waits_to_be_begun_is_begun_by_an_owner_that_is_there(store: Any, clock: TurnClock, trouble: str) -> None:
    before = store.begin(accepted("recon-1", clock()))
    ticket = store.submit_begin(accepted("recon-2", clock()))
    if trouble == "the store was closed":
        store.release("recon-1", before.epoch)
        store.close()
    else:
        os.unlink(Path(f"{store.path}.owners", before.head.owner))
    claim = store.landed(ticket)
    assert claim.head.owner != before.head.owner
    assert store.owner_alive(claim.head.owner)
    assert store.head("recon-2") == claim.head
    store.append(seal([intended("recon-2", clock(), claim.epoch)], 2, claim.begun.digest))



@only_sqlite
@pytest.mark.parametrize("guard", [None, "pay"])
@pytest.mark.parametrize("several", [False, True])
def test_an_owner_whose_lock_file_was_removed_is_stopped_by_the_next_claim(
    begin: Begin, store: Store, child: StartChild, clock: TurnClock, guard: str | None, several: bool
) -> None:
    w = begin()
    for name in os.listdir(store.path + ".owners"):
        os.unlink(os.path.join(store.path + ".owners", name))
    assert child("claim", "recon-1").hear().startswith("claimed")
    w = Writer(store, "recon-1", Claim(store.head("recon-1"), w.epoch, False))  # type: ignore[arg-type]
    more = [case_opened("recon-1", clock(), w.epoch)] if several else []
    with pytest.raises(StaleEpoch):
        w.append(intended("recon-1", clock(), w.epoch), *more, guard=guard)
    claim_of_another = Writer(store, "recon-2", _accept_and_claim(store, clock, "recon-2"))
    head = store.head("recon-2")
    assert head is not None
    assert store.owner_alive(head.owner)
    assert claim_of_another.epoch == head.epoch


def _accept_and_claim(store: Store, clock: TurnClock, task: str):  # type: ignore[no-untyped-def]
    store.accept(accepted(task, clock()))
    return store.claim(task)


@only_sqlite
def test_lock_files_of_killed_processes_are_swept_at_the_first_claim(
    store: Store, child: StartChild, clock: TurnClock
) -> None:
    children = [child("claim", f"t{n}") for n in range(3)]
    for one in children:
        one.hear()
    children[0].process.kill()
    children[0].process.wait()
    claim = _accept_and_claim(store, clock, "recon-1")
    names = os.listdir(store.path + ".owners")
    assert len(names) == 3
    assert claim.head.owner in names


def test_two_that_look_at_a_dead_owner_at_once_do_not_take_each_other_for_it(tmp_path: Path) -> None:
    (tmp_path / "1-dead").write_text("{}")
    with (tmp_path / "1-dead").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not alive(str(tmp_path), "1-dead")
    with (tmp_path / "1-dead").open() as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert alive(str(tmp_path), "1-dead")
    assert not alive(str(tmp_path), "1-gone")
    assert not alive(str(tmp_path), "../1-dead")
    assert not alive(str(tmp_path), None)


# ------------------------------------------------------------ forks

forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # that is what is tested


def _in_fork(deed: Callable[[], object]) -> str:
    """Run a deed in a forked child; what it returned or raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(deed())
        except BaseException as error:
            said = type(error).__name__
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


@forks
def test_a_forked_child_does_not_own_what_its_parent_owns(begin: Begin, store: Store, clock: TurnClock) -> None:
    w = begin()
    assert _in_fork(lambda: store.claim("recon-1")) == "TaskBusy"
    assert _in_fork(lambda: w.append(intended("recon-1", clock(), w.epoch))) == "StaleEpoch"
    w.append(intended("recon-1", clock(), w.epoch))


@forks
def test_a_forked_child_opens_a_connection_of_its_own(
    begin: Begin, store: Store, clock: TurnClock, expire: Expire
) -> None:
    w = begin()
    w.append(intended("recon-1", clock(), w.epoch))
    assert _in_fork(lambda: store.accept(accepted("recon-2", clock()))) == "None"
    w.append(intended("recon-1", clock(), w.epoch, 2))
    assert _in_fork(lambda: len(store.rows("recon-1"))) == "3"
    assert _in_fork(lambda: store.claim("recon-2").takeover) == "False"
    expire()
    assert store.claim("recon-2").takeover  # the child ended with os._exit while it owned it
    assert store.verify() == []


@only_sqlite
def test_a_forked_child_that_lives_on_does_not_keep_its_parents_lock(store: Store, child: StartChild) -> None:
    one = child("fork", "recon-1")
    _, parent, grandchild = one.hear().split()
    try:
        os.kill(int(parent), signal.SIGKILL)
        one.process.wait()
        assert subprocess.run(["kill", "-0", grandchild], check=False).returncode == 0
        assert store.claim("recon-1").takeover
    finally:
        os.kill(int(grandchild), signal.SIGKILL)


@forks
def test_forks_under_many_appending_threads_lose_nothing(store: Store, clock: TurnClock) -> None:
    def work(name: str) -> None:
        w = Writer(store, name, _accept_and_claim(store, clock, name))
        for step in range(1, 60):
            w.append(intended(name, clock(), w.epoch, step))

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                store.heads()
                os._exit(0)
            except BaseException:
                os._exit(1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    for thread in threads:
        thread.join()
    assert [len(store.rows(f"t{n}")) for n in range(3)] == [60] * 3
    assert store.verify() == []


# ------------------------------------------------------------ several processes at once


def test_two_processes_that_append_at_once_both_make_progress(store: Store, child: StartChild) -> None:
    names = ["a", "b", "c"]
    children = [child("append", name, "400") for name in names]
    assert [one.hear() for one in children] == ["ready"] * 3
    for one in children:
        one.say()
    assert children[0].hear() == "done"
    done = [len(store.rows(name)) for name in names]
    assert min(done) > 40, f"one process was starved: {done}"
    assert [one.hear() for one in children[1:]] == ["done"] * 2
    assert [len(store.rows(name)) for name in names] == [401] * 3
    assert store.verify() == []


def test_of_several_processes_that_take_over_one_task_one_does(store: Store, child: StartChild, expire: Expire) -> None:
    dead = child("claim", "recon-1")
    dead.hear()
    dead.end()
    expire()
    children = [child("take", "recon-1") for _ in range(4)]
    assert [one.hear() for one in children] == ["ready"] * 4
    for one in children:
        one.say()
    assert sorted(one.hear() for one in children) == ["takeover", "task_busy", "task_busy", "task_busy"]
    assert [row.kind for row in store.rows("recon-1")] == [Kind.TASK_ACCEPTED, Kind.TASK_CLAIMED]


def test_a_parked_task_goes_to_the_next_process(store: Store, child: StartChild, clock: TurnClock) -> None:
    w = Writer(store, "recon-1", _accept_and_claim(store, clock, "recon-1"))
    w.append(parked("recon-1", clock(), w.epoch))
    one = child("claim", "recon-1")
    assert one.hear().startswith("claimed")
    with pytest.raises(TaskBusy):
        store.claim("recon-1")


@only_sqlite
def test_looking_at_a_store_drops_no_lock_of_a_connection_that_the_process_has(
    begin: Begin, store: Store, make_store: MakeStore, child: StartChild
) -> None:
    begin()
    assert store.verify() == []
    for options in ({}, {"read_only": True}):
        other = make_store(**options)
        other.info()
        other.close()
    assert child("lock").hear() == "held"
    store.close()
    assert child("lock").hear() == "free"
