"""A process of the nursery is to its starter what one of `subprocess` is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import nursery

PROGRAMS = {
    "returns": "print('out'); print('err', file=sys.stderr)",
    "exits with a number": "print('out'); sys.exit(7)",
    "exits with a word": "sys.exit('bye')",
    "exits with nothing": "sys.exit()",
    "exits beyond a byte": "sys.exit(-1)",
    "raises": "raise KeyError('colour')",
    "is interrupted": "raise KeyboardInterrupt",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "leaves at once": "print('lost'); os._exit(3)",
    "says goodbye": "atexit.register(print, 'goodbye'); print('hello', end='')",
    "waits for its threads": "threading.Timer(0.05, print, ['late']).start()",
    "leaves a daemon": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "echoes": "print(sys.stdin.read().upper(), sys.argv[1:], os.getcwd(), os.environ['WORD'], __name__, sys.argv[0], __file__)",
    "finds its neighbours": "import neighbour; print(neighbour.NAME, neighbour.__file__)",
    "has modes": "print(sys.dont_write_bytecode, signal.getsignal(signal.SIGINT), os.get_inheritable(1), sys.stdout.encoding)",
    "closed its output": "sys.stdout.close(); sys.exit(0)",
}
IMPORTS = "import atexit, os, signal, sys, threading\n"


@pytest.mark.parametrize("module", [False, True], ids=["file", "module"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_its_output_and_its_end_are_those_of_an_interpreter_of_its_own(tmp_path: Path, name: str, module: bool) -> None:
    (tmp_path / "program.py").write_text(IMPORTS + PROGRAMS[name])
    (tmp_path / "neighbour.py").write_text("NAME = 'next door'")
    command = [sys.executable, *(["-m", "program"] if module else ["program.py"]), "one", "-m", "two"]
    environ = {**os.environ, "WORD": "wörd", "PYTHONDONTWRITEBYTECODE": "1"}
    ends = []
    for run in (subprocess.run, nursery.run):
        ended = run(command, cwd=tmp_path, env=environ, input="said", capture_output=True, text=True, timeout=60)
        ends.append((ended.returncode, ended.stdout, ended.stderr.strip().splitlines()[-1:]))
    assert ends[0] == ends[1]


def test_it_is_a_process_of_its_own_that_can_be_asked_signalled_and_waited_for() -> None:
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with nursery.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Serving HTTP")
        assert process.poll() is None
        assert process.pid not in (os.getpid(), nursery._nursery[0].pid)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == process.poll() == -signal.SIGTERM
    assert nursery._nursery[0].poll() is None


def test_it_has_a_memory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import doubtless; print(getattr(doubtless, 'mine', None)); doubtless.mine = 1")
    said = [nursery.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True).stdout for _ in range(2)]
    assert said == ["None\n"] * 2


@pytest.mark.parametrize(
    ("words", "environ"),
    [(["-c", "pass"], {}), (["-X", "dev", "x.py"], {}), ([], {}), (["x.py"], {"PYTHONHASHSEED": "7"}), (["x.py"], {"LC_ALL": "C"})],
)
def test_what_asks_for_another_interpreter_is_not_forked(words: list[str], environ: dict[str, str]) -> None:
    assert not nursery.is_plain([sys.executable, *words], {**os.environ, **environ})
    assert nursery.is_plain([sys.executable, "x.py"], {**os.environ})
    assert not nursery.is_plain(["sh", "x.py"], {**os.environ})


def test_a_program_for_another_copy_of_the_package_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "doubtless").mkdir()
    (tmp_path / "doubtless" / "__init__.py").touch()
    assert not nursery.is_plain([sys.executable, "x.py"], {**os.environ, "PYTHONPATH": str(tmp_path)})
