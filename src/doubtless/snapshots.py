"""Snapshots: a checked cache of a task's fold. Deleting all of them changes nothing but speed (I9).

Pure. `FIELDS` says what of the fold a snapshot holds, and how: rows by their number, to be read again, content by ref.
A snapshot counts only where the log holds, at its place, the very row that it was made at; the row's hash chains all
rows before it. Everything else (damaged, another task's, ahead of the log, another format) is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from .events import Event, dump, row_hash
from .taskfold import OpenCase, Settled, TaskFold, rows_of_step

FORMAT = 1
"""The format of a snapshot's content, raised with each change of `FIELDS`. Another one is ignored, and made anew."""

class Plan(NamedTuple):
    """How often a task's snapshot is made, and the format of the state that its own code keeps beside the fold (None: none)."""

    every: int
    state: str | None = None


class Snapshot(NamedTuple):
    """A stored snapshot, in the order of its columns: of the fold up to the row `event_seq`, whose hash is `row_hash`."""

    task_id: str
    event_seq: int
    row_hash: bytes
    format: int
    content: str
    digest: bytes


class Restored(NamedTuple):
    """What task code left in a snapshot: its state as JSON text, which stands for the first `places` places."""

    state: str
    places: int


class Held(NamedTuple):
    """What a usable snapshot holds, before the rows that it names are read."""

    event_seq: int
    row_hash: bytes
    fold: Mapping[str, Any]
    restored: Restored | None

    def seqs(self) -> list[int]:
        """The rows to read again."""
        return sorted({seq for name, field in FIELDS.items() for seq in field.seqs(self.fold[name])})

    def restore(self, fold: TaskFold, rows: Iterable[Event]) -> bool:
        """Set the fold to what the snapshot holds, with the rows that it names. False: it holds something else."""
        known = {row.event_seq: row for row in rows}
        try:
            for name, field in FIELDS.items():
                setattr(fold, name, field.decode(self.fold[name], known))
        except (KeyError, IndexError, ValueError, TypeError):
            return False
        fold.floor = self.restored.places if self.restored is not None else 0
        fold.seq, fold.hash = self.event_seq, self.row_hash
        return True


def copied(fold: TaskFold, other: TaskFold) -> None:
    """Let one fold know what the other one knows, with containers of its own."""
    for name in FIELDS:
        value = getattr(other, name)
        if isinstance(value, dict):
            lists = isinstance(next(iter(value.values()), None), list)
            value = {key: list(one) for key, one in value.items()} if lists else dict(value)
        setattr(fold, name, list(value) if isinstance(value, list) else value)
    fold.seq, fold.hash, fold.floor, fold.reached_back = other.seq, other.hash, other.floor, other.reached_back


def snapshot_of(task_id: str, fold: TaskFold, restored: Restored | None = None, state: str | None = None) -> Snapshot:
    """A snapshot of the fold, and of the state of the task's own code."""
    content: dict[str, Any] = {"fold": {name: field.encode(getattr(fold, name)) for name, field in FIELDS.items()}}
    if restored is not None:
        content["fold"]["settled"], content["fold"]["tries"] = _settled({}), {}  # the state stands for them
        content["state"] = {"format": state, "places": restored.places, "text": restored.state}
    text = dump(content)
    return Snapshot(task_id, fold.seq, fold.hash, FORMAT, text, digest_of(task_id, fold.seq, fold.hash, FORMAT, text))


def digest_of(task_id: str, event_seq: int, hashed: bytes, form: int, content: str) -> bytes:
    """The digest of a whole snapshot, so that none of its columns can be another one's."""
    return sha256(f"{task_id}\0{event_seq}\0{hashed.hex()}\0{form}\0{content}".encode()).digest()


def is_well_formed(snapshot: Snapshot) -> bool:
    """Whether its columns are what they are declared as: in a damaged file a row may hold anything."""
    return tuple(map(type, snapshot[:5])) == (str, int, bytes, int, str)


def fault_of(snapshot: Snapshot, row: Event | None) -> str | None:
    """Why a snapshot is not used, or None. `row`: the row of its task at its place."""
    if not is_well_formed(snapshot) or digest_of(*snapshot[:5]) != snapshot.digest:
        return "it is damaged"
    if snapshot.format != FORMAT:
        return f"it has format {snapshot.format}, and this version makes {FORMAT}"
    if row is None:
        return "it is ahead of the log"
    if row_hash(row) != snapshot.row_hash:
        return "it was not made of this log"
    return None


def as_folded(snapshot: Snapshot, rows: list[Event]) -> bool:
    """Whether a snapshot without fault holds what its task's rows fold to. What task code left in it is not looked into."""

    def rows_of(path: str, until: int) -> list[Event]:
        return list(rows_of_step(rows, path, until))

    fold = TaskFold(rows_of)
    fold.take((row for row in rows if row.event_seq <= snapshot.event_seq), snapshot.row_hash)
    try:
        state = json.loads(snapshot.content).get("state")
        restored = None if state is None else Restored(state["text"], state["places"])
        return snapshot_of(snapshot.task_id, fold, restored, state and state["format"]) == snapshot
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def read(snapshot: Snapshot, plan: Plan) -> Held | None:
    """What a snapshot without fault holds; None when another version of the task's code made it."""
    try:
        content = json.loads(snapshot.content)
        fold, state = content["fold"], content.get("state")
        if fold.keys() != FIELDS.keys() or (state is None) != (plan.state is None):
            return None
        restored = None
        if state is not None:
            if state["format"] != plan.state:
                return None
            restored = Restored(state["text"], state["places"])
            if not (isinstance(restored.state, str) and isinstance(restored.places, int)):
                return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Held(snapshot.event_seq, snapshot.row_hash, fold, restored)


# ---------------------------------------------------------------- the fields


class Field(NamedTuple):
    """How one field of the fold is stored; `seqs`: the numbers of the rows that it needs again."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any, Mapping[int, Event]], Any]
    seqs: Callable[[Any], Iterable[int]]


def _settled(settled: Mapping[str, Settled]) -> dict[str, Any]:
    """The outline in columns: names and statuses by number, all hashes as one text; what is rare by its place only."""
    names: dict[str, int] = {}
    statuses: dict[str, int] = {}
    steps = settled.values()
    return {
        "paths": list(settled),
        "name": [names.setdefault(step.name, len(names)) for step in steps],
        "names": list(names),
        "status": [statuses.setdefault(step.status, len(statuses)) for step in steps],
        "statuses": list(statuses),
        "hashes": "".join("0" * 64 if step.input_hash is None else step.input_hash.hex() for step in steps),
        "unhashed": [n for n, step in enumerate(steps) if step.input_hash is None],
        "outputs": ["sha256:" + ref.hex() if isinstance(ref := step.output_ref, bytes) else ref for step in steps],
        "errors": {str(n): step.error for n, step in enumerate(steps) if step.error is not None},
    }


def _unsettled(stored: Mapping[str, Any], rows: Mapping[int, Event]) -> dict[str, Settled]:
    hashed, names, statuses = bytes.fromhex(stored["hashes"]), stored["names"], stored["statuses"]
    digests: list[bytes | None] = [hashed[at : at + 32] for at in range(0, len(hashed), 32)]
    for n in stored["unhashed"]:
        digests[n] = None
    errors: list[str | None] = [None] * len(digests)
    for n, error in stored["errors"].items():
        errors[int(n)] = error
    outputs = [bytes.fromhex(ref[7:]) if ref is not None and ref[0] == "s" else ref for ref in stored["outputs"]]
    columns = zip(
        [names[n] for n in stored["name"]], digests, [statuses[n] for n in stored["status"]], outputs, errors, strict=True
    )  # fmt: skip
    make = tuple.__new__
    return dict(zip(stored["paths"], [make(Settled, step) for step in columns], strict=True))


def _numbers(open_steps: Mapping[str, list[Event]]) -> dict[str, list[int]]:
    return {path: [row.event_seq for row in rows] for path, rows in open_steps.items()}


def _rows(stored: Mapping[str, list[int]], rows: Mapping[int, Event]) -> dict[str, list[Event]]:
    return {path: [rows[seq] for seq in seqs] for path, seqs in stored.items()}


def _cases(cases: Mapping[str, OpenCase]) -> dict[str, Any]:
    return {name: [case.kind, case.path, case.row.event_seq] for name, case in cases.items()}


def _uncases(stored: Mapping[str, Any], rows: Mapping[int, Event]) -> dict[str, OpenCase]:
    ordered = sorted(stored.items(), key=lambda item: int(item[1][2]))  # in the order of opening
    return {name: OpenCase(kind, path, rows[seq]) for name, (kind, path, seq) in ordered}


VALUE = Field(lambda value: value, lambda value, rows: value, lambda value: ())
"""A plain JSON value."""

ROW = Field(
    lambda row: None if row is None else row.event_seq,
    lambda seq, rows: None if seq is None else rows[seq],
    lambda seq: () if seq is None else (seq,),
)
"""One row, or None."""

ROWS_BY_NAME = Field(_numbers, _rows, lambda stored: [seq for seqs in stored.values() for seq in seqs])
"""Lists of rows by path, or by another name."""

ROWS_BY_PLACE = Field(lambda rows: sorted(rows), lambda stored, rows: {seq: rows[seq] for seq in stored}, lambda stored: stored)
"""Rows by their place in the log."""

PAIRS = Field(
    lambda pairs: [[one.event_seq, other.event_seq] for one, other in pairs],
    lambda stored, rows: [(rows[one], rows[other]) for one, other in stored],
    lambda stored: [seq for pair in stored for seq in pair],
)
"""A list of pairs of rows."""

FIELDS: dict[str, Field] = {
    "steps_seen": VALUE,
    "settled": Field(_settled, _unsettled, lambda stored: ()),
    "open": ROWS_BY_NAME,
    "tries": Field(dict, lambda stored, rows: {path: int(count) for path, count in stored.items()}, lambda stored: ()),
    "cases": Field(_cases, _uncases, lambda stored: [case[2] for case in stored.values()]),
    "fail_answer": ROW,
    "let_stand": ROW,
    "hold_row": ROW,
    "cancel": ROW,
    "events": ROWS_BY_PLACE,
    "failing": ROW,
    "answered": PAIRS,
}
"""What of `TaskFold` a snapshot holds: all of its fields (a test compares them), but for its place in the log."""
