"""One process of the program under test: loads an adapter, runs its task once, says in one line what came of it.

    python child.py ADAPTER.py SPEC-AS-JSON

Standard library only: it runs in the peer's own environment. The adapter's `run(world)` uses the peer as its docs say;
`SAYS` names what the peer's own exceptions mean. Anything else that escapes is a failure.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import threading
import time
import traceback
import urllib.request
from typing import Any


class World:
    """What every adapter is given: the folder for its store, who it is, and the gateway."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder: str = spec["folder"]
        self.owner: str = spec["owner"]  # the process's own name: a restart of one has the same
        self.look: bool = spec["look"]  # the step has a look-back: register it where the peer has such a thing
        self.keys: bool = spec["keys"]  # the gateway honours keys: pass one
        self.window: float | None = spec["window"]  # for so many seconds
        self.lease: float = spec["lease"]  # where the peer wants to know how long a call may take, in seconds
        self.lag: float = spec["lag"]  # how long the gateway's search may lag, as its docs say
        self.postgres: str | None = spec["postgres"]  # where the bench was given one; a table of this cell's own in it:
        self.table = "cell_" + "".join(c if c.isalnum() else "_" for c in os.path.basename(self.folder)).lower()
        self.task = "order-1"
        self._timeout: float = spec["timeout"]
        self._url: str = spec["url"]

    def pay(self, key: str | None = None) -> dict[str, Any]:
        """The step: one payment at the gateway. A lost reply is a TimeoutError."""
        self._call("before")
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key and self.keys else {})
        body = json.dumps({"reference": self.task}).encode()
        return self._call("payments", urllib.request.Request(f"{self._url}/payments", body, headers))

    def find(self) -> dict[str, Any] | None:
        """The look-back: the payment of this order, or None."""
        found = self._call(f"payments?reference={self.task}")["payments"]
        return found[0] if found else None

    def after(self) -> dict[str, Any]:
        """A read, when the payment is made."""
        return self._call("after")

    def ready(self) -> None:
        """Everything is imported; the task begins."""
        self._call("ready")

    def own_database(self) -> str:
        """A database of this cell's own, for a peer that takes a whole one; it is there from the cell's first process on."""
        import psycopg  # only where PostgreSQL is used

        assert self.postgres is not None
        with psycopg.connect(self.postgres, autocommit=True) as server:
            if not server.execute("SELECT 1 FROM pg_database WHERE datname = %s", (self.table,)).fetchone():
                server.execute(f'CREATE DATABASE "{self.table}"')
        return self.postgres.rpartition("/")[0] + "/" + self.table

    def _call(self, path: str, request: urllib.request.Request | None = None) -> dict[str, Any]:
        timeout = self._timeout if request is not None else 60.0
        with urllib.request.urlopen(request or f"{self._url}/{path}", timeout=timeout) as reply:
            return json.load(reply)


def main() -> None:
    logging.disable(logging.CRITICAL)
    told = json.loads(sys.argv[2])
    late = threading.Timer(told["patience"], lambda: tell("waiting", "it was still waiting when the bench ended it"))
    late.daemon = True
    late.start()
    says: dict[str, str] = {}
    try:
        adapter = load(sys.argv[1])
        says = getattr(adapter, "SAYS", {})
        world = World(told)
        world.ready()
        word = adapter.run(world)
        tell(word if isinstance(word, str) else "done", "")
    except BaseException as error:
        traceback.print_exc()
        tell(*heard(error, says))


def heard(error: BaseException, says: dict[str, str]) -> tuple[str, str]:
    """What an exception, or one that it was raised from, says by the adapter's list."""
    cause: BaseException | None = error
    while cause is not None:
        for kind in type(cause).__mro__:
            if kind.__name__ in says:
                return says[kind.__name__], f"{type(cause).__name__}: {cause}"
        cause = cause.__cause__ or cause.__context__
    return "failed", f"{type(error).__name__}: {error}"


def load(path: str) -> Any:
    """The adapter, from its file."""
    spec = importlib.util.spec_from_file_location("adapter", path)
    assert spec is not None
    assert spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    sys.modules["adapter"] = adapter
    spec.loader.exec_module(adapter)
    return adapter


def tell(word: str, said: str) -> None:
    """The last line of the standard output is what the program said. It lives on a while, as a service would: a thread that the
    peer has given up may still send."""
    print("\n" + json.dumps({"word": word, "said": said}), flush=True)
    time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
