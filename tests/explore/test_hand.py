"""The owner's hand writes the rows that the executor writes: each story told by both, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubtless import Doubtless, NeedsHuman, NotSent, Rejected, TaskFailed, injected
from doubtless.answers import Abandon, DidNotHappen, Happened
from doubtless.events import Event
from doubtless.store.recover import recover
from doubtless.testing import FakeClock

from .moves import World
from .owner import Hand
from .plants import AnswerTwice
from .world import FAULT, S, Slice, Step, policy, start

PAID = {"id": "p1"}
PLENTY = dict.fromkeys(FAULT, 9)


def shape(row: Event) -> tuple[Any, ...]:
    """What of a row the fold reads, without ids, words and the times themselves."""
    data, error = row.details, json.loads(row.error or "{}")
    said = {name: data.get(name) for name in ("answer", "counts", "then", "even_now", "running", "kind")}
    return (
        row.kind, row.status, row.attempt, row.effect_class, row.idempotency_key is not None, row.output_ref is not None,
        error.get("kind"), row.started_at is not None, row.finished_at is not None, row.epoch is not None, said,
    )  # fmt: skip


def shapes(rows: Iterator[Event] | list[Event] | tuple[Event, ...]) -> list[tuple[Any, ...]]:
    return [shape(row) for row in rows if row.path == "1"]


# ---------------------------------------------------------------- told by the real library


class Told:
    """A task with one write on a real store; `goes` says how its calls go, `shows` what its query answers."""

    def __init__(self, folder: Path, goes: list[Any], shows: list[Any], **options: Any) -> None:
        self.goes, self.shows = list(goes), list(shows)
        self.app = app = Doubtless(f"sqlite:///{folder}/told.db", clock=FakeClock(), namespace="explored")
        if shows:
            options["query"] = lambda order: self.shows.pop(0)

        @app.step(**{"timeout": "PT2S", "backoff": "PT0S", "attempts": 2, **options})
        def pay(order: str, idempotency_key: str = injected()) -> dict[str, str]:
            goes = self.goes.pop(0)
            if isinstance(goes, Exception):
                raise goes
            return dict(goes)

        @app.task
        def settle_order(order: str) -> None:
            pay(order=order)

        self.task = settle_order

    def run(self, said: list[Any]) -> list[tuple[Any, ...]]:
        try:
            for answer in [*said, None]:
                try:
                    self.app.run(self.task, task_id="told", order="o1")
                except NeedsHuman as stopped:
                    case = self.app.case(stopped.cases[0])
                    if answer is None:
                        assert case.kind == "code_error"  # the step is exhausted: that is the task's matter
                        break
                    self.app.settle(case.id, answer, by="ann", why="", shown=case.hash)
                except TaskFailed:
                    pass
            return shapes(self.app.store.rows("told"))
        finally:
            self.app.close()


def by_the_hand(step: Step, words: list[str], hand: type[Hand] = Hand) -> list[tuple[Any, ...]]:
    """The rows of the story that these words tell, move by move; time goes on as often as it has to."""
    world = World(Slice("told", "", (step,), PLENTY), hand)
    state = start(world.slice)
    for wanted in words:
        for _ in range(9):
            moves = list(world.moves(state))
            chosen = next((m for m in moves if wanted in m.words), None)
            if chosen is not None:
                break
            chosen = next(m for m in moves if m.words.endswith("go by"))
            state = chosen.state
        else:
            raise AssertionError(f"no move says {wanted!r}")
        state = chosen.state
    return shapes(state.rows)


LOST = ConnectionResetError("the reply was lost")
CALLED = ["enters the call", "is sent"]
LANDED = ["enters the call", "is sent", "LANDS", "returns"]
AGAIN = ["enters the call", "attempt 2 of step 1 is sent", "attempt 2 of step 1 LANDS", "returns"]
UNKNOWN = ["enters the call", "is sent", "no reply"]
SEES = {"absent_after": "PT8S", "on_absent": "retry"}
QUERIED = policy(has_query=True, absent_after_us=8 * S, on_absent="retry", attempts=2)
BLIND = policy(attempts=2)

Story = tuple[list[Any], list[Any], list[Any], dict[str, Any], Any, list[str]]
STORIES: dict[str, Story] = {
    "it goes well": ([PAID], [], [], {}, BLIND, LANDED),
    "its key makes a second send harmless": (
        [LOST, PAID], [], [], {"effect": "idem_write"}, policy("idem_write", attempts=2), [*UNKNOWN, *AGAIN],
    ),
    "found": ([LOST], [PAID], [], SEES, QUERIED, ["enters", "is sent", "LANDS", "no reply", ": found"]),
    "proven absent and sent again": (
        [LOST, PAID], [None, None, None], [], SEES, QUERIED,
        [*UNKNOWN, ": absent", ": absent", ": absent, which counts", *AGAIN],
    ),
    "proven absent and given up": (
        [LOST], [None, None, None], [], {**SEES, "on_absent": "fail"}, QUERIED._replace(on_absent="fail"),
        [*UNKNOWN, ": absent", ": absent", ": absent, which counts", "settles"],
    ),
    "refused": ([Rejected("422")], [], [], {}, BLIND, [*CALLED, "refuses", "answered: rejected", "settles"]),
    "refused, and sent under the next key": (
        [Rejected("422"), PAID], [], [], {"retry_rejected": True}, BLIND._replace(retry_rejected=True),
        [*CALLED, "refuses", "answered: rejected", *AGAIN],
    ),
    "not sent, twice": (
        [NotSent(), NotSent()], [], [], {}, BLIND, ["enters", "nothing left", "enters", "nothing left", "settles"],
    ),
    "a person saw that it happened": (
        [LOST], [], [Happened(PAID)], {}, BLIND, ["enters", "is sent", "LANDS", "no reply", "opens a case", ": happened"],
    ),
    "a person lets it be sent again": (
        [LOST, PAID], [], [DidNotHappen("retry")], {}, BLIND,
        [*UNKNOWN, "opens a case", "did_not_happen retry", "takes the task over", *AGAIN],
    ),
    "a person lets it be sent at once": (
        [LOST, PAID], [], [DidNotHappen("retry", even_now=True)], {}, BLIND,
        [*UNKNOWN, "opens a case", "even_now retry", *AGAIN],
    ),
    "a person gives it up": ([LOST], [], [Abandon()], {}, BLIND, [*UNKNOWN, "opens a case", ": abandon"]),
}  # fmt: skip
"""Of each story: how the calls go, what the query shows, what a person says; the options of the step as the library takes
them and as the exploration does; and the moves that tell it there."""


@pytest.mark.parametrize("name", STORIES)
def test_the_hand_writes_the_rows_that_the_executor_writes(name: str, tmp_path: Path) -> None:
    goes, shows, said, options, explored, words = STORIES[name]
    real = Told(tmp_path, goes, shows, **{"effect": "non_idem_write", **options}).run(said)
    assert by_the_hand(Step("1", explored), words) == real


def test_of_a_restored_log_the_hand_writes_the_rows_that_the_executor_writes(tmp_path: Path) -> None:
    told = Told(tmp_path, [], [PAID], effect="non_idem_write", **SEES)
    told.app.store.info()
    told.app.close()
    recover(str(tmp_path / "told.db"), clock=FakeClock().now, accept=True, by="ann", why="the disk was replaced")
    real = told.run([])
    hand = Hand(Slice("told", "", (Step("1", QUERIED),), PLENTY))
    counted = hand.count_as_sent(start(hand.slice)._replace(suspect=True), 0, 0)
    assert counted is not None and hand.count_as_sent(counted.state, 0, 0) is None
    found = next(move for move in hand.look(counted.state, 0, 0) if ": unclear" in move.words)  # nothing landed here: see the row
    assert shapes(found.state.rows)[:1] == real[:1]
    assert [shape[0] for shape in real] == ["StepIntended", "LookedBack", "StepSettled"]
    assert real[0][6] == "unknown" and told.goes == []


def test_a_hand_with_a_bug_writes_other_rows(tmp_path: Path) -> None:
    goes, shows, said, options, explored, words = STORIES["a person lets it be sent at once"]
    real = Told(tmp_path, goes, shows, effect="non_idem_write", **options).run(said)
    assert by_the_hand(Step("1", explored), words, AnswerTwice) != real
