"""The accident, four times, with a real server in a process of its own; then the counts at that server.

    doubtless demo

(a) a plain retry loop loses two replies: two sheets for one difference, two approvals. (b) Doubtless loses a
reply and is killed by SIGKILL in the same moment: one and one, and the timeline that proves it. (c) Doubtless
loses the reply of a chat that cannot be asked: a case in the inbox, and the command that settles it. (d) The chat
refuses the message for good: what was done is taken back, the last first.
Exits with 1 if any count is off.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from doubtless import Doubtless, NeedsHuman, TaskFailed

from . import generate, load, naive
from .app import Recon, build
from .match import match
from .outside import Outside, environment

TARGET = f"{__package__}.app:app"
LONG_S = 3600.0  # on the server's clock: the reply is held back until the demo turns the clock


class Case(NamedTuple):
    """What one part of the demo works with."""

    folder: Path
    statement: Path
    orders: Path
    day: date
    differences: int

    def params(self) -> dict[str, str]:
        return {"day": str(self.day), "statement": str(self.statement), "orders": str(self.orders)}


class Count(NamedTuple):
    """One number at the server, and what it has to be."""

    what: str
    expected: int
    counted: int

    def holds(self) -> bool:
        return self.expected == self.counted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the four parts and print what was counted. Returns 0, 1 (a count is off) or 2 (the files are bad)."""
    chosen = _parser().parse_args(argv)
    if (chosen.statement is None) != (chosen.orders is None):
        print("--statement and --orders belong together", file=sys.stderr)
        return 2
    keep = nullcontext(str(chosen.keep)) if chosen.keep else tempfile.TemporaryDirectory(prefix="doubtless-demo-")
    with keep as place:
        folder = Path(place).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            case = _prepare(folder, chosen)
        except load.BadInput as bad:
            print(f"{bad}\nnothing was started", file=sys.stderr)
            return 2
        if not case.differences:
            print("these files agree with each other: there is nothing to adjust, so nothing to show", file=sys.stderr)
            return 2
        return report([count for part in PARTS for count in part(case)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="doubtless demo", description="a lost reply, a kill, and a chat that cannot be asked")
    parser.add_argument("--statement", type=Path, help="a bank statement of your own (default: a generated one)")
    parser.add_argument("--orders", type=Path, help="an order ledger of your own")
    parser.add_argument("--day", type=date.fromisoformat, default=generate.DAY, help="the day as of which to compare")
    parser.add_argument("--seed", type=int, default=1, help="for the generated files")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the files, the stores and the server's books there")
    return parser


def _prepare(folder: Path, chosen: argparse.Namespace) -> Case:
    if chosen.statement is None:
        generate.write(folder, chosen.seed)
    statement = (chosen.statement or folder / "statement.csv").resolve()
    orders = (chosen.orders or folder / "orders.csv").resolve()
    load.check(statement, orders)
    entries, ledger = load.load_statement(statement), load.load_orders(orders)
    differences = match(entries, ledger, chosen.day)
    print(f"{len(entries)} bank entries, {len(ledger)} orders and credit notes, {len(differences)} true differences\n")
    return Case(folder, statement, orders, chosen.day, len(differences))


# ---------------------------------------------------------------- (a)


def plain_retries(case: Case) -> list[Count]:
    """What most people write: the reply is lost twice, and the work is done twice."""
    _title("(a) a plain retry loop; the replies to a sheet and to the approval are lost")
    with Outside(case.folder / "a-office.db") as outside:
        outside.fault("/adjustments", "lose_reply")
        outside.fault("/approvals", "lose_reply")
        naive.reconcile(outside.url, str(case.day), case.day, case.statement, case.orders)
        counts = [
            Count("(a) sheets for the one difference", 2, outside.most_per_subject("sheet")),
            Count("(a) approvals", 2, outside.effects("approval")),
        ]
    print(f"  the server made {counts[0].counted} sheets for one difference, and {counts[1].counted} approvals\n")
    return counts


# ---------------------------------------------------------------- (b)


def killed_and_resumed(case: Case) -> list[Count]:
    """The approval lands, its reply is lost, and the process is killed before it can know."""
    _title("(b) Doubtless; the reply to the approval is lost, and the process is killed by SIGKILL")
    store = f"sqlite:///{case.folder / 'b-recon.db'}"
    with Outside(case.folder / "b-office.db") as outside:
        outside.fault("/approvals", "lose_reply", delay_s=LONG_S)
        child = subprocess.Popen(_command(case, "demo-b"), env=environment(DOUBTLESS_STORE=store, RECON_SERVER=outside.url))
        try:
            _wait_for_effect(outside, "approval", child)
        finally:
            child.kill()
            child.wait()
        outside.advance(LONG_S)
        print(f"  process {child.pid} is dead; the server holds {outside.effects('approval')} approval. Now it is resumed:\n")
        recon = build(store, outside.url)
        try:
            recon.app.run(recon.reconcile, "demo-b", **case.params())
            print(_timeline(recon.app.show("demo-b")))
        finally:
            recon.app.close()
        return _clean(outside, "(b)", case)


def _command(case: Case, task_id: str) -> list[str]:
    options = {"--task": task_id, **{f"--{name}": value for name, value in case.params().items()}}
    return [sys.executable, "-m", str(__package__), *(part for option in options.items() for part in option)]


def _wait_for_effect(outside: Outside, kind: str, child: subprocess.Popen[bytes]) -> None:
    while not outside.wait_for(kind, timeout_s=0.5):
        if child.poll() is not None:
            raise RuntimeError(f"the child ended with {child.returncode} before it came to the {kind}")


def _timeline(shown: Any) -> str:
    from doubtless.cli.render import timeline  # rich is loaded only where a picture is drawn

    return str(timeline(shown))


# ---------------------------------------------------------------- (c)


def nobody_to_ask(case: Case) -> list[Count]:
    """The chat cannot be asked: the doubt becomes a person's, with the command that settles it."""
    _title("(c) Doubtless; the reply to the chat message is lost, and the chat cannot be asked")
    store = f"sqlite:///{case.folder / 'c-recon.db'}"
    with Outside(case.folder / "c-office.db") as outside:
        outside.fault("/chat/messages", "lose_reply")
        recon = build(store, outside.url)
        try:
            opened = _run_into_case(recon, case)
            before = outside.effects("message")
            print(f"  somebody looks into the chat: it holds {before} message of this run. So:\n")
            command = _settle_command(recon.app, opened, str(case.day))
            print(f"  $ doubtless {shlex.join(command)}\n")
        finally:
            recon.app.close()
        _cli(command, store, outside.url)
        _cli(["resume", TARGET, "demo-c"], store, outside.url)
        counts = [Count("(c) cases in the inbox", 1, len(opened)), *_clean(outside, "(c)", case)]
        print()
        return counts


def _run_into_case(recon: Recon, case: Case) -> tuple[str, ...]:
    try:
        recon.app.run(recon.reconcile, "demo-c", **case.params())
    except NeedsHuman as needed:
        print(f"  {needed}\n")
        return needed.cases
    return ()


def _settle_command(app: Doubtless, opened: Sequence[str], run: str) -> list[str]:
    """The command line, after the word ``doubtless``, with which a person says that the message is there."""
    [case_id] = opened
    shown = app.case(case_id)
    output = json.dumps({"id": "seen in the chat", "run": run})
    answer = [
        "happened",
        "--output",
        output,
        "--by",
        "ana@example.com",
        "--why",
        "the message stands in the chat",
        "--shown",
        shown.hash[:12],
    ]
    return ["settle", TARGET, shown.id, *answer]


def _cli(command: Sequence[str], store: str, server: str) -> None:
    environ = environment(DOUBTLESS_STORE=store, RECON_SERVER=server)
    subprocess.run([sys.executable, "-m", "doubtless.cli", *command], env=environ, check=True)


# ---------------------------------------------------------------- (d)


def failed_and_taken_back(case: Case) -> list[Count]:
    """Step six fails for good: the approval is withdrawn, then the sheets that it held, and nobody is told anything."""
    _title("(d) Doubtless; the chat refuses the message for good, and what was done is taken back")
    with Outside(case.folder / "d-office.db") as outside:
        outside.fault("/chat/messages", "refuse_422")
        recon = build(f"sqlite:///{case.folder / 'd-recon.db'}", outside.url)
        try:
            recon.app.run(recon.reconcile, "demo-d", **case.params())
        except TaskFailed as failed:
            print(f"  {failed}\n")
            print(_timeline(recon.app.show("demo-d")))
        finally:
            recon.app.close()
        backwards = outside.order("sheet_withdrawal") == outside.order("sheet")[::-1]
        return [
            Count("(d) sheets", case.differences, outside.effects("sheet")),
            Count("(d) sheets withdrawn", case.differences, outside.effects("sheet_withdrawal")),
            Count("(d) the last one first", 1, int(backwards)),
            Count("(d) approvals", 1, outside.effects("approval")),
            Count("(d) approvals withdrawn", 1, outside.effects("approval_withdrawal")),
            Count("(d) messages in the chat", 0, outside.effects("message")),
            Count("(d) closings", 0, outside.effects("closing")),
        ]


PARTS: tuple[Callable[[Case], list[Count]], ...] = (plain_retries, killed_and_resumed, nobody_to_ask, failed_and_taken_back)


# ---------------------------------------------------------------- the counts


def _clean(outside: Outside, part: str, case: Case) -> list[Count]:
    """What has to be true of a run of which nothing was done twice, and nothing left out."""
    return [
        Count(f"{part} sheets", case.differences, outside.effects("sheet")),
        Count(f"{part} sheets for any one difference", 1, outside.most_per_subject("sheet")),
        Count(f"{part} approvals", 1, outside.effects("approval")),
        Count(f"{part} requests for an approval", 1, outside.requests("POST /approvals")),
        Count(f"{part} messages in the chat", 1, outside.effects("message")),
        Count(f"{part} closings", 1, outside.effects("closing")),
    ]


def report(counts: Sequence[Count]) -> int:
    """Print every count beside what it has to be. Returns 1 if one of them is off, else 0."""
    _title("counted at the server")
    width = max(len(count.what) for count in counts)
    for count in counts:
        mark = "ok" if count.holds() else f"OFF, expected {count.expected}"
        print(f"  {count.what:<{width}}  {count.counted:>3}  {mark}")
    return 0 if all(count.holds() for count in counts) else 1


def _title(text: str) -> None:
    print(f"{text}\n{'-' * len(text)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
