"""Every trouble that a refund can have, as a scene with a real gateway; then the counts at that gateway.

    python -m examples.refund.run

The scenes turn the clocks (the gateway's, and a `FakeClock` for Doubtless), so that a day takes no time.
Exits with 1 if any count is off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any

from doubtless import Doubtless, Finish, State, TaskFailed, TaskWaiting, Turn
from doubtless.testing import FakeClock

from ..reconciliation.demo import Count, report
from ..reconciliation.outside import environment
from . import client
from .agent import refunder, scripted
from .app import Claim, Refunds, build
from .outside import Till

ORDER, CUSTOMER, LINES = "SO-1001", "ana@example.com", {1: 5000, 2: 1200}
CLAIMS: list[Claim] = [{"line": 1, "amount": 2500}, {"line": 2, "amount": 1200}]
HOUR_S = 3600.0

Scene = Callable[[Path], list[Count]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenes and print what was counted. Returns 0, or 1 if a count is off."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.run", description="refunds, with every trouble")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the stores and the gateway's ledgers there")
    chosen = parser.parse_args(argv)
    keep = nullcontext(str(chosen.keep)) if chosen.keep else tempfile.TemporaryDirectory(prefix="doubtless-refund-")
    with keep as place:
        folder = Path(place).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return report([count for scene in SCENES for count in scene(folder)])


# ---------------------------------------------------------------- (a)


def a_day_later_without_a_log(folder: Path) -> list[Count]:
    """What most people write: the key is kept, and sent again when the job is run again."""
    _title("(a) a retry with the same idempotency key, 25 hours after a reply was lost")
    with _gateway(folder / "a-gateway.db") as till:
        till.fault("/refunds", "lose_reply")

        def job() -> None:
            client.refund(till.url, order_id=ORDER, line=1, amount=2500, reference="job-7", key="job-7")

        try:
            job()
        except (OSError, HTTPException):
            till.advance(25 * HOUR_S)  # the job is looked at tomorrow
            job()
        counts = [Count("(a) refunds of the one line", 2, till.effects("refund"))]
    print(f"  the gateway remembers a key for 24 hours: it made {counts[0].counted} refunds\n")
    return counts


# ---------------------------------------------------------------- (b)


def lost_reply(folder: Path) -> list[Count]:
    """Inside the window the key makes a second send harmless: the gateway gives the same answer again."""
    _title("(b) Doubtless; the reply to a refund is lost, and the gateway is asked again with the same key")
    with _gateway(folder / "b-gateway.db") as till, _refunds(folder / "b.db", till) as refunds:
        till.fault("/refunds", "lose_reply")
        _run(refunds, "demo-b")
        return [*_clean(till, "(b)"), Count("(b) requests for a refund", 3, till.requests("POST /refunds"))]


# ---------------------------------------------------------------- (c)


def killed_and_a_day_later(folder: Path) -> list[Count]:
    """Outside the window the key is worth nothing: the gateway is asked, by order id and reference, and nothing is sent."""
    _title("(c) Doubtless; killed by SIGKILL while the reply is lost, and resumed 25 hours later")
    with _gateway(folder / "c-gateway.db") as till:
        till.fault("/refunds", "lose_reply", delay_s=HOUR_S)
        with _process("demo-c", folder / "c.db", till) as child:
            reached = till.wait_for("refund")
            child.kill()
        print(f"  process {child.pid} is dead; the gateway holds {till.effects('refund')} refund. A day passes.\n")
        till.advance(25 * HOUR_S)
        with _refunds(folder / "c.db", till, hours=25) as refunds:
            _run(refunds, "demo-c")
        return [
            Count("(c) killed when the refund had landed", 1, int(reached)),
            *_clean(till, "(c)"),
            Count("(c) requests for a refund", 2, till.requests("POST /refunds")),
        ]


# ---------------------------------------------------------------- (d)


def never_arrived(folder: Path) -> list[Count]:
    """The request is lost, not the reply: two searches after five minutes prove it, and it is sent again."""
    _title("(d) Doubtless; the gateway is away for a day, and the first request never arrived")
    with _gateway(folder / "d-gateway.db") as till:
        till.fault("/refunds", "drop_before")
        with _refunds(folder / "d.db", till) as refunds:
            try:
                refunds.app.run(refunds.refund_order, "demo-d", wait=False, **_params())
            except TaskWaiting as waiting:
                print(f"  {waiting}\n  A day passes.\n")
        till.advance(25 * HOUR_S)
        with _refunds(folder / "d.db", till, hours=25) as refunds:
            _run(refunds, "demo-d")
        return _clean(till, "(d)")


# ---------------------------------------------------------------- (e)


def refused_inside_a_200(folder: Path) -> list[Count]:
    """The second line is declined in the body of a 200. The first one's refund is cancelled: all or none."""
    _title("(e) Doubtless; the gateway declines the second line, in the body of a 200")
    with _gateway(folder / "e-gateway.db") as till, _refunds(folder / "e.db", till) as refunds:
        too_much: list[Claim] = [CLAIMS[0], {"line": 2, "amount": 1201}]
        try:
            refunds.app.run(refunds.refund_order, "demo-e", order_id=ORDER, customer=CUSTOMER, claims=too_much)
        except TaskFailed as failed:
            print(f"  {failed}\n")
        print(_timeline(refunds.app, "demo-e"))
        return [
            Count("(e) refunds", 1, till.effects("refund")),
            Count("(e) refunds cancelled", 1, till.effects("cancellation")),
            Count("(e) requests for a refund", 2, till.requests("POST /refunds")),
            Count("(e) mails", 0, till.effects("mail")),
        ]


# ---------------------------------------------------------------- (f)


def two_at_once(folder: Path) -> list[Count]:
    """Two processes, two tasks, one order: the business key lets one of them send; the other gets its refund."""
    _title("(f) Doubtless; two people refund the same order at the same moment, in two processes")
    with _gateway(folder / "f-gateway.db") as till:
        both = [_process(task_id, folder / "f.db", till) for task_id in ("demo-f1", "demo-f2")]
        said = [child.communicate()[0].decode() for child in both]
        print("".join(f"  process {child.pid} says {text}" for child, text in zip(both, said, strict=True)))
        return [
            Count("(f) answers that differ", 0, len(set(said)) - 1),
            *_clean(till, "(f)"),
            Count("(f) requests for a refund", 2, till.requests("POST /refunds")),
        ]


# ---------------------------------------------------------------- (g)


def an_agent_is_killed(folder: Path) -> list[Count]:
    """A model chooses the steps. What it chose is recorded: the next process goes on, and asks only for what comes next."""
    _title("(g) Doubtless; a model chooses the steps; killed by SIGKILL while the reply to a refund is lost")
    with _gateway(folder / "g-gateway.db") as till:
        till.fault("/refunds", "lose_reply", delay_s=HOUR_S, count=len(CLAIMS))
        with _process("demo-g", folder / "g.db", till, "--agent") as child:
            reached = till.wait_for("refund", len(CLAIMS))
            child.kill()
            asked = child.communicate()[0].decode().count("the model is asked")
        print(f"  process {child.pid} is dead; it had asked the model {asked} times\n")
        till.advance(25 * HOUR_S)
        choices = []

        def choose(state: State) -> Turn | Finish:
            choices.append(state.choices + 1)
            return scripted(state)

        with _refunds(folder / "g.db", till, hours=25) as refunds:
            refunds.app.run(refunder(refunds, choose), "demo-g", goal=_params())
            print(_timeline(refunds.app, "demo-g"))
        return [
            Count("(g) killed when both refunds had landed", 1, int(reached)),
            Count("(g) choices asked for before", 2, asked),
            Count("(g) choices asked for after", 2, len(choices)),
            *_clean(till, "(g)"),
            Count("(g) requests for a refund", 2, till.requests("POST /refunds")),
        ]


SCENES: tuple[Scene, ...] = (
    a_day_later_without_a_log,
    lost_reply,
    killed_and_a_day_later,
    never_arrived,
    refused_inside_a_200,
    two_at_once,
    an_agent_is_killed,
)


# ---------------------------------------------------------------- what the scenes share


def _gateway(database: Path) -> Till:
    till = Till(database)
    till.capture(ORDER, LINES)
    return till


@contextmanager
def _refunds(store: Path, till: Till, hours: float = 0) -> Iterator[Refunds]:
    """The app on a clock that stands `hours` from now, and moves on by itself when the app waits."""
    clock = FakeClock(start=(datetime.now(UTC) + timedelta(hours=hours)).isoformat())
    refunds = build(f"sqlite:///{store}", till.url, clock=clock)
    try:
        yield refunds
    finally:
        refunds.app.close()


def _process(task_id: str, store: Path, till: Till, *more: str) -> subprocess.Popen[bytes]:
    """The same task in a process of its own."""
    command = [sys.executable, "-m", str(__package__), "--task", task_id, "--order", ORDER, "--customer", CUSTOMER, *more]
    command += [f"{claim['line']}={claim['amount']}" for claim in CLAIMS]
    environ = environment(DOUBTLESS_STORE=f"sqlite:///{store}", REFUND_GATEWAY=till.url)
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)


def _params() -> dict[str, Any]:
    return {"order_id": ORDER, "customer": CUSTOMER, "claims": CLAIMS}


def _run(refunds: Refunds, task_id: str) -> None:
    refunds.app.run(refunds.refund_order, task_id, **_params())
    print(_timeline(refunds.app, task_id))


def _timeline(app: Doubtless, task_id: str) -> str:
    from doubtless.cli.render import timeline  # rich is loaded only where a picture is drawn

    return f"{timeline(app.show(task_id))}\n"


def _clean(till: Till, part: str) -> list[Count]:
    """What has to be true when both lines are refunded, once."""
    return [
        Count(f"{part} refunds", len(CLAIMS), till.effects("refund")),
        Count(f"{part} refunds of any one line", 1, till.most_per_subject("refund")),
        Count(f"{part} mails", 1, till.effects("mail")),
    ]


def _title(text: str) -> None:
    print(f"{text}\n{'-' * len(text)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
