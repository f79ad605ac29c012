"""Shrinking: from a scenario that fails to the smallest one that fails in the same way, and to a test of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .scenario import Ask, Call, Child, Fault, Node, Read, Scenario, Sleep, Together, Write

LIMIT = 1200
"""So many scenarios are tried at most."""

SECONDS = 60.0
"""So long at most."""

PLAIN: dict[type[Any], Any] = {
    Scenario: Scenario(()), Write: Write(), Call: Call(), Read: Read(), Sleep: Sleep(), Ask: Ask(), Together: Together(), Child: Child(),
}  # fmt: skip


class Shrunk(NamedTuple):
    """The smallest that was found, what is wrong with it, and after how many tries."""

    scenario: Scenario
    wrong: list[str]
    tries: int


def kind_of(wrong: list[str]) -> str:
    """What a failure is about: two of one kind are taken for the same bug."""
    first = wrong[0]
    return first.split(":")[0].split(" raises ")[-1].split(" ends with ")[-1]


def shrink(scenario: Scenario, run: Callable[[Scenario], list[str]], limit: int = LIMIT) -> Shrunk:
    """Make it smaller as long as it fails in the same way; `run` says what is wrong."""
    wrong = run(scenario)
    kind, tries, until = kind_of(wrong), 0, time.monotonic() + SECONDS
    smaller = True
    while smaller and tries < limit and time.monotonic() < until:
        smaller = False
        for one in candidates(scenario):
            if tries >= limit or time.monotonic() > until:
                break
            tries += 1
            found = run(one)
            if found and kind_of(found) == kind:
                scenario, wrong, smaller = one, found, True
                break
    return Shrunk(scenario, wrong, tries)


def candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Simpler ones, those that leave out the most first."""
    for number in range(len(scenario.faults)):
        yield scenario._replace(faults=_without(scenario.faults, number))
    for nodes in _simpler_nodes(scenario.nodes):
        if nodes:
            yield scenario._replace(nodes=nodes)
    for name in ("is_async", "host", "on_failure", "ends", "answers", "schedule"):
        plain = getattr(PLAIN[Scenario], name)
        if getattr(scenario, name) != plain:
            yield scenario._replace(**{name: plain})
    if scenario.schedule > 20:
        yield from (scenario._replace(schedule=schedule) for schedule in range(1, 21))
    for number, answer in enumerate(scenario.answers):
        if answer != "truth":
            yield scenario._replace(answers=_with(scenario.answers, number, "truth"))
    if scenario.answers and scenario.answers[-1] == "truth":
        yield scenario._replace(answers=scenario.answers[:-1])
    for number, fault in enumerate(scenario.faults):
        for less in _simpler_fault(fault):
            yield scenario._replace(faults=_with(scenario.faults, number, less))


def _simpler_fault(fault: Fault) -> Iterator[Fault]:
    if fault.times > 1:
        yield fault._replace(times=1)
    for at in {0, fault.at // 2, fault.at - 4, fault.at - 1}:
        if 0 <= at < fault.at:
            yield fault._replace(at=at)
    if fault.what != "kill":
        yield fault._replace(what="kill", seconds=0.0, times=1)


def _simpler_nodes(nodes: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for number, node in enumerate(nodes):
        yield _without(nodes, number)
        if isinstance(node, Together):
            for branch in node.branches:
                yield nodes[:number] + branch + nodes[number + 1 :]
        if isinstance(node, Child):
            yield nodes[:number] + node.nodes + nodes[number + 1 :]
    for number, node in enumerate(nodes):
        for less in _simpler_node(node):
            yield _with(nodes, number, less)


def _simpler_node(node: Node) -> Iterator[Node]:
    plain = PLAIN[type(node)]
    if isinstance(node, Together):
        for number in range(len(node.branches)):
            yield node._replace(branches=_without(node.branches, number))
        for number, branch in enumerate(node.branches):
            for less in _simpler_nodes(branch):
                yield node._replace(branches=_with(node.branches, number, less))
        if node.limit:
            yield node._replace(limit=0)
    elif isinstance(node, Child):
        yield from (node._replace(nodes=less) for less in _simpler_nodes(node.nodes))
    else:
        for name in node._fields:
            if name != "kind" and getattr(node, name) != getattr(plain, name):
                yield node._replace(**{name: getattr(plain, name)})
    if isinstance(node, Write | Read):
        for number, call in enumerate(node.calls):
            yield node._replace(calls=_without(node.calls, number))
            for less in (Call(), call._replace(seconds=0.25), call._replace(after=1.0 if call.after else 0.0)):
                if less != call:
                    yield node._replace(calls=_with(node.calls, number, less))
    if isinstance(node, Write):
        for number in range(len(node.looks)):
            yield node._replace(looks=_without(node.looks, number))
        if node.undo is not None:
            for less in _simpler_node(node.undo):
                assert isinstance(less, Write)
                yield node._replace(undo=less)


def _without(items: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return items[:number] + items[number + 1 :]


def _with(items: tuple[Any, ...], number: int, item: Any) -> tuple[Any, ...]:
    return (*items[:number], item, *items[number + 1 :])


def script(value: Any) -> str:
    """A scenario as Python, without what is as always."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        defaults = type(value)._field_defaults  # type: ignore[attr-defined]
        told = [
            f"{name}={script(part)}"
            for name, part in zip(value._fields, value, strict=True)
            if name not in defaults or part != defaults[name]
        ]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, tuple):
        inner = ", ".join(map(script, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def as_test(shrunk: Shrunk, seed: int) -> str:
    """A test that can be pasted into `test_found.py`."""
    said = shrunk.wrong[0].splitlines()[0]
    return (
        f"def test_found_by_seed_{seed}() -> None:\n"
        f'    """{said}"""\n'
        f"    assert simulate({script(shrunk.scenario)}).wrong == []\n"
    )
