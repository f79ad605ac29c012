"""A step's params, from the call to the stored form and back: encoded, hashed, decoded, typed, secrets resolved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import canonical
from .calls import Input, Runtime
from .canonical import encode, input_hash
from .canonical_plain import plain_fields
from .effects import StepDefinition
from .errors import DoesNotFit, UsageError
from .fold import StepRecord
from .secrets import Secret


def prepare(runtime: Runtime, definition: StepDefinition, params: Mapping[str, Any]) -> Input:
    """Encode bound params; secrets as their resolvers. Raises NotCanonical, UsageError: nothing is written yet."""
    where = definition.name
    if not (definition.volatile or definition.secret):
        text = plain_fields(definition.binder.layout, params) or encode(params, where=where)
        key_text = text
    else:
        for name in definition.secret:
            if not isinstance(params.get(name), Secret | None):
                raise UsageError(
                    f"step {where}: param {name} is secret and was given as a raw value; nothing was written",
                    hint=f"pass {name}=Secret('env:NAME'): the resolver is stored, its value is not",
                    step=where,
                    param=name,
                )
        stored = {k: (v.stored() if k in definition.secret and isinstance(v, Secret) else v) for k, v in params.items()}
        text = encode(stored, where=where)
        key_text = encode({k: v for k, v in params.items() if k not in definition.volatile and k not in definition.secret})
    if not runtime.vault.empty:
        runtime.vault.refuse_known(text, where)
    once = None if definition.once is None else definition.once.key(params, where)
    return Input(text, key_text, input_hash(runtime.namespace, key_text), once)


def stored_input(runtime: Runtime, given: Input | None, record: StepRecord | None) -> str:
    """The params as they are stored: of an intent its own, whatever the code words this time (rule 2)."""
    if record is not None and record.input_ref is not None:
        return runtime.content.get(record.input_ref)
    assert given is not None
    return given.text


def call_params(runtime: Runtime, definition: StepDefinition, text: str) -> dict[str, Any]:
    """The arguments of a call: decoded from the stored form, typed again, secrets resolved. Raises DoesNotFit, UsageError."""
    params: dict[str, Any] = canonical.decode(text)
    if definition.secret:
        for name in definition.secret:
            if params.get(name) is not None:
                params[name] = runtime.vault.resolve(params[name])
    try:
        definition.restore_params(params)
    except DoesNotFit as misfit:
        raise misfit.within(f"{definition.name}.") from misfit.__cause__
    return params


def callback_params(runtime: Runtime, definition: StepDefinition, record: StepRecord) -> dict[str, Any]:
    """What a query is offered: the step's params, all its keys and handles, and when it was first sent."""
    params = call_params(runtime, definition, runtime.content.get(record.input_ref))
    keys = [key.hex() for key in record.keys]
    params["idempotency_keys"] = keys
    params["idempotency_key"] = keys[-1] if keys else None
    params["handles"] = list(record.handles)
    params["handle"] = record.handles[-1] if record.handles else None
    params["first_sent_at"] = record.attempts[0].started.wall / 1e6 if record.attempts else None
    return params
