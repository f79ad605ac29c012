"""New code meets an old log: what an intent has frozen holds, what differs is said, and drift offers its ways out."""

from __future__ import annotations

from typing import Any

import pytest
from change_ground import Release, Releases, Stop

from doubtless import Fail, TaskFailed
from doubtless.events import Kind


def pays(release: Release, name: str = "pay", what: Any = "money", *, stops: bool = True, **options: Any) -> Release:
    """A release that pays, and stops there."""
    pay = release.step(name, **options)

    @release.code
    def work() -> Any:
        done = pay(what)
        if stops:
            raise Stop
        return done

    return release


def diverged(release: Release, task_id: str = "t") -> Any:
    release.stops(task_id)
    (case,) = [case for case in release.app.inbox().cases if case.task_id == task_id]
    assert case.kind == "diverged"
    return case


def test_a_renamed_step_is_named_as_such_and_the_log_is_untouched(releases: Releases) -> None:
    """C06, C100."""
    release = pays(releases())
    release.stops()
    logged = release.app.store.rows("t")
    case = diverged(pays(releases(), "pay_order"))
    assert (case.evidence["field"], case.evidence["logged"], case.evidence["asked"]) == ("step", "pay", "pay_order")
    assert case.evidence["step_seq"] == 1
    assert "name='pay' in its declaration keeps the old name" in case.evidence["perhaps"]
    assert case.evidence["definition"] == [{"field": "step", "was": "pay", "now": None}]
    assert release.app.store.rows("t")[: len(logged)] == logged
    assert releases.did == [("pay", "money")]


def test_a_divergence_says_what_to_type_and_each_choice_works(releases: Releases) -> None:
    """C06, C100: deploy the old way, fork at that step, or fail."""
    pays(releases()).stops()
    release = pays(releases(), "pay_order", stops=False)
    case = diverged(release)
    deploy, fork, fail = case.evidence["choices"]
    assert "asks for 'pay' at place 1 again, then: doubtless resume MODULE:APP t" in deploy
    assert "doubtless fork MODULE:APP t --at 1" in fork
    assert "fail" in fail

    made = release.app.fork("t", at=case.evidence["step_seq"], non_idem_write="run")
    assert [one.step for one in made.stands] == ["pay"]
    assert release.app.resume(made.id) == "money"
    assert releases.did == [("pay", "money"), ("pay_order", "money")]

    assert pays(releases(), stops=False).run() == "money", "the old way goes on"
    assert release.app.inbox().cases == []

    pays(releases()).stops("u")
    case = diverged(release, "u")
    release.app.settle(case.id, Fail(), by="anna", why="no", shown=case.hash)
    with pytest.raises(TaskFailed):
        release.run("u")


def test_a_step_that_was_inserted_is_named_as_such(releases: Releases) -> None:
    """C100."""
    pays(releases()).stops()
    release = releases()
    check, pay = release.step("check", effect="read"), release.step("pay")

    @release.code
    def work() -> Any:
        return [check("x"), pay("money")]

    case = diverged(release)
    assert "no step check: it may have been inserted; app.changed" in case.evidence["perhaps"]
    assert releases.did == [("pay", "money")]


def test_all_params_that_differ_are_listed(releases: Releases) -> None:
    pays(releases(), what={"a": 1, "b": [1, 2], "c": 3}).stops()
    case = diverged(pays(releases(), what={"a": 2, "b": [1, 3], "c": 3}))
    assert case.evidence["differences"] == [
        {"field": "params.what.a", "logged": 1, "asked": 2},
        {"field": "params.what.b[1]", "logged": 2, "asked": 3},
    ]
    assert case.evidence["field"] == "params.what.a"


def test_a_changed_class_is_read_from_the_intent_and_show_says_what_changed(releases: Releases) -> None:
    """C100: from non_idem_write to idem_write; the intent in doubt is not sent again, whatever the deploy declares."""
    release = pays(releases())
    release.raises = ConnectionResetError()
    release.stops()
    (row,) = [row for row in release.app.store.rows("t") if row.kind == Kind.STEP_INTENDED]
    assert (row.step_name, row.effect_class) == ("pay", "non_idem_write")

    release = pays(releases(), effect="idem_write", idempotent_by="its number", attempts=7)
    release.stops()
    assert releases.did == [("pay", "money")], "an idem_write would have been sent again"
    (step,) = release.app.show("t").steps
    assert step.effect == "non_idem_write"
    assert [(change.field, change.was, change.now) for change in step.changed] == [
        ("attempts", 3, 7),
        ("effect", "non_idem_write", "idem_write"),
        ("idempotent_by", None, "its number"),
    ]


def test_show_says_nothing_where_nothing_changed_or_no_code_is_at_hand(releases: Releases) -> None:
    from doubtless import Doubtless

    release = pays(releases(), stops=False)
    release.run()
    assert release.app.show("t").steps[0].changed == ()
    looking = Doubtless(releases.url, clock=releases.clock, read_only=True)
    assert looking.show("t").steps[0].changed == ()
    looking.close()
    release = releases()
    release.step("other")
    assert [change.field for change in release.app.show("t").steps[0].changed] == ["step"]


def test_another_body_is_no_change(releases: Releases) -> None:
    pays(releases(), stops=False).run()
    release = releases()

    @release.app.step(effect="non_idem_write")
    def pay(what: Any = None) -> Any:
        return [what, "another body"]

    assert release.app.show("t").steps[0].changed == ()
