"""What a model answers: the next calls of a turn, or the end; and the stored form of that.

A model chooses names and params, nothing else (I10). What it answers is checked whole before it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .canonical import encode
from .errors import NotCanonical, UsageError

CHOOSE = "$choose"
"""The step that records a choice; its only param is the turn's number."""


class StepCall(NamedTuple):
    """A call of a step that the model wants.

    Shapes: ``StepCall("pay", {"order": "o1", "amount": 500}, "toolu_7")``; `params` is JSON; `call_id` is the
    provider's id of this call, one in its turn (None: the library names it by its place).
    """

    name: str
    params: Mapping[str, Any]
    call_id: str | None = None


class Turn(NamedTuple):
    """The model's next calls; they run side by side, each as a step of its own.

    Shapes: `memo` is JSON that the provider needs back (signed blocks, the text beside the calls); it is recorded with
    the choice and stands in `State.turns`.
    """

    calls: Sequence[StepCall] = ()
    memo: Any = None


class Finish(NamedTuple):
    """The model has ended; `output`, JSON, is the output of the task."""

    output: Any = None


class MalformedChoice(UsageError):
    """What the model answered is no choice; nothing of it was called. It is asked again, within its attempts."""

    code = "malformed_choice"


Refuse = Callable[[str, Mapping[str, Any]], "str | None"]
"""Why a call of this step with these params is refused; None: it may run."""


def recorded(answer: object, refuse: Refuse) -> dict[str, Any]:
    """The answer in the form that is recorded: ``{"finish": …}``, or its calls, each with why it is refused, and the memo.

    Meaning: a refusal is recorded in the choice itself, so that it is the same whenever it is read again.
    Raises: MalformedChoice.
    """
    if isinstance(answer, Finish):
        form: dict[str, Any] = {"finish": answer.output}
    elif isinstance(answer, Turn):
        if isinstance(answer.calls, str | bytes | Mapping) or not isinstance(answer.calls, Sequence):
            raise MalformedChoice(f"Turn.calls is {type(answer.calls).__name__}: say a list of StepCall")
        form = {"calls": [_call(call, number) for number, call in enumerate(answer.calls, 1)], "memo": answer.memo}
    else:
        raise MalformedChoice(f"choose gave {type(answer).__name__}: say Turn(calls=[…]) or Finish(output)")
    _check_json(form, "the choice", 0)
    try:
        encode(form, where="the choice")
    except NotCanonical as error:
        raise MalformedChoice(error.message) from None
    _check_ids(form.get("calls", ()))
    for call in form.get("calls", ()):
        why = refuse(call["name"], call["params"])
        if why is not None:
            call["refused"] = why
    return form


def _call(call: object, number: int) -> dict[str, Any]:
    if not isinstance(call, StepCall):
        raise MalformedChoice(f"call {number} is {type(call).__name__}: say StepCall(name, params, call_id)")
    if not isinstance(call.name, str) or not call.name:
        raise MalformedChoice(f"call {number} names no step: its name is {type(call.name).__name__}")
    if not isinstance(call.params, Mapping):
        raise MalformedChoice(f"call {number}: params is {type(call.params).__name__}: say a mapping of names to values")
    if call.call_id is not None and (not isinstance(call.call_id, str) or not call.call_id):
        raise MalformedChoice(f"call {number}: call_id is {type(call.call_id).__name__}: say a text, or leave it out")
    return {"name": call.name, "params": dict(call.params), "call_id": call.call_id or f"call-{number}"}


def _check_ids(calls: Sequence[Mapping[str, Any]]) -> None:
    ids = [call["call_id"] for call in calls]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise MalformedChoice(f"call_id {twice[0]!r} stands twice in one turn: each call needs its own")


def _check_json(value: object, where: str, depth: int) -> None:
    """Refuse what is no JSON value: what a provider gives, and what every program can read."""
    if value is None or isinstance(value, str | bool | int | float):
        return
    if depth > 100:
        raise MalformedChoice(f"{where} is nested deeper than 100 levels")
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_json(item, f"{where}[{number}]", depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise MalformedChoice(f"{where} has a key of type {type(key).__name__}: keys are texts")
            _check_json(item, f"{where}.{key}"[:200], depth + 1)
    else:
        raise MalformedChoice(f"{where} holds {type(value).__name__}, which is no JSON value")
