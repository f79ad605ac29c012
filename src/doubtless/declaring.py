"""Declaring a step: its options read into a definition, with every fault of them as a sentence."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from .binding import (
    KEY,
    OFFERED,
    Binder,
    Selector,
    function_name,
    is_async,
    is_generator,
    signature_faults,
    signature_of,
)
from .durations import BadDuration, parse_duration
from .effects import (
    ATTEMPTS,
    BACKOFF,
    BACKOFF_MAX,
    QUERY_ATTEMPTS,
    SETTLE_WITHIN,
    TIMEOUT,
    Function,
    OnAbsent,
    StepDefinition,
    callback_name,
)
from .events import Effect
from .once import Template, parse, unfit_fields

if TYPE_CHECKING:
    import inspect

OPTIONS: Final = (
    "name", "effect", "call", "query", "compensate", "compensate_deadline", "volatile", "secret", "timeout", "attempts",
    "backoff", "retry_rejected", "key_window", "absent_after", "on_absent", "query_attempts", "settle_within",
    "single_request", "classify", "idempotent_by", "once", "once_window", "independent", "cost",
)  # fmt: skip

# What people type who come from elsewhere, where the nearest spelling would mislead. A bare "write" gets the
# cautious reading.
_OPTIONS_ELSEWHERE = {"fn": "call", "func": "call", "function": "call", "retries": "attempts", "undo": "compensate",
                      "max_attempts": "attempts", "verify": "query", "deadline": "compensate_deadline"}  # fmt: skip
_EFFECTS_ELSEWHERE = {"write": "non_idem_write", "idempotent": "idem_write", "pure": "read", "read_only": "read"}
LAMBDA = (lambda: None).__name__  # no name, also where somebody read it off the function
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # has no stored form


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
            near = nearest(str(value).lower(), list(Effect), _EFFECTS_ELSEWHERE)
            self.fault(f"unknown effect {value!r}; {near or 'say one of ' + ', '.join(Effect)}")
            return None

    def duration(self, option: str, default: int, *, zero: bool = False) -> int:
        if option not in self.options:
            return default
        us = self._duration(option, zero=zero)
        return default if us is None else us

    def window(self, option: str) -> int | None:
        """A duration that may be left out or None: for ever, or never."""
        return self._duration(option, zero=False) if self.given(option) else None

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

    def template(self, binder: Binder, hidden: Mapping[str, Collection[str]]) -> Template | None:
        """The business key's template, with a fault for each field that no key can be made of."""
        text = self.text("once")
        if text is None:
            return None
        template, halves = parse(text)
        for half in halves + unfit_fields(template, binder.accepts, hidden):
            self.fault(f"once {half}")
        return template

    def callback(self, option: str, offered: Collection[str]) -> tuple[Function | None, Selector | None]:
        """A query or classifier and what it wants. A step given as one is asked by its bare function."""
        fn = bare_function(self.options.get(option))
        if fn is None:
            return None, None
        name = callback_name(fn)
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


def nearest(word: object, known: Collection[str], elsewhere: Mapping[str, str]) -> str | None:
    """``did you mean 'attempts'?``, or None when nothing is near."""
    from difflib import get_close_matches

    text = str(word)
    found = elsewhere.get(text) or next(iter(get_close_matches(text, known, 1)), None)
    return f"did you mean {str(found)!r}?" if found else None


def _takes(binder: Binder) -> str:
    return f"it takes {', '.join(binder.names)}" if binder.names else "it takes none"


def bare_function(given: Any) -> Any:
    """The function of what was given: a step stands for its bare one."""
    definition = getattr(given, "definition", None)
    return definition.fn if isinstance(definition, StepDefinition) else given


def define(name: str | None = None, *, call: Any = None, **options: Any) -> tuple[StepDefinition | None, list[str]]:
    """Read one step's options; never raises. What is true afterwards: every fault of this step is in the list.

    A definition is made wherever `call` is a function with a readable signature, also beside faults, with the
    cautious default for each faulty option: a decorator has something to hold, and `StepTable.validate` refuses
    to run it. `compensate` is checked by the table, which knows the other steps.
    """
    return read_options(name, call, options, compensates=False)


def read_options(
    name: str | None, call: Any, options: Mapping[str, Any], *, compensates: bool
) -> tuple[StepDefinition | None, list[str]]:
    fn = bare_function(call)
    known_as = function_name(fn) if name in (None, LAMBDA) else name
    reading = _Reading(known_as if isinstance(known_as, str) else str(known_as or "(no name)"), options)
    if known_as is not None:
        _check_name(reading, known_as)
    elif callable(fn):
        reading.fault(f"{getattr(fn, '__name__', type(fn).__name__)} has no name of its own: say name='…'")
    for option in options:
        if option not in OPTIONS:
            near = nearest(option, OPTIONS, _OPTIONS_ELSEWHERE)
            reading.fault(f"unknown option {option!r}; {near or 'the options are ' + ', '.join(OPTIONS)}")
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
    volatile, secret = reading.params("volatile", binder), reading.params("secret", binder)
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
        volatile=volatile,
        secret=secret,
        timeout_us=reading.duration("timeout", TIMEOUT),
        attempts=reading.count("attempts", ATTEMPTS),
        backoff_us=backoff,
        backoff_max_us=max(BACKOFF_MAX, backoff),
        retry_rejected=reading.flag("retry_rejected"),
        key_window_us=reading.window("key_window"),
        absent_after_us=reading.window("absent_after"),
        on_absent=reading.on_absent(),
        query_attempts=reading.count("query_attempts", QUERY_ATTEMPTS),
        settle_within_us=reading.duration("settle_within", SETTLE_WITHIN),
        single_request=reading.flag("single_request"),
        idempotent_by=reading.text("idempotent_by"),
        independent=reading.flag("independent"),
        cost=reading.cost(),
        takes_key=KEY in binder.injected,
        once=reading.template(binder, {"volatile": volatile, "secret": secret}),
        once_window_us=reading.window("once_window"),
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
            ("once", "a read has no effect that could happen twice"),
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
