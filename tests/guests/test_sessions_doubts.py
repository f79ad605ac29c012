"""Doubts of a session: timeouts, Ctrl-C, dead hosts, people; what is told of them, and who settles them."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import pytest
from guests_child import ORDER, append_line, lines, payments
from guests_ground import PATIENCE, Ground, raised, together

from doubtless import (
    Abandon,
    Answer,
    Doubtless,
    Found,
    Happened,
    NeedsHuman,
    NotCanonical,
    NotSent,
    Pending,
    Refused,
    StepFailed,
    StoreUnavailable,
    TaskBusy,
    TaskFrozen,
    TaskWaiting,
    UsageError,
    injected,
)
from doubtless.events import Kind


class Blind:
    """A system that nobody can ask, whose reply is lost as often as it is told; and reads of both sorts."""

    def __init__(self, app: Doubtless) -> None:
        self.paid: list[int] = []
        self.lose = 1

        @app.step(effect="non_idem_write")
        def pay(amount: int) -> int:
            self.paid.append(amount)
            if self.lose:
                self.lose -= 1
                raise ConnectionResetError("the line is dead")
            return len(self.paid)

        @app.step(effect="read", independent=True)
        def weather() -> str:
            return "fine"

        @app.step(effect="read")
        def balance() -> int:
            return -sum(self.paid)

        self.pay, self.weather, self.balance = pay, weather, balance


@pytest.fixture
def app(ground: Ground) -> Doubtless:
    return ground.app()


def settle(app: Doubtless, answer: Any) -> None:
    (case,) = app.inbox().cases
    app.settle(case.id, answer, by="anna", why="looked", shown=case.hash)


# ---------------------------------------------------------------- a doubt that only a person can settle


def test_a_write_in_doubt_is_told_neutrally_and_nothing_that_depends_on_it_begins(app: Doubtless) -> None:
    blind = Blind(app)
    with app.session("thread-42") as session:
        error = raised(session.call, blind.pay, amount=5, call_id="a")
        assert isinstance(error, NeedsHuman)
        assert error.cases == tuple(case.id for case in app.inbox().cases)
        assert error.text_for_model == "pay(amount=5) may have happened; it is being checked. Do not repeat it."
        for step, params in ((blind.pay, {"amount": 5}), (blind.pay, {"amount": 6}), (blind.balance, {})):
            other = raised(session.call, step, **params, call_id=f"b{params}")
            assert isinstance(other, NeedsHuman) and other.cases == error.cases
            assert "fail" not in other.text_for_model and "again" not in other.text_for_model
            assert "pay(amount=5) may have happened" in other.text_for_model
        assert raised(session.call, blind.pay, amount=5, call_id="a").text_for_model == error.text_for_model  # type: ignore[union-attr]
        assert session.call(blind.weather) == "fine", "an independent read goes on"
    assert blind.paid == [5]
    assert app.show("thread-42").status == "needs_human"


def test_what_a_person_has_settled_is_given_to_its_id_in_the_same_opening(app: Doubtless) -> None:
    blind = Blind(app)
    with app.session("thread-42") as session:
        raised(session.call, blind.pay, amount=5, call_id="a")
        settle(app, Happened(77))
        assert session.call(blind.pay, amount=5, call_id="a") == 77
        assert session.call(blind.pay, amount=6, call_id="b") == 2
    assert blind.paid == [5, 6]
    assert app.show("thread-42").unacknowledged == ()


def test_a_doubt_is_not_acknowledged_by_leaving_the_block_and_its_outcome_reaches_the_model_later(app: Doubtless) -> None:
    blind = Blind(app)
    with app.session("thread-42") as session:
        raised(session.call, blind.pay, amount=5, call_id="a")
    assert app.show("thread-42").unacknowledged == ("1",)
    settle(app, Happened(77))
    with app.session("thread-42") as session:
        error = raised(session.call, blind.pay, amount=6, call_id="b")
        assert isinstance(error, Refused)
        assert "pay(amount=5) was carried out; its result: 77" in error.text_for_model
        assert session.call(blind.pay, amount=5, call_id="c") == 77
        assert session.replayed("c")
    assert blind.paid == [5]


def test_a_doubt_of_an_earlier_opening_is_not_acknowledged_by_a_later_one_that_asks_for_nothing(app: Doubtless) -> None:
    blind = Blind(app)
    with pytest.raises(NeedsHuman), app.session("thread-42") as session:
        session.call(blind.pay, amount=5, call_id="a")
    with app.session("thread-42"):
        pass
    assert app.show("thread-42").unacknowledged == ("1",)


def test_while_one_write_is_in_doubt_no_refusal_names_half_of_what_stands(app: Doubtless) -> None:
    blind = Blind(app)
    blind.lose = 0
    with pytest.raises(NeedsHuman), app.session("thread-42") as session:
        session.call(blind.pay, amount=4, call_id="a")
        blind.lose = 1
        session.call(blind.pay, amount=5, call_id="b")
    with app.session("thread-42") as session:
        assert isinstance(raised(session.call, blind.pay, amount=6, call_id="c"), NeedsHuman)
        assert session.call(blind.pay, amount=4, call_id="d") == 1, "what is known is given all the same"
        settle(app, Happened(77))
        error = raised(session.call, blind.pay, amount=6, call_id="c")
        assert isinstance(error, Refused) and error.holder["stands"] == ["2"]
    assert blind.paid == [4, 5]


def test_a_doubt_that_is_still_being_settled_is_left_to_a_worker(app: Doubtless) -> None:
    answers: list[Any] = [Pending("PT1M")]

    @app.step(effect="non_idem_write", query=lambda idempotency_key: answers[-1])
    def pay(amount: int, idempotency_key: str = injected()) -> int:
        raise ConnectionResetError

    with app.session("thread-42", wait=False) as session:
        error = raised(session.call, pay, amount=5, call_id="a")
        assert isinstance(error, TaskWaiting) and error.until is not None
        assert error.text_for_model == "pay(amount=5) may have happened; it is being checked. Do not repeat it."
        assert isinstance(raised(session.finish), TaskWaiting), "a doubt does not end a session"
    assert app.show("thread-42").status == "ready"
    answers.append(Found(9))
    app.resume_all(wait=True)
    assert app.show("thread-42").status == "waiting"
    with app.session("thread-42") as session:
        assert session.call(pay, amount=5, call_id="b") == 9


def test_a_write_waits_while_another_is_in_doubt_and_does_not_begin_when_that_needs_a_person(app: Doubtless) -> None:
    blind = Blind(app)
    told: list[BaseException | None] = []
    others: list[threading.Thread] = []

    @app.on_case
    def in_the_middle_of_the_first(case: Any) -> None:
        before = app.clock.now()
        others.append(threading.Thread(target=lambda: told.append(raised(session.call, blind.pay, amount=6, call_id="b"))))
        others[0].start()
        poll = threading.Event()
        while app.clock.now() == before and others[0].is_alive():  # its wait moves the clock
            poll.wait(0.001)

    with app.session("thread-42") as session:
        raised(session.call, blind.pay, amount=5, call_id="a")
        others[0].join(PATIENCE)
        assert not others[0].is_alive()
    assert isinstance(told[0], NeedsHuman)
    assert blind.paid == [5]


def test_a_write_that_nobody_could_find_out_about_is_told_so(app: Doubtless) -> None:
    blind = Blind(app)
    with app.session("thread-42") as session:
        raised(session.call, blind.pay, amount=5, call_id="a")
        settle(app, Abandon())
        error = raised(session.call, blind.pay, amount=5, call_id="a")
        assert isinstance(error, StepFailed) and error.kind == "abandoned"
        assert "may have been carried out" in error.text_for_model and "Do not repeat it" in error.text_for_model
    assert blind.paid == [5]


def test_an_output_that_cannot_be_stored_is_asked_of_a_person_and_the_effect_is_told(app: Doubtless) -> None:
    sent: list[int] = []

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> Any:
        sent.append(amount)
        return object()

    with app.session("thread-42") as session:
        error = raised(session.call, pay, amount=5, call_id="a")
        assert isinstance(error, NeedsHuman) and len(error.cases) == 1
        assert "was carried out" in error.text_for_model
    assert app.show("thread-42").status == "needs_human"
    settle(app, Answer(3))
    with app.session("thread-42") as session:
        assert session.call(pay, amount=5, call_id="b") == 3
    assert sent == [5]


# ---------------------------------------------------------------- timeouts and interruptions


def test_a_call_that_overruns_its_timeout_is_in_doubt_and_its_late_result_settles_it(ground: Ground, app: Doubtless) -> None:
    go_on, sent = threading.Event(), list[int]()

    @app.step(effect="non_idem_write", timeout="PT0.05S")
    def pay(amount: int) -> int:
        sent.append(amount)
        assert go_on.wait(PATIENCE)
        return 8

    with app.session("thread-42", wait=False) as session:
        error = raised(session.call, pay, amount=5, call_id="a")
        assert isinstance(error, NeedsHuman)
        go_on.set()
        _until_evidence(app)
        assert session.call(pay, amount=5, call_id="a") == 8
    assert sent == [5]
    assert app.show("thread-42").status == "waiting"
    assert app.inbox().cases == []


def test_a_call_that_overruns_its_timeout_is_looked_up_and_not_sent_again(ground: Ground, app: Doubtless) -> None:
    gate = threading.Event()
    file = str(ground.folder / "effects")

    @app.step(effect="non_idem_write", timeout="PT0.05S", query=lambda idempotency_key: {"key": idempotency_key})
    def pay(amount: int, idempotency_key: str = injected()) -> dict[str, str]:
        append_line(file, f"pay {idempotency_key}")
        gate.wait(PATIENCE)
        return {"key": "late"}

    with app.session("thread-42") as session:
        receipt = session.call(pay, amount=5, call_id="a")
        assert receipt == {"key": lines(file)[0].split()[1]}
        gate.set()
    assert len(lines(file)) == 1


def test_ctrl_c_in_a_call_leaves_it_in_doubt_is_raised_on_and_nothing_is_sent_twice(ground: Ground, app: Doubtless) -> None:
    gate = threading.Event()
    file = str(ground.folder / "effects")

    @app.step(effect="non_idem_write", query=lambda idempotency_key: {"key": idempotency_key})
    def pay(amount: int, idempotency_key: str = injected()) -> dict[str, str]:
        append_line(file, f"pay {idempotency_key}")
        _thread.interrupt_main()
        gate.wait(PATIENCE)
        return {"key": "late"}

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt), app.session("thread-42") as session:
        session.call(pay, amount=5, call_id="a")
    view = app.show("thread-42")
    assert [(a.outcome, a.code) for a in view.steps[0].attempts] == [("unknown", "KeyboardInterrupt")]
    assert view.unacknowledged == ("1",)
    gate.set()
    _until_free(app)
    with app.session("thread-42") as session:
        session.call(pay, amount=5, call_id="b")
        assert session.replayed("b")
    assert len(lines(file)) == 1


def test_ctrl_c_while_the_block_is_left_waits_for_no_call_and_leaves_it_in_doubt(app: Doubtless) -> None:
    begun, go_on = threading.Event(), threading.Event()
    sent: list[int] = []

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> int:
        sent.append(amount)
        begun.set()
        assert go_on.wait(PATIENCE)
        return 8

    session = app.session("thread-42")
    told: list[BaseException | None] = []
    caller = threading.Thread(target=lambda: told.append(raised(session.call, pay, amount=5)))
    with pytest.raises(KeyboardInterrupt), session:
        caller.start()
        assert begun.wait(PATIENCE)
        threading.Timer(0.05, _thread.interrupt_main).start()
    caller.join(PATIENCE)
    assert isinstance(told[0], TaskWaiting), "its caller hears that it may have happened"
    assert app.inbox().cases == [], "nothing was decided about it on the way out"
    assert "may have happened" in told[0].text_for_model
    assert isinstance(raised(app.session("thread-42").__enter__), TaskBusy), "the call still runs: nobody else may begin"
    go_on.set()
    _until_free(app)
    with app.session("thread-42") as again:
        assert again.call(pay, amount=5) == 8
    assert sent == [5]


def _until_evidence(app: Doubtless) -> None:
    poll = threading.Event()
    for _ in range(2000):
        if any(row.kind == Kind.EVIDENCE_STORED for row in app.store.rows("thread-42")):
            return
        poll.wait(0.005)
    raise AssertionError("no late news came")


def _until_free(app: Doubtless) -> None:
    poll = threading.Event()
    for _ in range(2000):
        head = app.store.head("thread-42")
        if head is not None and head.owner is None:
            return
        poll.wait(0.005)
    raise AssertionError("the session is still owned")


# ---------------------------------------------------------------- what is not sent


def test_what_was_not_sent_is_told_so_and_given_up_when_the_host_goes_on(app: Doubtless) -> None:
    tries: list[int] = []

    @app.step(effect="non_idem_write", backoff="PT1H")
    def pay(amount: int) -> int:
        tries.append(amount)
        raise NotSent

    with app.session("thread-42", wait=False) as session:
        error = raised(session.call, pay, amount=5, call_id="a")
        assert isinstance(error, TaskWaiting) and error.until is not None
        assert error.text_for_model == "pay has not been carried out yet."
        assert raised(session.call, pay, amount=5, call_id="a") is not None
        assert tries == [5], "an hour of backoff is not over"
    view = app.show("thread-42")
    assert view.steps[0].status == "not_applied"
    assert (view.status, view.unacknowledged, app.inbox().doubts) == ("waiting", (), [])


def test_a_frozen_write_is_not_sent_and_goes_through_after_the_thaw(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    app.freeze("pay", why="incident")
    with app.session("thread-42") as session:
        error = raised(session.call, pay, **ORDER, call_id="a")
        assert isinstance(error, TaskFrozen) and "switched off" in error.text_for_model
        assert ground.effects() == []
        app.thaw("pay")
        session.call(pay, **ORDER, call_id="a")
    assert ground.effects() == ["pay o1 500"]


def test_an_acknowledgement_that_the_store_does_not_take_is_an_error_and_is_none(ground: Ground) -> None:
    full: list[bool] = []

    def hooks(point: str) -> None:
        if full and point == "append:before":
            raise StoreUnavailable("no space left")

    app = ground.app(hooks=hooks, store_patience=0.01)
    pay, _ = payments(app, str(ground.folder))
    session = app.session("thread-42")
    with pytest.raises(StoreUnavailable), session:
        session.call(pay, **ORDER, call_id="a")
        full.append(True)
    full.clear()
    with app.session("thread-42") as again:
        again.call(pay, **ORDER, call_id="b")
        assert again.replayed("b")
    assert len(ground.effects()) == 1


def test_a_call_that_runs_while_the_block_is_left_is_waited_for_and_not_acknowledged(ground: Ground, app: Doubtless) -> None:
    begun, go_on = threading.Event(), threading.Event()
    sent: list[int] = []

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> int:
        sent.append(amount)
        begun.set()
        assert go_on.wait(PATIENCE)
        return 8

    session = app.session("thread-42")
    results: list[Any] = []
    caller = threading.Thread(target=lambda: results.append(raised(lambda: results.append(session.call(pay, amount=5)))))

    def late_caller() -> None:
        poll = threading.Event()
        while session._guests is None or not session._guests.closed:
            poll.wait(0.001)
        late.append(raised(session.call, pay, amount=6))
        go_on.set()

    late: list[BaseException | None] = []
    with session:
        caller.start()
        assert begun.wait(PATIENCE)
        leaving = threading.Thread(target=late_caller)
        leaving.start()
    caller.join(PATIENCE)
    leaving.join(PATIENCE)
    assert isinstance(late[0], UsageError), "a block that is being left takes no calls"
    view = app.show("thread-42")
    assert (view.steps[0].status, view.unacknowledged) == ("done", ("1",))
    with app.session("thread-42") as again:
        assert again.call(pay, amount=5, call_id="b") == 8
    assert sent == [5]


# ---------------------------------------------------------------- whoever resumes


def test_a_resume_settles_the_doubts_of_a_dead_host_and_leaves_the_session_waiting(ground: Ground) -> None:
    ground.kill_host("after effect")
    app = ground.app()
    _, notify = payments(app, str(ground.folder))
    assert [doubt.step for doubt in app.inbox().doubts] == ["pay"]
    assert app.resume_all()["thread-42"].startswith("task_waiting")
    assert app.inbox().doubts == []
    view = app.show("thread-42")
    assert (view.status, view.steps[0].status, view.unacknowledged) == ("waiting", "done", ("1",))
    with app.session("thread-42") as session:
        error = raised(session.call, notify, whom="anna")
        assert isinstance(error, Refused) and "pay" in error.text_for_model
    assert ground.effects() == ["pay o1 500"]


def test_a_resume_of_a_session_with_nothing_in_doubt_writes_nothing(ground: Ground, app: Doubtless) -> None:
    pay, _ = payments(app, str(ground.folder))
    with app.session("thread-42") as session:
        session.call(pay, **ORDER)
    written = app.store.rows("thread-42")
    error = raised(app.resume, "thread-42")
    assert isinstance(error, TaskWaiting) and "its host opens it" in error.hint
    assert app.store.rows("thread-42") == written


def test_a_worker_settles_the_doubts_of_a_dead_host_and_leaves_idle_sessions_alone(ground: Ground) -> None:
    ground.kill_host("after effect")
    app = ground.app()
    pay, _ = payments(app, str(ground.folder))
    with app.session("idle") as session:
        session.call(pay, order="o2", amount=1)
    poll = threading.Event()
    with app.worker(concurrency=1) as worker:
        for _ in range(2000):
            head = app.store.head("thread-42")
            if head is not None and head.status == "waiting":
                break
            poll.wait(0.005)
        assert worker.unknown == set()
    assert app.show("thread-42").steps[0].status == "done"
    second = app.worker(concurrency=1)
    second._claim_due()
    assert second._running() == set(), "nobody claims what only waits for its host"
    assert sorted(ground.effects()) == ["pay o1 500", "pay o2 1"]


def test_a_doubt_that_a_person_settles_between_two_openings_wakes_nobodys_code(app: Doubtless) -> None:
    blind = Blind(app)
    with app.session("thread-42") as session:
        raised(session.call, blind.pay, amount=5, call_id="a")
    settle(app, Happened(77))
    assert app.show("thread-42").status == "ready"
    assert isinstance(raised(app.resume, "thread-42"), TaskWaiting)
    assert app.show("thread-42").status == "waiting"
    assert blind.paid == [5]


def test_a_session_whose_finish_was_refused_goes_on(app: Doubtless) -> None:
    blind = Blind(app)
    with app.session("thread-42") as session:
        assert isinstance(raised(session.call, blind.pay, amount=1, call_id="a"), NeedsHuman)
        assert isinstance(raised(session.finish), NeedsHuman)
        assert session.call(blind.weather) == "fine", "it is not being left"
        settle(app, Happened(1))
        assert isinstance(raised(session.finish, {1}), NotCanonical)
        assert session.call(blind.pay, amount=1, call_id="a") == 1
        assert session.call(blind.pay, amount=2, call_id="b") == 2
        session.finish()
    assert blind.paid == [1, 2]


def test_a_session_is_not_finished_while_a_call_of_it_runs(app: Doubtless) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.step(effect="non_idem_write")
    def pay(amount: int) -> int:
        begun.set()
        assert go_on.wait(PATIENCE)
        return 8

    with app.session("thread-42") as session:
        caller = threading.Thread(target=lambda: raised(session.call, pay, amount=5, call_id="a"))
        caller.start()
        assert begun.wait(PATIENCE)
        error = raised(session.finish)
        go_on.set()
        caller.join(PATIENCE)
        assert isinstance(error, UsageError)
        assert session.call(pay, amount=5, call_id="a") == 8
        session.finish()
    assert app.show("thread-42").status == "done"


def test_parallel_calls_wait_for_a_write_whose_outcome_is_being_looked_up(ground: Ground, app: Doubtless) -> None:
    """Two writes at once: one is in doubt for a moment and its query settles it; the other is neither lost nor sent twice."""
    file = str(ground.folder / "effects")
    lost: set[int] = set()

    def find(amount: int, idempotency_key: str) -> dict[str, str] | None:
        return {"key": idempotency_key} if any(idempotency_key in line for line in lines(file)) else None

    @app.step(effect="non_idem_write", query=find)
    def pay(amount: int, idempotency_key: str = injected()) -> dict[str, str]:
        append_line(file, f"pay {amount} {idempotency_key}")
        if amount not in lost:
            lost.add(amount)
            raise ConnectionResetError
        return {"key": idempotency_key}

    with app.session("thread-42") as session:
        results = together(6, lambda n: session.call(pay, amount=n, call_id=f"c{n}"))
    assert all(isinstance(result, dict) for result in results), results
    assert sorted(line.split()[1] for line in lines(file)) == [str(n) for n in range(6)]
