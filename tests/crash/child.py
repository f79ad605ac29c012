"""The program in a process of its own: reads one command per line, answers with one line of JSON, ends with its input.

    python -m crash.child '<scenario as JSON>'

Commands: ``run TASK WAIT`` starts or resumes a task (WAIT: ``no`` or a duration), ``end`` closes the app.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from doubtless import (
    Doubtless,
    DoubtlessError,
    NeedsHuman,
    StepFailed,
    Task,
    TaskBusy,
    TaskFailed,
    TaskWaiting,
)

from .program import Scenario, build


def say(**words: Any) -> None:
    """One line, flushed: a line in a buffer dies with the process."""
    print(json.dumps(words), flush=True)


def run(app: Doubtless, task: Task[..., Any], task_id: str, wait: bool | str) -> dict[str, Any]:
    """Start or resume the task, and how it stands then."""
    try:
        return {"stands": "done", "output": app.run(task, task_id=task_id, wait=wait, reference=task_id)}
    except NeedsHuman as error:
        return {"stands": "needs_human", "cases": list(error.cases), "why": str(error)}
    except TaskWaiting as error:
        return {"stands": "waiting", "until": None if error.until is None else error.until.wall, "why": str(error)}
    except TaskFailed as error:
        return {"stands": error.status, "failure": error.context.get("failure"), "why": str(error)}
    except TaskBusy as error:
        return {"stands": "busy", "why": str(error)}
    except (DoubtlessError, StepFailed) as error:
        return {"stands": "refused", "why": f"{type(error).__name__}: {error}"}


def main() -> None:
    app, task = build(Scenario(**json.loads(sys.argv[1])))
    app.store.info()  # opened: what follows is the run and nothing else
    say(ready=True)
    for line in sys.stdin:
        match line.split():
            case ["run", task_id, wait]:
                say(**run(app, task, task_id, False if wait == "no" else wait))
            case _:
                break
    app.close()


if __name__ == "__main__":
    main()
