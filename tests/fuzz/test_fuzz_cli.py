"""Whatever is typed: an exit code that is documented, one line that says what to do, and nothing written by what is refused."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import fuzz_program
import pytest
from fuzz_store import NAME, Written, fill, opened, raw_rows, scratch
from fuzzing import examples, replay
from hypothesis import given
from hypothesis import strategies as st

from doubtless.cli import main
from doubtless.cli.exits import MEANING, STORE, UNEXPECTED, USAGE
from doubtless.cli.group import HOMES

PROGRAM = """
from doubtless import Doubtless
from doubtless.testing import FakeClock
from doubtless.testing.harness import NAMESPACE
from fuzz_program import World, declare

clock = FakeClock(start="2026-11-28T15:00:00+00:00")
world = World(clock)
app = Doubtless(clock=clock, namespace=NAMESPACE)
declare(app, world)
number = 3
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[Written]:
    """A store with something of every kind, and a module whose app it is, in the working directory."""
    before, store = os.getcwd(), os.environ.get("DOUBTLESS_STORE")
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        written = fill(Path(folder) / "store", checkpointed=True)
        Path(folder, "fuzz_shop.py").write_text(PROGRAM)
        os.chdir(folder)
        os.environ["DOUBTLESS_STORE"] = f"sqlite:///{written.folder / NAME}"
        try:
            yield written
        finally:
            os.chdir(before)
            os.environ.pop("DOUBTLESS_STORE")
            if store is not None:
                os.environ["DOUBTLESS_STORE"] = store


junk = st.one_of(
    st.text(max_size=12), st.sampled_from(["", " ", "-", "--", "@", "@nothing.json", "@.", "\x00", "\ud800", "é\u202e", "9" * 400, "-1", "x" * 300]),
    st.integers().map(str), st.floats().map(str),
)  # fmt: skip
ids = st.one_of(st.sampled_from(["buy-o1", "buy-o2", "ask-o1", "thread-1", "forked", "parent-o1/2", "hold-o1", "$store", "nobody"]), junk)
targets = st.one_of(
    st.sampled_from(["fuzz_shop:app", "fuzz_shop:number", "fuzz_shop:nothing", "fuzz_shop", "nothing:app", "fuzz_shop.py:app", "./fuzz_shop.py:app", ":", "json:loads"]),
    junk,
)  # fmt: skip
cases = st.one_of(st.sampled_from(["broken-o1:5", "hold-o1:6", "buy-o2:14", "ask-o1:3"]), junk)
jsons = st.one_of(st.sampled_from(["{}", "null", '{"order": "x"}', '{"order": 1}', "[1", '{"a":1,"a":2}', "NaN", "true"]), junk)
waits = st.lists(st.one_of(st.sampled_from(["--no-wait"]), st.builds("--wait={}".format, st.one_of(st.just("PT1M"), junk))), max_size=1)


def said(*parts: Any) -> st.SearchStrategy[list[str]]:
    """An argv of these parts, each a word, a strategy of a word, or a strategy of several."""
    made = [st.just([part]) if isinstance(part, str) else part.map(lambda v: v if isinstance(v, list) else [v]) for part in parts]
    return st.tuples(*made).map(lambda lists: [word for words in lists for word in words])


def options(*names: str, values: Any = junk, most: int = 3) -> st.SearchStrategy[list[str]]:
    one = st.tuples(st.sampled_from(names), values).map(list)
    return st.lists(one, max_size=most).map(lambda pairs: [word for pair in pairs for word in pair])


BY = ["--by", "ann", "--why", "I looked"]
who = st.one_of(st.just(BY), options("--by", "--why"))
tasks = st.one_of(st.sampled_from(["buy", "clerk", "ask", "nothing"]), junk)
known = st.one_of(
    said("run", targets, tasks, ids, options("-p", "--params", values=st.one_of(jsons, st.sampled_from(["order=x", "order", "=", "goal=1", "x=1"]))), waits),
    said("resume", targets, ids, waits), said("resume", targets, st.sampled_from([["--all"], [], ["--all", "x"]]), waits),
    said("settle", targets, cases, st.one_of(st.sampled_from(["happened", "retry", "abandon", "deny", "noted"]), junk), who,
         options("--shown", "--output", "--then", values=st.one_of(jsons, st.just("retry")))),
    said("send-event", ids, st.one_of(st.just("approve"), junk), jsons, options("--event-id")),
    said("fork", targets, ids, options("--at", "--as", "--idem-write", "--non-idem-write", values=st.one_of(junk, st.sampled_from(["2", "ask", "run"])))),
    said("cancel", targets, ids, who, waits), said("compensate", targets, ids, who, waits),
    said("tasks", options("--status", values=st.one_of(st.sampled_from(["done", "ready"]), junk))), said("show", ids), said("log", ids),
    said("inbox", st.lists(cases, max_size=1)), said("verify"), said("steps", targets), said("recover", who), said("recover", "--end", who),
    said("freeze", st.lists(junk, max_size=1), who), said("thaw", st.lists(junk, max_size=1), who),
    said(st.sampled_from(["show", "log", "inbox", "tasks", "verify"]), options("--store", values=st.one_of(st.sampled_from(["sqlite:///", "sqlite:///:memory:", "sqlite:///no.db", "mysql://x", "sqlite:///fuzz_shop.py"]), junk))),
)  # fmt: skip
wild = st.lists(st.one_of(st.sampled_from([*(set(HOMES) - {"demo", "crashtest"}), "--json", "--help", "--all", "--store"]), junk, targets, ids), max_size=6)
flags = st.lists(st.sampled_from(["--json", "--debug", "--", "--nothing", "-h"]), max_size=2)
lines = st.one_of(known, known, wild).flatmap(lambda argv: st.tuples(st.just(argv), flags, st.integers(0, 8))).map(
    lambda made: [*made[0][: made[2]], *[f for f in made[1] if f != "--debug"], *made[0][made[2] :]]
)  # fmt: skip


def type_in(argv: list[str], written: Written) -> None:
    """Run a command in this process, and hold it to what holds of all of them."""
    file = written.folder / NAME
    before = raw_rows(file)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(argv)
    shown, told = out.getvalue(), err.getvalue()
    assert code in MEANING and code != UNEXPECTED, (argv, code, told)
    assert "Traceback" not in told, (argv, told)  # a case of broken code shows the code's own
    assert all(c.isprintable() or c in "\n " or c == "\u00a0" or not c.isascii() for c in shown + told), (argv, shown, told)
    if code == USAGE:
        assert raw_rows(file) == before, (argv, "was refused, and wrote")
    if code in (USAGE, STORE) and argv[0:1] not in (["verify"], ["recover"], ["steps"]):
        assert told.startswith("doubtless: ") and told.count("\n") == 1, (argv, told)
        assert len(told) > len("doubtless: x.\n"), (argv, told)
    if "--json" in argv[: argv.index("--")] if "--" in argv else "--json" in argv:
        for line in shown.splitlines() if argv[0] == "log" else [shown]:
            if "Usage: doubtless" not in shown and line:
                json.loads(line)


@examples(120)
@given(argv=lines)
def test_whatever_is_typed_ends_with_a_documented_code_and_writes_nothing_when_it_is_refused(argv: list[str], shop: Written) -> None:
    type_in(argv, shop)


@replay("argv")
def test_kept_lines_end_with_a_documented_code_and_write_nothing_when_refused(kept: dict[str, Any], shop: Written) -> None:
    type_in(kept["argv"], shop)


def test_the_store_is_sound_after_all_that_was_typed(shop: Written) -> None:
    type_in(["run", "fuzz_shop:app", "buy", "typed-1", "-p", "order=typed-1"], shop)
    type_in(["resume", "fuzz_shop:app", "--all"], shop)
    with opened(shop.folder, shop.world) as app:
        assert app.verify() == []
        assert app.show("typed-1").status == "done" or app.store.frozen()
    assert fuzz_program.TASKS
