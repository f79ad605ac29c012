"""The client of the storm, a process of its own: ``python -m tests.storm.client FILE``, the tasks to accept as JSON lines.

Every line that it prints is an id that the store has acknowledged. Killed and started again it begins anew: an id that is there
already is the same task. It goes at the pace that the lines say, and offers a task again until it is taken.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from doubtless import StoreError

from .program import app


def main(file: str) -> int:
    for line in Path(file).read_text().splitlines():
        one = json.loads(line)
        time.sleep(max(0.0, one["at"] - time.time()))
        while True:
            try:
                told = app.start(
                    app.declared_tasks[one["task"]], one["id"], queue=one["queue"], priority=one["priority"], **one["params"]
                )
                break
            except StoreError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                time.sleep(0.2)
        os.write(1, f"{told}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
