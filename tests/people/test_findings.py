"""What a person sees stays whole, whatever one value or one damaged file looks like."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from people_ground import Desk, MakeApp, answer, vanish

from doubtless import Doubtless, NeedsHuman
from doubtless.answers import Happened
from doubtless.errors import StoreDamaged
from doubtless.inbox import shown_json

HUGE = 10**5000 + 7
"""More digits than the interpreter reads or writes as text by itself."""
DIGITS = "1" + "0" * 4999 + "7"


def registration(app: Doubtless) -> Any:
    """A task with one write whose reply is lost, and which nobody can ask about."""

    @app.step(effect="non_idem_write")
    def register(n: Any) -> dict[str, Any]:
        raise TimeoutError("the reply was lost")

    @app.task
    def enrol(n: Any) -> dict[str, Any]:
        return register(n=n)

    return enrol


def test_a_huge_int_in_one_case_hides_no_case_and_can_be_answered(make_app: MakeApp) -> None:
    app = make_app()
    enrol = registration(app)
    for task_id, n in (("ordinary", 1), ("huge", HUGE)):
        with pytest.raises(NeedsHuman):
            app.run(enrol, task_id, n=n)
    by_task = {case.task_id: case for case in app.inbox().cases}
    assert by_task["ordinary"].evidence["params"] == {"n": 1}
    assert by_task["huge"].evidence["params"] == {"n": {"$int": DIGITS}}
    assert app.show("huge").steps[0].params == {"n": {"$int": DIGITS}}
    answer(app, by_task["huge"], Happened({"n": HUGE}))
    assert app.resume("huge") == {"n": HUGE}
    assert app.show("huge").output == {"n": {"$int": DIGITS}}


def test_a_case_whose_evidence_is_lost_says_so_takes_no_answer_and_hides_no_other(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    enrol = registration(app)
    for task_id, n in (("large", "x" * 3_000_000), ("ordinary", 1)):
        with pytest.raises(NeedsHuman):
            app.run(enrol, task_id, n=n)
    shutil.rmtree(tmp_path / "people.db.blobs")
    large, ordinary = app.inbox().cases
    assert (large.task_id, large.kind, large.answers) == ("large", "doubt", {})
    assert "cannot be shown (StoreDamaged: " in large.why
    assert ordinary.evidence["params"] == {"n": 1}
    with pytest.raises(StoreDamaged):
        answer(app, large, Happened({}))
    answer(app, ordinary, Happened({"n": 1}))
    assert app.resume("ordinary") == {"n": 1}


@pytest.mark.parametrize("text, value", [("-12", -12), ("[1.5]", [1.5]), (f'{{"n":-{DIGITS}}}', {"n": {"$int": f"-{DIGITS}"}})])
def test_stored_json_is_shown_with_its_ints_whole(text: str, value: Any) -> None:
    assert shown_json(text) == value


def test_the_error_of_a_spilled_result_names_its_file_in_full(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    desk = Desk(app, vanish)
    desk.doubt()
    name = app.store.spill(desk.rows()[-1])
    assert Path(name).is_file()
    assert Path(name).parent == tmp_path.resolve() / "people.db.spill"
    assert re.fullmatch(r"[0-9a-f]{24}-\d{20}-[0-9a-f]{8}\.json", Path(name).name)
    app.store.drop_spilled(name)
    assert not Path(name).exists()
