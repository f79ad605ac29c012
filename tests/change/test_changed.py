"""`app.changed`: new tasks go the new way, tasks that went past the mark keep the old one; the same on each replay."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from change_ground import Release, Releases, Stop

from doubtless import OutsideTask, UsageError


def names(release: Release, task_id: str = "t") -> list[tuple[str, str]]:
    return [(step.path, step.name) for step in release.app.show(task_id).steps]


def marked(release: Release, *, stops: bool = False, at: str = "front") -> Release:
    """A release with a mark before `pay`, behind which it tells before it pays."""
    pay, tell = release.step("pay"), release.step("tell")

    @release.code
    def work() -> list[Any]:
        done = []
        if release.app.changed("tell-first"):
            done.append(tell("new"))
        done.append(pay("money"))
        if stops:
            raise Stop
        done.append(tell("old"))
        return done

    return release


def unmarked(release: Release) -> Release:
    """The release before: it pays, and stops."""
    pay = release.step("pay")
    release.step("tell")

    @release.code
    def work() -> None:
        pay("money")
        raise Stop

    return release


def test_a_new_task_goes_the_new_way_and_stays_on_it(releases: Releases) -> None:
    release = marked(releases(), stops=True)
    release.stops()
    assert names(release) == [("1", "$changed"), ("2", "tell"), ("3", "pay")]
    release = marked(releases())
    assert release.run() == ["new", "money", "old"]
    assert names(release) == [("1", "$changed"), ("2", "tell"), ("3", "pay"), ("4", "tell")]
    assert releases.did == [("tell", "new"), ("pay", "money"), ("tell", "old")]


def test_an_old_task_that_went_past_keeps_the_old_way_and_its_places(releases: Releases) -> None:
    unmarked(releases()).stops()
    release = marked(releases(), stops=True)
    release.stops()
    assert names(release) == [("1", "pay")], "a mark that is False takes no place"
    release = marked(releases())
    assert release.run() == ["money", "old"]
    assert names(release) == [("1", "pay"), ("2", "tell")]


def test_an_old_task_that_has_not_come_there_yet_goes_the_new_way(releases: Releases) -> None:
    release = releases()
    look = release.step("look", effect="read")

    @release.code
    def before() -> None:
        look("a")
        raise Stop

    release.stops()
    release = releases()
    look, pay = release.step("look", effect="read"), release.step("pay")

    @release.code
    def after() -> list[Any]:
        return [look("a"), release.app.changed("pay-twice"), pay("x")]

    assert release.run() == ["a", True, "x"]


def test_two_marks_in_one_place_are_told_apart(releases: Releases) -> None:
    def make(release: Release, *, second: bool, end: bool) -> Release:
        pay = release.step("pay")

        @release.code
        def work() -> list[Any]:
            done: list[Any] = []
            if second:
                done.append(release.app.changed("b"))
            done += [release.app.changed("a"), pay("x")]
            if not end:
                raise Stop
            return done

        return release

    make(releases(), second=False, end=False).stops()
    assert make(releases(), second=True, end=True).run() == [False, True, "x"]


def test_in_a_loop_each_turn_is_asked_for_itself(releases: Releases) -> None:
    release = releases()
    pay = release.step("pay")

    @release.code
    def before() -> None:
        pay(0)
        pay(1)
        raise Stop

    release.stops()
    for last in (3, 4, 4):  # and the same on each replay
        release = releases()
        pay = release.step("pay")

        @release.code
        def after(release: Release = release, pay: Any = pay, last: int = last) -> list[Any]:
            done = []
            for i in range(last):
                done.append((release.app.changed("log"), pay(i)))
            if last == 3:
                raise Stop
            return [flag for flag, _ in done]

        if last == 3:
            release.stops()
        else:
            assert release.run() == [False, False, True, True]
    assert names(release) == [("1", "pay"), ("2", "pay"), ("3", "$changed"), ("4", "pay"), ("5", "$changed"), ("6", "pay")]


def test_in_a_branch_a_mark_looks_at_its_own_branch_and_behind_the_group(releases: Releases) -> None:
    def make(release: Release, *, mark: bool, behind: bool) -> Release:
        pay, tell = release.step("pay"), release.step("tell")
        seen: list[bool] = []

        def left() -> Any:
            done = pay("left")
            if mark:
                seen.append(release.app.changed("late"))
            return done

        def right() -> Any:
            pay("r1")
            return pay("r2")

        @release.code
        def work() -> list[bool]:
            release.app.parallel(left, right)
            if behind:
                tell("done")
            if not mark:
                raise Stop
            return seen

        return release

    make(releases(), mark=False, behind=False).stops("beside")
    assert make(releases(), mark=True, behind=False).run("beside") == [True], "the other branch is beside, not behind"
    make(releases(), mark=False, behind=True).stops("behind")
    assert make(releases(), mark=True, behind=True).run("behind") == [False], "the task has gone past the group"


def test_an_async_task_asks_without_await(releases: Releases) -> None:
    def make(release: Release, *, mark: bool) -> Release:
        @release.app.step(effect="non_idem_write")
        async def pay(what: str) -> str:
            return what

        @release.code
        async def work() -> Any:
            seen = release.app.changed("m") if mark else None
            await pay("x")
            if not mark:
                raise Stop
            return seen

        return release

    make(releases(), mark=False).stops("old")
    assert make(releases(), mark=True).run("old") is False
    assert make(releases(), mark=True).run("new") is True
    assert make(releases(), mark=True).run("new") is True


def test_where_an_earlier_place_was_never_logged_what_is_behind_it_still_says_that_the_task_went_past(releases: Releases) -> None:
    """Two calls at once: the second was recorded, the first not; code that asks between them meets a place without a row."""
    release = releases()
    pay = release.step("pay")

    @release.code
    def before() -> None:
        pay("x")
        raise Stop

    release.stops()
    from doubtless.events import Kind, StepStatus, draft

    store = release.app.store
    row = draft("t", Kind.STEP_SETTLED, store.now(), step_seq=9, path="3", step_name="pay", status=StepStatus.DONE)
    store.add("t", [row])
    release = releases()
    pay = release.step("pay")
    seen = []

    @release.code
    def after() -> None:
        pay("x")
        seen.append(release.app.changed("m"))
        raise Stop

    release.stops()
    assert seen == [False]


def test_a_mark_is_refused_outside_task_code_and_without_a_name(releases: Releases) -> None:
    release = releases()
    raised: list[BaseException] = []

    @release.app.step(effect="read")
    def inside() -> str:
        try:
            release.app.changed("m")
        except OutsideTask as error:
            return error.message
        return "taken"

    def stray() -> None:
        try:
            context.run(release.app.changed, "m")
        except BaseException as error:
            raised.append(error)

    import contextvars

    context = contextvars.copy_context()

    @release.code
    def work() -> str:
        nonlocal context
        context = contextvars.copy_context()
        thread = threading.Thread(target=stray)
        thread.start()
        thread.join()
        for wrong in ("", None, 3):
            with pytest.raises(UsageError, match="needs a name"):
                release.app.changed(wrong)  # type: ignore[arg-type]
        return inside()

    with pytest.raises(OutsideTask, match="outside a task"):
        release.app.changed("m")
    assert "inside a step" in release.run()
    assert [type(error) for error in raised] == [OutsideTask]
    assert names(release) == [("1", "inside")]
