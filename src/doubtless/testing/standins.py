"""What a crash test calls in place of the real writes: given fakes, or made ones; nothing real unless it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..effects import StepDefinition
from ..errors import UsageError
from ..events import Effect

if TYPE_CHECKING:
    from ..app import Doubtless
    from .trial import Trial

Given = Mapping[str, Callable[..., Any]]
QUERY = ".query"


class StandIns:
    """The stand-ins of one crash test. Raises UsageError when a write would be the real one without being meant."""

    def __init__(
        self, app: Doubtless, fakes: Given | Callable[[], Given] | None, *, fake: bool, outputs: Mapping[str, Any], real: bool
    ) -> None:
        app._validate()  # functions that are compensations have their names from then on
        self._steps = {name: app._table[name] for name in app._table if not name.startswith("$")}
        self._fakes = fakes
        self._made: dict[str, Callable[..., Any]] = {}
        given = self._given()
        unknown = [name for name in (*given, *outputs) if name not in self._steps and not self._is_query(name)]
        if unknown:
            raise UsageError(
                f"a fake is given for {', '.join(unknown)}, and this app has no such step",
                hint=f"steps: {', '.join(sorted(self._steps))}; a step's query is <step>{QUERY}",
            )
        for name, step in self._steps.items():
            if name not in given and (name in outputs or (fake and step.effect != Effect.READ)):
                self._made[name] = made(step, outputs)
        if not real:
            self._refuse_real(given)
        halved = [n for n in given if n in self._steps and self._steps[n].query is not None and n + QUERY not in given]
        if halved:
            raise UsageError(
                f"faked, and looked for by the real query: {', '.join(halved)}",
                hint=f"give {halved[0]}{QUERY} too: a fake query, or the real one if it asks the fake",
            )

    def _is_query(self, name: str) -> bool:
        return name.endswith(QUERY) and name.removesuffix(QUERY) in self._steps

    def _given(self) -> Given:
        fakes = self._fakes() if callable(self._fakes) else self._fakes
        return {} if fakes is None else fakes

    def _refuse_real(self, given: Given) -> None:
        left = [n for n, s in self._steps.items() if s.effect != Effect.READ and n not in given and n not in self._made]
        if left:
            raise UsageError(
                f"a crash test calls writes many times, and these have no fake: {', '.join(left)}; nothing was called",
                hint="give them in crashtest_fakes, or --fake makes them up; --real calls the real ones",
            )

    def put(self, trial: Trial) -> None:
        """Put them in their places, for one run."""
        given = self._given()
        for name, fake in {**self._made, **given}.items():
            if name not in self._steps:
                trial.replace_query(name.removesuffix(QUERY), fake)
            else:
                trial.replace(name, fake)
        for name in self._made:
            if self._steps[name].query is not None and name + QUERY not in given:
                trial.know(name)


def made(step: StepDefinition, outputs: Mapping[str, Any]) -> Callable[..., Any]:
    """A function that gives the step's output of `outputs`, or one of its annotated type, a new one each time."""
    numbers = itertools.count(1)
    if step.name not in outputs:
        sample(step, 1)  # refused now

    def fake(*args: Any, **kwargs: Any) -> Any:
        return outputs[step.name] if step.name in outputs else sample(step, next(numbers))

    return fake


def sample(step: StepDefinition, number: int) -> Any:
    """Something of the type that the step says it returns. Raises UsageError for one that cannot be made up."""
    try:
        return value_of(step.returns, f"{step.name}-{number}", number)
    except LookupError as unknown:
        raise UsageError(
            f"{step.name} returns {step.returns!r}; {unknown.args[0]!r} cannot be made up",
            hint=f"""say what it gives: --outputs '{{"{step.name}": …}}', or a fake in crashtest_fakes""",
        ) from None


def value_of(kind: Any, word: str, number: int) -> Any:
    """A value of this type: `word` for a text, `number` for a number. Raises LookupError with the type that it does not know."""
    base, inner = get_origin(kind) or kind, get_args(kind)
    if base in (Annotated, Required, NotRequired):
        return value_of(inner[0], word, number)
    if base in (Union, UnionType):
        return value_of(next((each for each in inner if each is not type(None)), type(None)), word, number)
    if base is Literal:
        return inner[0]
    if base is None or base is Any or base in (dict, Mapping, object):
        return {"id": word}
    if base in (list, Sequence):
        return [value_of(inner[0], word, number)] if inner else [word]
    if base is tuple and inner:
        return tuple(value_of(each, word, number) for each in inner if each is not ...)
    if is_typeddict(base) or is_dataclass(base):
        fields = {name: value_of(each, word, number) for name, each in get_type_hints(base).items()}
        return base(**fields)
    if isinstance(base, type) and issubclass(base, Enum):
        return next(iter(base))
    simple: dict[Any, Any] = {
        str: word, int: number, float: float(number), bool: True, bytes: word.encode(), Decimal: Decimal(number),
        date: date(2026, 11, 28), datetime: datetime(2026, 11, 28, tzinfo=UTC), type(None): None,
    }  # fmt: skip
    if base not in simple:
        raise LookupError(kind)
    return simple[base]
