"""`doubtless worker` as processes: each task once, drained by a signal, killed and taken over, paused and come back."""

from __future__ import annotations

import json
import signal

from tests.workers.conftest import Team, only_postgres, until

from doubtless.events import Event, Kind

SHORT = "PT6S"
"""A lease lasts at least as long as the call that it protects: a takeover waits for it."""


def takeover(row: Event) -> bool:
    return row.kind == Kind.TASK_CLAIMED and "was" in row.details


def test_fifty_tasks_are_run_once_each_by_two_workers(team: Team) -> None:
    single, several = team.module.single, team.module.several
    names = [team.app.start(several if n % 2 else single, f"t{n}", n=n) for n in range(50)]
    one, two = team.worker("--concurrency", "4"), team.worker("--concurrency", "4", "--json")
    until(lambda: team.ended(*names), "the end of all")
    assert team.booked() == list(range(50))
    one.signal(signal.SIGTERM)
    two.signal(signal.SIGINT)
    out, _ = two.process.communicate()
    assert (one.end(), two.process.returncode) == (0, 0)
    assert set(json.loads(out)) == {"runs", "left_alone", "errors"}
    assert team.app.verify() == []
    assert [row for name in names for row in team.app.store.rows(name) if takeover(row)] == []


def test_a_signal_drains_a_worker_the_write_is_recorded_and_no_new_step_begins(team: Team) -> None:
    gate = team.hold(1)
    team.app.start(team.module.pair, "t", n=1)
    team.app.start(team.module.pair, "later", n=2)
    worker = team.worker("--concurrency", "1")
    team.inside(1)
    worker.signal(signal.SIGTERM)
    until(lambda: "draining" in worker.said(), "the drain")
    gate.unlink()
    assert worker.end() == 0
    assert team.booked() == [1]
    head = team.app.store.head("t")
    assert head is not None
    assert (head.status, head.owner) == ("ready", None)
    assert [row.kind for row in team.app.store.rows("later")] == [Kind.TASK_ACCEPTED]
    team.worker()
    until(lambda: team.ended("t", "later"), "the end")
    assert team.booked() == [1, 2, 1001, 1002]


def test_a_second_signal_ends_a_worker_at_once_and_its_write_is_in_doubt_and_settled(team: Team) -> None:
    team.environ["BOOK_TIMEOUT"] = SHORT
    team.hold(1)
    team.app.start(team.module.pair, "t", n=1)
    worker = team.worker()
    team.inside(1)
    worker.signal(signal.SIGTERM)
    until(lambda: "draining" in worker.said(), "the drain")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 143
    team.worker()
    until(lambda: team.ended("t"), "the end")
    assert team.booked() == [1, 1001]
    assert Kind.LOOKED_BACK in [row.kind for row in team.app.store.rows("t")]


def test_what_a_killed_worker_had_in_flight_is_taken_over_and_asked_for_and_not_sent_again(team: Team) -> None:
    team.environ["BOOK_TIMEOUT"] = SHORT
    team.hold(1)
    team.app.start(team.module.pair, "t", n=1)
    worker = team.worker()
    team.inside(1)
    worker.signal(signal.SIGKILL)
    worker.end()
    team.worker()
    until(lambda: team.ended("t"), "the end")
    assert team.booked() == [1, 1001]
    assert [takeover(row) for row in team.app.store.rows("t")].count(True) == 1
    assert team.app.verify() == []


@only_postgres
def test_a_worker_that_was_paused_past_its_lease_appends_nothing_more_and_what_it_knows_is_evidence(team: Team) -> None:
    team.environ["BOOK_TIMEOUT"] = SHORT
    gate = team.hold(1)
    team.app.start(team.module.pair, "t", n=1)
    zombie = team.worker()
    team.inside(1)
    zombie.signal(signal.SIGSTOP)
    team.worker()
    until(lambda: team.ended("t"), "the end, by another worker")
    gate.unlink()
    zombie.signal(signal.SIGCONT)
    until(lambda: Kind.EVIDENCE_STORED in [row.kind for row in team.app.store.rows("t")], "the zombie's result, as evidence")
    zombie.signal(signal.SIGTERM)
    assert zombie.end() == 0
    rows = team.app.store.rows("t")
    assert [(row.path, row.status) for row in rows if row.kind == Kind.STEP_SETTLED] == [("1", "done"), ("2", "done")]
    assert team.booked() == [1, 1001]
    assert team.app.verify() == []


def test_a_worker_names_a_task_once_whose_code_it_does_not_have_and_takes_only_its_queues(team: Team) -> None:
    @team.app.task
    def foreign() -> int:
        return 1

    team.app.start(foreign, "strange", queue="mail")
    team.app.start(team.module.single, "mine", queue="mail", n=1)
    team.app.start(team.module.single, "not-mine", n=2)
    worker = team.worker("--queues", "mail,other")
    until(lambda: team.ended("mine") and "left alone" in worker.said(), "the end of its own")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert worker.said().count("strange") == 1
    assert [row.kind for name in ("strange", "not-mine") for row in team.app.store.rows(name)] == [Kind.TASK_ACCEPTED] * 2
    assert team.booked() == [1]


def test_what_a_killed_worker_left_has_its_turn_before_younger_tasks_however_many_are_ready(team: Team) -> None:
    team.environ["BOOK_TIMEOUT"] = SHORT
    team.hold(1)
    team.app.start(team.module.pair, "t", n=1)
    worker = team.worker()
    team.inside(1)
    worker.signal(signal.SIGKILL)
    worker.end()
    (team.folder / "hold-1").unlink()
    names = [team.app.start(team.module.single, f"t{n}", n=n) for n in range(2, 8)]
    until(lambda: not team.app.store.owner_alive(team.app.store.head("t").owner), "the end of its lease")  # type: ignore[union-attr]
    team.worker("--concurrency", "1")
    until(lambda: team.ended("t", *names), "the end of all")
    assert [effect["n"] for effect in team.world.all()] == [1, 1001, 2, 3, 4, 5, 6, 7]
