"""Business keys at work: who holds the key that a step asks for, and what follows from it for the one that asks.

A key is taken in the transaction of its intent (`store.projections`), so that here only what is seen is decided: nobody
has it, and the step takes the next turn; or its holder's log says what this step is: done by the holder, refused, or
waiting for it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from .calls import Input, Reply, Request, Run, Runtime, Wait
from .durations import MINUTE, SECOND
from .effects import StepDefinition
from .errors import Moved, UsageError
from .events import UNDO, Instant, Kind, StepStatus, draft, dump, elapsed_least
from .fold import StepRecord, fold_step
from .store.base import KeyRow

POLL = SECOND // 20
"""The first pause of a run that waits in place for a key's holder; it doubles up to `POLL_MAX`."""
POLL_MAX = 2 * SECOND

IN_FLIGHT = MINUTE
IN_DOUBT = 10 * MINUTE
"""When a task that is parked for a key's holder looks again; it is due before that as soon as the holder is settled."""


class Holder(NamedTuple):
    """Who has a business key, as that task's own log tells it."""

    key: KeyRow
    at_work: bool
    """Whether a living owner had its task: looked up before the log was read, so that what it has settled since is seen."""
    record: StepRecord | None
    undoing: StepRecord | None
    """The compensation of the holder's step, from its intent on."""

    @property
    def named(self) -> str:
        name = self.record.name if self.record is not None else "a step"
        return f"{name} at {self.key.path} of task {self.key.task_id}"


def intent_data(definition: StepDefinition, once: str, turn: int) -> str:
    """The `data` of an intent that takes a business key."""
    data: dict[str, Any] = {"policy": definition.definition_hash.hex(), "once": once, "turn": turn}
    if definition.once_window_us is not None:
        data["window_us"] = definition.once_window_us
    return dump(data)


def take_key(
    run: Run, definition: StepDefinition, path: str, given: Input, polls: int
) -> Generator[Request, Reply, int]:  # fmt: skip
    """The turn in which this step may take its key; 0: decide again, for it has waited, or is settled by its holder.

    `polls`: how often it has waited. Nothing of the step is written before the key is free but what settles it.
    """
    assert given.once is not None
    runtime = run.runtime
    key, now = runtime.store.key(given.once), runtime.store.now()
    turn = next_turn(key, definition.once_window_us, now)
    if turn or key is None:
        return turn or 1
    holder = find(runtime, key)
    record = holder.record
    if record is None or not record.settled:  # of this very task: a step of another branch, which may not have begun in this pass
        yield from wait(run, holder, now, polls, aside=path if key.task_id == run.task_id else None)
    elif record.status == StepStatus.NOT_APPLIED:
        pass  # it was freed between the two looks
    elif holder.undoing is not None and not holder.undoing.settled:
        yield from wait(run, holder, now, polls)
    elif record.status == StepStatus.DONE and record.output_ref is None and record.cases:
        yield from wait(run, holder, now, polls)  # a person is asked for its output
    else:
        settle_by(run, definition, path, given, holder, now)
    return 0


def next_turn(key: KeyRow | None, window_us: int | None, now: Instant) -> int:
    """The turn that may be taken now, or 0. The window runs from done; of the holder's and the asker's the longer counts."""
    if key is None:
        return 1
    if key.state == "freed":
        return key.turn + 1
    if key.state != "done" or key.window_us is None or window_us is None:
        return 0
    passed = elapsed_least(Instant(key.done_at or 0, key.done_boot or 0), now)
    return key.turn + 1 if passed >= max(key.window_us, window_us) else 0


def find(runtime: Runtime, key: KeyRow) -> Holder:
    """The holder of a key, from the log of its task."""
    head = runtime.store.head(key.task_id)
    at_work = head is not None and runtime.store.owner_alive(head.owner)
    record, undoing = (
        fold_step(runtime.store.rows(key.task_id, path=path), path, None) for path in (key.path, "~" + key.path)
    )
    return Holder(key, at_work, record, undoing)


# ---------------------------------------------------------------- waiting for it


def wait(run: Run, holder: Holder, now: Instant, polls: int, *, aside: str | None = None) -> Generator[Request, Reply, None]:
    """Wait for the holder to be settled: in place while its owner is at work on it, else parked.

    `aside`: the place that waits, where only its branch makes way for the holder's.
    """
    why, until, at_work = standing(holder, now)
    pause = min(POLL << min(polls, 10), POLL_MAX)
    awaits = holder.key.once if holder.key.state == "open" else None
    if at_work and run.may_wait(now.wall + pause):
        yield Wait(now.wall + pause, why, branches=True, later=until, awaits=awaits, since=now, aside=aside)
        return
    if aside is not None:
        raise run.step_aside(aside, why, until=until)
    raise run.park(why, until=until, awaits=awaits)


def standing(holder: Holder, now: Instant) -> tuple[str, int, bool]:
    """How the holder stands, in words; when to look again; and whether its owner is at work on it."""
    about = (holder.undoing if holder.undoing is not None and not holder.undoing.settled else None) or holder.record
    waits = f"waits for business key {holder.key.once!r}: {holder.named}"
    case = next(iter(about.cases), None) if about is not None else None
    if case is not None:
        return f"{waits} stands before a person, in case {case}", now.wall + IN_DOUBT, False
    if holder.at_work:
        doing = "is being undone" if about is not holder.record else "is in flight"
        return f"{waits} {doing}", now.wall + IN_FLIGHT, True
    return f"{waits} is not settled; resume that task", now.wall + IN_DOUBT, False


# ---------------------------------------------------------------- settled by it


def settle_by(run: Run, definition: StepDefinition, path: str, given: Input, holder: Holder, now: Instant) -> None:
    """Settle this step by what the holder did: its output, or a refusal. One row; nothing is sent.

    Raises: UsageError for a compensation: it is not settled so, a person is asked.
    """
    record = holder.record
    assert record is not None
    unlike = difference(definition, given, record)
    if path[0] == UNDO:  # whether what the holder did has undone this effect too, only a person can know
        raise UsageError(
            f"business key {holder.key.once!r} is held by {holder.named}, which {unlike or 'is done'}; nothing was sent",
            hint=f"doubtless show {holder.key.task_id}",
        )
    common: dict[str, Any] = {
        "step_seq": run.log.next_step_seq(), "path": path, "step_name": definition.name, "effect_class": definition.effect,
        "input_hash": given.digest, "epoch": run.log.epoch,
    }  # fmt: skip
    ref, blob = run.runtime.content.put(given.text)
    blobs = [] if blob is None else [blob]
    of = {"from": holder.key.task_id, "path": holder.key.path, "key": holder.key.once}
    if not unlike:
        row = draft(
            run.task_id, Kind.STEP_SETTLED, now, status=StepStatus.DONE, input_ref=ref, output_ref=record.output_ref, data=of,
            **common,
        )  # fmt: skip
    else:
        who = {"once": holder.key.once, "task": holder.key.task_id, "path": holder.key.path, "step": record.name}
        detail = f"business key {holder.key.once!r} is held by {holder.named}, which {unlike}"
        error = {"kind": "rejected", "code": "refused", "detail": detail, "holder": {**who, "status": str(record.status)}}
        row = draft(
            run.task_id, Kind.STEP_SETTLED, now, status=StepStatus.NOT_APPLIED, input_ref=ref, error=dump(error), **common
        )  # fmt: skip
    try:
        run.log.append(row, blobs=blobs)
    except Moved:
        pass  # decide again


def difference(definition: StepDefinition, given: Input, record: StepRecord) -> str:
    """Why what the holder did is not what this step asks for; empty when it is."""
    match record.status:
        case StepStatus.FAILED:
            return "was given up and may stand"
        case StepStatus.COMPENSATED:
            return "was done and is undone"
        case _ if record.name != definition.name:
            return "is done, and is another step"
        case _ if record.input_hash != given.digest:
            return "is done with other params: what makes it another effect belongs into the template"
        case _ if record.output_ref is None:
            return "is done without a known output"
        case _:
            return ""
