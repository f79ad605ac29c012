"""What a fork does before each of its writes while something stands: take it over, run the write again, or ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from .beyond import Fork, Standing, WritePolicy
from .effects import StepDefinition
from .errors import Moved, Parking, StaleEpoch, StoreError
from .events import CaseKind, Event, Kind, StepStatus, draft, dump
from .log import Settled

if TYPE_CHECKING:
    from .calls import Input, Runtime
    from .log import TaskLog

ANSWERS: Final = ("reuse", "run", "reuse_all", "run_all")
"""What a person may answer: about this write, or about this and all later writes of its effect class."""

LISTED: Final = 50
"""So many effects a question lists; the others are counted."""


class ForkRun(Protocol):
    """What a fork's write needs of the pass that meets it (`passes.Pass`)."""

    task_id: str
    log: TaskLog
    runtime: Runtime

    def park(self, why: str, *, until: int | None = None, human: bool = False, frozen: str | None = None) -> Parking: ...

    def broken(self, error: StoreError | StaleEpoch) -> Parking: ...


def before_write(run: ForkRun, fork: Fork, definition: StepDefinition, path: str, given: Input) -> Settled | None:
    """Hold a write of which nothing is logged yet against what stands. None: it runs, under the fork's own key.

    Meaning: what is taken over, or denied, is settled durably at return, with no obligation to compensate.
    Raises: Parking, with a question open that lists what stands.
    """
    try:
        while True:
            try:
                # What a branch beside takes in, or takes over, comes before this look or after what follows from it.
                with run.log.lock:
                    settled = _decide(run, fork, definition, path, given)
            except Moved:
                continue
            break
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error
    if not isinstance(settled, Asked):
        return settled
    for case in settled.opened:
        run.runtime.case_opened(case)
    raise run.park(settled.why, human=True)


class Asked(NamedTuple):
    """A person has to answer first: why, and the cases that were opened for it now."""

    why: str
    opened: list[str]


def _decide(run: ForkRun, fork: Fork, definition: StepDefinition, path: str, given: Input) -> Settled | Asked | None:
    name, effect = definition.name, str(definition.effect)
    policy, answer = _policy(run, fork, path, name, effect, given)
    runs = answer == "run" or (policy == "run" and not answer)  # what was said of this very write counts first
    effects = [] if runs else fork.open_effects(run.runtime.store, name, given.digest, reuse=answer == "reuse")
    if not effects and answer not in ("deny", "reuse"):
        _close_questions(run, path)
        fork.decided(path, name, given.digest)
        return None
    alike = [one for one in effects if one.step == name and one.input_hash == given.digest and one.status == StepStatus.DONE]
    here = next((one for one in alike if (one.within, one.path) == (fork.within, path)), None)
    chosen = None
    if answer == "deny":
        settled = _settle(run, definition, path, given, StepStatus.NOT_APPLIED, error=_denied(run, path))
    elif policy == "reuse" and here is not None:
        settled = _settle(run, definition, path, given, StepStatus.DONE, taken=here)
    elif answer == "reuse" and (chosen := here or (alike[0] if len(alike) == 1 else None)) is not None:
        settled = _settle(run, definition, path, given, StepStatus.DONE, taken=chosen)
    else:  # also when a person has said reuse, and what could be reused is gone: that is no leave to run it
        return _ask(run, fork, definition, path, given, effects, reusable=here is not None or len(alike) == 1)
    fork.decided(path, name, given.digest, chosen)
    return settled


def _policy(
    run: ForkRun, fork: Fork, path: str, name: str, effect: str, given: Input
) -> tuple[WritePolicy, str | None]:  # fmt: skip
    """The policy of this effect class now, and the person's answer about this very write."""
    policy: WritePolicy = fork.terms.writes.get(effect, "ask")
    about: str | None = None
    for opened, settled in run.log.answered:
        question = opened.details.get("fork")
        if question is None:
            continue
        said = answer_of(run.runtime, settled)
        if said in ("reuse_all", "run_all") and question["effect"] == effect:
            policy = "reuse" if said == "reuse_all" else "run"
        if _about(question) == (path, name, given.digest.hex()):
            about = said.removesuffix("_all")
    return policy, about


def _about(question: Mapping[str, Any]) -> tuple[str, str, str]:
    return question["path"], question["step"], question["input_hash"]


def answer_of(runtime: Runtime, settled: Event) -> str:
    """What a person said to a fork's question: one of `ANSWERS`, ``deny``, or nothing when the machine closed it."""
    if settled.details.get("answer") == "answer" and settled.output_ref is not None:
        return str(json.loads(runtime.content.get(settled.output_ref)))
    return "deny" if settled.details.get("answer") == "deny" else ""


def _denied(run: ForkRun, path: str) -> str:
    data: dict[str, Any] = {}
    for opened, settled in run.log.answered:
        if opened.details.get("fork", {}).get("path") == path:
            data = settled.details
    return dump({"kind": "not_applied", "code": "denied", "detail": f"by {data.get('by', '')}: {data.get('why', '')}"})


def _settle(
    run: ForkRun, definition: StepDefinition, path: str, given: Input, status: StepStatus, *, taken: Standing | None = None,
    error: str | None = None,
) -> Settled:  # fmt: skip
    """Settle the write without a call: by the output that stands, or denied."""
    ref, blob = run.runtime.content.put(given.text) if taken is None else (taken.input_ref, None)
    row = draft(
        run.task_id, Kind.STEP_SETTLED, run.runtime.store.now(), step_seq=run.log.next_step_seq(), path=path,
        step_name=definition.name, status=status, effect_class=definition.effect, input_hash=given.digest, input_ref=ref,
        output_ref=None if taken is None else taken.output_ref, error=error, epoch=run.log.epoch,
        data=None if taken is None else {"from": taken.made[0], "path": taken.made[1]},
    )  # fmt: skip
    run.log.append(*_closing(run, path), row, blobs=() if blob is None else (blob,), forget=True)
    return Settled(definition.name, given.digest, status, row.output_ref, error)


def _ask(
    run: ForkRun, fork: Fork, definition: StepDefinition, path: str, given: Input, effects: list[Standing], *, reusable: bool
) -> Asked:
    """Open the question about this write, unless it is open and says the same."""
    many = "1 effect stands" if len(effects) == 1 else f"{len(effects) or 'no'} effects stand"
    why = f"before {definition.name} at {path}: {many} beyond the point at which {fork.terms.task_id} was forked"
    answers = [one for one in ANSWERS if reusable or not one.startswith("reuse")]
    question = {
        "from": fork.terms.task_id, "at": fork.terms.at, "path": path, "step": definition.name,
        "effect": str(definition.effect), "input_hash": given.digest.hex(), "answers": answers,
    }  # fmt: skip
    listed = [one.told() for one in effects[:LISTED]]
    data: dict[str, Any] = {"kind": CaseKind.QUESTION, "why": why, "fork": question, "stands": listed}
    if len(effects) > LISTED:
        data["more"] = len(effects) - LISTED
    ref, blob = run.runtime.content.put(given.text)
    same = any(opened.row.details == json.loads(dump(data)) for opened in _questions(run, path).values())
    before = set(run.log.cases)
    if not same:
        row = draft(run.task_id, Kind.CASE_OPENED, run.runtime.store.now(), input_ref=ref, data=data, epoch=run.log.epoch)
        run.log.append(*_closing(run, path), row, blobs=() if blob is None else (blob,))
    return Asked(why, [case for case in run.log.cases if case not in before])


def _questions(run: ForkRun, path: str) -> dict[str, Any]:
    """The open questions about the write at this path."""
    return {
        case: opened
        for case, opened in list(run.log.cases.items())
        if opened.kind == CaseKind.QUESTION and opened.row.details.get("fork", {}).get("path") == path
    }


def _closing(run: ForkRun, path: str) -> list[Event]:
    """The rows that close what is open about this write: something newer is said of it now."""
    now = run.runtime.store.now()
    data = {"answer": "settled", "by": "doubtless", "why": "what stands has changed, or is accounted for"}
    return [
        draft(run.task_id, Kind.CASE_SETTLED, now, data={**data, "case_id": case}, epoch=run.log.epoch)
        for case in _questions(run, path)
    ]


def _close_questions(run: ForkRun, path: str) -> None:
    rows = _closing(run, path) if run.log.cases else []
    if rows:
        run.log.append(*rows)
