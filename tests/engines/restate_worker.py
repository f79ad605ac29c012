"""A worker of the tests on Restate: ``python -m engines.restate_worker NAME INGRESS PORT``; runs until it is killed.

Several of them share one port, as they would stand behind one address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from datetime import timedelta

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from doubtless.runners.restate import RestateRunner

from . import built


async def main() -> None:
    name, ingress, port = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    app, _ = built.build()
    short = timedelta(seconds=1)  # a call that takes longer than two seconds is aborted and tried again while it runs
    runner = RestateRunner(app, ingress=ingress, name=name, every="PT0.5S", inactivity_timeout=short, abort_timeout=short)
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", int(port)))
    place.listen(64)
    config = Config()
    config.bind = [f"fd://{place.fileno()}"]
    print("worker ready", flush=True)
    await serve(restate.app([runner.object]), config)  # type: ignore[arg-type]


if __name__ == "__main__":
    asyncio.run(main())
