"""What a crash test calls in place of the real writes: given fakes, or made ones; nothing real unless it is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_origin

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
    kind = step.returns
    kind = get_origin(kind) or kind
    word = f"{step.name}-{number}"
    if kind is None or kind is Any or kind in (dict, Mapping, object):
        return {"id": word}
    simple: dict[Any, Any] = {str: word, int: number, float: float(number), bool: True, list: [word], type(None): None}
    if kind in simple:
        return simple[kind]
    raise UsageError(
        f"{step.name} returns {kind!r}, which cannot be made up",
        hint=f"""say what it gives: --outputs '{{"{step.name}": …}}', or a fake in crashtest_fakes""",
    )
