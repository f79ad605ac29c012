"""An answer that comes while a run is about to park wakes its task all the same: it never sleeps with nothing in the inbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from doubtless import Answer, Doubtless, Happened, NeedsHuman, Retry
from doubtless.conclusion import Concluding
from doubtless.inbox import Case


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = Doubtless(f"sqlite:///{tmp_path}/t.db")
    yield app
    app.close()


ANSWERS: dict[str, Any] = {"doubt": Happened({"id": 1}), "question": Answer("yes"), "code_error": Retry()}


def answer(app: Doubtless, case: Case) -> None:
    app.settle(case.id, ANSWERS[case.kind], by="anna", why="seen", shown=app.case(case.id).hash)


def declare(app: Doubtless) -> Any:
    @app.step(effect="non_idem_write")
    def send() -> dict[str, int]:
        raise TimeoutError

    return send


@pytest.mark.parametrize("what", ["doubt", "question"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_hook_that_answers_at_once_is_heard_by_the_run_that_opened_the_case(app: Doubtless, what: str, how: str) -> None:
    send = declare(app)
    app.on_case(lambda case: answer(app, case))

    @app.task
    def task() -> Any:
        return send() if what == "doubt" else app.wait_for("approve")

    @app.task
    async def atask() -> Any:
        return await (send.acall() if what == "doubt" else app.wait_for("approve"))

    assert app.run(task if how == "sync" else atask, "t") == ({"id": 1} if what == "doubt" else "yes")
    assert app.show("t").status == "done" and app.verify() == []


@pytest.mark.parametrize("what", ["doubt", "question", "code_error"])
def test_an_answer_right_before_the_row_that_parks_is_heard(
    app: Doubtless, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = declare(app)
    runs: list[int] = []

    @app.task
    def task() -> Any:
        runs.append(1)
        if what == "code_error" and len(runs) < 3:  # the second run meets the case that the first has opened
            raise ValueError("a bug")
        return send() if what == "doubt" else app.wait_for("approve") if what == "question" else "fine"

    if what == "code_error":
        with pytest.raises(NeedsHuman):
            app.run(task, "t")
    parks = Concluding.write_parked

    def answered_first(self: Any, park: Any, *first: Any, **options: Any) -> None:
        for case in app.inbox().cases:
            answer(app, case)
        parks(self, park, *first, **options)

    monkeypatch.setattr(Concluding, "write_parked", answered_first)
    assert app.run(task, "t") == {"doubt": {"id": 1}, "question": "yes", "code_error": "fine"}[what]


def test_of_two_questions_the_one_that_nobody_answers_is_what_the_task_stands_before(app: Doubtless) -> None:
    app.on_case(lambda case: answer(app, case) if case.evidence["name"] == "a" else None)

    @app.task
    def task() -> Any:
        return app.parallel(lambda: app.wait_for("a"), lambda: app.wait_for("b"))

    with pytest.raises(NeedsHuman) as caught:
        app.run(task, "t")
    assert [app.case(case).evidence["name"] for case in caught.value.cases] == ["b"]
    assert app.show("t").status == "needs_human"
    app.send_event("t", "b", "no")
    assert app.resume("t") == ["yes", "no"]


def test_a_run_that_is_interrupted_while_the_answer_comes_leaves_its_task_ready(
    app: Doubtless, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = declare(app)

    @app.task
    def task() -> Any:
        return send()

    parks = Concluding.write_parked

    def stopped(self: Any, park: Any, *first: Any, **options: Any) -> None:
        monkeypatch.setattr(Concluding, "write_parked", parks)
        self.repeats = False  # as where a signal came
        answer(app, app.inbox().cases[0])
        parks(self, park, *first, **options)

    monkeypatch.setattr(Concluding, "write_parked", stopped)
    app.start(task, "t")
    app.resume_all()
    assert (app.show("t").status, app.inbox().cases) == ("ready", [])
    assert app.resume("t") == {"id": 1}
