"""Results that the database does not take: kept in synced files beside it until they stand in the log (rule 6)."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import Any

from .. import host
from ..errors import StoreUnavailable, UsageError
from ..events import Event, dump, upcast
from .folder import Hooks, names_above, sync_directory, write_whole


class Spill:
    """The folder of spilled results. A result is named by the full path of its file, so that whoever is told it finds it.

    The file's own name starts with its task's hash and the time it was written.
    """

    def __init__(self, path: str, hooks: Hooks = None) -> None:
        self.path = os.path.abspath(path)
        self._hooks = hooks
        self._sure: set[str] = set()

    def put(self, event: Event, now: int) -> str:
        """Keep an event, synced; its name."""
        columns = [{"x": value.hex()} if isinstance(value, bytes) else value for value in event]
        body = dump(columns)
        file = f"{_mark_of(event.task_id)}-{now:020}-{host.randomness(4).hex()}.json"
        content = dump({"event": body, "sha256": sha256(body.encode()).hexdigest()})
        try:
            name = os.path.join(self.path, file)
            write_whole(name, content.encode(), self._hooks, "spill", names_above(self.path, self.path, self._sure))
            self._sure.add(self.path)
        except OSError as error:
            raise StoreUnavailable(
                f"task {event.task_id}: a result cannot be kept in {self.path} either: {error.strerror}",
                hint="free space; while this process lives the result is not lost",
                written=False,
            ) from error
        return name

    def of_task(self, task_id: str) -> list[tuple[str, Event]]:
        """The task's spilled results, oldest first; a damaged file is left for `verify` to report."""
        found: list[tuple[str, Event]] = []
        if not os.access(self.path, os.F_OK):  # most often nothing was ever spilled: asked for each run of each task
            return found
        for name in self.names():
            if os.path.basename(name).startswith(_mark_of(task_id) + "-"):
                event = self.read(name)
                if event is not None and event.task_id == task_id:
                    found.append((name, event))
        return found

    def names(self) -> list[str]:
        """The names of all spilled results."""
        try:
            return sorted(os.path.join(self.path, file) for file in os.listdir(self.path) if file.endswith(".json"))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> Event | None:
        """One spilled result; None when its file is damaged."""
        try:
            with open(name, encoding="utf-8") as file:
                said = json.load(file)
            if sha256(said["event"].encode()).hexdigest() != said["sha256"]:
                return None
            columns: list[Any] = json.loads(said["event"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return upcast([bytes.fromhex(value["x"]) if isinstance(value, dict) else value for value in columns])

    def drop(self, name: str) -> None:
        """Remove a spilled result that stands in the log."""
        if os.path.abspath(name) != name or os.path.dirname(name) != self.path:
            raise UsageError(f"{name!r} is no spilled result's name")
        self._point("spill:drop")
        try:
            os.unlink(name)
        except FileNotFoundError:
            return
        sync_directory(self.path)
        self._point("spill:dropped")

    def _point(self, name: str) -> None:
        if self._hooks is not None:
            self._hooks(name)


def _mark_of(task_id: str) -> str:
    return sha256(task_id.encode()).hexdigest()[:24]
