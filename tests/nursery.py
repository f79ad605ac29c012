"""Processes for tests, each forked from one that has imported the package already: real ones, without the cost of their beginning.

`Popen` and `run` are those of `subprocess`, for `python -m MODULE …` and `python FILE …`. What is forked is a process with an id,
memory, signals and an end of its own; nothing of the package was called in it before. One that asks for another interpreter (an option, another
hash seed or encoding, another copy of the package) is started by `subprocess` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any

HANDLED = frozenset({"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"})
"""What an interpreter reads from its environment when it begins, and a forked process reads too."""

ORDINARY = [None, None, None, -1, False, -1]
"""Its user and groups, file mode, session and process group: this process's."""

LONGEST = 1 << 20

# ---------------------------------------------------------------- in the test


class Popen(subprocess.Popen[Any]):
    """A process as of `subprocess.Popen`. Only its start and the wait for its end are others: it is no child of this process."""

    _end = -1

    def _execute_child(self, args: Any, *more: Any) -> None:  # type: ignore[override]
        executable, preexec, _, pass_fds, cwd, env, _, _, shell, *ends = more
        environ = {os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if env is None else env).items()}
        words = [] if isinstance(args, (str, bytes, os.PathLike)) else [os.fsdecode(each) for each in args]
        if executable or preexec or pass_fds or shell or ends[7:13] != ORDINARY or not is_plain(words, environ):
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        stdin, _, _, stdout, _, stderr = ends[:6]
        self._end, told = os.pipe()
        try:
            said = json.dumps([words[1:], os.path.abspath(cwd or "."), environ]).encode("utf-8", "surrogateescape")
            fds = [stdin if stdin >= 0 else 0, stdout if stdout >= 0 else 1, stderr if stderr >= 0 else 2, told]
            socket.send_fds(nursery(), [said], fds)
        finally:
            os.close(told)
        self.pid = int(self._line())
        self._child_created = True
        self._close_pipe_fds(*ends[:6])  # type: ignore[attr-defined]

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n") and (more := os.read(self._end, 1)):
            line += more
        return line

    def _ended(self, timeout: float | None) -> bool:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                return False
            self.returncode = os.waitstatus_to_exitcode(int(self._line()))
            os.close(self._end)
        return True

    def _internal_poll(self, *args: Any, **more: Any) -> int | None:
        if self._end < 0:
            return super()._internal_poll(*args, **more)  # type: ignore[misc,no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            self._ended(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._end < 0:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if not self._ended(timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode


def run(
    command: Any, *, input: Any = None, capture_output: bool = False, timeout: float | None = None, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """What `subprocess.run` does."""
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        more["stdin"] = subprocess.PIPE
    with Popen(command, **more) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def is_plain(words: list[str], environ: dict[str, str]) -> bool:
    """Whether this is a program for an interpreter like this one, and for the package that is loaded here."""
    if len(words) < 2 or words[0] != sys.executable or (words[1].startswith("-") and (words[1] != "-m" or len(words) < 3)):
        return False
    special = {name for name in {*environ, *os.environ} if name.startswith(("PYTHON", "LC_", "LANG"))} - HANDLED
    if any(environ.get(name) != os.environ.get(name) for name in special):
        return False
    import doubtless

    here = os.path.dirname(os.path.dirname(os.path.realpath(doubtless.__file__)))
    places = environ.get("PYTHONPATH", "").split(os.pathsep)
    return all(os.path.realpath(place) == here for place in places if place and os.path.isfile(os.path.join(place, "doubtless", "__init__.py")))


_nursery: list[Any] = []
_lock = threading.Lock()


def nursery() -> socket.socket:
    """The line to this process's nursery, which ends when this process does."""
    with _lock:
        if not _nursery:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, its):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)}
            command = [sys.executable, os.path.abspath(__file__), str(its.fileno())]
            _nursery[:] = [subprocess.Popen(command, pass_fds=[its.fileno()], env=environ, stdin=subprocess.DEVNULL), ours]
            its.close()
        line: socket.socket = _nursery[1]
        return line


def close() -> None:
    """End the nursery, if there is one; what it has forked lives on."""
    if _nursery:
        process, line = _nursery
        line.close()
        process.wait()
        _nursery.clear()


# ---------------------------------------------------------------- in the nursery


def preload() -> None:
    """Import what programs of the tests import."""
    import pkgutil

    import doubtless

    for found in pkgutil.walk_packages(doubtless.__path__, "doubtless."):
        if not found.name.startswith(("doubtless.runners", "doubtless.demo")) and not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(found.name)
    for name in ("uvicorn", "starlette.applications", "starlette.routing"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in ("argparse", "asyncio", "concurrent.futures", "faulthandler", "http.client", "http.server", "sqlite3", "urllib.request"):
        importlib.import_module(name)


def serve(line: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """Fork a process for each request and tell how it ends; returns in the process (what it is to run), and at the end (None)."""
    told: dict[int, tuple[int, int]] = {}
    watch = selectors.DefaultSelector()
    watch.register(line, selectors.EVENT_READ)
    while True:
        for key, _ in watch.select():
            if key.fileobj is line:
                said, fds, _, _ = socket.recv_fds(line, LONGEST, 4)
                if not said:
                    return None
                words, cwd, environ = json.loads(said.decode("utf-8", "surrogateescape"))
                pid = os.fork()
                if not pid:
                    watch.close()
                    for pidfd, end in told.items():
                        os.close(pidfd)
                        os.close(end[1])
                    line.close()
                    for number, fd in enumerate(fds[:3]):
                        os.dup2(fd, number)
                    os.closerange(min(fds), max(fds) + 1)
                    os.chdir(cwd)
                    return words, environ
                os.write(fds[3], b"%d\n" % pid)
                for fd in fds[:3]:
                    os.close(fd)
                pidfd = os.pidfd_open(pid)
                told[pidfd] = pid, fds[3]
                watch.register(pidfd, selectors.EVENT_READ)
            else:
                pidfd = int(key.fileobj)  # type: ignore[arg-type]
                pid, end = told.pop(pidfd)
                watch.unregister(pidfd)
                os.close(pidfd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    os.write(end, b"%d\n" % status)
                os.close(end)


def become(words: list[str], environ: dict[str, str], base: list[str]) -> types.CodeType:
    """Make this process what the interpreter makes of itself for this program; the code to run as `__main__`."""
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    at_once = bool(environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)
    out, err = (open(number, "wb", 0 if at_once else -1, closefd=False) for number in (1, 2))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(
        out, sys.stdout.encoding, sys.stdout.errors, line_buffering=out.isatty(), write_through=at_once
    )
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(
        err, sys.stderr.encoding, "backslashreplace", line_buffering=True, write_through=at_once
    )
    if environ.get("PYTHONFAULTHANDLER"):
        import faulthandler

        faulthandler.enable()
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    is_module = words[0] == "-m"
    first = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
    sys.path[:] = [first, *(os.path.abspath(place) for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place), *base]
    importlib.invalidate_caches()
    sys.modules["__main__"] = main
    if not is_module:
        sys.argv = words
        main.__file__ = os.path.abspath(words[0])
        with open(words[0], "rb") as file:
            return compile(file.read(), main.__file__, "exec")
    spec = importlib.util.find_spec(words[1])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{words[1]}.__main__")
    if spec is None or spec.origin is None:
        raise SystemExit(f"{sys.executable}: No module named {words[1]}")
    sys.argv = [spec.origin, *words[2:]]
    main.__file__, main.__spec__, main.__package__ = spec.origin, spec, spec.parent
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    assert isinstance(code, types.CodeType)
    return code


def live(code: types.CodeType) -> int:
    """Run the program to its end as an interpreter does, but for taking down what it has in memory; its exit code."""
    status = 0
    try:
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if status == 1 and not isinstance(left.code, int):
            print(left.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]  # until its threads have ended
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:
            status = status or 120
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status & 0xFF


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever runs the tests ends them, and so this process
    _base = [place for place in sys.path[1:] if place.endswith(("site-packages", ".zip")) or "/lib/python" in place]
    preload()
    gc.freeze()  # what is shared stays so
    _asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if _asked is not None:
        _code = live(become(*_asked, _base))
        os._exit(_code)
