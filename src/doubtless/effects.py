"""Effect classes and policies: what a step is, and what holds for one of its attempts.

The class and the policy of a step come from its developer, never from a model (I10). `declaring` reads a step's
options, `table` holds the steps and checks the whole; `tighten` says what holds for an intent that an older deploy has
left open (rule 10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from .binding import KEY, Binder, Hints, Selector, resolve_hints
from .canonical import encode
from .durations import MINUTE, SECOND, show_duration
from .errors import UsageError
from .events import Effect, Instant
from .once import Template

if TYPE_CHECKING:
    from .errors import DoesNotFit

OnAbsent = Literal["fail", "retry"]
Function = Callable[..., Any]

TIMEOUT: Final = 30 * SECOND
ATTEMPTS: Final = 3
BACKOFF: Final = SECOND
BACKOFF_MAX: Final = MINUTE
QUERY_ATTEMPTS: Final = 5
SETTLE_WITHIN: Final = 60 * MINUTE

_ABSENT: Final = object()
_STRICTNESS = {Effect.READ: 0, Effect.IDEM_WRITE: 1, Effect.NON_IDEM_WRITE: 2}


# ---------------------------------------------------------------- policies


class Deadline(NamedTuple):
    """`compensate_deadline`: within how long after the start of the first attempt that may have had the effect."""

    since: Instant
    within_us: int


class Policy(NamedTuple):
    """What holds for one step of one task: its definition's own, or what `tighten` made of an open intent's."""

    effect: Effect
    timeout_us: int
    attempts: int
    backoff_us: int
    backoff_max_us: int
    retry_rejected: bool
    key_window_us: int | None
    absent_after_us: int | None
    on_absent: OnAbsent
    query_attempts: int
    settle_within_us: int
    has_query: bool
    independent: bool
    undo_by: Deadline | None = None
    """Of a compensation: until when it may be sent."""


def tighten(
    frozen: Mapping[str, Any], current: StepDefinition | None, steps: Collection[str] | None = None
) -> tuple[Policy, tuple[str, ...]]:
    """The policy of an open intent: of the frozen one and the current one, the stricter (rule 10); and what is gone.

    Gone is what the intent relied on and the deploy has no more: ``step``, ``query``, ``classify``, ``compensate``;
    then a person is asked. A step that is gone (`current` None) has no query and no attempts left.

    Shapes: `frozen` is the intent's `StepDefinition.policy()`; what an older release did not write there is taken
    from the current one. `steps`: the names that the table and the tasks know, to see whether the frozen
    compensation is among them; without it the current definition has to have one.
    """
    if current is None:
        return _of_gone(frozen), ("step",)
    now = current.effective
    effect = max(Effect(frozen.get("effect", now.effect)), now.effect, key=_STRICTNESS.__getitem__)
    windows = [window for window in (frozen.get("key_window_us", now.key_window_us), now.key_window_us) if window is not None]
    lags = (frozen.get("absent_after_us", now.absent_after_us), now.absent_after_us)
    gone = [name for name in ("query", "classify") if frozen.get(name) and getattr(current, name) is None]
    undo = frozen.get("compensate")
    if undo and (current.compensate is None if steps is None else undo not in steps):
        gone.append("compensate")
    policy = now._replace(
        effect=effect,
        attempts=min(frozen.get("attempts", now.attempts), now.attempts),
        key_window_us=min(windows, default=None),
        absent_after_us=None if None in lags else max(cast("tuple[int, int]", lags)),
        on_absent="fail" if frozen.get("on_absent") == "fail" else now.on_absent,
        settle_within_us=min(frozen.get("settle_within_us", now.settle_within_us), now.settle_within_us),
        independent=now.independent and effect is Effect.READ,
    )
    return policy, tuple(gone)


def _of_gone(frozen: Mapping[str, Any]) -> Policy:
    """The frozen policy without whatever would need the code that is gone."""
    return Policy(
        Effect(frozen.get("effect", Effect.NON_IDEM_WRITE)), frozen.get("timeout_us", TIMEOUT), 0,
        frozen.get("backoff_us", BACKOFF), frozen.get("backoff_max_us", BACKOFF_MAX), False, frozen.get("key_window_us"),
        frozen.get("absent_after_us"), "fail", frozen.get("query_attempts", QUERY_ATTEMPTS),
        frozen.get("settle_within_us", SETTLE_WITHIN), False, False,
    )  # fmt: skip


# ---------------------------------------------------------------- one step


class _Declared(NamedTuple):
    name: str
    effect: Effect
    fn: Function
    is_async: bool
    binder: Binder
    query: Function | None
    query_is_async: bool
    query_select: Selector | None
    classify: Function | None
    compensate: str | None
    compensate_given: object
    compensate_deadline_us: int | None
    volatile: frozenset[str]
    secret: frozenset[str]
    timeout_us: int
    attempts: int
    backoff_us: int
    backoff_max_us: int
    retry_rejected: bool
    key_window_us: int | None
    absent_after_us: int | None
    on_absent: OnAbsent
    query_attempts: int
    settle_within_us: int
    single_request: bool
    idempotent_by: str | None
    independent: bool
    cost: int | float | None
    takes_key: bool
    once: Template | None
    once_window_us: int | None


class StepDefinition(_Declared):
    """One step as its developer declared it. Immutable; what is derived from it is computed at first use.

    Shapes: `compensate` is a name (`compensate_given` what was written); durations are microseconds; `fn`,
    `query`, `classify` the bare functions.
    """

    @cached_property
    def effective(self) -> Policy:
        """The policy of an attempt that this definition itself begins."""
        return Policy(
            self.effect, self.timeout_us, self.attempts, self.backoff_us, self.backoff_max_us, self.retry_rejected,
            self.key_window_us, self.absent_after_us, self.on_absent, self.query_attempts, self.settle_within_us,
            self.query is not None, self.independent,
        )  # fmt: skip

    @cached_property
    def query_by(self) -> Literal["key", "handle", "likeness"] | None:
        """By what the query can find the effect: our key, their handle, or only by likeness; None without a query."""
        if self.query_select is None:
            return None
        if self.query_select.asks_for(KEY, "idempotency_keys"):
            return "key"
        return "handle" if self.query_select.asks_for("handle", "handles") else "likeness"

    def query_params(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """Of what is offered to callbacks, what the query declares: to be passed by name."""
        return {} if self.query_select is None else self.query_select(offered)

    def policy(self) -> dict[str, Any]:
        """What an intent freezes, by name and value: plain JSON, no source code."""
        values: dict[str, Any] = {
            field: getattr(self, field)
            for field in (
                "name", "compensate", "compensate_deadline_us", "timeout_us", "attempts", "backoff_us", "backoff_max_us",
                "retry_rejected", "key_window_us", "absent_after_us", "on_absent", "query_attempts", "settle_within_us",
                "single_request", "idempotent_by", "independent", "cost", "takes_key",
            )
        }  # fmt: skip
        if self.once is not None:
            values |= {"once": self.once.text, "once_window_us": self.once_window_us}
        return values | {
            "effect": self.effect.value,
            "params": list(self.binder.names),
            "volatile": sorted(self.volatile),
            "secret": sorted(self.secret),
            "query": callback_name(self.query),
            "classify": callback_name(self.classify),
        }

    @cached_property
    def policy_text(self) -> str:
        """`policy()` as canonical JSON."""
        return encode(self.policy(), where=f"the policy of {self.name}")

    @cached_property
    def definition_hash(self) -> bytes:
        """32 bytes that change when names, class, policy or params change; never for the code of a body."""
        return sha256(self.policy_text.encode()).digest()

    @cached_property
    def _hints(self) -> Hints:
        return resolve_hints(self.fn)

    @property
    def returns(self) -> Any:
        """The type that the output is restored to; None where the function declares none (or none that resolves)."""
        return self._hints.returns

    @property
    def param_types(self) -> Mapping[str, Any]:
        """The types that stored params are restored to, of those that declare one."""
        return self._hints.params

    @property
    def unresolved(self) -> tuple[str, ...]:
        """The params whose annotation names nothing that can be found from the function's module."""
        return tuple(name for name in self._hints.unresolved if name != "return")

    @cached_property
    def _stored_types(self) -> dict[str, Any]:
        """The annotations of what is stored: of params that are no secret, and of the result (``return``)."""
        types = {name: kind for name, kind in self.param_types.items() if name in self.binder.accepts - self.secret}
        return types if self.returns is None else {**types, "return": self.returns}

    @cached_property
    def type_faults(self) -> tuple[str, ...]:
        """Annotations that no stored value can keep: half-sentences. The annotations are looked at here, not before."""
        from .storable import faults_of

        found: list[str] = []
        for name, annotation in self._stored_types.items():
            if name == "return":
                found += faults_of(annotation, place="the result", verb="return", every_member=True)
            else:
                found += faults_of(annotation, place=f"the parameter {name}", verb="pass", every_member=False)
        return tuple(found)

    @cached_property
    def _restorers(self) -> tuple[dict[str, Callable[[Any], Any]], list[str]]:
        """What restores each param and the result (``return``), and the names of those that nothing can restore."""
        from .restore import restorer

        compiled: dict[str, Callable[[Any], Any]] = {}
        unresolved = list(self._hints.unresolved)
        for name, annotation in self._stored_types.items():
            try:
                restore = restorer(annotation)
            except UsageError:  # a name inside it that `typing` let pass
                unresolved.append(name)
                continue
            if restore is not None:
                compiled[name] = restore
        return compiled, unresolved

    def restore_params(self, params: dict[str, Any]) -> None:
        """Give decoded params, in place, the types of their annotations; secrets stay what they resolved to.

        Raises: `DoesNotFit`, with the param in its place.
        """
        for name, restore in self._restorers[0].items():
            value = params.get(name, _ABSENT)
            if value is _ABSENT or (value is None and self.binder.defaults.get(name, name) is None):
                continue  # ``note: str = None`` may be None, whatever its annotation says
            try:
                params[name] = restore(value)
            except _misfit() as misfit:
                raise misfit.within(name) from misfit.__cause__

    @cached_property
    def restore_return(self) -> Callable[[Any], Any] | None:
        """What gives a decoded output the type of the return annotation, or None; it raises `DoesNotFit`."""
        return self._restorers[0].get("return")

    def restore_output(self, value: Any) -> Any:
        """The decoded output in the type of the return annotation. Raises: `DoesNotFit`."""
        restore = self.restore_return
        return value if restore is None else restore(value)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is not a fault, but should be known: one sentence each."""
        found = []
        if self.key_window_us is not None and self.timeout_us + max(5 * SECOND, self.key_window_us // 100) >= self.key_window_us:
            found.append(
                f"key_window {show_duration(self.key_window_us)} leaves no room for a call of {show_duration(self.timeout_us)} "
                "and the margin: an attempt whose outcome is unknown is never sent again"
            )
        if self.once is not None and not self.once.fields:
            found.append(f"once {self.once.text!r} names no parameter: all calls of all tasks together have one send")
        if self.query_by == "key" and not self.takes_key:
            found.append(f"{callback_name(self.query)} is given a key that the step does not send: add {KEY}: str = injected()")
        for name in self._restorers[1]:
            what = "the result" if name == "return" else repr(name)
            found.append(f"the annotation of {what} cannot be resolved: its values come back as plain JSON values")
        return tuple(found)


def _misfit() -> type[DoesNotFit]:
    from .restore import DoesNotFit

    return DoesNotFit


class PolicyChange(NamedTuple):
    """One field in which today's definition of a step differs from the one that an intent has frozen."""

    field: str
    was: Any
    now: Any


def policy_changes(frozen: Mapping[str, Any], current: Mapping[str, Any] | None) -> list[PolicyChange]:
    """How today's `StepDefinition.policy()` differs from a frozen one, in the order of the fields' names; None: it is gone."""
    if current is None:
        return [PolicyChange("step", frozen.get("name"), None)]
    fields = sorted({*frozen, *current})
    return [PolicyChange(f, frozen.get(f), current.get(f)) for f in fields if frozen.get(f) != current.get(f)]


def callback_name(fn: Function | None) -> str | None:
    return None if fn is None else getattr(fn, "__qualname__", None) or type(fn).__qualname__
