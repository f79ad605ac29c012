"""The crash bench: Doubtless and what people use today, in the same situations, against a gateway that counts.

    python benchmarks/crash/crash_bench.py [--venvs FOLDER] [--peers NAMES] [--cells LETTERS] [--jobs N] [--out FILE]
                                           [--postgres DSN [--absurd]]

Each peer gets a virtual environment of its own with pinned versions; one that cannot be installed or run is named in the
page with the reason, and the others go on. Those who need PostgreSQL get a server of the bench's own, thrown away at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from peers import DOUBTLESS, ENTRIES, Entry
from report import Row, page
from situations import HERE, LIVING, SITUATIONS, Gateway, Peer, Result, Situation, play

ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.postgres.server import Server, servers  # noqa: E402 - it is found by the path above

OWN: list[Server] = []
"""The server that is running."""


class Here(NamedTuple):
    """What this run has: folders, and a PostgreSQL database or none."""

    venvs: Path
    folder: Path
    jobs: int
    postgres: str | None
    schema: bool


class Unavailable(Exception):
    """This peer cannot be run here; its text says why."""


def interpreter(entry: Entry) -> str:
    """A Python that is new enough for a peer."""
    if sys.version_info[:2] >= entry.python:
        return sys.executable
    for minor in range(entry.python[1], entry.python[1] + 4):
        for folder in os.get_exec_path():
            found = shutil.which(f"python3.{minor}", path=folder)
            if found and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0:
                return found
    raise Unavailable(f"needs Python {entry.python[0]}.{entry.python[1]} or newer, and none is on the PATH")


def install(entry: Entry, venvs: Path) -> str:
    """The peer's Python, in an environment with its pins; made anew when the pins have changed."""
    if entry is DOUBTLESS:
        return sys.executable
    pins = HERE / "requirements" / entry.requirements
    venv = venvs / pins.stem
    python, stamp = venv / "bin" / "python", venv / "pins.txt"
    if not (stamp.exists() and stamp.read_text() == pins.read_text()):
        make = [interpreter(entry), "-m", "venv", "--clear", str(venv)]
        made = subprocess.run(make, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Unavailable(f"its environment could not be made: {made.stderr.strip()[-200:]}")
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(pins)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
            raise Unavailable(f"`pip install -r {pins.relative_to(ROOT)}` failed: {errors[-1].strip()[:200]}")
        stamp.write_text(pins.read_text())
    return str(python)


def version(entry: Entry, python: str) -> str:
    """The version that is installed, not the one that was asked for."""
    ask = f"import importlib.metadata as m; print(m.version({entry.package!r}))"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def measure(entry: Entry, situations: list[Situation], here: Here) -> Row:
    """A peer's row of the matrix."""
    try:
        if entry.reason:
            raise Unavailable(entry.reason)
        if entry.postgres and here.postgres is None:
            raise Unavailable("needs PostgreSQL, and no server was found: install one, or run the bench with `--postgres DSN`")
        if entry.schema and not here.schema:
            raise Unavailable("needs its schema in that database, which its own `absurdctl init` puts there from the network: do "
                              "that, then run the bench with `--postgres DSN --absurd`. Its adapter has not been run by us")
        python = install(entry, here.venvs)
        installed = version(entry, python)
    except (Unavailable, OSError, subprocess.CalledProcessError) as problem:
        print(f"{entry.name}: cannot be run: {problem}", flush=True)
        return Row(entry, "", str(problem), {})
    print(f"{entry.name} {installed}", flush=True)
    peer = Peer(entry.name, HERE / "adapters" / entry.adapter, python, entry.look_back, here.postgres)

    def one(situation: Situation) -> Result | str:
        if situation.only and not entry.look_back:
            return "none"
        try:
            result = play(peer, situation, gateway, here.folder)
        except Exception as problem:
            print(f"  {situation.letter:2}  could not be played: {problem}", flush=True)
            return f"could not be played: {problem}"
        said = " then ".join(f"{said.owner}: {said.word}" for said in result.said)
        print(f"  {situation.letter:2}  {result.effects} effect(s)  {said}  ({result.seconds:.1f} s)", flush=True)
        return result

    jobs = 1 if entry.one_by_one else here.jobs
    with Gateway(Path(tempfile.mkdtemp(prefix="gateway-", dir=here.folder))) as gateway, ThreadPoolExecutor(jobs) as pool:
        cells = dict(zip([s.letter for s in situations], pool.map(one, situations), strict=True))
    return Row(entry, installed, "", cells)


@contextlib.contextmanager
def own_server(dsn: str | None) -> Iterator[str | None]:
    """An empty database of the bench's own; the one that was given; or None where no server's programs are found."""
    if dsn is not None or not servers():
        yield dsn
        return
    server = Server()
    OWN.append(server)
    try:
        server.start()
        yield f"postgresql://doubtless@127.0.0.1:{server.port}/postgres"
    finally:
        OWN.clear()
        server.remove()


def ended_early(number: int, frame: object) -> None:
    """Leave no process behind: SIGKILL ends a stopped one too. The gateway ends with us."""
    for child in list(LIVING):
        child.kill()
    for server in OWN:
        server.remove()
    os._exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--venvs", type=Path, help="where the peers' environments are made and kept; default: a temporary folder")
    parser.add_argument("--peers", help="names, separated by commas; default: all")
    parser.add_argument("--cells", help="letters, separated by commas; default: all")
    parser.add_argument("--jobs", type=int, default=3, help="cells that are played at the same time (they mostly wait)")
    parser.add_argument("--postgres", metavar="DSN", help="an empty database; default: one of a server of our own")
    parser.add_argument("--absurd", action="store_true", help="that database has absurd's schema: `absurdctl init` was run")
    parser.add_argument("--out", type=Path, help="the page to write; default: print it")
    parser.add_argument("--json", type=Path, help="everything that was noted, as JSON")
    parser.add_argument("--noted", type=Path, help="play nothing: write the page from what `--json` kept")
    told = parser.parse_args()
    situations = [s for s in SITUATIONS if not told.cells or s.letter in told.cells.split(",")]
    entries = [e for e in ENTRIES if not told.peers or e.name in told.peers.split(",")]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended_early)
    begun = time.monotonic()
    if told.noted:
        noted = json.loads(told.noted.read_text())
        rows = [Row.noted(entry, plain) for entry in entries for plain in noted["rows"] if plain["name"] == entry.name]
        seconds = noted["seconds"]
    else:
        with tempfile.TemporaryDirectory(prefix="crash-bench-") as name:
            venvs = (told.venvs or Path(name) / "venvs").resolve()
            venvs.mkdir(parents=True, exist_ok=True)
            with own_server(told.postgres) as dsn:
                here = Here(venvs, Path(name), told.jobs, dsn, told.absurd)
                rows = [measure(entry, situations, here) for entry in entries]
        seconds = time.monotonic() - begun
    if told.json:
        told.json.write_text(json.dumps({"seconds": seconds, "rows": [row.plain() for row in rows]}, indent=1) + "\n")
    text = page(rows, situations, seconds)
    if told.out:
        told.out.write_text(text, encoding="utf-8")
        print(f"{told.out} is written")
    else:
        print(text)
    return 0 if all(isinstance(cell, Result) for row in rows if row.entry is DOUBTLESS for cell in row.cells.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
