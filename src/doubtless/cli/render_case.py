"""Pictures of what waits for a person: the inbox, and a case with everything that an answer needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..timeline import said
from .render import stands, wish
from .shapes import answer_commands
from .sheet import Sheet, call_text, clock, short_json
from .typed import moment, show_time, typed

if TYPE_CHECKING:
    from ..events import Event
    from ..inbox import Case, Inbox

ASKS: dict[str, str] = {
    "doubt": "did it happen?",
    "compensation": "was it undone?",
    "code_error": "the task's code raised an error",
    "diverged": "the task's code asks for something else than the log holds",
    "hold": "the task failed, and what it did stands",
    "contradiction": "news that contradicts what is settled",
    "output": "it is done; what is its output?",
    "question": "a question of the task",
}
"""What a case of each kind asks, in a few words."""


def inbox_list(found: Inbox, frozen: Mapping[str, str], *, suspect: bool, store: str | None) -> str:
    """Cases, doubts that nobody is settling, and what is frozen; each with the command that goes on."""
    sheet = Sheet()
    if not (found.cases or found.doubts):
        sheet.line("the inbox is empty")
    for case in found.cases:
        where = f"{case.step} at {case.path}, " if case.step else ""
        asked = f"{ASKS.get(case.kind, case.kind)}  ({where}task {case.task_id})"
        sheet.line(asked, "bold", lead=f"{case.id}  ", lead_style="bold yellow")
        cancelled = "; the task is cancelled" if "cancelled" in case.evidence else ""
        sheet.line(f"{case.why}{cancelled}; since {show_time(case.opened_at)}", lead="    ")
        sheet.command(typed("inbox", case.id, store=store))
    for doubt in found.doubts:
        at = f" at {doubt.path}" if doubt.path else ""
        sheet.line(f"in doubt: {doubt.step}{at}", "bold", lead=f"{doubt.task_id}  ", lead_style="bold yellow")
        sheet.line(f"{doubt.why}; since {show_time(doubt.since)}", lead="    ")
        sheet.command(typed("resume", "MODULE:APP", doubt.task_id))
    for step, why in frozen.items():
        name = None if step == "*" else step
        sheet.line(f"{'every write' if name is None else name}: {why}", lead="frozen  ", lead_style="bold cyan")
        sheet.command(typed("thaw", name, store=store))
    if suspect:
        sheet.line("the store is in suspect mode: every write that its log does not know counts as sent", "bold yellow")
        sheet.command(typed("recover", store=store, end="", by="NAME", why="TEXT"))
    return sheet.text()


def case_text(case: Case, settled: Event | None, *, width: int | None = None) -> str:
    """Everything of a case: what was to happen, every attempt and look, what each answer does, and what to type for it.

    `settled`: its CaseSettled row; what was answered stands in the place of the answers then.
    """
    sheet = Sheet(width)
    sheet.title((f"case {case.id}", "bold"), f"  {ASKS.get(case.kind, case.kind)}  ", (case.kind, "dim"))
    opened = moment(case.opened_at)
    where = f", {case.step} at {case.path}" if case.step else ""
    sheet.line(f"{case.task_id}{where}; opened {show_time(case.opened_at)}", lead="  task      ", lead_style="dim")
    sheet.line(case.why, lead="  why       ", lead_style="dim")
    evidence = dict(case.evidence)
    if "cancelled" in evidence:
        sheet.line(wish(evidence.pop("cancelled")), "bold yellow", lead="  cancel    ", lead_style="dim")
    step_evidence(sheet, evidence, opened.date())
    task_evidence(sheet, evidence)
    for name, value in evidence.items():
        if value not in (None, [], {}, ""):
            sheet.line(json.dumps(value, ensure_ascii=False), lead=f"  {name:<8}  ", lead_style="dim")
    sheet.line(case.hash, lead="  hash      ", lead_style="dim")
    sheet.line()
    if settled is not None:
        data = settled.details
        why = f": {data['why']}" if data.get("why") else ""
        sheet.line(f"settled: {data['answer']}, by {data['by']}, {show_time(settled.at.wall)}{why}", "bold green")
    else:
        answers(sheet, case)
    return sheet.text()


def step_evidence(sheet: Sheet, evidence: dict[str, Any], day: object) -> None:
    """What the log knows of the step: the call, its keys and handles, its attempts, its looks, late news."""
    name = evidence.pop("step", None)
    if name is not None and "params" in evidence:
        sheet.line(call_text(name, evidence.pop("params"), 2000), lead="  call      ", lead_style="dim")
    elif name is not None:
        sheet.line(str(name), lead="  step      ", lead_style="dim")
    if "effect" in evidence:
        sheet.line(evidence.pop("effect"), lead="  class     ", lead_style="dim")
    for key in evidence.pop("keys", []):
        sheet.line(key, lead="  key       ", lead_style="dim")
    for handle in evidence.pop("handles", []):
        sheet.line(short_json(handle), lead="  handle    ", lead_style="dim")
    for attempt in evidence.pop("attempts", []):
        why = said(attempt["code"], attempt["detail"])
        told = f"{clock(attempt['started_at'], day)}  {attempt['outcome']}" + (f" ({why})" if why else "")
        sheet.line(told, lead=f"  attempt {attempt['attempt']} ", lead_style="dim")
    looks = evidence.pop("looks", [])
    for look in looks:
        why = f" ({look['why']})" if look.get("why") else ""
        items = f": {short_json(look['items'], 400)}" if look.get("items") else ""
        sheet.line(f"{look['answer']}{why}{items}", lead="  looked    ", lead_style="dim")
    for late in evidence.pop("late", []):
        output = f": {short_json(late['output'], 400)}" if late.get("output") is not None else ""
        what = str(late.get("what", "late news")).replace("_", " ")
        sheet.line(f"attempt {late.get('attempt')}: {what}{output}", lead="  late      ", lead_style="dim")


def task_evidence(sheet: Sheet, evidence: dict[str, Any]) -> None:
    """What a case about a task's code or its failure shows."""
    if "error" in evidence and "message" in evidence:
        sheet.line(f"{evidence.pop('error')}: {evidence.pop('message')}", lead="  error     ", lead_style="dim")
    for line in str(evidence.pop("traceback", "")).splitlines():
        sheet.line(line, "dim", lead="    ")
    if "logged" in evidence and "asked" in evidence:
        evidence.pop("message", None)
        sheet.line(str(evidence.pop("field", "")), lead="  field     ", lead_style="dim")
        sheet.line(short_json(evidence.pop("logged"), 1000), lead="  logged    ", lead_style="dim")
        sheet.line(short_json(evidence.pop("asked"), 1000), lead="  asked     ", lead_style="dim")
        divergence(sheet, evidence)
    if "fork" in evidence:
        fork_evidence(sheet, evidence)
    for owed in evidence.pop("obligations", []):
        sheet.line(stands(owed), lead="  ! ", lead_style="bold yellow")


def divergence(sheet: Sheet, evidence: dict[str, Any]) -> None:
    """What else differs, how the step's definition has changed, and what there is to choose from."""
    for one in evidence.pop("differences", [])[1:]:
        told = f"{one['field']}: {short_json(one['logged'], 200)}, asked {short_json(one['asked'], 200)}"
        sheet.line(told, lead="  also      ", lead_style="dim")
    for one in evidence.pop("definition", []):
        told = f"{one['field']} was {short_json(one['was'], 200)}, is {short_json(one['now'], 200)}"
        sheet.line(told, lead="  changed   ", lead_style="dim")
    if "perhaps" in evidence:
        sheet.line(evidence.pop("perhaps"), lead="  perhaps   ", lead_style="dim")
    for choice in evidence.pop("choices", []):
        sheet.line(choice, lead="  choice    ", lead_style="dim")


def fork_evidence(sheet: Sheet, evidence: dict[str, Any]) -> None:
    """What a fork's question shows: the write before which it stands, and what stands of the line that it comes from."""
    asked = evidence.pop("fork")
    where = f"{asked['effect']} at {asked['path']}; {asked['from']} was forked at {asked['at']}"
    sheet.line(call_text(asked["step"], evidence.pop("params", {}), 2000), lead="  call      ", lead_style="dim")
    sheet.line(where, lead="  class     ", lead_style="dim")
    for one in evidence.pop("stands"):
        output = "" if one.get("output") is None else f" -> {short_json(one['output'], 400)}"
        where = f"({one['status']}, at {one['path']} of {one['task']})"
        called = call_text(one["step"], one.get("params", {}), 400)
        sheet.line(f"{called}{output}  {where}", lead="  stands  ! ", lead_style="bold yellow")


def answers(sheet: Sheet, case: Case) -> None:
    """Each answer that the case takes: what it does, and what to type."""
    sheet.line("answer it once, with one of these:")
    for answer, commands in answer_commands(case).items():
        sheet.line(case.answers[answer], lead=f"  {answer:<15} ", lead_style="bold")
        for command in commands:
            sheet.command(command)
    sheet.line()
    sheet.line("Fill in what stands in capitals. The hash binds the answer to what is shown here.", "dim")
