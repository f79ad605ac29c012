"""The tasks that lose their power, their other side, and the store that says what it has acknowledged.

Two tasks: `reconcile` has every class of step, outputs of every size, a result that the database does not take, a doubt that
a person settles, and snapshots; `undone` gives up and is compensated. The other side is another machine: it keeps its power.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from doubtless import Abort, DidNotHappen, Doubtless, Happened, NeedsHuman, StoreUnavailable, TaskFailed, injected
from doubtless.events import Event, Instant, boot_mark
from doubtless.store import open_store
from doubtless.store.base import Blob
from doubtless.store.sqlite import SqliteStore
from doubtless.testing import FakeClock

Mark = Callable[[tuple[str, Any]], None]
BIG = 1 << 20
NAMESPACE = b"power"
TASKS = ("recon", "undo", "$store")


class World:
    """The other side: what has happened there, by reference; what is sent a second time happens a second time."""

    def __init__(self, effects: tuple[tuple[str, str], ...] = (), mark: Mark = lambda fact: None) -> None:
        self.effects = list(effects)
        self.mark = mark

    def do(self, reference: str, key: str, *, keyed: bool = False) -> dict[str, Any]:
        """A request: it arrives, and it takes effect; the marks say when."""
        self.mark(("call", key))
        if not (keyed and (reference, key) in self.effects):
            self.effects.append((reference, key))
            self.mark(("effect", (reference, key)))
        return {"id": reference}

    def find(self, key: str) -> dict[str, Any] | None:
        return next(({"id": reference} for reference, known in self.effects if known == key), None)


class Clock(FakeClock):
    """Waits turn it, also for how long a run believes to have waited. After a power loss the machine has booted anew."""

    def __init__(self, since: Instant | None = None) -> None:
        super().__init__()
        self._waited = 0.0
        if since is not None:
            self._wall = since.wall + 60_000_000
            self._boot, self._mark = 5_000_000, boot_mark("after the power came back", 0)

    def monotonic(self) -> float:
        return super().monotonic() + self._waited

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        self._waited += seconds
        super().pause(seconds, stop)


class Acknowledging:
    """A store that notes what is acknowledged: whatever rows stand when one of its methods returns, what it has spilled."""

    def __init__(self, store: SqliteStore, mark: Mark) -> None:
        self._store, self._mark = store, mark
        self._known = dict.fromkeys(TASKS, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _rows(self) -> None:
        rows: list[Event] = []
        for task in TASKS:
            rows += self._store.rows(task, after=self._known[task])
        for row in rows:
            self._known[row.task_id] = row.event_seq
        self._mark(("rows", rows))

    def info(self) -> Any:
        info = self._store.info()
        self._mark(("opened", info.namespace))
        return info

    def accept(self, *args: Any, **options: Any) -> Any:
        found = self._store.accept(*args, **options)
        self._rows()
        return found

    def begin(self, *args: Any, **options: Any) -> Any:
        claim = self._store.begin(*args, **options)
        self._rows()
        return claim

    def claim(self, task_id: str) -> Any:
        claim = self._store.claim(task_id)
        self._rows()
        return claim

    def append(self, *args: Any, **options: Any) -> None:
        self._store.append(*args, **options)
        self._rows()

    def add(self, *args: Any, **options: Any) -> Any:
        added = self._store.add(*args, **options)
        self._rows()
        return added

    def put_snapshot(self, *args: Any, **options: Any) -> None:
        self._store.put_snapshot(*args, **options)
        self._mark(("snapshot", None))

    def spill(self, event: Event, blobs: tuple[Blob, ...] = ()) -> str:
        name = self._store.spill(event, blobs)
        self._mark(("spilled", event))
        return name


class Tasks:
    """The two tasks over one store and one world, and whoever runs them and answers their cases."""

    def __init__(self, url: str, world: World, *, since: Instant | None = None, mark: Mark | None = None) -> None:
        self.world, self.clock = world, Clock(since)
        self.trouble = mark is not None  # the recorded run has it; who resumes after the power loss has not
        self.app = app = Doubtless(url, clock=self.clock, namespace=NAMESPACE.decode(), store_patience="PT1S")
        if mark is not None:
            noted = mark
            app._open = lambda url, **options: Acknowledging(open_store(url, **options), noted)  # type: ignore[return-value]

        @app.step(effect="read")
        def match_orders(day: str) -> list[str]:
            return [f"difference {number:030}" for number in range(70)]

        def find_sheet(idempotency_key: str) -> dict[str, Any] | None:
            return world.find(idempotency_key)

        @app.step(effect="idem_write")
        def withdraw_sheet(result: dict[str, Any], idempotency_key: str = injected()) -> dict[str, Any]:
            return world.do(result["id"] + "/withdrawn", idempotency_key, keyed=True)

        @app.step(effect="non_idem_write", query=find_sheet, compensate=withdraw_sheet, absent_after="PT20S", on_absent="retry")
        def create_sheet(task: str, differences: int, idempotency_key: str = injected()) -> dict[str, Any]:
            return world.do(f"{task}/create_sheet", idempotency_key)

        @app.step(effect="idem_write")
        def archive(task: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return {**world.do(f"{task}/archive", idempotency_key, keyed=True), "copy": "x" * BIG}

        @app.step(effect="non_idem_write")
        def submit_approval(task: str, idempotency_key: str = injected()) -> dict[str, Any]:
            done = world.do(f"{task}/submit_approval", idempotency_key)
            if self.trouble:
                raise ConnectionResetError("the reply was lost")
            return done

        @app.step(effect="non_idem_write")
        def post_entry(task: str, idempotency_key: str = injected()) -> dict[str, Any]:
            done = world.do(f"{task}/post_entry", idempotency_key)
            if self.trouble:
                app.store.limit_pages(app.store.pages())  # type: ignore[attr-defined]
            return {**done, "receipt": "r" * 6000}

        @app.step(effect="non_idem_write")
        def notify(task: str, idempotency_key: str = injected()) -> dict[str, Any]:
            return world.do(f"{task}/notify", idempotency_key)

        @app.task(snapshot_every=2)
        def reconcile(day: str) -> dict[str, Any]:
            differences = match_orders(day=day)
            sheet = create_sheet(task="recon", differences=len(differences))
            kept = archive(task="recon")
            submit_approval(task="recon")
            receipt = post_entry(task="recon")
            notify(task="recon")
            return {"sheet": sheet["id"], "kept": len(kept["copy"]), "receipt": len(receipt["receipt"])}

        @app.task
        def undone(day: str) -> None:
            create_sheet(task="undo", differences=1)
            notify(task="undo")
            raise Abort("the day was closed meanwhile")

        self.tasks = ((undone, "undo"), (reconcile, "recon"))

    def drive(self) -> None:
        """Run both to their ends, answering truthfully what a person is asked."""
        for task, name in self.tasks:
            for _ in range(12):
                try:
                    self.app.run(task, name, day="2026-11-28")
                except TaskFailed:
                    break
                except NeedsHuman:
                    self._answer()
                except StoreUnavailable:
                    if not self.trouble:
                        raise
                    self.app.store.limit_pages(None)  # type: ignore[attr-defined]
                else:
                    break
            else:
                raise AssertionError(f"task {name} does not come to an end")

    def _answer(self) -> None:
        for case in self.app.inbox().cases:
            happened = [reference for reference, _ in self.world.effects if reference == f"{case.task_id}/{case.step}"]
            answer = Happened(self._output(happened[0])) if happened else DidNotHappen("retry")
            self.app.settle(case.id, answer, by="ann", why="I looked", shown=case.hash)

    def _output(self, reference: str) -> dict[str, Any]:
        return {"id": reference, "receipt": "r" * 6000} if reference.endswith("/post_entry") else {"id": reference}


ENDS = {"recon": "done", "undo": "compensated"}
ONCE = (
    "recon/archive", "recon/create_sheet", "recon/notify", "recon/post_entry", "recon/submit_approval",
    "undo/create_sheet", "undo/create_sheet/withdrawn", "undo/notify",
)  # fmt: skip
"""What has to have happened, once each, when both tasks are at their ends."""
