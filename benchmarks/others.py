"""Those who do the same work beside us: where they come from, and their processes, which take turns with ours over a pipe.

Each lives in a virtual environment of its own with pinned versions, made once and kept. One that cannot be had is named with
the reason, and the others go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from postgres import Cluster
from sections import ROOT

HERE = ROOT / "benchmarks" / "peers"
CRASH = ROOT / "benchmarks" / "crash" / "requirements"


class Entry(NamedTuple):
    """Somebody beside us. `stores`: where it keeps its log; `own`: in a server of its own, on the same disk."""

    name: str
    package: str
    program: str
    requirements: Path
    stores: tuple[str, ...]
    npm: str = ""
    schema: bool = False


ENTRIES = (
    Entry("DBOS", "dbos", "dbos_program.py", CRASH / "dbos.txt", ("sqlite", "postgres")),
    Entry("LangGraph", "langgraph", "langgraph_program.py", HERE / "requirements" / "langgraph.txt", ("sqlite", "postgres")),
    Entry("absurd", "absurd-sdk", "absurd_program.py", CRASH / "absurd.txt", ("postgres",), schema=True),
    Entry("Restate", "restate-sdk", "restate_program.py", HERE / "requirements" / "restate.txt", ("own",),
          npm="@restatedev/restate-server@1"),
)  # fmt: skip


class Unavailable(Exception):
    """This peer cannot be measured here; its text says why."""


class Peer:
    """A peer's process. Its first answer says that it is ready."""

    def __init__(self, entry: Entry, version: str, python: str, where: dict[str, str], patience: float = 120) -> None:
        self.entry, self.version, self.store = entry, version, where["store"]
        self.name = entry.name if self.store == "own" else f"{entry.name} {self.store}"
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DOUBTLESS_STORE")}
        self._errors = tempfile.TemporaryFile(dir=where["folder"])  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [python, str(HERE / "child.py"), str(HERE / entry.program), json.dumps(where)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1, cwd=where["folder"], env=environment,
        )  # fmt: skip
        try:
            self._answer(patience)
        except Unavailable:
            self.end()
            raise

    def ask(self, work: str, *, patience: float = 90, **how: int) -> float:
        """Have it do some work; the seconds that it took. Raises: Unavailable."""
        self.send(work, **how)
        return self._answer(patience)

    def send(self, work: str, **how: int) -> None:
        """Have it begin; `taken` waits for its end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"work": work, **how}) + "\n")
        except OSError as error:
            raise Unavailable(f"its process has ended: {self._said()}") from error

    def taken(self, patience: float = 90) -> float:
        """The seconds that it took."""
        return self._answer(patience)

    def _answer(self, patience: float) -> float:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(patience):
                raise Unavailable(f"it did not answer within {patience:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"its process has ended: {self._said()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return float(answer.get("seconds", 0))

    def _said(self) -> str:
        self._errors.seek(0)
        return " ".join(self._errors.read().decode(errors="replace").split())[-200:]

    def end(self) -> None:
        """End its process, and whatever it has started."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class Others:
    """The peers of one run: installed once, a process each while a section needs them."""

    def __init__(self, venvs: Path, folder: str, cluster: Cluster | None, names: str | None, absurd: Path | None) -> None:
        self.missing: dict[str, str] = {}
        self._folder, self._cluster, self._absurd = folder, cluster, absurd
        self._made: dict[str, tuple[Entry, str, str]] = {}
        self._numbers = 0
        wanted = None if names is None else {name.lower() for name in names.split(",")}
        for entry in ENTRIES:
            if wanted is not None and entry.name.lower() not in wanted:
                continue
            try:
                if entry.schema and absurd is None:
                    raise Unavailable("its schema has to be given, as `--absurd-schema FILE` (what `absurdctl init` puts into a "
                                      "database); its program has not been run by us")
                self._made[entry.name] = (entry, *install(entry, venvs))
            except (Unavailable, OSError, subprocess.SubprocessError) as problem:
                self._without(entry.name, str(problem))

    def _without(self, name: str, why: str) -> None:
        print(f"  {name} is left out: {why}", flush=True)
        self.missing[name] = why

    @property
    def versions(self) -> str:
        """Who is there, in which version."""
        return ", ".join(f"{name} {version}" for name, (_, version, _) in self._made.items())

    @contextlib.contextmanager
    def on(self, store: str) -> Iterator[dict[str, Peer]]:
        """A process of each peer that works on this kind of store, and of those with a server of their own."""
        peers: dict[str, Peer] = {}
        try:
            for entry, version, python in self._made.values():
                if store not in entry.stores and "own" not in entry.stores:
                    continue
                with self.guarded(entry.name, store):
                    peers[entry.name] = Peer(entry, version, python, self._where(entry, store))
            yield peers
        finally:
            for peer in peers.values():
                peer.end()

    @contextlib.contextmanager
    def several(self, name: str, store: str, count: int) -> Iterator[list[Peer]]:
        """So many processes of one peer on one store."""
        entry, version, python = self._made[name]
        where = self._where(entry, store)
        peers: list[Peer] = []
        try:
            for number in range(count):
                peers.append(Peer(entry, version, python, {**where, "name": f"{where['name']}{number}"}))
            yield peers
        finally:
            for peer in peers:
                peer.end()

    @contextlib.contextmanager
    def guarded(self, name: str, store: str) -> Iterator[None]:
        """Go on without a peer that fails, and name it with the reason."""
        try:
            yield
        except (Unavailable, OSError, ValueError, LookupError) as problem:
            self._without(f"{name} ({store})", str(problem))

    def names(self, store: str) -> list[str]:
        """Who works on this kind of store."""
        return [name for name, (entry, _, _) in self._made.items() if store in entry.stores]

    def _where(self, entry: Entry, store: str) -> dict[str, str]:
        self._numbers += 1
        name = f"{entry.name.lower()}{self._numbers}"
        folder = tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder)
        kind = "own" if "own" in entry.stores else store
        url = f"sqlite:///{folder}/log.db"
        if kind == "postgres":
            if self._cluster is None:
                raise Unavailable("no PostgreSQL server was found")
            url = self._cluster.database(name)
            if entry.schema and self._absurd is not None:
                self._cluster.run(name, self._absurd.read_text(encoding="utf-8"))
        return {"folder": folder, "url": url, "name": name, "store": kind}


def install(entry: Entry, venvs: Path) -> tuple[str, str]:
    """The version and the Python of a peer's environment; made anew when its pins have changed."""
    venv = venvs / entry.name.lower()
    python, stamp = venv / "bin" / "python", venv / "pins.txt"
    pins = entry.requirements.read_text(encoding="utf-8") + entry.npm
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == pins):
        print(f"  installing {entry.name} …", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(entry.requirements)])
        if entry.npm:
            if shutil.which("npm") is None:
                raise Unavailable("npm is not here")
            _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(venv / "npm"), entry.npm])
        stamp.write_text(pins, encoding="utf-8")
    return version(entry, venv), str(python)


def version(entry: Entry, venv: Path) -> str:
    """What is installed, not what was asked for: the server's, where the peer is one."""
    if entry.npm:
        name = entry.npm.rpartition("@")[0]
        said = json.loads((venv / "npm" / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
        return str(said["version"])
    ask = f"import importlib.metadata as m; print(m.version({entry.package!r}))"
    command = [str(venv / "bin" / "python"), "-c", ask]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _run(command: list[str], patience: float = 300) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"`{' '.join(command[-3:])}` took longer than {patience:.0f} s") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise Unavailable(f"`{' '.join(command[-3:])}` failed: {errors[-1][:200]}")


def asked(others: Others, peers: dict[str, Peer], store: str, work: str, **how: int) -> dict[str, Callable[[], float]]:
    """The works of these peers for `take_turns`; one that fails once does not come again, and says infinity."""
    gone: set[str] = set()

    def of(name: str, peer: Peer) -> Callable[[], float]:
        def turn() -> float:
            if name in gone:
                return float("inf")
            try:
                return peer.ask(work, **how)
            except (Unavailable, OSError, ValueError) as problem:
                gone.add(name)
                others.missing[f"{name} ({store})"] = str(problem)
                print(f"  {name} ({store}) is left out: {problem}", flush=True)
                return float("inf")

        return turn

    return {name: of(name, peer) for name, peer in peers.items()}

