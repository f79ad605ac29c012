"""Signatures: a call's arguments by name before anything is stored, and what a callback is given.

Also what a signature may not be (`signature_faults`, `validate_task_signature`), and the types that its
annotations name (`resolve_hints`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from .canonical_plain import layout_of
from .errors import UsageError

if TYPE_CHECKING:
    import inspect

KEY: Final = "idempotency_key"
OFFERED: Final = (KEY, "idempotency_keys", "handle", "handles", "first_sent_at")
"""What a callback gets by name beside the step's params; a compensation also `RESULT`."""
RESULT: Final = "result"

STEP_RESERVED: Final = frozenset({"call_id", *OFFERED} - {KEY})
TASK_RESERVED: Final = frozenset({"task_id", "wait", "goal", "queue", "priority", "not_before"})


# ---------------------------------------------------------------- injected()


class BareCall(UsageError, AttributeError):
    """The key of a step was used, but nobody passed one: the bare function was called.

    Also an `AttributeError`, so that `hasattr` of a debugger or a printer gets an answer and not an accident.
    """

    code = "bare_call"


def _bare(*_: object) -> NoReturn:
    raise BareCall(f"{KEY} is injected by Doubtless; step.fn was called bare: pass it yourself", hint=f"step.fn(…, {KEY}=…)")


class Injected:
    """The default of a param that Doubtless fills in. Any use as a value raises `BareCall`.

    Not `==` and `hash`: `inspect.Signature` compares and hashes defaults.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "injected()"

    def __reduce__(self) -> str:
        return "_INJECTED"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _bare()

    __str__ = __format__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __bytes__ = _bare
    __int__ = __index__ = __float__ = __fspath__ = __call__ = _bare
    __add__ = __radd__ = __mod__ = __rmod__ = __lt__ = __le__ = __gt__ = __ge__ = _bare


_INJECTED: Final = Injected()


def injected() -> Any:
    """Mark a step's param as filled in by Doubtless: ``idempotency_key: str = injected()``.

    The caller of the step does not pass it, and is refused if it does.
    """
    return _INJECTED


# ---------------------------------------------------------------- binding a call


_MISSING: Final = object()
_FIXED = (str, int, float, complex, bytes, type(None))


def _own_copy(value: object) -> object:
    """A copy that nobody else holds, of whatever can be copied; the rest has no canonical form anyway."""
    from copy import deepcopy

    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - copying a foreign object may raise anything
        return value


class Binder:
    """One function's signature, compiled once: binds calls without `inspect`.

    Shapes: `names` the params of a caller, in the signature's order; `required` those without a default;
    `injected` what Doubtless fills in; `defaults`; `accepts` the set of `names`; `layout` how they are written;
    `positional_only`.
    """

    __slots__ = (
        "_frame",
        "_fresh",
        "_positions",
        "accepts",
        "defaults",
        "injected",
        "layout",
        "names",
        "positional_only",
        "required",
        "step",
    )

    def __init__(self, signature: inspect.Signature, step: str) -> None:
        params = [param for param in signature.parameters.values() if not is_variadic(param)]
        given = [param for param in params if not isinstance(param.default, Injected)]
        self.step = step
        self.names = tuple(param.name for param in given)
        self.accepts = frozenset(self.names)
        self.layout = layout_of(self.names)
        self.injected = tuple(param.name for param in params if isinstance(param.default, Injected))
        self.required = tuple(param.name for param in given if param.default is param.empty)
        self.positional_only = tuple(param.name for param in params if param.kind is param.POSITIONAL_ONLY)
        self.defaults = {
            param.name: param.default if isinstance(param.default, _FIXED) else _own_copy(param.default)
            for param in given
            if param.default is not param.empty
        }
        self._positions = tuple(
            param.name for param in params if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)
        )
        self._frame = {name: self.defaults.get(name, _MISSING) for name in self.names}
        self._fresh = tuple(name for name, default in self.defaults.items() if not isinstance(default, _FIXED))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The call's params by name, defaults applied, in the signature's order, without injected ones.

        Shapes: `kwargs` itself where it is that already.
        Raises: `UsageError` that names the step and everything that is wrong with the call.
        """
        if args or self.positional_only:
            kwargs = self._by_name(args, kwargs)
        elif tuple(kwargs) == self.names:
            return kwargs
        frame = self._frame
        bound = {**frame, **kwargs}
        if len(bound) != len(frame):
            self._refuse(kwargs)
        for name in self.required:
            if bound[name] is _MISSING:
                self._refuse(kwargs)
        for name in self._fresh:
            if bound[name] is frame[name]:
                bound[name] = _own_copy(bound[name])
        return bound

    def arguments(self, params: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """How to call the function with these params (bound ones and injected ones): ``fn(*args, **kwargs)``."""
        args = [params[name] for name in self.positional_only]
        return args, {name: value for name, value in params.items() if name not in self.positional_only}

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        wrong = [f"takes {name!r} by position only" for name in self.positional_only if name in kwargs]
        if len(args) > len(self._positions):
            takes = f"takes {len(self._positions)} by position" + (f" ({', '.join(self._positions)})" if self._positions else "")
            wrong.append(f"{takes} but was given {len(args)}")
        by_position = dict(zip(self._positions, args, strict=False))
        wrong += [
            f"got {name!r} twice, by position and by name"
            for name in by_position
            if name in kwargs and name not in self.positional_only
        ]
        if wrong:
            self._raise(wrong)
        return {**by_position, **kwargs}

    def _refuse(self, kwargs: Mapping[str, Any]) -> NoReturn:
        wrong = [f"was given {name!r}, which Doubtless injects: leave it out" for name in self.injected if name in kwargs]
        unexpected = [repr(name) for name in kwargs if name not in self.accepts and name not in self.injected]
        if unexpected:
            wrong.append(f"got {_some('an unexpected parameter', 'unexpected parameters', unexpected)}")
        missing = [repr(name) for name in self.required if name not in kwargs]
        if missing:
            wrong.append(f"was called without {', '.join(missing)}")
        self._raise(wrong)

    def _raise(self, wrong: list[str]) -> NoReturn:
        takes = ", ".join(self.names) or "no parameters"
        raise UsageError(f"{self.step}() {'; '.join(wrong)}; it takes {takes}", step=self.step)


def _some(one: str, many: str, names: list[str]) -> str:
    return f"{one if len(names) == 1 else many} {', '.join(names)}"


# ---------------------------------------------------------------- callbacks


class Selector:
    """What one callback wants of what is offered: ``selector(offered)`` is the dict to call it with by name."""

    __slots__ = ("by_position", "everything", "names", "required")

    def __init__(self, signature: inspect.Signature) -> None:
        params = list(signature.parameters.values())
        self.everything = any(param.kind is param.VAR_KEYWORD for param in params)
        by_name = [param for param in params if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)]
        self.names = tuple(param.name for param in by_name)
        self.required = tuple(param.name for param in by_name if param.default is param.empty)
        self.by_position = tuple(
            param.name for param in params if param.kind is param.POSITIONAL_ONLY and param.default is param.empty
        )

    def __call__(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        if self.everything:
            return dict(offered)
        return {name: offered[name] for name in self.names if name in offered}

    def asks_for(self, *names: str) -> bool:
        """Whether the callback declares one of these names."""
        return self.everything or any(name in self.names for name in names)

    def faults(self, offered: Iterable[str]) -> list[str]:
        """What the callback needs and is not offered, as half-sentences."""
        known = set(offered)
        found = [f"takes {name!r} by position only; callbacks get theirs by name" for name in self.by_position]
        strangers = [name for name in self.required if name not in known]
        if strangers:
            found.append(f"asks for {', '.join(map(repr, strangers))}, which it is not offered; it can have {', '.join(offered)}")
        return found


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function. Raises TypeError, ValueError where it has none that can be read."""
    import inspect

    return inspect.signature(fn)


def select(fn: Callable[..., Any]) -> Selector:
    """Compile what a callback declares; one with ``**kwargs`` gets everything that is offered."""
    return Selector(signature_of(fn))


# ---------------------------------------------------------------- what a function is, and may not be


def is_variadic(param: inspect.Parameter) -> bool:
    """Whether a param is ``*args`` or ``**kwargs``."""
    return param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD)


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` makes a coroutine: a function, a partial of one, or an object with such a ``__call__``."""
    import inspect

    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def is_generator(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` makes a generator, sync or async."""
    import inspect

    return any(
        inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code)
        for code in (fn, type(fn).__call__)
    )  # fmt: skip


def function_name(fn: object) -> str | None:
    """The name that a function was defined with; None for a lambda, a partial and other things without one."""
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else None


def variadic_faults(signature: inspect.Signature) -> list[str]:
    """``*args`` and ``**kwargs`` of what is stored by name, as half-sentences."""
    return [
        f"takes {'*' if param.kind is param.VAR_POSITIONAL else '**'}{param.name}: "
        "declare each parameter by name, they are stored by it"
        for param in signature.parameters.values()
        if is_variadic(param)
    ]


def signature_faults(signature: inspect.Signature, *, compensates: bool = False) -> list[str]:
    """What is wrong with a step's signature, as half-sentences.

    A function that is only a compensation (`compensates`) may declare what callbacks are offered.
    """
    found = variadic_faults(signature)
    for name, param in signature.parameters.items():
        marked = isinstance(param.default, Injected)
        if marked and name != KEY:
            found.append(f"injects {name!r}, but only {KEY} is injected: write {KEY}: str = injected()")
        elif name == KEY and not marked and not compensates:
            found.append(f"takes {KEY} from its caller: write {KEY}: str = injected()")
        elif name in STEP_RESERVED and not (compensates and name in OFFERED):
            found.append(f"has a parameter of the reserved name {name!r}: rename it, for instance to {name}_")
    return found


def validate_task_signature(fn: Callable[..., Any], name: str | None = None) -> list[str]:
    """Every fault of a task function's signature, one sentence each; empty when there is none."""
    where = f"task {name or function_name(fn) or repr(fn)!r}"
    import inspect

    if not callable(fn):
        return [f"{where}: cannot be called; a task is a function"]
    if is_generator(fn):
        return [f"{where}: is a generator; return the result instead of yielding it"]
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return [f"{where}: its signature cannot be read; wrap it in a def that names its parameters"]
    found = variadic_faults(signature)
    for param in signature.parameters.values():
        if param.name in TASK_RESERVED:
            found.append(f"has a parameter of the reserved name {param.name!r}: rename it, for instance to {param.name}_")
        if isinstance(param.default, Injected):
            found.append(f"injects {param.name!r}: a task has no key, only its write steps have one; take it out")
    return [f"{where}: {fault}" for fault in found]


# ---------------------------------------------------------------- annotations


class Hints(NamedTuple):
    """What a function's annotations name. `returns` is None where nothing is known (`NoneType` is ``-> None``)."""

    returns: Any
    params: Mapping[str, Any]
    unresolved: tuple[str, ...]


def resolve_hints(fn: Callable[..., Any]) -> Hints:
    """The types of a function's annotations; those that cannot be resolved are left out and listed."""
    from functools import partial
    from typing import get_type_hints

    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, type):
        return Hints(fn, {}, ())
    carrier: Any = fn if hasattr(fn, "__annotations__") else type(fn).__call__
    unresolved: list[str] = []
    try:
        found = get_type_hints(carrier, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating an annotation may raise anything
        found = _resolve_each(carrier, unresolved)
    return Hints(found.pop("return", None), found, tuple(unresolved))


class _One:
    """One annotation, in the form that `typing.get_type_hints` takes."""

    def __init__(self, name: str, annotation: object) -> None:
        self.__annotations__ = {name: annotation}


def _resolve_each(carrier: Any, unresolved: list[str]) -> dict[str, Any]:
    """One annotation at a time, so that one bad one does not cost the others."""
    import inspect
    from typing import get_type_hints

    scope = getattr(inspect.unwrap(carrier), "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in carrier.__annotations__.items():
        try:
            found |= get_type_hints(_One(name, annotation), globalns=scope, include_extras=True)
        except Exception:  # noqa: BLE001 - as above
            unresolved.append(name)
    return found
