"""A starlette service around durable tasks: a request starts one and gets 202; a worker runs it; people answer cases.

    POST /reconciliations     {"id", "day", "statement", "orders"} → 202; the same again → the same task; other input → 409
    GET  /tasks/{id}          how a task stands: its steps, its open cases
    POST /tasks/{id}/events   {"name", "event_id", "payload"} → 202; the same event_id again → the same event
    POST /tasks/{id}/cancel   {"why"} → 202; nothing new begins, what runs is settled, then what was done is taken back
    GET  /cases               what waits for a person
    POST /cases/{id}          {"answer", "why", "shown", …} → 200; settled by somebody else, or changed since → 409

Every answer is durable before it is given: 202 means that the task will be run, also if this process dies now.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from doubtless import (
    Abandon,
    Answer,
    Case,
    Compensate,
    Conflict,
    Deny,
    DidNotHappen,
    DoubtlessError,
    Fail,
    Happened,
    InputDiffers,
    LetStand,
    NeedsHuman,
    Noted,
    Retry,
    StoreError,
    Task,
    TaskBusy,
    TaskFrozen,
    TaskWaiting,
    UnknownCase,
    UnknownTask,
)
from doubtless.answers import AnyAnswer
from doubtless.timeline import TaskView

from ..reconciliation.app import Recon, build

log = logging.getLogger(__name__)

PLAIN: dict[str, Callable[[], AnyAnswer]] = {
    "abandon": Abandon,
    "compensate": Compensate,
    "retry": Retry,
    "fail": Fail,
    "let_stand": LetStand,
    "noted": Noted,
    "deny": Deny,
}


def create(store_url: str | None = None, server_url: str | None = None, files: Path | None = None) -> Starlette:
    """Return the service. Without arguments: $DOUBTLESS_STORE, $RECON_SERVER and $SERVICE_FILES."""
    recon = build(store_url, server_url)
    recon.app.on_case(lambda case: log.warning("case %s waits for a person: %s", case.id, case.why))
    service = Service(recon, files or Path(os.environ.get("SERVICE_FILES", ".")))
    routes = [
        Route("/reconciliations", service.start, methods=["POST"]),
        Route("/tasks/{id:path}/events", service.event, methods=["POST"]),
        Route("/tasks/{id:path}/cancel", service.cancel, methods=["POST"]),
        Route("/tasks/{id:path}", service.show),
        Route("/cases", service.inbox),
        Route("/cases/{id:path}", service.settle, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=service.lifespan, exception_handlers={DoubtlessError: refused})


class Service:
    """The endpoints. They are plain functions where they need no body: starlette runs those in a thread of its pool."""

    def __init__(self, recon: Recon, files: Path) -> None:
        self._recon = recon
        self._files = files.resolve()
        self._when_released = declare_when_released(recon)

    @asynccontextmanager
    async def lifespan(self, service: Starlette) -> AsyncIterator[None]:
        """While the service is up, a worker runs what was started, also what a process that was killed left behind."""
        worker = self._recon.app.worker(concurrency=4)
        await run_in_threadpool(worker.start)
        try:
            yield
        finally:
            log.info("draining: steps that run are finished first")
            drained = await run_in_threadpool(worker.stop)
            log.info("drained" if drained else "not drained in time; what was in flight is looked for at the next start")
            await run_in_threadpool(self._recon.app.close)

    async def start(self, request: Request) -> JSONResponse:
        body = await json_object(request)
        task_id, start = text(body, "id"), self._recon.app.start
        params = {"day": text(body, "day")} | {name: self._file(text(body, name)) for name in ("statement", "orders")}
        task = self._when_released if body.get("when") == "released" else self._recon.reconcile
        await run_in_threadpool(lambda: start(task, task_id, **params))
        return JSONResponse({"id": task_id}, 202, headers={"Location": f"/tasks/{task_id}"})

    async def event(self, request: Request) -> JSONResponse:
        """A webhook's target: its deliveries come late, early and twice, and `event_id` is what makes one of them one event."""
        body, send = await json_object(request), self._recon.app.send_event
        task_id, name, event_id = request.path_params["id"], text(body, "name"), text(body, "event_id")
        taken = await run_in_threadpool(lambda: send(task_id, name, body.get("payload"), event_id=event_id))
        return JSONResponse({"task": taken.task_id, "name": taken.name, "event_id": taken.event_id}, 202)

    async def cancel(self, request: Request) -> JSONResponse:
        """The wish is durable when this answers; whoever runs the task sees it before its next step."""
        body, by = await json_object(request), principal(request)
        task_id, why, app = request.path_params["id"], text(body, "why"), self._recon.app

        def ask() -> str:
            try:
                return app.cancel(task_id, by=by, why=why, wait=False)
            except (TaskBusy, TaskFrozen, TaskWaiting, NeedsHuman):
                return app.show(task_id).status  # it is recorded all the same: this is how the task stands until then

        return JSONResponse({"id": task_id, "status": await run_in_threadpool(ask)}, 202)

    def show(self, request: Request) -> JSONResponse:
        return JSONResponse(task_json(self._recon.app.show(request.path_params["id"])))

    def inbox(self, request: Request) -> JSONResponse:
        return JSONResponse({"cases": [case_json(case) for case in self._recon.app.inbox().cases]})

    async def settle(self, request: Request) -> JSONResponse:
        body, by = await json_object(request), principal(request)
        answer, why, shown = read_answer(body), text(body, "why"), text(body, "shown")
        case = await run_in_threadpool(self._recon.app.settle, request.path_params["id"], answer, by=by, why=why, shown=shown)
        return JSONResponse({"case": case.id, "task": case.task_id, "answer": body["answer"], "by": by})

    def _file(self, name: str) -> str:
        """A file of the folder that this service is given, and of no other."""
        path = self._files / name
        if Path(name).name != name or not path.is_file():
            raise HTTPException(422, f"there is no file {name}")
        return str(path)


class Release(TypedDict):
    """What the bank sends when a statement is final."""

    statement: str


def declare_when_released(recon: Recon) -> Task[..., dict[str, Any]]:
    """A task of the service's own: it waits, durably, for the bank's word, or a person's; then it reconciles."""

    @recon.app.task
    def reconcile_when_released(day: str, statement: str, orders: str) -> dict[str, Any]:
        recon.app.wait_for("released", schema=Release, deadline="P2D", about={"day": day})
        return recon.reconcile(day=day, statement=statement, orders=orders)

    return reconcile_when_released


def principal(request: Request) -> str:
    """Who asks. The proxy in front of this service signs people in, and says so in a header that it lets nobody else set."""
    by = request.headers.get("X-Forwarded-User", "")
    if not by:
        raise HTTPException(401, "sign in: an answer bears its giver's name")
    return by


def refused(request: Request, error: Exception) -> JSONResponse:
    """What doubtless refused, with the hint what to do, as the status that says so to a program."""
    assert isinstance(error, DoubtlessError)
    match error:
        case UnknownTask() | UnknownCase():
            status = 404
        case Conflict() | InputDiffers():
            status = 409
        case StoreError():
            status = 503
        case _:
            status = 422
    return JSONResponse({"error": error.code, "message": error.message, "hint": error.hint}, status)


def task_json(task: TaskView) -> dict[str, Any]:
    steps = [
        {"path": step.path, "step": step.name, "status": step.status, "calls": step.calls, "settled_by": step.settled_by}
        for step in task.steps
    ]
    return {
        "id": task.id, "status": task.status, "why": task.why, "output": task.output, "error": task.error,
        "steps": steps, "cases": [case_json(case) for case in task.cases],
    }  # fmt: skip


def case_json(case: Case) -> dict[str, Any]:
    """What a person needs to see, and the hash that binds the answer to it."""
    return {
        "id": case.id, "task": case.task_id, "kind": case.kind, "why": case.why, "step": case.step,
        "evidence": case.evidence, "answers": case.answers, "shown": case.hash,
    }  # fmt: skip


def read_answer(body: dict[str, Any]) -> AnyAnswer:
    """The answer in a request's body. Whether its case takes it is the case's own business."""
    match body:
        case {"answer": "happened"}:
            return Happened(body.get("output"))
        case {"answer": "did_not_happen", "then": "retry" | "fail" as then}:
            return DidNotHappen(then)
        case {"answer": "answer", "value": value}:
            return Answer(value)
        case {"answer": str(name)} if name in PLAIN:
            return PLAIN[name]()
        case _:
            raise HTTPException(422, "no such answer; GET /cases tells which a case takes")


async def json_object(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return body


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise HTTPException(422, f"{name} is missing")
    return value
