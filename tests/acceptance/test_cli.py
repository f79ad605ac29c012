"""The command line, as subprocesses with real files: what it prints, what it exits with, and what it leaves in the log.

`Shop.cli` checks of every call what has to hold of all of them: no control character in anything that is piped, one line on
stderr when it fails, and with ``--json`` one document on stdout.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from doubtless.cli.exits import MEANING
from doubtless.cli.group import HOMES
from doubtless.cli.reporting import plain
from doubtless.cli.running import joined
from doubtless.cli.typed import typed

APP = '''
import json, os, sys, time
from decimal import Decimal
from pathlib import Path
from doubtless import Doubtless, Rejected, injected

app = Doubtless(os.environ.get("SHOP_STORE"))
number = 3

def effects():
    path = Path("effects.txt")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

def happen(what, key):
    with open("effects.txt", "a") as file:
        file.write(json.dumps({"what": what, "key": key}) + "\\n")

def find(idempotency_key):
    return next((effect for effect in effects() if effect["key"] == idempotency_key), None)

def never(idempotency_key):
    return None

@app.step(effect="read")
def prices(count: int) -> list[int]:
    return list(range(count))

@app.step(effect="read")
def look(mark: str) -> str:
    Path(mark).touch()
    time.sleep(60)
    return "seen"

@app.step(effect="non_idem_write", query=find, backoff="PT0.01S", compensate="take_back")
def order(item: int, lose: bool, idempotency_key: str = injected()) -> dict:
    happen(f"order {item}", idempotency_key)
    if lose:
        raise ConnectionResetError("reset \\x1b[31m by\\npeer")
    return {"item": item}

@app.step(effect="idem_write", idempotent_by="the order's key")
def take_back(result: dict) -> dict:
    return {"back": True}

@app.step(effect="non_idem_write")
def chat(text: str, lose: bool) -> dict:
    happen(text, None)
    if lose:
        raise TimeoutError("no reply")
    return {"text": text}

@app.step(effect="non_idem_write", query=never, absent_after="PT2M")
def slow(text: str) -> dict:
    raise TimeoutError("no reply")

@app.step(effect="non_idem_write", query=find, timeout="PT50S")
def hang(mark: str, lands: bool, idempotency_key: str = injected()) -> dict:
    if lands:
        happen("hang", idempotency_key)
    Path(mark).touch()
    time.sleep(60)
    return {}

@app.step(effect="idem_write")
def refuse(idempotency_key: str = injected()) -> dict:
    raise Rejected("422")

@app.task
def shop(count: int = 2, lose: int = -1, say: str = "done", silent: bool = False) -> dict:
    bought = [order(item=price, lose=price == lose) for price in prices(count=count)]
    return {"bought": len(bought), "said": chat(text=say, lose=silent)["text"]}

@app.task
def typed(day: str, amount: Decimal = Decimal("0"), extra: dict | None = None) -> dict:
    return {"day": day, "amount": amount, "extra": extra}

@app.task
def late(text: str) -> dict:
    return slow(text=text)

@app.task
def hanging(mark: str, lands: bool = True) -> dict:
    return hang(mark=mark, lands=lands)

@app.task
def reading(mark: str) -> str:
    return look(mark=mark)

@app.task
def refused() -> dict:
    return refuse()

@app.task(on_failure="hold")
def refused_late() -> dict:
    order(item=1, lose=False)
    return refuse()

@app.task
def broken() -> None:
    raise KeyError("colour")

@app.task
def leaving() -> None:
    sys.exit("bye")
'''


class Ran:
    """What one call of the command line gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json["error"]
        assert isinstance(found, dict)
        return found


class Shop:
    """A folder with an app in it, and the command line in that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "shop.py").write_text(APP)
        self.store = f"sqlite:///{folder / 'shop.db'}"
        self.environ = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "SHOP_STORE")}
        self.environ |= {"DOUBTLESS_STORE": self.store, "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "doubtless.cli", *words]

    def cli(self, *words: str, code: int | None = 0, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
        ran = self.unchecked(*words, env=env, cwd=cwd)
        self.check(ran, words)
        if code is not None:
            assert ran.code == code, (words, ran.code, ran.out, ran.err)
        return ran

    def unchecked(self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
        environ = self.environ | (env or {})
        done = nursery.run(
            self.command(*words), env=environ, cwd=cwd or self.folder, capture_output=True, timeout=60, check=False
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def check(self, ran: Ran, words: tuple[str, ...]) -> None:
        for text in (ran.out, ran.err):
            controls = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"}
            assert not controls, (words, controls)
        assert "Traceback" not in ran.err
        if ran.code:
            lines = ran.err.splitlines()
            assert len(lines) == 1, (words, ran.err)
            assert lines[0].startswith("doubtless: ")
        if "--json" in words and "log" not in words:
            assert json.loads(ran.out) is not None
            assert ran.out.count("\n") == 1
            if ran.code and "error" in ran.json:
                assert ran.json["exit"] == ran.code
                assert set(ran.error) == {"code", "message", "hint", "context"}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return nursery.Popen(
            self.command(*words), env=self.environ, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )  # fmt: skip

    def end(self, process: subprocess.Popen[bytes], *words: str) -> Ran:
        out, err = process.communicate(timeout=60)
        ran = Ran(process.returncode, out.decode(), err.decode())
        self.check(ran, words)
        return ran

    def effects(self) -> int:
        path = self.folder / "effects.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def case(self) -> dict[str, Any]:
        """The one open case."""
        [case] = self.cli("inbox", "--json").json["cases"]
        assert isinstance(case, dict)
        return case


def until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Poll until something is true, while the process lives."""
    while not true():
        assert process.poll() is None, process.communicate()
        select.select([], [], [], 0.01)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop in which every kind of thing has happened; tests only look at it."""
    shop = Shop(tmp_path_factory.mktemp("open"))
    shop.cli("run", "shop:app", "shop", "done-1", "-p", "count=6", "-p", "lose=3")
    shop.cli("run", "shop:app", "shop", "chat-1", "-p", "silent=true", code=3)
    shop.cli("run", "shop:app", "late", "late-1", "-p", "text=x", "--no-wait", code=4)
    shop.cli("run", "shop:app", "refused", "refused-1", code=1)
    shop.cli("run", "shop:app", "refused_late", "hold-1", code=3)
    shop.cli("run", "shop:app", "broken", "broken-1", code=3)
    return shop


# ---------------------------------------------------------------- help


def test_the_help_names_every_command_and_every_exit_code(shop: Shop) -> None:
    said = shop.cli("--help").out
    for command in HOMES:
        assert re.search(rf"^  {command}  +\S", said, re.MULTILINE), command
    for code in MEANING:
        assert re.search(rf"^  {code}  +\S", said, re.MULTILINE), code
    assert shop.cli().out == said


@pytest.mark.parametrize("command", [name for name in HOMES if name != "demo"])
def test_each_command_documents_what_its_json_looks_like(shop: Shop, command: str) -> None:
    said = shop.cli(command, "--help").out
    assert "JSON: " in said
    assert "--json" in said
    assert "--debug" in said


def test_the_version_is_the_packages(shop: Shop) -> None:
    import doubtless

    assert shop.cli("--version").out == f"doubtless {doubtless.__version__}\n"


# ---------------------------------------------------------------- run, resume


def test_run_prints_the_output_and_running_again_does_nothing_twice(shop: Shop) -> None:
    first = shop.cli("run", "shop:app", "shop", "r1")
    assert json.loads(first.out) == {"bought": 2, "said": "done"}
    assert first.err == "", "nothing of the progress when it is piped"
    assert shop.effects() == 3
    again = shop.cli("run", "shop:app", "shop", "r1", "--json")
    assert again.json == {"task": "r1", "status": "done", "output": {"bought": 2, "said": "done"}}
    assert shop.cli("resume", "shop:app", "r1", "--json").json == again.json
    assert shop.effects() == 3


def test_a_lost_reply_is_settled_by_the_look_back_and_told_by_show(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1", "-p", "lose=1")
    shown = shop.cli("show", "r1", "--json").json
    [lost] = [step for step in shown["steps"] if step["settled_by"] == "the look-back found it"]
    assert (lost["step"], lost["path"], lost["calls"], lost["status"]) == ("order", "3", 1, "done")
    assert [attempt["outcome"] for attempt in lost["attempts"]] == ["unknown"]
    assert shop.effects() == 3


def test_params_are_json_where_they_read_so_and_fit_and_text_otherwise(shop: Shop) -> None:
    words = ["-p", "day=20261128", "-p", "amount=1.10", "-p", 'extra={"code": "007", "n": 9007199254740993}']
    output = shop.cli("run", "shop:app", "typed", "t1", *words, "--json").json["output"]
    assert output == {"day": "20261128", "amount": {"$decimal": "1.10"}, "extra": {"code": "007", "n": 9007199254740993}}
    (shop.folder / "params.json").write_text('{"day": "a=b", "amount": "2"}')
    output = shop.cli("run", "shop:app", "typed", "t2", "--params", "@params.json", "-p", "extra={}", "--json").json["output"]
    assert output == {"day": "a=b", "amount": {"$decimal": "2"}, "extra": {}}


@pytest.mark.parametrize(
    "words, said",
    [
        (["run", "shop:app", "typed", "t1", "-p", "day=a", "-p", "day=b"], "day is given twice"),
        (["run", "shop:app", "typed", "t1", "-p", "day=a", "--params", '{"day": "b"}'], "day is given twice"),
        (["run", "shop:app", "typed", "t1", "--params", '{"day": "a", "day": "b"}'], "day"),
        (["run", "shop:app", "typed", "t1", "--params", '{"day": NaN}'], "NaN"),
        (["run", "shop:app", "typed", "t1", "--params", '["day"]'], "no object"),
        (["run", "shop:app", "typed", "t1", "--params", "@nothing.json"], "cannot read nothing.json"),
        (["run", "shop:app", "typed", "t1", "-p", "day"], "write -p key=value"),
        (["run", "shop:app", "typed", "t1", "-p", "daz=a"], "daz"),
        (["run", "shop:app", "typed", "t1"], "without 'day'"),
        (["run", "shop:app", "typed", "t1", "-p", "day=a", "-p", "extra=5"], "extra: expected"),
        (["run", "shop:app", "typed", "a/b", "-p", "day=a"], "'/' is kept"),
        (["run", "shop:app", "typed", "t1", "-p", "day=a", "--wait", "P1M"], "P1M"),
        (["run", "shop:app", "typed", "t1", "-p", "day=a", "--wait", "--no-wait"], "contradict"),
        (["run", "shop:app", "tyed", "t1"], "did you mean typed?"),
        (["run", "shop:app", "typed"], "Missing argument 'ID'"),
        (["run", "shp:app", "typed", "t1"], "did you mean shop?"),
        (["run", "shop:ap", "typed", "t1"], "apps there: app"),
        (["run", "shop:number", "typed", "t1"], "of type int, not a Doubtless app"),
        (["run", "shop", "typed", "t1"], "write MODULE:APP"),
        (["run", "sho.py:app", "typed", "t1"], "did you mean shop.py?"),
        (["run", "shop:app", "typed", "t1", "--wat"], "--wat"),
        (["resume", "shop:app"], "or --all"),
        (["resume", "shop:app", "t1", "--all"], "not both"),
        (["shw", "t1"], "did you mean show?"),
        (["tasks", "--status", "dine"], "dine"),
        (["tasks", "--store", "shop.db"], "write sqlite:///shop.db"),
        (["settle", "shop:app", "t1:1", "happened", "--by", "a", "--why", "b"], "doubtless inbox t1:1"),
        (["settle", "shop:app", "t1:1", "maybe", "--by", "a", "--why", "b", "--shown", "c"], "maybe"),
        (["settle", "shop:app", "t1:1", "abandon", "--by", "a", "--why", "b", "--shown", "c", "--output", "1"], "no --output"),
        (["settle", "shop:app", "t1:1", "retry", "--by", "a", "--why", "b", "--shown", "c", "--even-now"], "takes no --then"),
        (["settle", "shop:app", "t1:1", "answer", "--by", "a", "--why", "b", "--shown", "c"], "needs the value"),
        (["settle", "shop:app", "t1:1", "did_not_happen", "--by", "a", "--why", "b", "--shown", "c"], "--then retry"),
        (["settle", "shop:app", "t1:1", "happened", "--by", "a", "--why", "b", "--shown", "c", "--output", "{"], "--output"),
        (["recover", "--accept"], "--by NAME --why TEXT"),
        (["recover", "--accept", "--end", "--by", "a", "--why", "b"], "one at a time"),
    ],
)
def test_what_cannot_be_carried_out_is_one_line_and_leaves_no_store(shop: Shop, words: list[str], said: str) -> None:
    failed = shop.cli(*words, "--json", code=6 if words[:2] == ["tasks", "--store"] else 2)
    assert said in failed.err
    assert said in f"{failed.error['message']} {failed.error['hint']}"
    assert not (shop.folder / "shop.db").exists()


def test_wait_takes_the_next_word_only_when_it_is_a_duration(shop: Shop) -> None:
    assert joined(["--wait", "shop:app", "t"]) == ["--wait=for-ever", "shop:app", "t"]
    assert joined(["--wait", "PT1M", "t"]) == ["--wait=PT1M", "t"]
    assert joined(["t", "--", "--wait", "PT1M"]) == ["t", "--", "--wait", "PT1M"]
    shop.cli("run", "--wait", "shop:app", "typed", "t1", "-p", "day=a")
    waits = shop.cli("run", "--wait", "PT0.1S", "shop:app", "late", "l1", "-p", "text=a", "--json", code=4)
    assert waits.error["code"] == "task_waiting"
    at = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC[+-]\d\d:\d\d"
    assert re.fullmatch(rf"from {at} on: doubtless resume shop:app l1", waits.error["hint"])


def test_an_id_with_other_input_is_refused_with_the_difference(shop: Shop) -> None:
    shop.cli("run", "shop:app", "typed", "t1", "-p", "day=a")
    refused = shop.cli("run", "shop:app", "typed", "t1", "-p", "day=b", code=2)
    assert "params.day = 'a', not 'b'" in refused.err
    assert "doubtless show t1" in refused.err


def test_resume_all_tells_of_each_task_and_exits_with_the_gravest(shop: Shop) -> None:
    assert shop.cli("run", "shop:app", "late", "l1", "-p", "text=a", "--no-wait", code=4).out == ""
    assert list(shop.cli("resume", "shop:app", "--all", "--json").json["tasks"]) == ["l1"], "one that waits is no failure"
    shop.cli("run", "shop:app", "shop", "s1", "-p", "silent=true", code=3)
    told = shop.cli("resume", "shop:app", "--all", "--json", code=3)
    assert {task: each["result"] for task, each in told.json["tasks"].items()} == {"l1": "task_waiting", "s1": "needs_human"}
    assert told.err.endswith("1 stand at needs_human. doubtless inbox\n")
    assert "s1  needs_human  " in shop.cli("resume", "shop:app", "--all", code=3).out
    other = shop.folder / "other.py"
    other.write_text("from doubtless import Doubtless\napp = Doubtless()\n")
    assert shop.cli("resume", "other:app", "--all", "--json").json["tasks"]["s1"]["result"] == "unknown_task"


# ---------------------------------------------------------------- where the app is


def test_an_app_is_found_in_a_file_inside_a_package_from_anywhere(shop: Shop, tmp_path: Path) -> None:
    package = shop.folder / "deep" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "steps.py").write_text("NAME = 'inner'\n")
    (package / "flow.py").write_text(
        "from doubtless import Doubtless\nfrom .steps import NAME\n"
        "app = Doubtless()\n@app.task(name=NAME)\ndef f() -> int:\n    return 7\n"
    )
    away = tmp_path / "away"
    away.mkdir()
    assert shop.cli("run", f"{package}/flow.py:app", "inner", "f1", cwd=away).out == "7\n"
    assert shop.cli("run", "deep/pack/flow.py:app", "inner", "f1").out == "7\n"


@pytest.mark.parametrize(
    "source, said",
    [
        ("import nowhere_at_all", "it needs the module nowhere_at_all"),
        ("def (:", "SyntaxError"),
        ("x = 1\nraise ValueError('first\\nsecond')", "ValueError: first; second"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line_that_says_where(shop: Shop, source: str, said: str) -> None:
    (shop.folder / "bad.py").write_text(source)
    refused = shop.cli("steps", "bad:app", code=2)
    assert "cannot import bad" in refused.err
    assert said in refused.err
    assert "bad.py, line" in refused.err or "needs the module" in refused.err


def test_a_name_that_another_module_has_is_refused_not_mixed_up(shop: Shop) -> None:
    (shop.folder / "mine").mkdir()
    (shop.folder / "mine" / "json.py").write_text("app = 1\n")
    assert "rename the file" in shop.cli("steps", "mine/json.py:app", code=2).err


def test_debug_shows_the_traceback_of_an_error(shop: Shop) -> None:
    failed = shop.unchecked("run", "shp:app", "x", "y", "--debug")
    assert failed.code == 2
    assert "Traceback" in failed.err
    assert failed.err.splitlines()[-1].startswith("doubtless: ")


# ---------------------------------------------------------------- looking


def test_commands_that_look_create_nothing(shop: Shop) -> None:
    for words in (["tasks"], ["show", "x"], ["log", "x"], ["inbox"], ["verify"], ["freeze", "--why", "x"], ["thaw"]):
        refused = shop.cli(*words, code=6)
        assert "there is no store" in refused.err + refused.out
    assert {path.name for path in shop.folder.iterdir()} == {"shop.py"}


def test_a_store_has_to_be_named(shop: Shop) -> None:
    del shop.environ["DOUBTLESS_STORE"]
    assert "--store sqlite:///recon.db" in shop.cli("tasks", code=2).err


def test_tasks_lists_how_each_stands_and_filters(open_shop: Shop) -> None:
    text = open_shop.cli("tasks").out
    for words in ("done-1 +shop +done", "late-1 +late +waiting until", "refused-1 +refused +failed", "hold-1 .* needs a person"):
        assert re.search(words, text), words
    listed = open_shop.cli("tasks", "--json").json["tasks"]
    assert [task["id"] for task in listed] == ["done-1", "chat-1", "late-1", "refused-1", "hold-1", "broken-1"]
    assert set(listed[0]) == {
        "id", "task", "status", "why", "owner", "wake_at", "created_at", "updated_at", "queue", "priority",
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", listed[0]["created_at"])
    some = open_shop.cli("tasks", "--status", "waiting", "--status", "failed", "--json").json["tasks"]
    assert [task["id"] for task in some] == ["late-1", "refused-1"]
    assert open_shop.cli("tasks", "--status", "running").out == f"no tasks of status running in {open_shop.folder / 'shop.db'}\n"


def test_show_tells_calls_doubts_and_what_is_open_within_a_hundred_columns(open_shop: Shop) -> None:
    done = open_shop.cli("show", "done-1").out
    assert re.search(r"✓ 2–4  order +non_idem_write +done +once", done) is None, "three alike are too few to share a line"
    assert re.search(r"✓ 5  order +non_idem_write  done +once +the look-back found it", done)
    assert "attempt 1: unknown (ConnectionResetError: reset \\x1b[31m by\\npeer)" in done
    assert "8 steps, 8 settled; 7 writes: 7 done, 7 calls in all" in done
    assert "next" not in done
    chat = open_shop.cli("show", "chat-1").out
    assert re.search(r"! 4  chat +non_idem_write  needs a person  once +case chat-1:\d+", chat)
    assert "next  doubtless inbox chat-1:" in chat
    late = open_shop.cli("show", "late-1").out
    assert re.search(r"late-1  late  … waiting until \d\d:\d\d:\d\d", late)
    assert "next  doubtless resume MODULE:APP late-1" in late
    held = open_shop.cli("show", "hold-1").out
    assert "stands: order at 1; take_back would undo it" in held
    for text in (done, chat, late, held):
        assert max(len(line) for line in text.splitlines()) <= 100
        assert len(re.findall(r"UTC[+-]\d\d:\d\d", text)) == 1, "the offset is told once"


def test_a_timeline_fits_the_width_that_it_is_given(open_shop: Shop) -> None:
    from rich.cells import cell_len

    from doubtless import Doubtless
    from doubtless.cli.render import timeline

    app = Doubtless(open_shop.store, read_only=True)
    view = app.show("done-1")._replace(params={"name": "深圳市华强电子有限公司" * 12})
    app.close()
    for width in (60, 80, 100, 140):
        text = timeline(view, width=width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        assert "the look-back found it" in text


def test_many_steps_alike_share_a_line_and_all_shows_each(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1", "-p", "count=30")
    assert re.search(r"✓ 2–31  order ×30 +non_idem_write  done +each once", shop.cli("show", "r1").out)
    every = shop.cli("show", "r1", "--all").out
    assert len(re.findall(r"^  ✓ +\d+  order ", every, re.MULTILINE)) == 30
    assert every.count("intent recorded, then called (attempt 1)") == 31


def test_the_shape_of_show_as_json_is_stable(open_shop: Shop) -> None:
    shown = open_shop.cli("show", "done-1", "--json").json
    assert set(shown) == {
        "id", "task", "status", "why", "params", "output", "error", "owner", "owner_alive", "wake_at", "created_at", "updated_at",
        "steps", "cases", "stands", "next", "forked_from", "unacknowledged", "cancelled",
    }  # fmt: skip
    assert set(shown["steps"][4]) == {
        "path", "step_seq", "step", "effect", "status", "calls", "settled_by", "params", "output", "error", "keys", "handles",
        "attempts", "story", "changed",
    }  # fmt: skip
    assert set(shown["steps"][4]["attempts"][0]) == {"attempt", "outcome", "code", "detail", "started_at", "ended_at"}
    assert shown["params"] == {"count": 6, "lose": 3, "say": "done", "silent": False}
    said = open_shop.cli("show", "--help").out.replace("\n  ", " ")
    for name in (*shown, *shown["steps"][0]):
        assert f'"{name}"' in said, "the help documents the shape"


def test_an_unknown_task_or_case_is_told_with_what_is_near(open_shop: Shop) -> None:
    assert "did you mean done-1?" in open_shop.cli("show", "done-2", code=2).err
    assert "did you mean done-1?" in open_shop.cli("log", "done-2", code=2).err
    assert "doubtless inbox lists the open ones" in open_shop.cli("inbox", "done-1:1", code=2).err


def test_log_prints_every_event_on_a_line_with_its_refs(shop: Shop) -> None:
    shop.cli("run", "shop:app", "typed", "t1", "-p", "day=" + "日" * 300)
    lines = shop.cli("log", "t1").out.splitlines()
    events = [json.loads(line) for line in shop.cli("log", "t1", "--json").out.splitlines()]
    assert len(lines) == len(events)
    assert (events[0]["kind"], events[-1]["kind"]) == ("TaskAccepted", "TaskEnded")
    assert [event["event_seq"] for event in events] == list(range(1, len(events) + 1))
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", events[0]["input_ref"])
    assert re.fullmatch(r"[0-9a-f]{64}", events[1]["prev_hash"])
    shop.cli("run", "shop:app", "typed", "t2", "-p", "day=日")
    assert "input_ref=inline:{" in shop.cli("log", "t2").out
    assert '"day":"日"' in shop.cli("log", "t2").out


def test_the_stores_own_events_are_in_its_own_log(shop: Shop) -> None:
    shop.cli("run", "shop:app", "typed", "t1", "-p", "day=a")
    shop.cli("freeze", "order", "--why", "stock-taking", "--by", "ana")
    [event] = [json.loads(line) for line in shop.cli("log", "$store", "--json").out.splitlines()]
    assert (event["kind"], event["step_name"]) == ("StoreFrozen", "order")
    assert json.loads(event["data"]) == {"why": "stock-taking", "by": "ana"}


def test_steps_prints_the_report_or_every_fault(shop: Shop) -> None:
    from doubtless.table import StepTable

    assert StepTable  # the report is made from the same definitions that run
    report = shop.cli("steps", "shop:app").out
    for step in ("prices", "order", "take_back", "chat", "slow", "hang", "refuse"):
        assert step in report
    assert isinstance(shop.cli("steps", "shop:app", "--json").json, dict)
    (shop.folder / "faulty.py").write_text(
        "from doubtless import Doubtless\napp = Doubtless()\n@app.step(effect='write')\ndef one() -> int: ...\n"
        "@app.step(effect='read', timout='PT1S')\ndef two() -> int: ...\n@app.task\ndef t() -> None: ...\n"
    )
    faulty = shop.cli("steps", "faulty:app", code=2)
    assert faulty.out.count("\n- ") + 1 == 2
    assert "one" in faulty.out
    assert "timout" in faulty.out
    assert len(shop.cli("steps", "faulty:app", "--json", code=2).json["faults"]) == 2
    refused = shop.cli("run", "faulty:app", "t", "t1", code=2)
    assert "2 faults" in refused.err
    assert "timout" in refused.err
    assert not (shop.folder / "shop.db").exists()


def test_commands_to_type_name_the_store_where_nothing_else_does(shop: Shop) -> None:
    url = f"sqlite:///{shop.folder}/own store.db"
    environ = {"SHOP_STORE": url, "DOUBTLESS_STORE": ""}
    told = shop.cli("run", "shop:app", "shop", "it's -1", "-p", "silent=true", "--json", code=3, env=environ)
    words = shlex.split(told.error["hint"])
    assert words[:4] == ["doubtless", "inbox", "--store", url]
    assert shop.cli(*words[1:], "--json", env=environ).json["task"] == "it's -1"
    shown = shop.cli("show", "--store", url, "it's -1", "--json", env=environ).json
    assert [shlex.split(command) for command in shown["next"]] == [words]


def test_an_id_that_looks_like_an_option_can_be_typed_as_told(shop: Shop) -> None:
    told = shop.cli("run", "shop:app", "--no-wait", "-p", "text=a", "--", "late", "-x", code=4)
    assert told.err.endswith("doubtless resume -- shop:app -x\n")
    [command] = shop.cli("show", "--json", "--", "-x").json["next"]
    words = shlex.split(command.replace("MODULE:APP", "shop:app"))
    assert shop.cli(words[1], "--no-wait", *words[2:], code=4).out == ""


def test_text_of_any_script_stands_and_only_controls_are_escaped() -> None:
    assert plain("深圳　市\x1b[31m\u202e\u2028é") == "深圳　市\\x1b[31m\\u202e\\u2028é"
    assert typed("show", "a b", store="sqlite:///x y.db") == "doubtless show --store 'sqlite:///x y.db' 'a b'"
    assert typed("settle", "m:a", "-c:1", by="NAME") == "doubtless settle --by NAME -- m:a -c:1"


def test_json_holds_no_raw_control_character_and_reads_back_as_it_was(shop: Shop) -> None:
    text = "a\x1b[0m\x9b31m\u202e\u2028日\x7f\t"
    shop.cli("run", "shop:app", "typed", "t1", "--params", json.dumps({"day": text}))
    shown = shop.cli("show", "t1", "--json")
    assert shown.json["params"]["day"] == text
    assert "日" in shown.out


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1", "-p", "count=40")
    process = shop.start("log", "r1")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


# ---------------------------------------------------------------- the inbox


def test_the_inbox_lists_cases_and_doubts_that_nobody_settles(open_shop: Shop) -> None:
    found = open_shop.cli("inbox", "--json").json
    assert set(found) == {"cases", "doubts", "frozen", "suspect"}
    kinds = [(case["task"], case["kind"]) for case in found["cases"]]
    assert kinds == [("chat-1", "doubt"), ("hold-1", "hold"), ("broken-1", "code_error")]
    text = open_shop.cli("inbox").out
    for case in found["cases"]:
        assert f"doubtless inbox {case['id']}" in text


def test_a_case_shows_its_evidence_what_each_answer_does_and_what_to_type(open_shop: Shop) -> None:
    case = open_shop.cli("inbox", "--json").json["cases"][0]
    alone = open_shop.cli("inbox", case["id"], "--json").json
    assert alone == case
    assert set(case) == {
        "id", "task", "kind", "why", "path", "step", "opened_at", "evidence", "answers", "hash", "settled", "commands",
    }  # fmt: skip
    text = open_shop.cli("inbox", case["id"]).out
    assert 'chat(text="done", lose=true)' in text.replace("lose=true, text=\"done\"", 'text="done", lose=true')
    assert "unknown (TimeoutError: no reply)" in text
    for answer, commands in case["commands"].items():
        assert case["answers"][answer].split(";")[0] in text.replace("\n" + " " * 18, " ")
        for command in commands:
            assert command in text.splitlines()[-1] or f"    {command}\n" in text
            assert f"--shown {case['hash'][:8]}" in command
    assert len(case["commands"]["did_not_happen"]) == 2


def test_the_commands_that_a_case_shows_work_as_typed(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1", "-p", "silent=true", code=3)
    [command] = shop.case()["commands"]["happened"]
    fill = {"MODULE:APP": "shop:app", "NAME": "ana", "TEXT": "it stands in the chat", "JSON": '{"text": "seen"}'}
    words = [fill.get(word, word) for word in shlex.split(command)]
    assert shop.cli(*words[1:]).out.endswith("next: doubtless resume shop:app r1\n")
    assert shop.cli("resume", "shop:app", "r1", "--json").json["output"] == {"bought": 2, "said": "seen"}
    assert shop.effects() == 3, "nothing was sent again"


def test_settle_is_taken_once_and_only_for_what_was_shown(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1", "-p", "silent=true", code=3)
    case = shop.case()
    answer = ["settle", "shop:app", case["id"], "happened", "--output", '{"text": "seen"}', "--by", "ana", "--why", "looked"]
    answer.append("--shown")
    changed = shop.cli(*answer, "0" * 8, "--json", code=5)
    assert changed.error["code"] == "case_changed"
    assert changed.error["hint"] == f"look at it again: doubtless inbox {case['id']}"
    wrong = ["retry" if word == "happened" else word for word in answer if word not in ("--output", '{"text": "seen"}')]
    assert "happened, did_not_happen, abandon" in shop.cli(*wrong, case["hash"][:8], code=2).err
    misfit = ["5" if word == '{"text": "seen"}' else word for word in answer]
    assert shop.cli(*misfit, case["hash"][:8], "--json", code=2).error["code"] == "answer_refused"
    taken = shop.cli(*answer, case["hash"], "--resume", "--json").json
    assert taken == {
        "case": case["id"], "task": "r1", "answer": "happened", "by": "ana", "status": "done",
        "output": {"bought": 2, "said": "seen"},
    }  # fmt: skip
    again = shop.cli(*answer, case["hash"][:8], "--json", code=5)
    assert again.error["code"] == "already_settled"
    assert "by ana at" in again.error["message"]
    settled = shop.cli("inbox", case["id"], "--json").json
    assert {k: settled["settled"][k] for k in ("answer", "by", "why")} == {"answer": "happened", "by": "ana", "why": "looked"}
    assert settled["commands"] == {}
    assert "settled: happened, by ana" in shop.cli("inbox", case["id"]).out
    assert shop.cli("inbox").out == "the inbox is empty\n"


def test_compensate_undoes_a_done_task_and_show_says_what_undid_what(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "s1", "-p", "count=2")
    said = ("--by", "ana", "--why", "the customer changed their mind")
    assert shop.cli("compensate", "shop:app", "s1", "--why", "x", code=2).err
    undone = shop.cli("compensate", "shop:app", "s1", *said)
    assert "task s1 is compensated" in undone.out
    again = shop.cli("compensate", "shop:app", "s1", *said, "--json").json
    assert (again["task"], again["status"]) == ("s1", "compensated")
    seen = shop.cli("show", "s1").out
    assert "compensated" in seen
    assert "undoes step" in seen
    assert shop.cli("run", "shop:app", "shop", "s1", "-p", "count=2", code=1).err
    shop.cli("run", "shop:app", "refused", "r1", code=1)
    assert "only what a task did that is done" in shop.cli("compensate", "shop:app", "r1", *said, code=2).err


def test_cancel_ends_a_task_that_nobody_runs_and_the_first_end_wins(shop: Shop) -> None:
    said = ("--by", "ana", "--why", "stop")
    shop.cli("run", "shop:app", "shop", "first", "-p", "count=1")
    shop.cli("freeze", "order", "--why", "the shop is shut")
    shop.cli("run", "shop:app", "shop", "l1", "-p", "count=1", code=7)
    told = shop.cli("cancel", "shop:app", "l1", *said, "--json").json
    assert told["status"] == "cancelled"
    assert "cancelled" in shop.cli("show", "l1").out
    shop.cli("thaw", "order")
    shop.cli("run", "shop:app", "shop", "s1", "-p", "count=1")
    late = shop.cli("cancel", "shop:app", "s1", *said, code=1)
    assert "had ended done already" in late.err


def test_cancel_waits_for_a_doubt_that_is_being_settled_or_says_what_it_stands_before(shop: Shop) -> None:
    shop.cli("run", "shop:app", "late", "l1", "-p", "text=x", "--no-wait", code=4)
    told = shop.cli("cancel", "shop:app", "l1", "--by", "ana", "--why", "stop", "--no-wait", code=4)
    assert "an absence is no proof yet" in told.err


def test_settle_with_resume_tells_both_the_answer_and_how_the_task_stands(shop: Shop) -> None:
    shop.cli("run", "shop:app", "refused_late", "h1", code=3)
    case = shop.case()
    words = ["settle", "shop:app", case["id"], "let_stand", "--by", "ana", "--why", "ok", "--shown", case["hash"][:8], "--resume"]
    ended = shop.cli(*words, "--json", code=1)
    assert ended.error["context"]["settled"] == {"case": case["id"], "task": "h1", "answer": "let_stand", "by": "ana"}
    assert ended.error["context"]["stands"] == [{"path": "1", "step": "order", "compensate": "take_back"}]
    assert "stands: order at 1; take_back would undo it" in shop.cli("show", "h1").out


def test_a_code_error_shows_where_the_code_failed(open_shop: Shop) -> None:
    case = open_shop.cli("inbox", "--json").json["cases"][2]
    text = open_shop.cli("inbox", case["id"]).out
    assert "KeyError: 'colour'" in text
    assert 'raise KeyError("colour")' in text
    assert f"doubtless settle MODULE:APP {case['id']} retry --by NAME --why TEXT --shown {case['hash'][:8]}" in text


def test_freeze_stops_a_write_and_thaw_lets_it_go_on(shop: Shop) -> None:
    shop.cli("run", "shop:app", "typed", "t1", "-p", "day=a")
    assert shop.cli("freeze", "chat", "--why", "the chat is moved", "--json").json == {"frozen": {"chat": "the chat is moved"}}
    stopped = shop.cli("run", "shop:app", "shop", "r1", code=7)
    assert stopped.err.endswith("doubtless thaw chat; then: doubtless resume shop:app r1\n")
    assert shop.effects() == 2
    text = shop.cli("show", "r1").out
    assert "* frozen" in text
    assert "next  doubtless thaw chat\n        doubtless resume MODULE:APP r1" in text
    assert "frozen  chat: the chat is moved" in shop.cli("inbox").out
    assert shop.cli("thaw", "order", code=2).err.startswith("doubtless: order is not frozen")
    assert shop.cli("thaw", "chat").out == "nothing is frozen\n"
    shop.cli("resume", "shop:app", "r1")
    assert shop.effects() == 3
    assert shop.cli("freeze", "--why", "all").out == "frozen: every write: all\n"
    assert shop.cli("freeze", "--why", "all").err == ""
    assert shop.cli("run", "shop:app", "shop", "r2", "--json", code=7).error["hint"].startswith("doubtless thaw; then")
    assert shop.cli("thaw", "--json").json == {"frozen": {}}


# ---------------------------------------------------------------- care


def test_verify_finds_nothing_in_a_sound_log_and_names_what_was_changed(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1")
    assert shop.cli("verify").out == "nothing found: the log of 1 task holds together\n"
    assert shop.cli("verify", "--json").json == {"problems": []}
    with sqlite3.connect(shop.folder / "shop.db") as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{trigger}"')
        db.execute("UPDATE events SET output_ref = 'inline:9' WHERE task_id = 'r1' AND kind = 'StepSettled' AND path = '2'")
    db.close()
    found = shop.cli("verify", "--json", code=6).json["problems"]
    assert any(problem["where"] == "r1" for problem in found)
    assert set(found[0]) == {"where", "event_seq", "what"}
    assert shop.cli("verify", code=6).err.count("problem") == 1


def test_a_store_without_its_mark_can_be_looked_at_and_recovered(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1")
    (shop.folder / "shop.db.mark").unlink()
    assert shop.cli("show", "r1", "--json").json["status"] == "done"
    assert shop.cli("run", "shop:app", "shop", "r2", "--json", code=6).error["code"] == "store_suspect"
    assert "mark" in shop.cli("verify", code=6).out
    judged = shop.cli("recover", code=6)
    assert "doubtless recover --accept --by NAME --why TEXT" in judged.err
    found = shop.cli("recover", "--json", code=6).json
    assert (found["reason"], found["accepted"], found["intents"]) == ("the mark is missing", False, [])
    assert shop.cli("recover", "--accept", "--by", "ana", "--why", "backup of monday", "--json").json["suspect"] is True
    assert "suspect mode" in shop.cli("inbox").out
    shop.cli("run", "shop:app", "shop", "r2", code=3)
    assert shop.effects() == 3, "what the log does not know is not sent again"
    assert "not known" in shop.cli("show", "r2").out
    assert "is ended" in shop.cli("recover", "--end", "--by", "ana", "--why", "counted").out
    assert "nothing to end" in shop.cli("recover", "--end", "--by", "ana", "--why", "counted", code=2).err
    fits = shop.cli("recover").out
    assert "it fits its mark" in fits
    assert "restored together with its mark" in fits, "a store cannot tell, and must not say that all is well"
    assert "doubtless recover --accept --by NAME --why TEXT" in fits


def test_a_folder_that_was_restored_with_its_mark_sends_nothing_again_after_recover_accept(shop: Shop, tmp_path: Path) -> None:
    shop.cli("run", "shop:app", "shop", "before")
    backup = tmp_path / "backup"
    backup.mkdir()
    for file in shop.folder.glob("shop.db*"):
        (shutil.copytree if file.is_dir() else shutil.copy2)(file, backup / file.name)
    shop.cli("run", "shop:app", "refused_late", "r1", code=3)
    assert shop.effects() == 4
    for file in shop.folder.glob("shop.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    shutil.copytree(backup, shop.folder, dirs_exist_ok=True)
    assert shop.cli("recover", "--json").json["reason"] is None, "nobody can tell it from a store that was never restored"
    shop.cli("recover", "--accept", "--by", "ana", "--why", "the backup of monday")
    shop.cli("run", "shop:app", "shop", "again", "-p", "count=0", code=3)
    assert shop.effects() == 4, "it counts as sent: a person is asked first"


def test_a_freeze_of_a_step_that_the_log_does_not_know_warns_and_names_the_nearest(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1")
    slip = shop.cli("freeze", "chatt", "--why", "moved", "--json")
    assert slip.json == {"frozen": {"chatt": "moved"}}, "it may be declared elsewhere: the freeze stands"
    assert "no task so far has called a step chatt; did you mean chat?" in slip.err
    assert slip.err.endswith("doubtless thaw chatt\n")
    assert shop.cli("freeze", "chat", "--why", "moved").err == ""


def test_what_a_module_or_a_step_prints_is_no_part_of_the_json_document(shop: Shop) -> None:
    (shop.folder / "loud.py").write_text(
        "import os, sys\nfrom doubtless import Doubtless\n"
        "app = Doubtless()\nprint('imported')\n"
        "@app.step(effect='read')\ndef look() -> int:\n    print('called'); os.system('echo a child'); return 1\n"
        "@app.task\ndef watch() -> int:\n    print('run'); return look()\n"
    )
    ran = shop.cli("run", "loud:app", "watch", "w1", "--json")
    assert ran.json == {"task": "w1", "status": "done", "output": 1}
    assert sorted(ran.err.split()) == sorted("imported run called a child".split())
    for words in (["steps", "loud:app"], ["resume", "loud:app", "w1"], ["resume", "loud:app", "--all"]):
        assert shop.cli(*words, "--json").err == "imported\n"
    plain = shop.cli("run", "loud:app", "watch", "w2").out.split()  # the child writes past this process's buffer
    assert sorted(plain) == sorted("imported run called a child 1".split())


def test_tasks_and_show_name_the_store_that_they_read(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1")
    here = {"DOUBTLESS_STORE": "sqlite:///shop.db"}
    for words in (["tasks"], ["show", "r1"], ["tasks", "--status", "failed"]):
        assert str(shop.folder / "shop.db") in shop.cli(*words, env=here).out, "also where the URL depends on the folder"


def test_an_int_of_any_size_goes_through_run_show_inbox_and_settle(shop: Shop) -> None:
    (shop.folder / "huge.py").write_text(
        "from doubtless import Doubtless\napp = Doubtless()\n"
        "@app.step(effect='non_idem_write')\ndef register(n: int, lose: bool) -> dict:\n"
        "    if lose:\n        raise TimeoutError('lost')\n    return {'n': n}\n"
        "@app.task\ndef enrol(lose: bool) -> dict:\n    return register(n=10**5000, lose=lose)\n"
    )
    digits = "1" + "0" * 5000
    ran = shop.cli("run", "huge:app", "enrol", "done", "-p", "lose=false", "--json")
    assert ran.json["output"] == {"n": {"$int": digits}}
    assert shop.cli("run", "huge:app", "enrol", "done", "-p", "lose=false").code == 0
    assert shop.cli("show", "done", "--json").json["output"] == {"n": {"$int": digits}}
    shop.cli("run", "huge:app", "enrol", "open", "-p", "lose=true", code=3)
    case = shop.case()
    assert case["evidence"]["params"]["n"] == {"$int": digits}
    assert "register" in shop.cli("inbox", case["id"]).out
    shop.cli("settle", "huge:app", case["id"], "happened", "--output", f'{{"n": {digits}}}', "--by", "ana", "--why", "seen",
             "--shown", case["hash"], "--resume", "--json")  # fmt: skip
    assert shop.cli("show", "open", "--json").json["output"] == {"n": {"$int": digits}}


def test_the_demo_is_part_of_the_package_and_takes_its_own_options(shop: Shop) -> None:
    assert "--statement" in shop.cli("demo", "--help").out
    failed = shop.unchecked("demo", "--statement", "nothing.csv", "--json")
    assert failed.code == 2
    assert failed.json == {"ok": False, "exit": 2}


# ---------------------------------------------------------------- other owners, and signals


def test_a_task_that_has_an_owner_is_busy_and_says_whose(shop: Shop) -> None:
    process = shop.start("run", "shop:app", "hanging", "h1", "-p", "mark=called")
    until((shop.folder / "called").exists, process)
    busy = shop.cli("run", "shop:app", "hanging", "h1", "-p", "mark=called", "--json", code=5)
    assert busy.error["code"] == "task_busy"
    assert busy.error["context"]["pid"] == process.pid
    assert f"kill {process.pid}" in busy.error["hint"]
    assert f"running in process {process.pid}" in shop.cli("show", "h1").out
    assert "in flight" in shop.cli("show", "h1").out
    process.kill()
    process.communicate()
    shown = shop.cli("show", "h1").out
    assert "its process is gone" in shown
    assert "in doubt" in shown
    assert [doubt["task"] for doubt in shop.cli("inbox", "--json").json["doubts"]] == ["h1"]
    assert "doubtless resume MODULE:APP h1" in shop.cli("inbox").out
    assert shop.cli("resume", "shop:app", "h1", "--json").json["status"] == "done"
    assert shop.effects() == 1


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_in_a_write_leaves_a_doubt_and_says_so(shop: Shop, number: signal.Signals, code: int) -> None:
    process = shop.start("run", "shop:app", "hanging", "h1", "-p", "mark=called")
    until((shop.folder / "called").exists, process)
    process.send_signal(number)
    ended = shop.end(process)
    assert ended.code == code
    assert "hang at 1 (attempt 1) was being called: it may have landed; that is recorded" in ended.err
    assert ended.err.endswith("doubtless resume shop:app h1\n")
    [step] = shop.cli("show", "h1", "--json").json["steps"]
    assert (step["status"], step["attempts"][0]["outcome"]) == ("uncertain", "unknown"), "recorded, not only remembered"
    assert shop.cli("resume", "shop:app", "h1", "--json").json["status"] == "done"
    assert shop.effects() == 1, "it had landed: the look-back found it, nothing was sent again"


def test_more_signals_do_not_stop_the_record_of_the_first(shop: Shop) -> None:
    process = shop.start("run", "shop:app", "hanging", "h1", "-p", "mark=called", "-p", "lands=false", "--json")
    until((shop.folder / "called").exists, process)
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    told = json.loads(out)["error"]
    assert told["context"]["in_doubt"] == [{"task": "h1", "path": "1", "step": "hang"}]
    [step] = shop.cli("show", "h1", "--json").json["steps"]
    assert step["attempts"][0]["outcome"] == "unknown"


def test_a_signal_while_a_task_waits_says_what_is_in_doubt_as_before(shop: Shop) -> None:
    process = shop.start("run", "shop:app", "late", "l1", "-p", "text=a")

    until(lambda: "LookedBack" in shop.unchecked("log", "l1").out, process)
    process.send_signal(signal.SIGTERM)
    ended = shop.end(process)
    assert ended.code == 143
    assert "slow at 1 (attempt 1) is in doubt as before" in ended.err
    assert "being called" not in ended.err


def test_a_signal_in_a_read_says_that_nothing_is_in_doubt(shop: Shop) -> None:
    process = shop.start("run", "shop:app", "reading", "r1", "-p", "mark=called", "--json")
    until((shop.folder / "called").exists, process)
    process.send_signal(signal.SIGINT)
    ended = shop.end(process, "--json")
    assert ended.code == 130
    assert "nothing is in doubt" in ended.error["message"]
    assert ended.error["context"]["in_doubt"] == []


def test_a_signal_in_a_pass_over_all_tasks_names_the_write_in_flight(shop: Shop) -> None:
    process = shop.start("run", "shop:app", "hanging", "h1", "-p", "mark=called", "-p", "lands=false")
    until((shop.folder / "called").exists, process)
    process.kill()
    process.communicate()
    case_of = shop.cli("resume", "shop:app", "--all", "--json", code=3).json["tasks"]["h1"]
    assert case_of["result"] == "needs_human"
    case = shop.case()
    words = ["--by", "ana", "--why", "looked", "--shown", case["hash"][:8], "--then", "retry", "--even-now"]
    shop.cli("settle", "shop:app", case["id"], "did_not_happen", *words)
    (shop.folder / "called").unlink()
    process = shop.start("resume", "shop:app", "--all")
    until((shop.folder / "called").exists, process)
    process.send_signal(signal.SIGTERM)
    ended = shop.end(process)
    assert ended.code == 143
    assert "task h1: hang at 1 (attempt 2) was being called" in ended.err
    assert ended.err.endswith("doubtless resume shop:app --all\n")


def test_a_task_whose_code_ends_the_process_is_parked_and_told(shop: Shop) -> None:
    ended = shop.cli("run", "shop:app", "leaving", "x1", "--json", code=70)
    assert "SystemExit: bye" in ended.error["message"]
    assert shop.cli("show", "x1", "--json").json["status"] == "ready"


# ---------------------------------------------------------------- a terminal


def on_a_terminal(shop: Shop, *words: str) -> tuple[int, str]:
    """Run a command whose output goes to a terminal."""
    ours, theirs = pty.openpty()
    environ = shop.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = nursery.Popen(shop.command(*words), env=environ, cwd=shop.folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    return process.wait(timeout=60), said.decode()


def test_a_terminal_sees_progress_and_colour_and_a_pipe_sees_neither(shop: Shop) -> None:
    code, said = on_a_terminal(shop, "run", "shop:app", "shop", "r1", "-p", "count=5", "-p", "lose=4")
    assert code == 0
    assert "✓ 1 prices" in said
    assert "✓ 2–5 order ×4" in said
    assert "✓ 6 order: done after a doubt" in said
    assert "task r1 is done" in said
    code, said = on_a_terminal(shop, "run", "shop:app", "shop", "r2", "-p", "silent=true")
    assert code == 3
    assert "! 4 chat: case r2:" in said
    code, said = on_a_terminal(shop, "show", "r1")
    assert "\x1b[32m" in said
    assert "✓" in shop.cli("show", "r1").out


# ---------------------------------------------------------------- fork


def test_fork_makes_a_task_shows_what_stands_and_its_question_can_be_answered_as_it_is_typed(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "f1")
    made = shop.cli("fork", "shop:app", "f1", "--at", "3", "--as", "f2", "--json").json
    assert (made["task"], made["forked_from"], made["at"], made["taken"]) == ("f2", "f1", 3, 2)
    assert [(one["task"], one["path"], one["step"], one["status"]) for one in made["stands"]] == [
        ("f1", "3", "order", "done"), ("f1", "4", "chat", "done"),
    ]  # fmt: skip
    said = shop.cli("fork", "shop:app", "f1", "--at", "3", "--as", "f2").out
    assert "order(" in said
    assert said.endswith("next  doubtless resume shop:app f2\n")
    assert shop.effects() == 3

    words = made["next"].split()[1:]
    for _ in range(2):
        shop.cli(*words, code=3)
        case = shop.case()
        assert "stands  !" in shop.cli("inbox", case["id"]).out
        typed = next(command for command in case["commands"]["answer"] if "\"reuse\"" in command)
        typed = typed.replace("MODULE:APP", "shop:app").replace("NAME", "ana").replace("TEXT", "seen")
        shop.cli(*shlex.split(typed)[1:])
    assert shop.cli(*words, "--json").json["output"] == {"bought": 2, "said": "done"}
    assert shop.effects() == 3
    shown = shop.cli("show", "f2", "--json").json
    assert shown["forked_from"] == {"task": "f1", "at": 3}
    assert [(step["calls"], step["settled_by"]) for step in shown["steps"]] == [
        (0, f"the step at {path} of task f1: taken over by the fork") for path in "1234"
    ]  # fmt: skip
    assert "fork    of f1, at 3" in shop.cli("show", "f2").out


def test_resume_at_a_place_is_refused_and_names_fork(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "r1")
    refused = shop.cli("resume", "shop:app", "r1", "--at", "2", "--json", code=2).error
    assert "not rewound" in refused["message"]
    assert "doubtless fork shop:app r1 --at 2" in refused["hint"].replace("--at 2 -- ", "")


def test_show_with_an_app_says_where_its_code_defines_a_step_otherwise(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "d1")
    assert "changed since" not in shop.cli("show", "d1", "--app", "shop:app").out
    code = (shop.folder / "shop.py").read_text()
    (shop.folder / "shop2.py").write_text(code.replace('backoff="PT0.01S", compensate', 'attempts=9, backoff="PT0.01S", compensate'))
    said = shop.cli("show", "d1", "--app", "shop2:app", env={"COLUMNS": "120"}).out
    assert said.count("changed since: attempts was 3, is 9") == 2
    shown = shop.cli("show", "d1", "--app", "shop2:app", "--json").json
    assert shown["steps"][1]["changed"] == [{"field": "attempts", "was": 3, "now": 9}]
    assert "contradict" in shop.cli("show", "d1", "--app", "shop2:app", "--store", shop.store, code=2).err


def test_a_divergence_is_shown_with_its_ways_out(shop: Shop) -> None:
    shop.cli("run", "shop:app", "shop", "v1", "-p", "silent=true", code=3)
    case = shop.case()
    answer = ["happened", "--output", '{"text": "x"}', "--by", "ana", "--why", "seen", "--shown", case["hash"]]
    shop.cli("settle", "shop:app", case["id"], *answer)
    code = (shop.folder / "shop.py").read_text()
    (shop.folder / "shop2.py").write_text(code.replace('chat(text=say, lose=silent)["text"]', "'nothing'"))
    shop.cli("resume", "shop2:app", "v1", code=3)
    said = shop.cli("inbox", shop.case()["id"], env={"COLUMNS": "120"}).out
    assert "doubtless fork MODULE:APP v1 --at 4" in said
    assert "doubtless resume MODULE:APP v1" in said
