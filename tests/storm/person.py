"""The person of the storm: looks at the other side's books, and answers cases as they are."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from examples.reconciliation.outside import Outside

from doubtless import Doubtless
from doubtless.answers import AnyAnswer, Compensate, DidNotHappen, Happened, LetStand, Noted, Retry
from doubtless.errors import AlreadySettled, CaseChanged, StoreError
from doubtless.events import UNDO, CaseKind
from doubtless.inbox import Case

from . import truth
from .bounds import Bounds

SHEET = ("id", "reference", "run", "subject", "status")


class Person:
    """Answers cases truly. `answered`: what was said, by kind and answer; `wrong`: cases that the storm must not make."""

    def __init__(self, app: Doubtless, outside: Outside, books: Path, bounds: Bounds, seed: int) -> None:
        self.app = app
        self.answered: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._seen: set[str] = set()
        self._outside = outside
        self._books = books
        self._bounds = bounds
        self._rng = random.Random(f"person {seed}")

    def visit(self, *, some: float = 1.0) -> int:
        """Look at the open cases and answer those that can be answered now, some of them; how many stay open."""
        cases = self.app.inbox().cases
        for case in cases:
            if case.id not in self._seen:
                self._seen.add(case.id)
                self.kinds[case.kind] += 1
        left = len(cases)
        for case in cases:
            if self._rng.random() > some:
                continue
            answer = self._answer(case)
            if answer is None:
                continue
            try:
                self.app.settle(case.id, answer, by="ann", why="I looked into the books", shown=case.hash)
                then = f" ({answer.then})" if isinstance(answer, DidNotHappen) else ""
                self.answered[f"{case.kind}: {type(answer).__name__}{then}"] += 1
                left -= 1
            except (AlreadySettled, CaseChanged) as late:
                self.answered[f"{case.kind}: too late, {type(late).__name__}"] += 1
            except StoreError as error:
                self.answered[f"{case.kind}: {type(error).__name__}"] += 1
        return left

    def _answer(self, case: Case) -> AnyAnswer | None:
        """What is so; None: nobody can know it yet, or the case could not be read just now."""
        if not case.answers:
            return None
        match case.kind:
            case CaseKind.HOLD:
                return Compensate() if self._rng.random() < 0.7 else LetStand()
            case CaseKind.CONTRADICTION:
                return Noted()
            case CaseKind.CODE_ERROR:
                if "exhausted" not in case.why and "attempts" not in case.why:
                    self.wrong.append(f"case {case.id} says that the code is wrong: {case.why}")
                return Retry()
            case CaseKind.DOUBT | CaseKind.COMPENSATION:
                return self._doubt(case)
        self.wrong.append(f"case {case.id} is a {case.kind}: {case.why}")
        return None

    def _doubt(self, case: Case) -> AnyAnswer | None:
        assert case.path is not None and case.step is not None
        made = self._made(case)
        if made is not None:
            return Happened(made)
        outcomes = {attempt["outcome"] for attempt in case.evidence.get("attempts", ())}
        if "in flight" in outcomes or (outcomes - {"rejected", "not_sent"} and time.time() < case.opened_at / 1e6 + self._bounds.over):
            return None  # it may be on its way
        if case.path.startswith(UNDO):
            return self._undo(case)
        return DidNotHappen("retry" if self._rng.random() < 0.6 else "fail")

    def _undo(self, case: Case) -> AnyAnswer:
        """What is done about an effect that stands and should not."""
        said = self._rng.random()
        if said < 0.4:
            return DidNotHappen("fail")
        if case.step == "withdraw_approval" and (made := self._record(case)) is not None and made["status"] == "processed":
            self._outside.reverse(made["id"])
            record = self._made(case)
            return DidNotHappen("fail") if record is None else Happened(record)
        return DidNotHappen("retry")

    # ------------------------------------------------------------ the books

    def _made(self, case: Case) -> dict[str, Any] | None:
        """The record that shows that what the case is about has happened; None where there is none."""
        books = truth.read(self._books)
        view = next(step for step in self.app.show(case.task_id).steps if step.path == case.path)
        if case.step is not None and case.step.startswith("withdraw_"):
            record = self._record(case)
            return record if record is not None and record["status"] == "withdrawn" else None
        if case.step == "create_adjustment":
            return _first(books.by_reference("sheet", view.keys), SHEET)
        if case.step is not None and case.step.startswith("submit_approval"):
            found = books.by_reference("approval", view.keys)
            return _approval(found[0]) if found else None
        if case.step == "notify":
            return _first(books.messages.get(case.task_id, []), ("id", "run"))
        assert case.step == "close_run", case.step
        closed = books.closings.get(case.task_id, [])
        return _first(closed, ("id", "run")) and {"id": closed[0]["id"], "run": closed[0]["run"], "status": "closed"}

    def _record(self, case: Case) -> dict[str, Any] | None:
        """The sheet or the approval that a compensation is about, as it stands."""
        steps = {step.path: step for step in self.app.show(case.task_id).steps}
        assert case.path is not None
        undone = steps[case.path.removeprefix(UNDO)]
        books = truth.read(self._books)
        if undone.name == "create_adjustment":
            return _first(books.by_reference("sheet", undone.keys), SHEET)
        found = books.by_reference("approval", undone.keys)
        return _approval(found[0]) if found else None


def _first(made: list[dict[str, Any]], fields: tuple[str, ...]) -> dict[str, Any] | None:
    return {name: made[0][name] for name in fields} if made else None


def _approval(row: dict[str, Any]) -> dict[str, Any]:
    import json

    return {name: row[name] for name in ("id", "reference", "run", "status")} | {"sheets": json.loads(row["body"])}
