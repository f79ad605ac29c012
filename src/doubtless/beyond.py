"""What stands beyond a fork point, and what a fork does before its writes: take over, run again, or ask.

A fork is a new task. The effects that its original had beyond the fork point are not undone by forking; each write of
the fork is held against them, until all are accounted for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from .effects import StepDefinition
from .errors import Moved, Parking, StaleEpoch, StoreError
from .events import CaseKind, Effect, Event, Kind, StepStatus, draft, dump
from .fold import StepRecord, fold_step, fold_steps
from .log import Settled

if TYPE_CHECKING:
    from .calls import Input, Runtime
    from .log import TaskLog
    from .store.base import Store

WritePolicy = Literal["ask", "reuse", "run"]
POLICIES: Final[tuple[WritePolicy, ...]] = ("ask", "reuse", "run")
ANSWERS: Final = ("reuse", "run", "reuse_all", "run_all")
"""What a person may answer: about this write, or about this and all later writes of its effect class."""

LISTED: Final = 50
"""So many effects a question lists; the others are counted."""


class Terms(NamedTuple):
    """From where a fork was made, and what it does with the writes of each effect class: as its first row says."""

    task_id: str
    at: int
    writes: Mapping[str, WritePolicy]

    def details(self) -> dict[str, Any]:
        """As the data of the fork's TaskAccepted row."""
        return {"forked_from": self.task_id, "at": self.at, "writes": dict(self.writes)}


def terms_of(accepted: Event) -> Terms | None:
    """The terms in a task's first row; None for a task that is no fork."""
    data = accepted.details
    return Terms(data["forked_from"], data["at"], data.get("writes", {})) if "forked_from" in data else None


class Standing(NamedTuple):
    """An effect that stands, or may: made at `made` (task, path), met at `path` in the line of forks.

    `within`: in which child of the fork it is met, ``"/3"``, ``""`` in the fork itself.
    `status`: ``done``; ``uncertain``, ``needs_human``: nobody knows yet; ``failed``: abandoned, it may stand.
    """

    made: tuple[str, str]
    within: str
    path: str
    step: str
    effect: str
    status: str
    input_hash: bytes | None
    input_ref: str | bytes | None
    output_ref: str | bytes | None

    def told(self) -> dict[str, Any]:
        """As a question's row names it."""
        return {"task": self.made[0], "path": self.made[1], "step": self.step, "effect": self.effect, "status": self.status}


def may_stand(record: StepRecord) -> bool:
    """Whether a write's effect is there, or may be."""
    if record.effect == Effect.READ or record.path.startswith("~"):
        return False
    if record.settled:
        return record.status in (StepStatus.DONE, StepStatus.FAILED)
    return record.in_doubt or record.in_flight is not None or record.evidence is not None


def standing(store: Store, terms: Terms | None) -> list[Standing]:
    """All that stands beyond the fork point now, in the original and in what that was forked from, children's effects too."""
    found: dict[tuple[str, str], Standing] = {}
    while terms is not None:
        for one in effects_of(store, terms.task_id, terms.at):
            found.setdefault(one.made, one)
        terms = terms_of(store.first(terms.task_id))
    return list(found.values())


def effects_of(store: Store, task_id: str, at: int, within: str = "") -> Iterator[Standing]:
    """What stands of a task from this step on, and of the child tasks that it has called there."""
    rows = store.rows(task_id)
    children = {row.path: row.details["child"] for row in rows if _starts_child(row)}
    for record in fold_steps(rows).values():
        if record.path.startswith("~") or (record.step_seq < at and record.settled):
            continue
        made = record.origin or (task_id, record.path)
        maker = record if record.origin is None else fold_step(store.rows(made[0], path=made[1]), made[1], None)
        if record.effect == Effect.READ:
            child = children.get(record.path)
            if child is None and record.origin is not None:
                child = next((row.details["child"] for row in store.rows(made[0], path=made[1]) if _starts_child(row)), None)
            if child is not None:
                yield from effects_of(store, child, 1, f"{within}/{record.path}")
        elif maker is not None and may_stand(maker):
            yield Standing(
                made, within, record.path, maker.name, str(maker.effect), maker.status, maker.input_hash, maker.input_ref,
                maker.output_ref,
            )  # fmt: skip


def _starts_child(row: Event) -> bool:
    return row.path is not None and row.effect_class == Effect.READ and row.data is not None and "child" in row.details


class ForkRun(Protocol):
    """What a fork's write needs of the pass that meets it (`passes.Pass`)."""

    task_id: str
    log: TaskLog
    runtime: Runtime

    def park(self, why: str, *, until: int | None = None, human: bool = False, frozen: str | None = None) -> Parking: ...

    def broken(self, error: StoreError | StaleEpoch) -> Parking: ...


class Fork:
    """The fork that a run is of, or belongs to as a child: its terms, and which effects it has accounted for already.

    `root` is the fork's own id; `within` what follows it in the id of this run's task: ``""``, or ``"/3"`` for a child.
    """

    def __init__(self, terms: Terms, root: str, within: str) -> None:
        self.terms = terms
        self.root = root
        self.within = within
        self._lock = threading.Lock()
        self._own: Accounted | None = None

    def open_effects(self, store: Store) -> list[Standing]:
        """What stands and is not accounted for: the fork has not decided about the same step at its place, nor taken it over."""
        effects = standing(store, self.terms)
        with self._lock:
            if self._own is None and effects:
                self._own = accounted(store, self.root + self.within)
            logs = {one.within: self._own for one in effects if one.within == self.within}
            for within in {one.within for one in effects} - logs.keys():
                logs[within] = accounted(store, self.root + within)
            taken = {made for log in logs.values() if log is not None for made in log.taken}
            return [
                one
                for one in effects
                if one.made not in taken and (one.path, one.step) not in (logs[one.within] or NOTHING).decided
            ]

    def decided(self, path: str, step: str, taken: Standing | None = None) -> None:
        """This write of the fork is decided about."""
        with self._lock:
            if self._own is not None:
                self._own.decided.add((path, step))
                if taken is not None:
                    self._own.taken.add(taken.made)


class Accounted(NamedTuple):
    """What a fork's log says of the original's effects: the places and steps decided about, the effects taken over."""

    decided: set[tuple[str, str]]
    taken: set[tuple[str, str]]


NOTHING: Final = Accounted(set(), set())


def accounted(store: Store, task_id: str) -> Accounted:
    """What the log of a fork, or of a child of it, has accounted for."""
    found = Accounted(set(), set())
    for row in store.rows(task_id):
        if row.path is not None:
            found.decided.add((row.path, row.step_name or ""))
            if row.kind == Kind.STEP_SETTLED and row.data is not None and "from" in (data := row.details):
                found.taken.add((data["from"], data["path"]))
    return found


def fork_of(store: Store, task_id: str, accepted: Event) -> Fork | None:
    """The fork that a task is, or belongs to as a child at any depth; None for a task that does not.

    A task that undoes something of the fork is none: what the original did is no reason to leave that undone.
    """
    root, _, rest = task_id.partition("/")
    if any(place.startswith("~") for place in rest.split("/")):
        return None
    terms = terms_of(accepted if not rest else store.first(root))
    return None if terms is None else Fork(terms, root, f"/{rest}" if rest else "")


def before_write(run: ForkRun, fork: Fork, definition: StepDefinition, path: str, given: Input) -> Settled | None:
    """Hold a write of which nothing is logged yet against what stands. None: it runs, under the fork's own key.

    Meaning: what is taken over, or denied, is settled durably at return, with no obligation to compensate.
    Raises: Parking, with a question open that lists what stands.
    """
    try:
        while True:
            try:
                return _decide(run, fork, definition, path, given)
            except Moved:
                continue
    except (StoreError, StaleEpoch) as error:
        raise run.broken(error) from error


def _decide(run: ForkRun, fork: Fork, definition: StepDefinition, path: str, given: Input) -> Settled | None:
    name, effect = definition.name, str(definition.effect)
    policy, answer = _policy(run, fork, path, name, effect, given)
    effects = [] if policy == "run" or answer == "run" else fork.open_effects(run.runtime.store)
    if not effects and answer != "deny":
        _close_questions(run, path)
        fork.decided(path, name)
        return None
    alike = [one for one in effects if one.step == name and one.input_hash == given.digest and one.status == StepStatus.DONE]
    here = next((one for one in alike if (one.within, one.path) == (fork.within, path)), None)
    if answer == "deny":
        settled = _settle(run, definition, path, given, StepStatus.NOT_APPLIED, error=_denied(run, path))
    elif policy == "reuse" and here is not None:
        settled = _settle(run, definition, path, given, StepStatus.DONE, taken=here)
    elif answer == "reuse" and (chosen := here or (alike[0] if len(alike) == 1 else None)) is not None:
        settled = _settle(run, definition, path, given, StepStatus.DONE, taken=chosen)
        fork.decided(path, name, chosen)
    else:
        raise _ask(run, fork, definition, path, given, effects, reusable=here is not None or len(alike) == 1)
    fork.decided(path, name)
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
) -> Parking:
    """Open the question about this write, unless it is open and says the same; the parking that waits for the answer."""
    why = f"before {definition.name} at {path}: {len(effects)} effects of {fork.terms.task_id} stand beyond the fork point"
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
    if not same:
        row = draft(run.task_id, Kind.CASE_OPENED, run.runtime.store.now(), input_ref=ref, data=data, epoch=run.log.epoch)
        before = set(run.log.cases)
        run.log.append(*_closing(run, path), row, blobs=() if blob is None else (blob,))
        for case in run.log.cases.keys() - before:
            run.runtime.case_opened(case)
    return run.park(why, human=True)


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
