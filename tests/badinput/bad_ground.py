"""What the bad-input tests stand on: a clock that waits turn, and a trap that sees whatever was called or written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import pytest

from doubtless import Doubtless
from doubtless.errors import DoubtlessError
from doubtless.testing import FakeClock


class MakeApp(Protocol):
    def __call__(self, url: str | None = ..., **options: object) -> Doubtless: ...


class Clock(FakeClock):
    """Waits inside a run turn it; they count for how long a run believes to have waited, too."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.waited

    def pause(self, seconds: float, stop: threading.Event | None) -> None:
        self.waited += seconds
        super().pause(seconds, stop)


def everything(folder: Path) -> dict[str, tuple[str, int]]:
    """Every name below a folder, with what is in it and what may be done with it; not SQLite's shared memory, which reads change."""
    return {
        str(path.relative_to(folder)): (sha256(path.read_bytes()).hexdigest() if path.is_file() else "", path.lstat().st_mode)
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith("-shm")
    }


def says_what_to_type(error: DoubtlessError, *words: str) -> None:
    """The message names the thing; and it or its hint says what to type."""
    assert error.message.strip()
    assert error.hint.strip() or any(said in error.message for said in ("; it takes ", "expected ")), f"no hint: {error.message}"
    assert str(error).startswith(error.message)
    for word in words:
        assert word in str(error), f"{word!r} is not in {str(error)!r}"


class Trap:
    """A step and a task that no bad input may reach, and the bytes of the store that none may change."""

    def __init__(self, app: Doubtless, folder: Path) -> None:
        self.app = app
        self.folder = folder
        self.called: list[dict[str, Any]] = []
        self.call: Callable[[], Any] = lambda: None
        trap = self

        @app.step(effect="non_idem_write")
        def pay(order: Any, amount: int = 1, *, note: Any = None) -> dict[str, Any]:
            trap.called.append({"order": order, "amount": amount, "note": note})
            return {"id": 1}

        @app.task
        def settle_order(order: Any = None) -> Any:
            return trap.call()

        self.pay, self.task = pay, settle_order

    def refused(self, call: Callable[[], Any], kind: type[DoubtlessError], *words: str) -> DoubtlessError:
        """Outside of a task: the error of `call`, which has changed nothing on disk."""
        before = everything(self.folder)
        with pytest.raises(kind) as error:
            call()
        assert everything(self.folder) == before
        assert self.called == []
        says_what_to_type(error.value, *words)
        return error.value

    def refused_in_a_task(self, call: Callable[[], Any], kind: type[DoubtlessError], *words: str) -> DoubtlessError:
        """Inside a task: the error that task code gets from `call`; no row of any step is in the log."""
        caught: list[DoubtlessError] = []

        def catch() -> str:
            with pytest.raises(kind) as error:
                call()
            caught.append(error.value)
            return "caught"

        self.call = catch
        assert self.app.run(self.task, "t1") == "caught"
        assert [row.path for row in self.app.store.rows("t1") if row.path] == []
        assert self.called == []
        says_what_to_type(caught[0], *words)
        return caught[0]
