"""The step table: what each step is, its policy, and every fault of the table found before anything runs.

The class and the policy of a step come from its developer, never from a model (I10). `define` reads one step's
options, `StepTable` holds them and checks the whole, `tighten` says what holds for an intent that an older
deploy has left open (rule 10).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from .binding import (
    KEY,
    OFFERED,
    RESULT,
    Binder,
    Hints,
    Selector,
    function_name,
    is_async,
    is_generator,
    resolve_hints,
    select,
    signature_faults,
    signature_of,
    validate_task_signature,
)
from .canonical import encode
from .durations import MINUTE, SECOND, BadDuration, parse_duration, show_duration
from .errors import StepTableError, UnknownStep, UsageError
from .events import Effect

if TYPE_CHECKING:
    import inspect

    from .restore import DoesNotFit

__all__ = ["OPTIONS", "Policy", "StepDefinition", "StepTable", "define", "tighten", "validate_task_signature"]

OnAbsent = Literal["fail", "retry"]
Function = Callable[..., Any]

OPTIONS: Final = (
    "name", "effect", "call", "query", "compensate", "compensate_deadline", "volatile", "secret", "timeout", "attempts",
    "backoff", "retry_rejected", "key_window", "absent_after", "on_absent", "query_attempts", "settle_within",
    "single_request", "classify", "idempotent_by", "once", "once_window", "independent", "cost",
)  # fmt: skip

TIMEOUT: Final = 30 * SECOND
ATTEMPTS: Final = 3
BACKOFF: Final = SECOND
BACKOFF_MAX: Final = MINUTE
QUERY_ATTEMPTS: Final = 5
SETTLE_WITHIN: Final = 60 * MINUTE

# What people type who come from elsewhere, where the nearest spelling would mislead. A bare "write" gets the
# cautious reading.
_OPTIONS_ELSEWHERE = {"fn": "call", "func": "call", "function": "call", "retries": "attempts", "undo": "compensate",
                      "max_attempts": "attempts", "verify": "query", "deadline": "compensate_deadline"}  # fmt: skip
_EFFECTS_ELSEWHERE = {"write": "non_idem_write", "idempotent": "idem_write", "pure": "read", "read_only": "read"}
_LAMBDA = (lambda: None).__name__  # no name, also where somebody read it off the function
_ABSENT: Final = object()
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # has no stored form
_STRICTNESS = {Effect.READ: 0, Effect.IDEM_WRITE: 1, Effect.NON_IDEM_WRITE: 2}


# ---------------------------------------------------------------- policies


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
    once: str | None
    once_window_us: int | None
    independent: bool
    cost: int | float | None
    takes_key: bool


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
                "single_request", "idempotent_by", "once", "once_window_us", "independent", "cost", "takes_key",
            )
        }  # fmt: skip
        return values | {
            "effect": self.effect.value,
            "params": list(self.binder.names),
            "volatile": sorted(self.volatile),
            "secret": sorted(self.secret),
            "query": _callback_name(self.query),
            "classify": _callback_name(self.classify),
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

    @cached_property
    def _restorers(self) -> tuple[dict[str, Callable[[Any], Any]], list[str]]:
        """What restores each param and the result (``return``), and the names of those that nothing can restore."""
        from .restore import restorer

        compiled: dict[str, Callable[[Any], Any]] = {}
        unresolved = list(self._hints.unresolved)
        types = {name: kind for name, kind in self.param_types.items() if name in self.binder.accepts - self.secret}
        if self.returns is not None:
            types["return"] = self.returns
        for name, annotation in types.items():
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

    def restore_output(self, value: Any) -> Any:
        """The decoded output in the type of the return annotation. Raises: `DoesNotFit`."""
        restore = self._restorers[0].get("return")
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
        if self.query_by == "key" and not self.takes_key:
            found.append(f"{_callback_name(self.query)} is given a key that the step does not send: add {KEY}: str = injected()")
        for name in self._restorers[1]:
            what = "the result" if name == "return" else repr(name)
            found.append(f"the annotation of {what} cannot be resolved: its values come back as plain JSON values")
        return tuple(found)


def _misfit() -> type[DoesNotFit]:
    from .restore import DoesNotFit

    return DoesNotFit


def _callback_name(fn: Function | None) -> str | None:
    return None if fn is None else getattr(fn, "__qualname__", None) or type(fn).__qualname__


# ---------------------------------------------------------------- reading options


class _Reading:
    """One step's options, read one by one; every fault is collected and replaced by the cautious default."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.options = options
        self.faults: list[str] = []

    def fault(self, sentence: str) -> None:
        self.faults.append(f"step {self.name!r}: {sentence}")

    def given(self, option: str) -> bool:
        return self.options.get(option) is not None

    def effect(self) -> Effect | None:
        value = self.options.get("effect")
        if value is None:
            self.fault("says no effect: say effect='read', 'idem_write' or 'non_idem_write'")
            return None
        try:
            return Effect(value)
        except ValueError:
            nearest = _nearest(str(value).lower(), list(Effect), _EFFECTS_ELSEWHERE)
            self.fault(f"unknown effect {value!r}; {nearest or 'say one of ' + ', '.join(Effect)}")
            return None

    def duration(self, option: str, default: int, *, zero: bool = False) -> int:
        if option not in self.options:
            return default
        us = self._duration(option, zero=zero)
        return default if us is None else us

    def window(self, option: str, *, zero: bool = False) -> int | None:
        """A duration that may be left out or None: for ever, or never."""
        return self._duration(option, zero=zero) if self.given(option) else None

    def _duration(self, option: str, *, zero: bool) -> int | None:
        try:
            return parse_duration(self.options[option], zero=zero)
        except BadDuration as error:
            self.fault(f"{option}: {error}")
            return None

    def count(self, option: str, default: int) -> int:
        value = self.options.get(option, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        self.fault(f"{option} is {value!r}: say a whole number, at least 1")
        return default

    def flag(self, option: str) -> bool:
        value = self.options.get(option, False)
        if isinstance(value, bool):
            return value
        self.fault(f"{option} is {value!r}: say True or False")
        return False

    def text(self, option: str) -> str | None:
        value = self.options.get(option)
        if value is None or (isinstance(value, str) and value.strip() and not _LONE_SURROGATE.search(value)):
            return value
        self.fault(f"{option} is {value!r}: say it in words, as a text")
        return None

    def cost(self) -> int | float | None:
        value = self.options.get("cost")
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")):
            return value
        self.fault(f"cost is {value!r}: say a number, zero or more")
        return None

    def on_absent(self) -> OnAbsent:
        value = self.options.get("on_absent")
        if value is None or value in ("fail", "retry"):
            return cast("OnAbsent", value or "fail")
        self.fault(f"on_absent is {value!r}: say 'fail' or 'retry'")
        return "fail"

    def params(self, option: str, binder: Binder) -> frozenset[str]:
        """Names of params; one bare text is one name, not its letters."""
        value = self.options.get(option)
        names = () if value is None else (value,) if isinstance(value, str) else value
        if not isinstance(names, tuple | list | set | frozenset) or not all(isinstance(name, str) for name in names):
            self.fault(f"{option} is {value!r}: say the names of parameters, as in {option}=('requested_at',)")
            return frozenset()
        for name in sorted(set(names) - binder.accepts):
            self.fault(f"{option} names {name!r}, which is no parameter of it; {_takes(binder)}")
        return frozenset(names) & binder.accepts

    def callback(self, option: str, offered: Collection[str]) -> tuple[Function | None, Selector | None]:
        """A query or classifier and what it wants. A step given as one is asked by its bare function."""
        fn = _bare(self.options.get(option))
        if fn is None:
            return None, None
        name = _callback_name(fn)
        if not callable(fn):
            self.fault(f"{option} is {fn!r}: say the function itself")
            return None, None
        try:
            signature = signature_of(fn)
        except (TypeError, ValueError):
            self.fault(f"{option}: the signature of {name} cannot be read: wrap it in a def that names its parameters")
            return None, None
        if is_generator(fn):
            self.fault(f"{option}: {name} is a generator: return the answer instead of yielding it")
        if option == "classify":  # it is handed the exception or response, by position and alone
            try:
                signature.bind(None)
            except TypeError:
                self.fault(f"classify: {name} has to take one thing by position, the exception or response, and ask for no more")
            if is_async(fn):
                self.fault(f"classify: {name} is async: a classifier only looks at what came; make it a plain function")
            return fn, None
        selector = Selector(signature)
        for half in selector.faults(offered):
            self.fault(f"{option}: {name} {half}")
        return fn, selector


def _nearest(word: object, known: Collection[str], elsewhere: Mapping[str, str]) -> str | None:
    """``did you mean 'attempts'?``, or None when nothing is near."""
    from difflib import get_close_matches

    text = str(word)
    found = elsewhere.get(text) or next(iter(get_close_matches(text, known, 1)), None)
    return f"did you mean {str(found)!r}?" if found else None


def _takes(binder: Binder) -> str:
    return f"it takes {', '.join(binder.names)}" if binder.names else "it takes none"


def _bare(given: Any) -> Any:
    """The function of what was given: a step stands for its bare one."""
    definition = getattr(given, "definition", None)
    return definition.fn if isinstance(definition, StepDefinition) else given


def define(name: str | None = None, *, call: Any = None, **options: Any) -> tuple[StepDefinition | None, list[str]]:
    """Read one step's options; never raises. What is true afterwards: every fault of this step is in the list.

    A definition is made wherever `call` is a function with a readable signature, also beside faults, with the
    cautious default for each faulty option: a decorator has something to hold, and `StepTable.validate` refuses
    to run it. `compensate` is checked by the table, which knows the other steps.
    """
    return _define(name, call, options, compensates=False)


def _define(
    name: str | None, call: Any, options: Mapping[str, Any], *, compensates: bool
) -> tuple[StepDefinition | None, list[str]]:
    fn = _bare(call)
    known_as = function_name(fn) if name in (None, _LAMBDA) else name
    reading = _Reading(known_as if isinstance(known_as, str) else str(known_as or "(no name)"), options)
    if known_as is not None:
        _check_name(reading, known_as)
    elif callable(fn):
        reading.fault(f"{getattr(fn, '__name__', type(fn).__name__)} has no name of its own: say name='…'")
    for option in options:
        if option not in OPTIONS:
            nearest = _nearest(option, OPTIONS, _OPTIONS_ELSEWHERE)
            reading.fault(f"unknown option {option!r}; {nearest or 'the options are ' + ', '.join(OPTIONS)}")
    effect = reading.effect()
    signature = _signature(reading, fn)
    if signature is None:
        return None, reading.faults
    for half in signature_faults(signature, compensates=compensates):
        reading.fault(half)
    definition = _read(reading, fn, effect, Binder(signature, reading.name))
    if effect is not None:
        _check_class(reading, effect, definition)
    _check_pairs(reading, definition)
    return definition, reading.faults


def _check_name(reading: _Reading, name: object) -> None:
    if not isinstance(name, str):
        reading.fault("the name is not a text: say name='…'")
    elif not 1 <= len(name) <= 100:
        reading.fault(f"the name has {len(name)} characters: 1 to 100 are allowed")
    elif name == "*":
        reading.fault("'*' means all steps where steps are frozen: choose another name")
    elif not name.isprintable() or any(character.isspace() for character in name):
        reading.fault("the name may hold printable characters only, and no spaces")


def _signature(reading: _Reading, fn: Any) -> inspect.Signature | None:
    if fn is None:
        reading.fault("says no call: say call=<the function>")
    elif not callable(fn):
        reading.fault(f"call is {fn!r}, which cannot be called: say the function itself")
    else:
        if is_generator(fn):
            reading.fault("is a generator: return the result instead of yielding it")
        try:
            return signature_of(fn)
        except (TypeError, ValueError):
            reading.fault("its signature cannot be read: wrap it in a def that names its parameters")
    return None


def _read(reading: _Reading, fn: Function, effect: Effect | None, binder: Binder) -> StepDefinition:
    offered = (*binder.names, *(name for name in OFFERED if name not in binder.accepts))
    query, query_select = reading.callback("query", offered)
    classify, _ = reading.callback("classify", ())
    undo = reading.options.get("compensate")
    backoff = reading.duration("backoff", BACKOFF, zero=True)
    return StepDefinition(
        name=reading.name,
        effect=effect or Effect.NON_IDEM_WRITE,
        fn=fn,
        is_async=is_async(fn),
        binder=binder,
        query=query,
        query_is_async=query is not None and is_async(query),
        query_select=query_select,
        classify=classify,
        compensate=_name_of(undo),
        compensate_given=undo,
        compensate_deadline_us=reading.window("compensate_deadline"),
        volatile=reading.params("volatile", binder),
        secret=reading.params("secret", binder),
        timeout_us=reading.duration("timeout", TIMEOUT),
        attempts=reading.count("attempts", ATTEMPTS),
        backoff_us=backoff,
        backoff_max_us=max(BACKOFF_MAX, backoff),
        retry_rejected=reading.flag("retry_rejected"),
        key_window_us=reading.window("key_window"),
        absent_after_us=reading.window("absent_after", zero=True),
        on_absent=reading.on_absent(),
        query_attempts=reading.count("query_attempts", QUERY_ATTEMPTS),
        settle_within_us=reading.duration("settle_within", SETTLE_WITHIN),
        single_request=reading.flag("single_request"),
        idempotent_by=reading.text("idempotent_by"),
        once=reading.text("once"),
        once_window_us=reading.window("once_window"),
        independent=reading.flag("independent"),
        cost=reading.cost(),
        takes_key=KEY in binder.injected,
    )


def _name_of(undo: Any) -> str | None:
    """The name of what compensates: a name, a step, a task or a function. The table sees whether it exists."""
    if undo is None or isinstance(undo, str):
        return undo
    definition = getattr(undo, "definition", None)
    if isinstance(definition, StepDefinition):
        return definition.name
    name = getattr(undo, "name", None)
    return name if isinstance(name, str) else function_name(undo)


# ---------------------------------------------------------------- options that must fit together


def _check_class(reading: _Reading, effect: Effect, definition: StepDefinition) -> None:
    """What a class does not allow or asks for."""
    if effect is Effect.READ:
        for option, why in (
            ("query", "a read is simply called again"),
            ("compensate", "a read leaves nothing to undo"),
            ("once", "a read may be called as often as one likes"),
        ):
            if reading.given(option):
                reading.fault(f"{option} on a read: {why}; take it out, or say which write it is")
        if definition.binder.injected:
            reading.fault("injected() on a read: only writes have a key; take the parameter out")
    elif definition.independent:
        reading.fault("independent on a write: no write may begin while another step is in doubt; only reads can be independent")
    if effect is not Effect.IDEM_WRITE:
        for option in ("key_window", "idempotent_by"):
            if reading.given(option):
                reading.fault(f"{option} on a {effect}: it speaks of what makes an idem_write safe to send again; take it out")
    elif not definition.takes_key and not reading.given("idempotent_by"):
        reading.fault(
            f"an idem_write that takes no key: add the parameter {KEY}: str = injected(), "
            "or say idempotent_by='…' (what makes a second send harmless), or make it a non_idem_write"
        )


def _check_pairs(reading: _Reading, definition: StepDefinition) -> None:
    """Options that say nothing without another one."""
    for option, needs in (
        ("compensate_deadline", "compensate"),
        ("absent_after", "query"),
        ("on_absent", "absent_after"),
        ("once_window", "once"),
    ):
        if reading.given(option) and not reading.given(needs):
            reading.fault(f"{option} without {needs}: say {needs}=… too, or take it out")
    if definition.query_is_async and not definition.is_async:
        reading.fault("query is async and the step is not: a sync step needs a sync query")
    if definition.once is not None:
        _check_once(reading, definition, definition.once)


def _check_once(reading: _Reading, definition: StepDefinition, template: str) -> None:
    try:
        fields = list(_fields(template))
    except ValueError as error:
        reading.fault(f"once {template!r} is no template ({error}): say it as in once='refund:{{order_id}}'")
        return
    for field in fields:
        name = field.replace("[", ".").partition(".")[0]
        if name not in definition.binder.accepts:
            reading.fault(f"once {template!r} names {name!r}, which is no parameter of it; {_takes(definition.binder)}")
        elif name in definition.secret:
            reading.fault(f"once {template!r} names {name!r}, which is secret: a business key is stored")


def _fields(template: str) -> Iterator[str]:
    """The fields of a template, those inside format specs too."""
    from string import Formatter

    for _, field, spec, _ in Formatter().parse(template):
        if field is not None:
            yield field
        if spec:
            yield from _fields(spec)


# ---------------------------------------------------------------- the table


class StepTable:
    """The steps of one app, by name. `check` and `validate` see the whole: references may point forward.

    `tasks` is the app's live mapping of task names to their functions (or objects with `.fn`), because a
    compensation may be a task.
    """

    def __init__(self, tasks: Mapping[str, Any] | None = None) -> None:
        self._tasks: Mapping[str, Any] = {} if tasks is None else tasks
        self._steps: dict[str, StepDefinition] = {}
        self._implied: dict[str, StepDefinition] = {}
        self._names: set[str] = set()
        self._faults: list[str] = []
        self._valid = False

    def add(self, name: str | None, options: Mapping[str, Any]) -> StepDefinition | None:
        """Take a step in. Its faults are kept for `check`; None only where no function could be found in it."""
        self._valid = False
        if not isinstance(options, Mapping):
            self._faults.append(f"step {name!r}: {options!r} is no mapping of options: say {{'effect': …, 'call': …}}")
            return None
        rest = {option: value for option, value in options.items() if option not in ("name", "call")}
        own_name, call = options.get("name"), options.get("call")
        asked = own_name if name in (None, _LAMBDA) else name
        definition, faults = _define(asked, call, rest, compensates=False)
        if own_name not in (None, asked):
            faults.append(f"step {asked!r}: says name={own_name!r} too: say one of them")
        taken = function_name(_bare(call)) if asked is None else asked
        if isinstance(taken, str):
            if taken in self._names:
                faults.append(f"step {taken!r}: is declared twice: give one of them another name")
            elif definition is not None:
                self._steps[taken] = definition
            self._names.add(taken)
        self._faults += faults
        return definition

    def get(self, name: str) -> StepDefinition | None:
        """The step of this name, or None: one that is gone from the code is a case for a person, not a crash."""
        return self._steps.get(name) or self._implied.get(name)

    def __getitem__(self, name: str) -> StepDefinition:
        definition = self.get(name)
        if definition is None:
            nearest = _nearest(name, list(self), {})
            raise UnknownStep(
                f"there is no step {name!r}", hint=nearest or f"the steps are {', '.join(self) or 'none yet'}", step=name
            )
        return definition

    def __contains__(self, name: object) -> bool:
        return name in self._steps or name in self._implied

    def __iter__(self) -> Iterator[str]:
        yield from self._steps
        yield from (name for name in self._implied if name not in self._steps)

    def __len__(self) -> int:
        return len(set(self._steps) | set(self._implied))

    def validate(self) -> None:
        """Refuse a table with faults: one `StepTableError` that lists all of them. A sound one is checked once."""
        if self._valid:
            return
        faults = self.check()
        if faults:
            raise StepTableError(faults)
        self._valid = True

    def check(self) -> list[str]:
        """Every fault of the whole table, one sentence each; empty when there is none.

        Functions given as `compensate` become steps here (a non_idem_write without a query), and tasks and steps
        named there are looked up.
        """
        faults = list(self._faults)
        self._implied = {}
        for definition in list(self._steps.values()):
            if definition.compensate_given is not None and definition.effect is not Effect.READ:
                faults += [f"step {definition.name!r}: {half}" for half in self._check_compensation(definition)]
        return faults

    def _check_compensation(self, definition: StepDefinition) -> list[str]:
        undo, name = definition.compensate_given, definition.compensate
        if name is None:
            if callable(undo):
                return [f"compensate is {undo!r}, which has no name: register it as a step of its own and name that"]
            return [f"compensate is {undo!r}: say a step, a task, their name, or a function"]
        step = getattr(undo, "definition", None)
        if callable(undo) and not isinstance(step, StepDefinition) and not isinstance(getattr(undo, "name", None), str):
            return self._imply(definition, undo, name)
        target: object = self._steps.get(name) or self._tasks.get(name)
        if target is None:
            if name in self._names:
                return []  # declared, and its own faults are listed already
            nearest = _nearest(name, [*self._steps, *self._tasks], {})
            return [f"compensate names {name!r}, which is no step and no task{f'; {nearest}' if nearest else ': declare it'}"]
        if not isinstance(undo, str) and target is not (step or undo):
            return [f"compensate is a step or task {name!r}, but the one of that name here is another: say the one of this app"]
        return self._check_target(definition, name, target)

    def _imply(self, definition: StepDefinition, fn: Function, name: str) -> list[str]:
        """A function as compensation: what it already is, or a new non_idem_write without a query."""
        registered: dict[str, object] = {**self._steps, **self._tasks}
        for known_as, target in registered.items():
            if getattr(target, "fn", target) == fn:  # bound methods are equal, not the same
                if known_as != name:
                    return [
                        f"compensate is the function {name}, which is registered as {known_as!r}: say compensate={known_as!r}"
                    ]
                return self._check_target(definition, name, target)
        known = self._implied.get(name)
        if name in self._names or name in self._tasks or (known is not None and known.fn != fn):
            return [
                f"compensate is a function named {name}, as another step or task is: register it as a step under its own name"
            ]
        faults: list[str] = []
        if known is None:
            known, faults = _define(name, fn, {"effect": Effect.NON_IDEM_WRITE}, compensates=True)
            if known is None:
                return [f"compensate: {fault}" for fault in faults]
            self._implied[name] = known
        return [f"compensate: {fault}" for fault in faults] + self._check_target(definition, name, known)

    def _check_target(self, definition: StepDefinition, name: str, target: object) -> list[str]:
        """Whether that step or task can undo this one, and is offered all that it asks for."""
        if target is definition:
            return ["compensates itself: say the step that undoes it"]
        if isinstance(target, StepDefinition):
            if target.effect is Effect.READ:
                return [f"compensate names {name!r}, which is a read: a read undoes nothing"]
            required = target.binder.required
        else:
            required = select(cast("Function", getattr(target, "fn", target))).required
        names = definition.binder.names
        offered = (*names, *(extra for extra in (*OFFERED, RESULT) if extra not in names))
        strangers = ", ".join(repr(param) for param in required if param not in offered)
        if not strangers:
            return []
        return [f"compensate: {name} asks for {strangers}, which it is not offered; it can have {', '.join(offered)}"]
