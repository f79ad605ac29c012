"""What `doubtless steps` says: for each step its policy, what follows from it in each trouble, and what is assumed.

Meaning: nothing is run and no store is opened; everything is read off the step table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import Any, Literal, NamedTuple, Protocol

from .durations import show_duration
from .effects import StepDefinition
from .events import Effect
from .foresight import LABELS, Asks, Foresight, deed_as_json, facts, foresee, holds

WIDTH = 100
_LABEL = 28
_wrap = partial(wrap, break_on_hyphens=False)

Person = Literal["only", "at_last", "sometimes", "never"]
"""When a person is needed: `only` a person settles its doubts; a person settles them `at_last`, when no further call
was answered; `sometimes`, as the look-back answers; `never`: it has no doubts."""


class HasSteps(Protocol):
    """What is reported on: `Doubtless` has it."""

    @property
    def definitions(self) -> Sequence[StepDefinition]:
        """The steps in the order of declaration, those that a check implies included."""

    def check(self) -> list[str]:
        """Every fault of the table, one sentence each."""


ASSUMED: tuple[tuple[str, str], ...] = (
    (
        "!single_request !classify",
        "no single_request: whatever a client raises counts as an unknown outcome, as when it timed out;"
        " not sent and rejected are only what the step raises as such",
    ),
    ("single_request", "single_request: its body makes one request, without redirects and transport retries"),
    ("classify", "classify: what it says of an exception or a reply is so"),
    ("idem !key", "idempotent_by {idempotent_by!r}: that makes a second send harmless"),
    (
        "idem !key",
        "no key: nothing protects the order; a late first send may still arrive after later writes and undo them",
    ),
    ("idem !window key", "no key_window: for ever; the other side never forgets a key"),
    ("idem !window !key", "no key_window: for ever; it may be sent again at any time"),
    ("window key", "key_window {key_window}: the other side remembers the key that long after the first call"),
    ("window !key", "key_window {key_window}: a second send is harmless that long after the first call"),
    ("!read !query", "no query: nobody can be asked whether it happened"),
    ("query !proof", "no absent_after: an absence is never proof"),
    ("proof", "absent_after {absent_after}: what was sent is found that long after the last possible send, or never"),
    ("handle", "the query takes a handle and no key: it has nothing to look for until the step has recorded one"),
    (
        "likeness",
        "the query takes neither key nor handle: it can only find by likeness, and may take for this step's own what somebody"
        " else made",
    ),
    (
        "undoes",
        "as a compensation: only an output that shows something is done; None, a bool or something empty is looked up, else a"
        " person is asked; so they are about whatever is not done for good, in place of a settled failure",
    ),
    ("compensate undo_by", "compensate_deadline: it runs from the first call that may have done it; after it a person undoes"),
    ("compensate !undo_by", "compensate_deadline none: it may be undone however late that is"),
    (
        "once",
        "once {once!r}: what is another effect has another key; other params under a held key are refused, the same give the"
        " output of the step that has it",
    ),
    ("once_window", "once_window {once_window}: so long after it is done, the same key is another effect"),
    ("!read !compensate !undoes", "no compensate: what it did stands when its task fails"),
)
"""What is taken for granted of a step, by the facts of its policy (`foresight.facts`; ``undoes``: it is a compensation)."""


class StepReport(NamedTuple):
    """One step: its policy in words, what follows in each trouble, when a person is asked, what is assumed and what is odd."""

    definition: StepDefinition
    undoes: tuple[str, ...]
    foresights: tuple[Foresight, ...]
    assumed: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def person(self) -> Person:
        """When a person is needed."""
        killed = self.foresights[0]
        if killed.asks:
            return "only" if isinstance(killed.then[0], Asks) else "at_last"
        return "sometimes" if any(foresight.asks for foresight in self.foresights) else "never"

    @property
    def traits(self) -> tuple[str, ...]:
        """The policy in words: what it asks, what undoes it, how often it is called and how long."""
        step = self.definition
        found = [f"{step.effect}"]
        if step.query is not None:
            found.append(f"asks {_name(step.query)} by {step.query_by}")
        if step.compensate is not None:
            deadline = step.compensate_deadline_us
            found.append(f"undone by {step.compensate}" + ("" if deadline is None else f" within {show_duration(deadline)}"))
        if self.undoes:
            found.append(f"undoes {', '.join(self.undoes)}")
        calls = "1 call" if step.attempts == 1 else f"at most {step.attempts} calls"
        found.append(f"{calls} of {show_duration(step.timeout_us)} each")
        if step.attempts > 1:
            low, high = show_duration(step.backoff_us), show_duration(step.backoff_max_us)
            found.append(f"backoff {low} doubling to {high}, give or take a quarter" if step.backoff_us else "no backoff")
        if step.once is not None:
            window = step.once_window_us
            found.append(f"at most one send for each {step.once.text!r}" + (f" in {show_duration(window)}" if window else ""))
        if step.effect != Effect.READ:
            found.append(f"a case {show_duration(step.settle_within_us)} after the intent, whatever else is going on")
        return tuple(found)

    @property
    def grouped(self) -> list[tuple[list[str], str]]:
        """The sentences, each with the labels of all troubles that it is true of, in the order of the troubles."""
        groups: dict[str, list[str]] = {}
        for foresight in self.foresights:
            groups.setdefault(foresight.sentence, []).append(LABELS[foresight.trouble])
        return [(labels, sentence) for sentence, labels in groups.items()]

    def as_json(self) -> dict[str, Any]:
        """This step as plain JSON."""
        return {
            "name": self.name,
            "effect": self.definition.effect.value,
            "traits": list(self.traits),
            "policy": self.definition.policy(),
            "query_by": self.definition.query_by,
            "undoes": list(self.undoes),
            "troubles": [
                {
                    "trouble": foresight.trouble.value,
                    "label": LABELS[foresight.trouble],
                    "then": [deed_as_json(deed) for deed in foresight.then],
                    "sentence": foresight.sentence,
                    "asks_a_person": foresight.asks,
                }
                for foresight in self.foresights
            ],
            "person": self.person,
            "assumed": list(self.assumed),
            "notes": list(self.definition.notes),
        }


class StepsReport(NamedTuple):
    """The whole table: its faults, and its steps in the order of declaration."""

    faults: tuple[str, ...]
    steps: tuple[StepReport, ...]

    @property
    def summary(self) -> dict[Person, list[str]]:
        """The names of the steps by when a person is needed."""
        groups: dict[Person, list[str]] = {person: [] for person in _SUMMARY}
        for step in self.steps:
            groups[step.person].append(step.name)
        return groups

    def text(self) -> str:
        """The report for people, at most 100 columns wide."""
        blocks = [] if not self.faults else ["\n".join(_faults(self.faults))]
        blocks.append("\n".join(self._overview()))
        blocks += ["\n".join(_step_lines(step)) for step in self.steps]
        return "\n\n".join(blocks) + "\n"

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON: ``{"faults": […], "summary": {…}, "steps": [{"name": …, "troubles": […]}, …]}``."""
        return {
            "faults": list(self.faults),
            "summary": dict(self.summary),
            "steps": [step.as_json() for step in self.steps],
        }

    def _overview(self) -> Iterable[str]:
        count = len(self.steps)
        kinds = [f"{n} {effect}" for effect in Effect if (n := sum(step.definition.effect == effect for step in self.steps))]
        yield f"{count} step{'' if count == 1 else 's'}" + (f": {', '.join(kinds)}" if kinds else "")
        for person, names in self.summary.items():
            if names:
                yield from _entry("", [], f"{_SUMMARY[person]}: {', '.join(names)}")


_SUMMARY: Mapping[Person, str] = {
    "only": "a doubt can only ever end with a person",
    "at_last": "a doubt ends with a person when no further call is answered",
    "sometimes": "a doubt ends with a person only where the look-back cannot settle it",
    "never": "never in doubt",
}


def report(app: HasSteps) -> StepsReport:
    """Report on the step table of an app, faulty or not. Opens no store, calls no user code, raises nothing."""
    faults = app.check()  # first: it makes the steps that compensations imply
    undoes: dict[str, list[str]] = {}
    for definition in app.definitions:
        if definition.compensate is not None:
            undoes.setdefault(definition.compensate, []).append(definition.name)
    return StepsReport(tuple(faults), tuple(_of_step(step, undoes.get(step.name, ())) for step in app.definitions))


def _of_step(step: StepDefinition, undoes: Collection[str]) -> StepReport:
    known = facts(step) | ({"undoes"} if undoes else set())
    values = {
        "idempotent_by": step.idempotent_by,
        "key_window": show_duration(step.key_window_us or 0),
        "absent_after": show_duration(step.absent_after_us or 0),
        "once": "" if step.once is None else step.once.text,
        "once_window": show_duration(step.once_window_us or 0),
    }
    assumed = tuple(template.format_map(values) for needs, template in ASSUMED if holds(needs, known))
    return StepReport(step, tuple(undoes), foresee(step), assumed)


# ---------------------------------------------------------------- the text


def _faults(faults: Sequence[str]) -> Iterable[str]:
    yield f"{len(faults)} fault{'' if len(faults) == 1 else 's'}; nothing of this app runs until they are mended:"
    for fault in faults:
        yield from _wrap(fault, WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _step_lines(step: StepReport) -> Iterable[str]:
    yield from _wrap(f"{step.name}: {'; '.join(step.traits)}", WIDTH, subsequent_indent="  ")
    for labels, sentence in step.grouped:
        yield from _entry("  ", labels, sentence)
    asked = [LABELS[foresight.trouble] for foresight in step.foresights if foresight.asks]
    if asked:
        yield from _entry("  ", ["needs a person"], "; ".join(asked))
    for title, lines in (("assumed", step.assumed), ("note", step.definition.notes)):
        for number, line in enumerate(lines):
            yield from _entry("  ", [title] if number == 0 else [], line)


def _entry(indent: str, labels: Sequence[str], text: str) -> Iterable[str]:
    """A label column and a text column; without an indent one column."""
    if not indent:
        yield from _wrap(text, WIDTH, subsequent_indent="  ")
        return
    right = _wrap(text, WIDTH - len(indent) - _LABEL)
    left = [label + ("," if number < len(labels) - 1 else "") for number, label in enumerate(labels)]
    for number in range(max(len(left), len(right))):
        label = left[number] if number < len(left) else ""
        words = right[number] if number < len(right) else ""
        yield f"{indent}{label:<{_LABEL}}{words}".rstrip()


def _name(fn: object) -> str:
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
