"""Serve on this machine.

    python -m examples.service --port 8125 --files books/

needs $DOUBTLESS_STORE and $RECON_SERVER. It prints one line of JSON with its port, and drains on SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from .app import create


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="reconciliations as a web service")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--files", type=Path, default=None, help="where statements and ledgers lie (default: $SERVICE_FILES)")
    chosen = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    config = uvicorn.Config(create(files=chosen.files), host="127.0.0.1", port=chosen.port, log_level="warning")
    socket = config.bind_socket()
    socket.listen()  # who comes before the worker is up waits, and is not turned away
    print(json.dumps({"port": socket.getsockname()[1]}), flush=True)
    uvicorn.Server(config).run(sockets=[socket])


if __name__ == "__main__":
    main()
