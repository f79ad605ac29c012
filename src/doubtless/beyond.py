"""What stands beyond a fork point: the effects of the original, of what that was forked from, and of their child tasks.

A fork is a new task. The effects that its original had beyond the fork point are not undone by forking; each write of
the fork is held against them (`heldwrites`), until all are accounted for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from . import host
from .events import Effect, Event, Kind, StepStatus
from .fold import StepRecord, fold_step, fold_steps

if TYPE_CHECKING:
    from .store.base import Store

WritePolicy = Literal["ask", "reuse", "run"]
POLICIES: Final[tuple[WritePolicy, ...]] = ("ask", "reuse", "run")

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


def standing(store: Store, terms: Terms | None, read: dict[str, int] | None = None) -> list[Standing]:
    """All that stands beyond the fork point now, in the original and in what that was forked from, children's effects too.

    `read`: filled with the tasks whose logs say so, and how far these go.
    """
    found: dict[tuple[str, str], Standing] = {}
    read = {} if read is None else read
    while terms is not None:
        for one in effects_of(store, terms.task_id, terms.at, read):
            found.setdefault(one.made, one)
        terms = terms_of(store.first(terms.task_id))
    return list(found.values())


def effects_of(store: Store, task_id: str, at: int, read: dict[str, int], within: str = "") -> Iterator[Standing]:
    """What stands of a task from this step on, and of the child tasks that it has called there."""
    rows = store.rows(task_id)
    read[task_id] = rows[-1].event_seq if rows else 0
    children = children_in(rows)
    for record in fold_steps(rows).values():
        if record.path.startswith("~") or (record.step_seq < at and record.settled):
            continue
        made = record.origin or (task_id, record.path)
        if made[0] not in read:
            read[made[0]] = last_seq(store, made[0])
        maker = record if record.origin is None else fold_step(store.rows(made[0], path=made[1]), made[1], None)
        if record.effect == Effect.READ:
            child = children.get(record.path)
            if child is None and record.origin is not None:
                child = next((row.details["child"] for row in store.rows(made[0], path=made[1]) if _starts_child(row)), None)
            if child is not None:
                yield from effects_of(store, child, 1, read, f"{within}/{record.path}")
        elif maker is not None and may_stand(maker):
            yield Standing(
                made, within, record.path, maker.name, str(maker.effect), maker.status, maker.input_hash, maker.input_ref,
                maker.output_ref,
            )  # fmt: skip


def last_seq(store: Store, task_id: str) -> int:
    """How far a task's log goes; 0 where there is none."""
    last = store.last(task_id)
    return 0 if last is None else last.event_seq


def children_in(rows: Iterable[Event]) -> dict[str | None, str]:
    """The ids of the child tasks that a log has started, by their places."""
    return {row.path: row.details["child"] for row in rows if _starts_child(row)}


def _starts_child(row: Event) -> bool:
    return row.path is not None and row.effect_class == Effect.READ and row.data is not None and "child" in row.details


class Fork:
    """The fork that a run is of, or belongs to as a child: its terms, and which effects it has accounted for already.

    `root` is the fork's own id; `within` what follows it in the id of this run's task: ``""``, or ``"/3"`` for a child.
    """

    def __init__(self, terms: Terms, root: str, within: str) -> None:
        self.terms = terms
        self.root = root
        self.within = within
        self._lock = host.lock()
        self._own: Accounted | None = None
        self._early: list[tuple[str, str, bytes, tuple[str, str] | None]] = []
        self._effects: list[Standing] = []
        self._read: dict[str, int] = {}

    def _standing(self, store: Store) -> list[Standing]:
        """What stands now; the logs are folded again only where one of them has moved."""
        if not self._read or any(last_seq(store, task) != seq for task, seq in self._read.items()):
            read: dict[str, int] = {}
            self._effects = standing(store, self.terms, read)
            self._read = read
        return self._effects

    def open_effects(self, store: Store, step: str, input_hash: bytes, *, reuse: bool = False) -> list[Standing]:
        """What stands and is not accounted for, before this write: not decided about at its place, and not taken over.

        What the fork has decided about with other params is shown once more before the write that equals it: it may go
        another order, and what a person has said of one write says nothing of the effect of another. `reuse`: a person has
        said of this write to reuse what stands: all that equals it and that nobody has taken over is there for it.
        """
        with self._lock:
            effects = self._standing(store)
            if self._own is None and effects:
                self._own = accounted(store, self.root + self.within)
                for early in self._early:  # decided about, and perhaps not in the log yet
                    self._own.note(*early)
                self._early.clear()
            logs = {one.within: self._own for one in effects if one.within == self.within}
            for within in {one.within for one in effects} - logs.keys():
                logs[within] = accounted(store, self.root + within)
            taken = {made for log in logs.values() if log is not None for made in log.taken}
            found = []
            for one in effects:
                log, place = logs[one.within] or NOTHING, (one.path, one.step)
                alike = one.step == step and one.input_hash == input_hash
                if one.made in taken or (one.input_hash in log.decided.get(place, ()) and not (reuse and alike)):
                    continue
                if alike or place not in log.decided:
                    found.append(one)
            return found

    def decided(self, path: str, step: str, input_hash: bytes, taken: Standing | None = None) -> None:
        """This write of the fork is decided about."""
        made = None if taken is None else taken.made
        with self._lock:
            if self._own is not None:
                self._own.note(path, step, input_hash, made)
            else:
                self._early.append((path, step, input_hash, made))


class Accounted(NamedTuple):
    """What a fork's log says of the original's effects: what was decided about, and the effects that were taken over.

    Shapes: `decided`: by place and step, the params that it was decided with; those of what was taken over from another
    place are not among them: the effect at this place may be another one with the same params.
    """

    decided: dict[tuple[str, str], set[bytes | None]]
    taken: set[tuple[str, str]]

    def note(self, path: str, step: str, input_hash: bytes | None, taken: tuple[str, str] | None) -> None:
        hashes = self.decided.setdefault((path, step), set())
        if taken is not None:
            self.taken.add(taken)
        if input_hash is not None and (taken is None or taken[1] == path):
            hashes.add(input_hash)


NOTHING: Final = Accounted({}, set())


def accounted(store: Store, task_id: str) -> Accounted:
    """What the log of a fork, or of a child of it, has accounted for."""
    found = Accounted({}, set())
    for row in store.rows(task_id):
        if row.path is not None:
            settled = row.kind == Kind.STEP_SETTLED and row.data is not None
            data = row.details if settled else {}
            taken = (data["from"], data["path"]) if "from" in data else None
            found.note(row.path, row.step_name or "", row.input_hash, taken)
    return found


def fork_of(store: Store, task_id: str, accepted: Event) -> Fork | None:
    """The fork that a task is, or belongs to as a child at any depth; None for a task that does not.

    A task that undoes something of the fork is none: what the original did is no reason to leave that undone.
    """
    root, _, rest = task_id.partition("/")
    if rest and any(place.startswith("~") for place in rest.split("/")):
        return None
    terms = terms_of(accepted if not rest else store.first(root))
    return None if terms is None else Fork(terms, root, f"/{rest}" if rest else "")
