"""A store whose files are damaged gives what was written, or says that it is damaged; nothing is sent again because of it.

The damage is done to copies of a store that holds something of every kind, behind the library's back. What the log's rows
are is read by plain SQL before and after: where the damage changed one, `verify` has to find it.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from fuzz_store import NAME, Damage, Written, copy_of, do_damage, fill, opened, raw_rows, readings, scratch
from fuzzing import examples, replay
from hypothesis import given
from hypothesis import strategies as st

from doubtless import Doubtless, DoubtlessError
from doubtless.cli import main
from doubtless.cli.exits import MEANING, UNEXPECTED

ANSWERS_WITHIN = 30.0
"""Seconds for everything that is asked of one damaged store: none of it hangs."""


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def closed(ground: Path) -> Written:
    """A store that was closed: all of it is in the database."""
    return fill(ground / "closed", checkpointed=True)


@pytest.fixture(scope="module")
def killed(ground: Path) -> Written:
    """A store whose process was killed: most of it is in the WAL."""
    return fill(ground / "killed", checkpointed=False)


parts = st.floats(0, 1, exclude_max=True)
numbers = st.integers(0, 10_000)
damages = st.one_of(
    st.builds(Damage, st.sampled_from(["flip", "text", "text", "cut", "zero", "swap", "double", "junk"]), st.just("db"), parts, numbers),
    st.builds(Damage, st.just("events"), st.just("row"), parts, numbers),
    st.builds(Damage, st.sampled_from(["tasks", "cases", "freezes", "keys", "snapshots", "meta", "blobs"]), st.just("row"), parts, numbers),
    st.builds(Damage, st.sampled_from(["flip", "cut", "zero", "swap", "junk", "gone"]), st.sampled_from(["mark", "blob"]), parts, numbers),
    st.builds(Damage, st.sampled_from(["foreign", "gone"]), st.just("db"), st.just(0.0), st.just(0)),
)
damages_of_a_wal = st.builds(
    Damage, st.sampled_from(["flip", "text", "cut", "zero", "swap", "double", "junk", "gone"]), st.sampled_from(["wal", "wal", "db"]), parts, numbers
)


def command(*argv: str) -> tuple[int, str, str]:
    """A command in this process: its exit code, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(argv)
    return code, out.getvalue(), err.getvalue()


def says_what_is_wrong(error: DoubtlessError) -> None:
    assert error.message
    assert error.hint, f"{type(error).__name__}: {error.message} gives no hint"


def endure(written: Written, folder: Path, damage: Damage) -> None:
    """Ask everything of a damaged copy, then run what is in it."""
    began = time.monotonic()
    do_damage(copy_of(written, folder), damage)
    now = raw_rows(folder / NAME) if (folder / NAME).exists() else None  # through SQLite, as far as it reads
    changed = sealed(now) != sealed(written.rows)
    found = verified(written, folder)
    lost = not found and damage.where == "wal" and earlier(written.rows, now)  # the last commits: as if they had not been
    if changed and not lost:
        assert found, f"{damage}: verify finds nothing, and the log's rows are others: {differences(written.rows, now)}"
    with opened(folder, written.world) as app:
        for name, read in readings(written.tasks):
            try:
                said = read(app)
            except DoubtlessError as error:
                says_what_is_wrong(error)
            else:
                told = said if lost or RUNS in name else written.reads[name]
                assert said == told or (found and name == "inbox"), f"{damage}: {name}: {unlike(told, said)}"
    for argv in (["tasks"], ["show", "buy-o1"], ["log", "both-o4"], ["inbox"], ["verify", "--json"], ["recover"]):
        commanded(folder, *argv)
    if not lost:
        run_on(written, folder, damage)
    assert time.monotonic() - began < ANSWERS_WITHIN


def verified(written: Written, folder: Path) -> list[Any]:
    with opened(folder, written.world) as app:
        try:
            return app.verify()
        except DoubtlessError as error:
            says_what_is_wrong(error)
            return [error]


def commanded(folder: Path, *argv: str) -> None:
    code, out, err = command(*argv, "--store", f"sqlite:///{folder / NAME}")
    assert code in MEANING and code != UNEXPECTED, (argv, code, out, err)
    assert "Traceback" not in out + err
    assert code == 0 or err.count("\n") == 1 or argv[0] in ("verify", "recover"), (argv, err)
    if "--json" in argv:
        json.loads(out)


def run_on(written: Written, folder: Path, damage: Damage) -> None:
    """Go on with every task. What has happened does not happen again; what happens now happens under a key of its own."""
    world = written.world
    world.landed[:] = world.landed[: sum(written.happened.values())]
    with opened(folder, world) as app:
        try:
            app.resume_all(wait=False)
        except DoubtlessError as error:
            says_what_is_wrong(error)
        for name, number in (("buy", 1), ("buy", 6), ("give_up", 1), ("both", 1), ("parent", 1), ("clerk", 5)):
            task_id = f"{name}-o{number}"
            try:
                app.run(app.declared_tasks[name], task_id=task_id, wait=False, **{"goal" if name == "clerk" else "order": task_id})
            except DoubtlessError as error:
                assert error.message
    again = [(one.name, one.order) for one in world.landed[sum(written.happened.values()) :]]
    before = [(one.name, one.order) for one in world.landed[: sum(written.happened.values())]]
    repeated = [each for each in again if each in before and each[1] != RUNS]
    assert not repeated, f"{damage}: sent again: {repeated}"


RUNS = "buy-o6"
"""The task whose owner died: nothing is chained to its last row yet, so that a change to this one row cannot be seen."""


def sealed(rows: list[Any] | None) -> list[Any] | None:
    """The rows, without the last one of the task whose owner died."""
    if rows is None:
        return None
    last = max((int(row[1]) for row in rows if row[0] == f"'{RUNS}'" and row[1].isdecimal()), default=0)
    return [row for row in rows if row[:2] != (f"'{RUNS}'", str(last))]


def earlier(before: list[Any], after: list[Any] | None) -> bool:
    """Whether these rows are the log as it stood at an earlier moment: of each task some first rows."""
    return after is not None and set(after) < set(before) and all(
        row in after for row in before if any(row[0] == one[0] and int(row[1]) < int(one[1]) for one in after if one[1].isdecimal())
    )  # fmt: skip


def unlike(told: Any, said: Any) -> Any:
    """The first part in which two things that were read differ."""
    if isinstance(told, (list, tuple)) and isinstance(said, (list, tuple)) and len(told) == len(said):
        return next((unlike(one, other) for one, other in zip(told, said, strict=True) if one != other), None)
    return told, said


def differences(before: list[Any], after: list[Any] | None) -> Any:
    if after is None:
        return "they cannot be read"
    return [(one, other) for one, other in zip(before, after, strict=False) if one != other][:2] or (len(before), len(after))


@pytest.mark.prove  # what it finds depends on the epochs in the file, which are random; `make test` replays the kept damages
@examples(70)
@given(damage=damages)
def test_a_damaged_store_gives_what_was_written_or_says_that_it_is_damaged(damage: Damage, closed: Written, ground: Path) -> None:
    endure(closed, ground / "copy", damage)


@pytest.mark.prove
@examples(25)
@given(damage=damages_of_a_wal)
def test_a_damaged_wal_gives_what_was_written_or_what_was_written_before_and_says_so(damage: Damage, killed: Written, ground: Path) -> None:
    endure(killed, ground / "copy", damage)


@replay("damage")
def test_kept_damages_are_endured(kept: dict[str, Any], closed: Written, killed: Written, ground: Path) -> None:
    damage = Damage(*kept["damage"])
    endure(killed if damage.where == "wal" else closed, ground / "copy", damage)


def test_a_store_that_nobody_damaged_is_read_as_it_was_written(closed: Written, killed: Written, ground: Path) -> None:
    for written in (closed, killed):
        assert written.tasks
        folder = copy_of(written, ground / "copy")
        assert verified(written, folder) == []
        with opened(folder, written.world) as app:
            assert {name: read(app) for name, read in readings(written.tasks)} == written.reads
        run_on(written, folder, Damage("nothing", "db", 0, 0))


def test_every_kind_of_content_is_in_the_store_that_is_damaged(closed: Written, ground: Path) -> None:
    folder = copy_of(closed, ground / "copy")
    with opened(folder, closed.world) as app:
        statuses = {head.status for head in app.tasks()}
        assert {"done", "compensated", "needs_human", "ready", "waiting"} <= statuses, statuses
        store = app.store
        assert store.frozen() and store.cases() and store.key("book:buy-o1") and store.usable_snapshot("trainee-o8")
    assert list((folder / f"{NAME}.blobs").rglob("*"))
    assert isinstance(app, Doubtless)
