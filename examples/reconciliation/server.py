"""The other side, as a real server in a process of its own: ERP, approvals, chat, and closing a run.

    python -m examples.reconciliation.server --db office.db

How it listens, has accidents and stops is `serving`; what it keeps is `books`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .books import Books
from .counting import Refused
from .faults import Clock
from .serving import Answer, Request, Route, World, serve


class Office(World):
    """The state of the server: its books, its clock, its faults."""

    def __init__(self, path: Path, key_window_s: float | None = None) -> None:
        clock = Clock()
        self.books = Books(path, clock, key_window_s)
        super().__init__(clock, self.books)

    def create_sheet(self, request: Request) -> Answer:
        return Answer(201, self.books.create_sheet(request.body))

    def find_sheets(self, request: Request) -> Answer:
        return Answer(200, {"items": self.books.find_sheets(_asked(request), request.lag_s)})

    def withdraw_sheet(self, request: Request) -> Answer:
        return Answer(200, self.books.withdraw_sheet(_number(request.id, "A-")))

    def submit_approval(self, request: Request) -> Answer:
        return Answer(201, self.books.submit_approval(request.body))

    def find_approvals(self, request: Request) -> Answer:
        return Answer(200, {"items": self.books.find_approvals(_asked(request), request.lag_s)})

    def withdraw_approval(self, request: Request) -> Answer:
        return Answer(200, self.books.withdraw_approval(_number(request.id, "P-")))

    def process_approval(self, request: Request) -> Answer:
        return Answer(200, self.books.process_approval(_number(request.id, "P-")))

    def reverse_approval(self, request: Request) -> Answer:
        return Answer(200, self.books.reverse_approval(_number(request.id, "P-")))

    def post_message(self, request: Request) -> Answer:
        return Answer(201, self.books.post_message(request.body))

    def find_messages(self, request: Request) -> Answer:
        raise Refused(403, "people read this chat; programs may only write to it")

    def close_run(self, request: Request) -> Answer:
        if not request.key:
            raise Refused(400, "the header Idempotency-Key is missing")
        closing = self.books.close_run(request.id, request.key, request.body)
        return Answer(200, closing.body, closing.replayed)


ROUTES = (
    Route("POST", "/adjustments", Office.create_sheet),
    Route("GET", "/adjustments", Office.find_sheets),
    Route("POST", "/adjustments/{id}/withdraw", Office.withdraw_sheet),
    Route("POST", "/approvals", Office.submit_approval),
    Route("GET", "/approvals", Office.find_approvals),
    Route("POST", "/approvals/{id}/withdraw", Office.withdraw_approval),
    Route("POST", "/approvals/{id}/process", Office.process_approval),
    Route("POST", "/approvals/{id}/reverse", Office.reverse_approval),
    Route("POST", "/chat/messages", Office.post_message),
    Route("GET", "/chat/messages", Office.find_messages),
    Route("PUT", "/runs/{id}/close", Office.close_run),
)


def _asked(request: Request) -> str:
    reference = request.search.get("reference", "")
    if not reference:  # answering with everything would hand somebody else's sheet to a caller with an empty key
        raise Refused(400, "reference is missing")
    return reference


def _number(text: str, prefix: str) -> int:
    digits = text.removeprefix(prefix)
    if not (text.startswith(prefix) and digits.isascii() and digits.isdigit()):
        raise Refused(404, f"no such id: {text}")
    return int(digits)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="the other side of the reconciliation: ERP, approvals, chat")
    parser.add_argument("--db", type=Path, required=True, help="its SQLite file; made if need be")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--key-window", type=float, default=None, metavar="SECONDS", help="how long a closing's key is remembered"
    )
    chosen = parser.parse_args(argv)
    return serve(Office(chosen.db, chosen.key_window), ROUTES, chosen.port)


if __name__ == "__main__":
    sys.exit(main())
