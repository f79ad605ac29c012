"""Rows on their way to PostgreSQL and back: refs and policies are text there, and several rows go as one JSON text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring as _quoted
from typing import Any

from ...changes import CaseClosed, CaseOpened, Freeze, HeadChange, KeyMoved, KeyTaken, project
from ...events import Event, row_hash, upcast
from ..base import Blob

_INPUT, _OUTPUT, _DATA = (Event._fields.index(name) for name in ("input_ref", "output_ref", "data"))


def ref_out(ref: str | bytes | None) -> str | None:
    """A ref, or a policy's digest, as a column holds it."""
    return "sha256:" + ref.hex() if isinstance(ref, bytes) else ref


def ref_in(text: str | None) -> str | bytes | None:
    """The ref that a column holds."""
    return bytes.fromhex(text[7:]) if text is not None and text[:7] == "sha256:" else text


def params_of(event: Event) -> tuple[Any, ...]:
    """A row's columns as parameters."""
    (
        task, seq, step, path, name, kind, status, attempt, effect, key, digest, given, made, error, data, began, ended, boot,
        epoch, form, prev,
    ) = event  # fmt: skip
    return (
        task, seq, step, path, name, kind, status, attempt, effect, key, digest, ref_out(given), ref_out(made), error,
        ref_out(data), began, ended, boot, epoch, form, prev,
    )  # fmt: skip


def event_of(row: Sequence[Any]) -> Event:
    """A stored row as today's `Event`."""
    given, made, data = row[_INPUT], row[_OUTPUT], row[_DATA]
    inline = (given is None or given[:7] == "inline:") and (made is None or made[:7] == "inline:")
    if inline and (data is None or data[:1] == "{"):
        return upcast(row)
    return upcast((*row[:_INPUT], ref_in(given), ref_in(made), row[_OUTPUT + 1], ref_in(data), *row[_DATA + 1 :]))


def rows_json(events: Sequence[Event]) -> str:
    """Several rows as one text: a list of lists in the order of the columns, digests in hex."""
    return json.dumps(
        [[value.hex() if isinstance(value, bytes) else value for value in params_of(event)] for event in events],
        ensure_ascii=False,
        separators=(",", ":"),
    )


def shared_row(event: Event, guard: str | None) -> str:
    """A row as a JSON object by column, without what it does not hold, and with the step whose freeze would refuse it.

    Written out, because it is made for each row of a batch.
    """
    (
        task, seq, step, path, name, kind, status, attempt, effect, key, digest, given, made, error, data, began, ended, boot,
        epoch, form, prev,
    ) = event  # fmt: skip
    said = f'{{"task_id":{_quoted(task)},"event_seq":{seq},"kind":"{kind}","boot_at":{boot},"format":{form}'
    if step is not None:
        said += f',"step_seq":{step}'
    if path is not None:
        said += f',"path":{_quoted(path)}'
    if name is not None:
        said += f',"step_name":{_quoted(name)}'
    if status is not None:
        said += f',"status":"{status}"'
    if attempt is not None:
        said += f',"attempt":{attempt}'
    if effect is not None:
        said += f',"effect_class":"{effect}"'
    if key is not None:
        said += f',"idempotency_key":"\\\\x{key.hex()}"'
    if digest is not None:
        said += f',"input_hash":"\\\\x{digest.hex()}"'
    if given is not None:
        said += f',"input_ref":{_ref(given)}'
    if made is not None:
        said += f',"output_ref":{_ref(made)}'
    if error is not None:
        said += f',"error":{_quoted(error)}'
    if data is not None:
        said += f',"data":{_ref(data)}'
    if began is not None:
        said += f',"started_at":{began}'
    if ended is not None:
        said += f',"finished_at":{ended}'
    if epoch is not None:
        said += f',"epoch":{epoch}'
    if prev is not None:
        said += f',"prev_hash":"\\\\x{prev.hex()}"'
    return said + "}" if guard is None else f'{said},"guard":{_quoted(guard)}}}'


def _ref(ref: str | bytes) -> str:
    return _quoted(ref) if isinstance(ref, str) else f'"sha256:{ref.hex()}"'


def blob_arrays(blobs: Sequence[Blob]) -> tuple[list[bytes] | None, list[bytes] | None]:
    """Content as two arrays, in one order for all writers, so that no two wait for each other."""
    if not blobs:
        return None, None
    ordered = sorted({blob.digest: blob.content for blob in blobs}.items())
    return [digest for digest, _ in ordered], [content for _, content in ordered]


def changes_json(events: Sequence[Event], *, tail: bool = False) -> tuple[str, bool]:
    """What these rows change in the projections, in order; and whether the head's owner is to be released.

    `tail`: note the last one as its task's last row in any case, not only when it comes to rest.
    """
    changes: list[dict[str, Any]] = []
    release = False
    for event in events:
        for change in project(event):
            changes.append(_said(change, event))
            release = release or (isinstance(change, HeadChange) and change.release)
    if tail or (release and len(events) > 1):
        changes.append(_tail(events[-1]))
    return json.dumps(changes, ensure_ascii=False, separators=(",", ":")), release


def suspect_json(row: Event, suspect: bool, store_id: bytes | None = None) -> str:
    """What a `StoreRecovered` changes."""
    changes = [{"do": "suspect", "suspect": suspect, "store_id": None if store_id is None else store_id.hex()}, _tail(row)]
    return json.dumps(changes)


def _tail(event: Event) -> dict[str, Any]:
    return {"do": "tail", "seq": event.event_seq, "hash": row_hash(event).hex()}


def _said(change: object, event: Event) -> dict[str, Any]:
    at, seq = event.at.wall, event.event_seq
    match change:
        case HeadChange():
            return {
                "do": "head", "status": change.status, "wake_at": change.wake_at, "why": text(change.why), "at": at, "seq": seq,
                "hash": row_hash(event).hex(), "only": list(change.only_from) or None, "awaits": text(change.awaits),
            }  # fmt: skip
        case CaseOpened(case, path, kind):
            return {"do": "open", "case": case, "seq": seq, "path": path, "kind": kind, "at": at}
        case CaseClosed(case, by):
            return {"do": "close", "case": case, "seq": seq, "at": at, "by": text(by)}
        case Freeze(step, None):
            return {"do": "thaw", "step": step}
        case Freeze(step, why):
            return {"do": "freeze", "step": step, "why": text(why)}
        case KeyTaken(once, path, turn, window):
            return {"do": "take", "once": text(once), "turn": turn, "path": path, "window": window}
        case KeyMoved(once, path, state):
            when = (at, event.boot_at) if state == "done" else (None, None)
            return {"do": "move", "once": text(once), "path": path, "state": state, "at": when[0], "boot": when[1]}
        case _:
            raise AssertionError(change)


def text(value: str | None) -> str | None:
    """A text as a column of PostgreSQL can hold it: without NUL, which only what a person typed could bring."""
    return value.replace("\0", "\ufffd") if value is not None and "\0" in value else value
