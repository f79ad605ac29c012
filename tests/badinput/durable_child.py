"""What the killed processes of these tests do: ``durable_child.py URL DEED WORLD``; each effect is a line in WORLD."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bad_ground import Clock

from doubtless import Doubtless, injected


class Books:
    """An app whose writes are lines in a file: the other side, which outlives every process."""

    def __init__(self, app: Doubtless, world: Path, *, steps: int = 5) -> None:
        self.app = app
        self.world = world
        self.after: Callable[[int], None] = lambda number: None

        def find(number: int, idempotency_key: str) -> dict[str, Any] | None:
            return {"number": number} if f"{number} {idempotency_key}" in self.lines() else None

        @app.step(effect="non_idem_write", query=find, timeout="PT5S")
        def book(number: int, idempotency_key: str = injected()) -> dict[str, Any]:
            with open(world, "a") as file:
                file.write(f"{number} {idempotency_key}\n")
            self.after(number)
            return {"number": number}

        @app.step(effect="non_idem_write", timeout="PT5S")
        def announce(number: int, idempotency_key: str = injected()) -> dict[str, Any]:
            with open(world, "a") as file:
                file.write(f"announced {number}\n")
            self.after(number)
            return {"number": number}

        @app.task
        def keep_books() -> int:
            return sum(book(number=number)["number"] for number in range(1, steps + 1))

        @app.task
        def tell(number: int) -> dict[str, Any]:
            return announce(number=number)

        self.task, self.tell, self.book = keep_books, tell, book

    def lines(self) -> list[str]:
        return self.world.read_text().splitlines() if self.world.exists() else []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_five(app: Doubtless, world: str) -> None:
    """Record five steps, and be killed in the sixth before it has an effect."""
    books = Books(app, Path(world), steps=5)

    @app.step(effect="read")
    def rest() -> int:
        die()
        return 0

    @app.task(name="keep_books_and_rest")
    def keep() -> int:
        total = sum(books.book(number=number)["number"] for number in range(1, 6))
        return total + rest()

    app.run(keep, "b1")


def die_in_two_intents(app: Doubtless, world: str) -> None:
    """Leave two writes that nobody can be asked about in flight: threads of one process, killed together."""
    import threading

    books = Books(app, Path(world))
    both = threading.Barrier(2)

    def wait_and_die(number: int) -> None:
        both.wait()
        die()

    books.after = wait_and_die
    threads = [threading.Thread(target=app.run, args=(books.tell, f"tell-{n}"), kwargs={"number": n}) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def die_with_the_whole_log_in_the_wal(app: Doubtless, world: str) -> None:
    """Finish two steps and be killed inside the third's call, with nothing copied from the WAL to the database."""
    books = Books(app, Path(world), steps=3)
    app.store.info()
    app.store._link._connection.wal_autocheckpoint(0)  # type: ignore[attr-defined]
    books.after = lambda number: die() if number == 3 else None
    app.run(books.task, "b1")


DEEDS = {deed.__name__: deed for deed in (die_after_five, die_in_two_intents, die_with_the_whole_log_in_the_wal)}

if __name__ == "__main__":
    _, url, deed, world = sys.argv
    DEEDS[deed](Doubtless(url, clock=Clock(), namespace="books"), world)
