"""A small task for the kill sweep: a read with an output too big for the database, a write that can be asked about,
a write with a key, a write that nobody can be asked about.

    python -m crash.small '<scenario as JSON>'     exit code 0: done; 3: it needs a person
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from doubtless import Doubtless, NeedsHuman, Task, injected

from .program import Client, Scenario
from .sweep import Points

TASK = "s"
NEEDS_HUMAN = 3


def build_small(scenario: Scenario, points: Points | None = None) -> tuple[Doubtless, Task[..., Any]]:
    """The app and its task; with points, killed where they say."""
    app = Doubtless(scenario.url, clock=scenario.clock, namespace="sweep", hooks=points)
    client = Client(scenario)
    around: Callable[[Any], Any] = points.around if points is not None else lambda fn: fn

    @around
    def find_sheet(idempotency_key: str) -> Any:
        items = client.find(idempotency_key)
        return items[0] if items else None

    @app.step(effect="read")
    @around
    def load(reference: str) -> dict[str, Any]:
        return {**client.read(reference), "rows": "x" * (1 << 20)}

    @app.step(effect="non_idem_write", query=find_sheet, absent_after="PT20S", on_absent="retry", attempts=9)
    @around
    def create_sheet(reference: str, rows: int, idempotency_key: str = injected()) -> dict[str, Any]:
        answer: dict[str, Any] = client.write("POST", reference, idempotency_key)
        return answer

    @app.step(effect="idem_write", attempts=9)
    @around
    def close_run(reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        answer: dict[str, Any] = client.write("PUT", reference, idempotency_key)
        return answer

    @app.step(effect="non_idem_write")
    @around
    def chat(reference: str, idempotency_key: str = injected()) -> dict[str, Any]:
        answer: dict[str, Any] = client.write("POST", reference, idempotency_key)
        return answer

    @app.task
    def reconcile_small(day: str) -> dict[str, Any]:
        rows = load(reference=f"{day}/load")["rows"]
        sheet = create_sheet(reference=f"{day}/sheet", rows=len(rows))
        closed = close_run(reference=f"{day}/close")
        return {"sheet": sheet, "closed": closed, "told": chat(reference=f"{day}/chat")}

    return app, reconcile_small


def main() -> int:
    app, task = build_small(Scenario(**json.loads(sys.argv[1])), Points.from_environment())
    try:
        app.run(task, TASK, day="d")
        return 0
    except NeedsHuman:
        return NEEDS_HUMAN
    finally:
        app.close()


if __name__ == "__main__":
    sys.exit(main())
