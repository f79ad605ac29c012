"""C05: replaying reads the log only; a fork shows what stands and asks; what a person has answered never travels."""

from __future__ import annotations

from typing import Any

from fork_ground import Ground, Steps, answer, log_of, needs_human, question

from doubtless import Answer


def test_replay_reads_the_log_only_and_the_world_stays_as_it_is(ground: Ground) -> None:
    app, work = ground.release(lambda have: [have.pay("one"), have.tell("two")])
    output = app.run(work, "t")
    effects, before = list(ground.effects), log_of(app, "t")
    for _ in range(3):
        assert app.run(work, "t") == output
        assert app.resume("t") == output
        app.show("t")
    assert (ground.effects, log_of(app, "t")) == (effects, before)


def test_an_old_approval_never_answers_a_fork(ground: Ground) -> None:
    """NW1, a person's yes, NW2; forked before NW1, between, and behind all of it: the yes is asked for anew."""

    def code(have: Steps) -> Any:
        return [have.pay("one")["id"], have.app.wait_for("approval"), have.tell("two")["id"]]

    app, work = ground.release(code)
    needs_human(lambda: app.run(work, "t"))
    case = question(app)
    app.settle(case.id, Answer("yes"), by="anna", why="seen", shown=case.hash)
    assert app.run(work, "t") == [1, "yes", 2]

    for at in (1, 2, 3, 4):
        fork = app.fork("t", at=at, non_idem_write="reuse")
        needs_human(lambda fork=fork: app.resume(fork.id))
        case = question(app)
        assert (case.task_id, case.step) == (fork.id, "$wait_for"), "the approval is asked for anew"
        app.settle(case.id, Answer(f"yes to {at}"), by="ben", why="seen", shown=case.hash)
        assert app.resume(fork.id) == [1, f"yes to {at}", 2]
    assert len(ground.effects) == 2


def test_a_forks_own_answers_are_its_own(ground: Ground) -> None:
    app, work = ground.release(lambda have: have.pay("one")["id"])
    app.run(work, "t")
    app.fork("t", at=1)
    needs_human(lambda: app.resume("t@1"))
    answer(app, "run_all")
    assert app.resume("t@1") == 2
    app.fork("t@1", at=1, task_id="second")
    needs_human(lambda: app.resume("second"))
    assert question(app).task_id == "second"
