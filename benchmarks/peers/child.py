"""One peer in a process of its own, taking turns with the others: it does what each line of its input asks, and says how long.

    python child.py PROGRAM.py SPEC-AS-JSON

Standard library only: it runs in the peer's own environment. A program's `begin(spec)` gives an object with `one(steps, size)`
(a task of so many steps whose params hold so many more bytes) and `beside(tasks, steps)` (so many at the same time), and, where
the peer can, `resume(steps)`, which gives the seconds that it took itself. The first line of the output says that it is ready.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import time
import traceback
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the peer prints goes with its errors
    logging.disable(logging.CRITICAL)

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        peer = load(sys.argv[1]).begin(json.loads(sys.argv[2]))
    except BaseException as error:
        traceback.print_exc()
        say(error=f"{type(error).__name__}: {error}"[:300])
        os._exit(1)
    say(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        work = asked.pop("work")
        try:
            begun = time.perf_counter()
            taken = getattr(peer, work)(**asked)
            say(seconds=taken if isinstance(taken, float) else time.perf_counter() - begun)
        except BaseException as error:
            traceback.print_exc()
            say(error=f"{type(error).__name__}: {error}"[:300])
    end = getattr(peer, "end", None)
    if end is not None:
        end()
    os._exit(0)


def load(path: str) -> Any:
    """The program, from its file."""
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    sys.modules["program"] = program
    spec.loader.exec_module(program)
    return program


if __name__ == "__main__":
    main()
