"""The reconciliation on an engine: its worker is killed between an approval and its reply, and a person is asked once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.reconciliation.outside import Outside

from crash.reconciliation import DAY, write_books
from doubtless import Happened

from . import built
from .ground import Crew, Engine, until

TASK, SHEETS = "recon-1", 3


def reconcile(engine: Engine, folder: Path, store: str | None = None) -> None:
    """All seven steps: killed by SIGKILL with the approval's reply outstanding, then the chat's reply is lost.

    `store`: its URL; None: a SQLite file.
    """
    write_books(folder / "books", seed=1, keep=SHEETS)
    with Outside(folder / "office.db") as office:
        program = {built.STORE: store or f"sqlite:///{folder / 'recon.db'}", built.SERVER: office.url}
        with engine.crew(folder, program) as crew:
            office.fault("/approvals", "lose_reply", delay_s=60)
            office.fault("/chat/messages", "lose_reply")
            worker = crew.worker()
            start(crew, folder)
            assert office.wait_for("approval")
            worker.kill()
            crew.worker()
            asked = crew.rests(TASK)
            assert asked.status == "needs_human", asked
            answer(crew, office)
            ended = crew.rests(TASK)
            assert ended.status == "done", ended
            as_it_should_be(crew, office, ended.output)


def start(crew: Crew, folder: Path) -> None:
    files = {name: str(folder / "books" / f"{name}.csv") for name in ("statement", "orders")}
    crew.app.start(crew.task, task_id=TASK, day=DAY, **files)


def answer(crew: Crew, office: Outside) -> None:
    """A person has looked into the chat: the message is there."""
    (case,) = crew.app.inbox().cases
    assert (case.step, office.effects("message")) == ("notify", 1)
    message = {"id": "M-1", **case.evidence["params"]}
    crew.app.settle(case.id, Happened(message), by="anna", why="it is in the chat", shown=case.hash)


def as_it_should_be(crew: Crew, office: Outside, output: Any) -> None:
    """Everything was made, and nothing twice; nothing is open, nothing silent."""
    made = {kind: office.effects(kind) for kind in ("sheet", "approval", "message", "closing")}
    assert made == {"sheet": SHEETS, "approval": 1, "message": 1, "closing": 1}
    assert max(office.most_per_subject(kind) for kind in made) == 1
    assert office.requests("POST /approvals") == 1, "it was found by its key, and not sent again"
    assert len(output["sheets"]) == SHEETS
    assert crew.app.inbox() == ([], [])
    assert crew.app.verify() == []
    until(lambda: not crew.view(TASK).owner_alive, "the end of its run")
