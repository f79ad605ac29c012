"""`app.changed`: a mark in task code behind which new tasks go a new way, and tasks that went past it keep the old one."""

from __future__ import annotations

from functools import cache

from .drift import behind
from .effects import StepDefinition
from .errors import UsageError
from .inputs import prepare
from .log import TaskLog
from .recorded import call_own, in_task_code, own_step

CHANGED = "$changed"


@cache
def _changed() -> StepDefinition:
    return own_step(CHANGED, lambda name: True, returns=bool)


def changed(name: str) -> bool:
    """Whether the code goes the new way here: see `Doubtless.changed`."""
    said = f"app.changed({name!r})"
    scope = in_task_code(said)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{said}: a mark needs a name, a text; nothing was written", hint='app.changed("two-approvals")')
    path = scope.next_place(said)
    log = scope.run.log
    with log.lock:
        logged = logged_at(log, path)
        past = logged is None and any(behind(path, other) for other in (*log.settled, *log.open))
    if logged is not None:
        digest = prepare(scope.run.runtime, _changed(), {"name": name}).digest
        past = logged != (CHANGED, digest)
    if past:
        return False  # the task has gone past here without the mark: it takes no place
    marked: bool = call_own(_changed(), said, name=name)
    return marked


def logged_at(log: TaskLog, path: str) -> tuple[str, bytes | None] | None:
    """What the log holds at this place: a step's name and its input's hash, or a group; None when it holds nothing."""
    if path in log.settled:
        return log.settled[path].name, log.settled[path].input_hash
    if path in log.open:
        first = log.open[path][0]
        return first.step_name or "", first.input_hash
    return ("", None) if path in log.groups else None
