"""The app that the worker processes of these tests run: ``$FOLDER`` is where they are told to stand, ``$WORLD`` what they change."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from doubtless import Doubtless, Found, injected

FOLDER = Path(os.environ["FOLDER"])
WORLD = os.environ["WORLD"]

app = Doubtless()


def ask(path: str, data: Any = None, key: str = "") -> Any:
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(WORLD + path, data=body, headers={"Idempotency-Key": key} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def found(idempotency_key: str) -> Any:
    effect = ask(f"/find?key={idempotency_key}")
    return None if effect is None else Found(effect["n"])


@app.step(effect="non_idem_write", query=found, timeout=os.environ.get("BOOK_TIMEOUT", "PT20S"))
def book(n: int, idempotency_key: str = injected()) -> int:
    """Has its effect; then, where it is told to, says so and stands until it may go on."""
    ask("/booking", {"n": n}, idempotency_key)
    gate = FOLDER / f"hold-{n}"
    if gate.exists():
        (FOLDER / f"inside-{n}").write_text(str(os.getpid()))
        while gate.exists():
            time.sleep(0.005)
    return n


@app.task
def pair(n: int) -> int:
    return book(n) + book(1000 + n)


@app.task
def single(n: int) -> int:
    return book(n)


@app.step(effect="non_idem_write", query=found, timeout="PT20S", name="abook")
async def abook(n: int, idempotency_key: str = injected()) -> int:
    import asyncio

    await asyncio.to_thread(ask, "/booking", {"n": n}, idempotency_key)
    return n


@app.task
async def several(n: int) -> int:
    return await abook(n)
