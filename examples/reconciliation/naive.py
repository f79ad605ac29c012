"""What most people write: call, and on any error call again. For comparison; see `app` for the other way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

from . import client
from .load import load_orders, load_statement
from .match import match

Result = TypeVar("Result")


def retrying(call: Callable[[], Result], *, tries: int = 3) -> Result:
    """Return what `call` returns, trying again after any network error."""
    for _ in range(tries - 1):
        try:
            return call()
        except (OSError, HTTPException):
            continue
    return call()


def reconcile(server: str, run: str, day: date, statement: Path, orders: Path) -> None:
    """The same seven steps as `app`, with a retry around each write. A lost reply makes two of it."""
    differences = match(load_statement(statement), load_orders(orders), day)
    sheets = [retrying(partial(client.create_sheet, server, difference=found, run=run)) for found in differences]
    approval = retrying(partial(client.submit_approval, server, run=run, sheets=[sheet["id"] for sheet in sheets]))
    retrying(partial(client.send_chat, server, run=run, text=f"{len(sheets)} sheets wait for approval {approval['id']}"))
    retrying(partial(client.close_run, server, run=run, approval=approval["id"], key=run))
