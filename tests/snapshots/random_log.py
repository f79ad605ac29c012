"""Random logs for the snapshots' tests: every kind of row, in orders that a log may have."""

from __future__ import annotations

import random
from typing import Any

from doubtless.events import CaseKind, Event, Instant, Kind, StepStatus, TaskStatus, draft

TASK = "recon-1"
SETTLING = (StepStatus.DONE, StepStatus.NOT_APPLIED, StepStatus.FAILED)


def digest_for(path: str) -> bytes:
    return path.encode().ljust(32, b".")


class RandomLog:
    """Draws one row after another; `rng` decides, so that a run can be told again by its seed."""

    def __init__(self, rng: random.Random, *, branches: bool = True) -> None:
        self.rng = rng
        self.branches = branches
        self.wall = 1_796_000_000_000_000
        self.seq = 1
        self.place = 0
        self.steps: dict[str, int] = {}  # path -> step_seq
        self.reads: set[str] = set()
        self.open: set[str] = set()
        self.done: set[str] = set()
        self.cases: dict[str, tuple[str, str | None]] = {}

    def first(self) -> Event:
        return draft(
            TASK, Kind.TASK_ACCEPTED, self.now(), step_name="reconcile", status=TaskStatus.READY, input_hash=b"h" * 32,
            input_ref="inline:{}",
        )  # fmt: skip

    def now(self) -> Instant:
        self.wall += 1
        return Instant(self.wall, self.wall - 1_795_000_000_000_000)

    def row(self) -> Event:
        """The next row; its place in the log is `seq`."""
        self.seq += 1
        deeds = [self.intend, self.read, self.read, self.begin_read, self.task_row]
        if self.open:
            deeds += [self.settle, self.settle, self.settle, self.attempt, self.doubt]
        if self.done:
            deeds += [self.retry, self.late, self.compensated, self.output_case]
        if self.cases:
            deeds += [self.close, self.close]
        return self.rng.choice(deeds)()

    def new_path(self) -> str:
        if self.branches and self.place and self.rng.random() < 0.3:
            self.place += self.rng.random() < 0.5
            paths = [f"{self.place}.{branch}.{n}" for branch in (1, 2) for n in (1, 2, 3)]
            free = [path for path in paths if path not in self.steps and str(self.place) not in self.steps]
            if free:
                return self.named(free[0])
        self.place += 1
        return self.named(str(self.place))

    def named(self, path: str) -> str:
        self.steps[path] = max(self.steps.values(), default=0) + 1
        return path

    def of(self, path: str, kind: Kind, **more: Any) -> Event:
        return draft(TASK, kind, self.now(), step_seq=self.steps[path], path=path, step_name=f"step_{path[-1]}", **more)

    def intend(self) -> Event:
        undo = sorted({f"~{path}" for path in self.done if path[0] != "~"} - self.steps.keys())  # a step is undone once
        path = self.named(self.rng.choice(undo)) if undo and self.rng.random() < 0.1 else self.new_path()
        self.open.add(path)
        return self.of(
            path, Kind.STEP_INTENDED, status=StepStatus.UNCERTAIN, attempt=1, effect_class="non_idem_write",
            idempotency_key=b"k" * 32, input_hash=digest_for(path), input_ref="inline:{}", data=b"p" * 32,
        )  # fmt: skip

    def read(self) -> Event:
        path = self.new_path()
        self.done.add(path)
        return self.of(
            path, Kind.STEP_SETTLED, status=StepStatus.DONE, attempt=1, input_hash=digest_for(path), output_ref=self.ref()
        )

    def begin_read(self) -> Event:
        path = self.new_path()
        self.open.add(path)
        if self.rng.random() < 0.5:
            return self.of(path, Kind.HANDLE_RECORDED, data={"handle": "h"})
        return self.of(
            path, Kind.ATTEMPT_ENDED, status=StepStatus.STARTED, attempt=1, input_hash=digest_for(path),
            error='{"kind":"unknown"}',
        )  # fmt: skip

    def ref(self) -> str | bytes | None:
        return self.rng.choice(["inline:1", 'inline:{"id":"ä"}', self.rng.randbytes(32), None])

    def settle(self) -> Event:
        path = self.rng.choice(sorted(self.open))
        self.open.discard(path)
        self.done.add(path)
        status = self.rng.choice(SETTLING)
        error = None if status == StepStatus.DONE else '{"kind":"exhausted"}'
        return self.of(path, Kind.STEP_SETTLED, status=status, attempt=1, output_ref=self.ref(), error=error)

    def attempt(self) -> Event:
        path = self.rng.choice(sorted(self.open))
        kind = self.rng.choice([Kind.ATTEMPT_STARTED, Kind.ATTEMPT_ENDED, Kind.LOOKED_BACK, Kind.HANDLE_RECORDED])
        digest = digest_for(path) if kind == Kind.ATTEMPT_ENDED and self.rng.random() < 0.3 else None
        return self.of(path, kind, attempt=2, input_hash=digest, data={"answer": "unclear", "handle": 1})

    def doubt(self) -> Event:
        path = self.rng.choice(sorted(self.open))
        self.cases[f"{TASK}:{self.seq}"] = (CaseKind.DOUBT, path)
        return self.of(path, Kind.CASE_OPENED, status=StepStatus.NEEDS_HUMAN, data={"kind": CaseKind.DOUBT})

    def output_case(self) -> Event:
        path = self.rng.choice(sorted(self.done))
        kind = self.rng.choice([CaseKind.OUTPUT, CaseKind.CONTRADICTION])
        self.cases[f"{TASK}:{self.seq}"] = (kind, path)
        return self.of(path, Kind.CASE_OPENED, data={"kind": kind})

    def close(self) -> Event:
        case = self.rng.choice(sorted(self.cases))
        kind, path = self.cases.pop(case)
        answer = self.rng.choice(["settled", "answer", "fail", "let_stand", "did_not_happen"])
        data = {"case_id": case, "answer": answer, "by": "ann", "then": "retry"}
        output = self.ref() if kind == CaseKind.OUTPUT else None
        if path is None:
            return draft(TASK, Kind.CASE_SETTLED, self.now(), data=data)
        return self.of(path, Kind.CASE_SETTLED, data=data, output_ref=output)

    def retry(self) -> Event:
        path = self.rng.choice(sorted(self.done))
        self.done.discard(path)
        self.open.add(path)
        return self.of(path, Kind.RETRY_ALLOWED, status=StepStatus.UNCERTAIN, data={"by": "ann"})

    def late(self) -> Event:
        path = self.rng.choice(sorted(self.done | self.open))
        return self.of(path, Kind.EVIDENCE_STORED, attempt=1, output_ref=self.ref(), data={"what": "late_result"})

    def compensated(self) -> Event:
        path = self.rng.choice(sorted(self.done))
        return self.of(path, Kind.STEP_SETTLED, status=StepStatus.COMPENSATED)

    def task_row(self) -> Event:
        deed = self.rng.choice(["claim", "claim", "cancel", "code_error", "hold", "question", "event", "parked"])
        now = self.now()
        if deed == "claim":
            return draft(TASK, Kind.TASK_CLAIMED, now, status=TaskStatus.RUNNING, epoch=7, data={"owner": "x"})
        if deed == "cancel":
            return draft(TASK, Kind.CANCEL_REQUESTED, now, data={"by": "ann", "why": "enough"})
        if deed == "event":
            return draft(TASK, Kind.EVENT_RECEIVED, now, data={"name": "paid", "event_id": str(now.wall)}, output_ref="inline:1")
        if deed == "parked":
            return draft(TASK, Kind.TASK_PARKED, now, status=TaskStatus.WAITING, data={"wake_at": None, "why": "waits"})
        self.cases[f"{TASK}:{self.seq}"] = (deed, None)
        return draft(TASK, Kind.CASE_OPENED, now, data={"kind": deed})
