"""Threads, locks, waits and the machine's name are asked of `doubtless.host` alone, so that a simulation can put its own there."""

from __future__ import annotations

import ast
from pathlib import Path

import doubtless

PACKAGE = Path(doubtless.__file__).parent
OWN = ("host.py", "clocks.py", "testing/", "cli/")
"""A clock is a seam of its own; `testing` is a simulation's own side; the command line has the process to itself."""

MAKES = {
    "threading": {"Thread", "Lock", "RLock", "Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Timer"},
    "socket": {"gethostname", "getfqdn"},
    "time": {"sleep"},
}


def made_in(source: str) -> list[str]:
    """What a module makes by itself of what `host` is there for: calls, not annotations."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            if node.func.attr in MAKES.get(node.func.value.id, ()):
                found.append(f"{node.func.value.id}.{node.func.attr}")
        if isinstance(node, ast.ImportFrom) and node.module in MAKES:
            found += [f"{node.module}.{name.name}" for name in node.names if name.name in MAKES[node.module]]
    return found


def test_threads_and_locks_are_made_through_the_host_and_nowhere_else() -> None:
    found = {
        where: made
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (where := str(path.relative_to(PACKAGE))).startswith(OWN) and (made := made_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_module_that_makes_its_own_would_be_noticed() -> None:
    assert made_in("import threading\nlock = threading.Lock()\n") == ["threading.Lock"]
    assert made_in("from time import sleep\n") == ["time.sleep"]
    assert made_in("import threading\nlock: threading.Lock = host.lock()\n") == []
