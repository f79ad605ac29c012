"""A process in which no file can grow from right after an effect on: ``full_disk.py DATABASE SIZE``."""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from people_ground import Clock

from doubtless import Doubtless
from doubtless.errors import DoubtlessError


def limit(bytes_: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))


def main(path: str, size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error then, and not a death
    app = Doubtless(f"sqlite:///{path}", clock=Clock(), namespace="full", store_patience=1)
    effects: list[str] = []

    @app.step(effect="non_idem_write")
    def pay(order: str) -> dict[str, Any]:
        effects.append(order)
        limit(0)
        return {"receipt": "r" * size}

    @app.task
    def settle_order(order: str) -> int:
        return len(pay(order=order)["receipt"])

    for _ in range(2):
        try:
            app.run(settle_order, "f1", order="o1")
        except DoubtlessError as error:
            told = {"error": error.code, "message": error.message, "hint": error.hint}
        soft = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        limit(soft)
        print(json.dumps(told), flush=True)
        limit(0)
    limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    out = app.run(settle_order, "f1", order="o1")
    print(json.dumps({"out": out, "effects": len(effects), "problems": [problem.what for problem in app.verify()]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
