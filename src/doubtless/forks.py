"""Forks inside a call: a child that comes back out of user code ends there; the call is its parent's.

A step may fork, and its child may do what it likes, as long as it does not return: what it returned would be recorded as
what the parent's call did, and the task's code would go on twice.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

times = 0
"""How often this process's line of ancestors has forked: another number after a call than before it is a child's."""

STRAY = 70
"""The exit code of a child that came back out of a step (EX_SOFTWARE)."""


def _in_child() -> None:
    global times
    times += 1


os.register_at_fork(after_in_child=_in_child)


def end_child(name: str, error: BaseException | None) -> NoReturn:
    """End the child of a fork that came back out of `name`: nothing is recorded, no task code goes on in it.

    `error`: what it raised. SystemExit is how a child ends rightly: its exit code stands, and nothing is said.
    """
    code = STRAY
    try:
        if isinstance(error, SystemExit):
            code = _exit_code(error)
        else:
            if error is not None:
                import traceback

                traceback.print_exception(error)
            print(
                f"doubtless: step {name} forked, and the child (process {os.getpid()}) came back out of it; nothing that it did"
                " is recorded, and it ends here. End the child inside the step, with os._exit, or use subprocess.",
                file=sys.stderr,
            )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 255
    print(error.code, file=sys.stderr)
    return 1
