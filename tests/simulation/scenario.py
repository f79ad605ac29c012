"""What one run is about, as a value: its program, how the outside answers, what goes wrong. Drawn from a seed, or written by hand.

A scenario prints as Python that makes it again: what a failing seed shrinks to can be pasted into a test.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

TIMEOUT = 10.0
"""Seconds: every step's `timeout`."""

ABSENT_AFTER = 120.0
"""Seconds: `absent_after`, of the steps that declare one."""

KEY_WINDOW = 600.0
"""Seconds: `key_window`, of the steps that declare one. The world forgets a key no sooner."""


SLOWER = 3.0
"""So many times later requests of the first release may land, where a deploy follows, and so much longer is its `absent_after`."""


class Call(NamedTuple):
    """How one call goes. ``ok``; ``lost``: it lands, the reply does not come; ``dropped``: neither; ``late``: the caller
    is told of a timeout, and it lands `after` seconds later; ``refused``, ``unsent``: said so; ``busy``: refused for now;
    ``hangs``: it lands, and the reply comes after the step's timeout; ``slow``: it is sent only `after` seconds after the
    step's timeout;
    ``handle``: as lost, after the other side's id was recorded; ``raises``: a fault of the step's own code, before sending."""

    how: str = "ok"
    seconds: float = 0.25
    after: float = 0.0


class Write(NamedTuple):
    """A write. `kind`: ``absent`` (a query, and `absent_after`), ``query`` (without it), ``blind`` (nobody can be asked),
    ``key`` (an idem_write), ``window`` (one whose key is forgotten), ``once`` (with a business key).

    `calls`, `looks`: how its calls and look-backs go, in order; later ones go well. `lag`: how long its index is behind.
    `plain`: in an async task it is a sync step all the same, and blocks the event loop.
    """

    kind: str = "absent"
    calls: tuple[Call, ...] = ()
    looks: tuple[str, ...] = ()
    lag: float = 0.0
    on_absent: str = "retry"
    retry_rejected: bool = False
    undo: Write | None = None
    undo_within: float = 0.0
    caught: bool = False
    plain: bool = False


class Read(NamedTuple):
    """A read."""

    calls: tuple[Call, ...] = ()


class Sleep(NamedTuple):
    """A sleep of the task."""

    seconds: float = 60.0


class Ask(NamedTuple):
    """A wait for an event or a person: after `seconds` it comes (0: a person is asked, and answers)."""

    seconds: float = 0.0
    deadline: float = 0.0


class Together(NamedTuple):
    """Branches side by side, each with its nodes. `limit`: so many at once (`app.map`); 0: all (`app.parallel`)."""

    branches: tuple[tuple[Write | Read | Sleep, ...], ...] = ()
    limit: int = 0


class Child(NamedTuple):
    """A child task with these nodes."""

    nodes: tuple[Write | Read | Sleep, ...] = ()


Node = Write | Read | Sleep | Ask | Together | Child


class Fault(NamedTuple):
    """What goes wrong at the `at`-th point of the run. ``kill``: the process that came there dies; ``stop``: it is stopped
    for `seconds`; ``second``: another process resumes the task at once; ``jump``: the wall clock is set on (or back) by
    `seconds`; ``cancel``; ``freeze``: for `seconds`; ``restart``: the process ends as a drained one does;
    ``full``, ``busy``, ``io``: the store's next `times` transactions fail before their commit, ``after``: behind it;
    ``deploy``: from the next process on the code is another: shorter times to wait, keys kept for ever, a query gone; ``unlock``: somebody removes the process's lock file, and it is
    taken for dead while it lives."""

    what: str
    at: int
    seconds: float = 0.0
    times: int = 1


class Scenario(NamedTuple):
    """One run. `ends`: how the task's code ends: ``done``, ``abort``, ``code_error`` (fixed when a person says retry).
    `host`: who runs it: ``run``, ``arun``, ``worker``. `answers`: how the person answers the first cases, the second, …"""

    nodes: tuple[Node, ...]
    faults: tuple[Fault, ...] = ()
    ends: str = "done"
    on_failure: str = "compensate"
    is_async: bool = False
    host: str = "run"
    answers: tuple[str, ...] = ()
    schedule: int = 0


KINDS = ("absent", "query", "blind", "key", "window")
HOWS = ("ok", "lost", "dropped", "late", "refused", "unsent", "hangs", "slow", "handle", "raises", "busy")
LOOKS = ("true", "unclear", "raises", "pending", "several", "slow")
STORE_FAULTS = ("full", "busy", "io", "after")
ANSWERS = ("truth", "fail", "even_now", "twice", "slowly", "abandon")


def draw(seed: int) -> Scenario:
    """The scenario of a seed: always the same."""
    rng = random.Random(seed)
    nodes = tuple(_node(rng) for _ in range(rng.choice((1, 1, 2, 2, 2, 3, 4))))
    faults = tuple(sorted((_fault(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))), key=lambda f: f.at))
    if any(fault.what == "unlock" for fault in faults):  # who is taken for dead must not send later: what then is, no library knows
        faults = tuple(fault for fault in faults if fault.what != "stop")
        nodes = tuple(_prompt(node) for node in nodes)
    return Scenario(
        nodes=nodes,
        faults=faults,
        ends=rng.choice(("done", "done", "done", "abort", "abort", "code_error")),
        on_failure=rng.choice(("compensate", "compensate", "compensate", "hold")),
        is_async=rng.random() < 0.3,
        host=rng.choice(("run", "run", "run", "arun", "worker")),
        answers=tuple(rng.choice(ANSWERS) if rng.random() < 0.4 else "truth" for _ in range(4)),
        schedule=rng.randrange(1, 1 << 30) if rng.random() < 0.85 else 0,
    )


def _node(rng: random.Random) -> Node:
    drawn = rng.random()
    if drawn < 0.60:
        return _write(rng)
    if drawn < 0.68:
        return Read(_calls(rng, ("ok", "lost", "hangs", "raises")))
    if drawn < 0.74:
        return Sleep(rng.choice((1.0, 60.0, 3600.0)))
    if drawn < 0.80:
        return Ask(rng.choice((0.0, 1.0, 300.0)), rng.choice((0.0, 0.0, 100.0)))
    if drawn < 0.92:
        branches = tuple(_nodes(rng, rng.choice((1, 1, 2))) for _ in range(rng.choice((2, 2, 3))))
        return Together(branches, rng.choice((0, 0, 1, 2)))
    return Child(_nodes(rng, rng.choice((1, 1, 2))))


def _prompt(node: Any) -> Any:
    """The same without calls that are sent late."""
    if isinstance(node, Call):
        return node._replace(how="hangs") if node.how == "slow" else node
    if isinstance(node, Write | Read | Together | Child):
        return type(node)._make(_prompt(part) for part in node)
    if type(node) is tuple:
        return tuple(_prompt(part) for part in node)
    return node


def _nodes(rng: random.Random, count: int) -> tuple[Write | Read | Sleep, ...]:
    return tuple(_write(rng) if rng.random() < 0.8 else Read() if rng.random() < 0.5 else Sleep(30.0) for _ in range(count))


def _calls(rng: random.Random, hows: tuple[str, ...]) -> tuple[Call, ...]:
    return tuple(_call(rng, hows) for _ in range(rng.choice((0, 0, 1, 1, 2, 3))))


def _call(rng: random.Random, hows: tuple[str, ...]) -> Call:
    how = rng.choice(hows)
    return Call(how, rng.choice((0.0, 0.25, 2.0, 9.9)), rng.choice((1.0, 15.0, 60.0)) if how == "late" else rng.choice((5.0, 150.0)) if how == "slow" else 0.0)


def _write(rng: random.Random, *, undo: bool = False) -> Write:
    kind = rng.choice(KINDS if undo else (*KINDS, "absent", "once"))
    hows = HOWS if kind != "window" else tuple(how for how in HOWS if how != "slow")
    calls = _calls(rng, hows)
    if kind == "window":  # what a key that is forgotten is good for: no request lands later than the margin
        calls = tuple(call._replace(after=min(call.after, 3.0)) for call in calls)
    return Write(
        kind=kind,
        calls=calls,
        looks=tuple(rng.choice(LOOKS) for _ in range(rng.choice((0, 0, 1, 2)))),
        lag=rng.choice((0.0, 0.0, 20.0)),
        on_absent=rng.choice(("retry", "fail")),
        retry_rejected=rng.random() < 0.3,
        undo=_write(rng, undo=True) if not undo and rng.random() < 0.5 else None,
        undo_within=rng.choice((0.0, 0.0, 30.0, 7200.0)) if not undo else 0.0,
        caught=rng.random() < 0.2 and not undo,
        plain=rng.random() < 0.15,
    )


def _fault(rng: random.Random) -> Fault:
    what = rng.choice(("kill",) * 6 + ("stop", "second", "jump", "cancel", "freeze", "restart", "deploy", "unlock") + STORE_FAULTS)
    at = rng.randrange(rng.choice((12, 30, 60)))
    seconds = {
        "stop": (1.0, 30.0, 4000.0), "jump": (-7200.0, -30.0, 30.0, 7200.0), "freeze": (5.0, 600.0),
    }.get(what, (0.0,))  # fmt: skip
    return Fault(what, at, rng.choice(seconds), rng.choice((1, 1, 2, 40)) if what in STORE_FAULTS else 1)
