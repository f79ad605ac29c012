"""The reconciliation that fails at step six and takes back what it did: in reverse, once, in time, or a person is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.reconciliation.app import build
from examples.reconciliation.load import ORDER_COLUMNS, STATEMENT_COLUMNS
from examples.reconciliation.outside import Outside, environment
from tests import nursery

from doubtless import Case, DidNotHappen, Happened, NeedsHuman, TaskFailed
from doubtless.answers import AnyAnswer
from doubtless.testing import FakeClock

DAY, TASK, LONG_S = "2026-11-28", "recon-1", 3600.0
ORDERS = ("SO-100001", "SO-100002", "SO-100003")
WITHDRAWN = [f"{order}:underpayment" for order in reversed(ORDERS)]


def write_books(folder: Path) -> dict[str, str]:
    """Three orders of which each was paid ten short: three sheets."""
    orders = [f"{order},order,2026-10-20,2026-11-03,Lee,USD,100.00,open,," for order in ORDERS]
    paid = [
        f"ST-{n},BR0000000{n},2026-11-01,2026-11-01,payment,Lee,USD,90.00,,{order}" for n, order in enumerate(ORDERS, 1)
    ]
    (folder / "orders.csv").write_text("\n".join([",".join(ORDER_COLUMNS), *orders, ""]))
    (folder / "statement.csv").write_text("\n".join([",".join(STATEMENT_COLUMNS), *paid, ""]))
    return {name: str(folder / f"{name}.csv") for name in ("statement", "orders")}


class Ground:
    """One office, one store, a clock to turn."""

    def __init__(self, folder: Path, office: Outside) -> None:
        self.office = office
        self.files = write_books(folder)
        self.store = f"sqlite:///{folder / 'recon.db'}"
        self.clock = FakeClock()
        self.recon = build(self.store, office.url, clock=self.clock)
        self.app = self.recon.app

    def run(self) -> object:
        return self.app.run(self.recon.reconcile, TASK, day=DAY, **self.files)

    def case(self, kind: str) -> Case:
        """Run it into a person's inbox; the one case that is there."""
        with pytest.raises(NeedsHuman):
            self.run()
        [case] = self.app.inbox().cases
        assert case.kind == kind
        return case

    def settle(self, case: Case, answer: AnyAnswer) -> None:
        self.app.settle(case.id, answer, by="ana", why="looked", shown=case.hash)

    def withdrawals(self) -> tuple[int, list[str]]:
        return self.office.effects("approval_withdrawal"), self.office.order("sheet_withdrawal")


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Outside(tmp_path / "office.db") as office:
        ground = Ground(tmp_path, office)
        yield ground
        assert ground.app.verify() == []
        ground.app.close()


def test_a_run_that_fails_at_step_six_withdraws_the_approval_and_then_its_sheets_the_last_first(ground: Ground) -> None:
    ground.office.fault("/chat/messages", "refuse_422")
    for _ in range(2):  # the same when it is asked for again
        with pytest.raises(TaskFailed):
            ground.run()
        assert ground.withdrawals() == (1, WITHDRAWN)
    kinds = [kind for kind, _ in ground.office.counts()["order"]]
    assert kinds == ["sheet"] * 3 + ["approval", "approval_withdrawal"] + ["sheet_withdrawal"] * 3
    assert ground.app.show(TASK).status == "compensated"
    assert (ground.office.effects("message"), ground.office.effects("closing")) == (0, 0)


def fails_while_somebody_looks(ground: Ground) -> None:
    """The chat does not answer; while a person looks for the message, others go on working. Then: it is not there."""
    ground.office.fault("/chat/messages", "drop_before")
    doubt = ground.case("doubt")
    assert ground.withdrawals() == (0, [])
    ground.settle(doubt, DidNotHappen(then="fail"))


def test_an_approval_that_somebody_has_processed_meanwhile_is_a_case_and_its_sheets_stay(ground: Ground) -> None:
    fails_while_somebody_looks(ground)
    ground.office.process("P-1")
    case = ground.case("compensation")
    assert (case.path, case.step) == ("~7", "withdraw_approval")
    assert "already processed" in case.why
    assert ground.withdrawals() == (0, [])
    assert ground.office.requests("POST /approvals/{id}/withdraw") == 1

    ground.office.reverse("P-1")  # an accountant does what no program can, and says so
    ground.settle(case, Happened({"id": "P-1", "status": "reversed by hand"}))
    with pytest.raises(TaskFailed):
        ground.run()
    assert ground.app.show(TASK).status == "compensated"
    assert ground.withdrawals() == (0, WITHDRAWN)
    assert ground.office.requests("POST /approvals/{id}/withdraw") == 1


def test_over_the_deadline_nothing_is_withdrawn_any_more_and_a_person_is_asked(ground: Ground) -> None:
    fails_while_somebody_looks(ground)
    ground.clock.advance("PT11M")
    case = ground.case("compensation")
    assert case.step == "withdraw_approval"
    assert "deadline" in case.why
    assert ground.withdrawals() == (0, [])
    assert ground.office.requests("POST /approvals/{id}/withdraw") == 0
    ground.settle(case, DidNotHappen(then="fail"))  # let it stand
    assert ground.case("compensation").step == "withdraw_adjustment"
    assert ground.office.requests("POST /adjustments/{id}/withdraw") == 0


def test_killed_while_it_takes_back_it_goes_on_taking_back_and_never_runs_the_task_again(ground: Ground) -> None:
    ground.office.fault("/chat/messages", "refuse_422")
    ground.office.fault("/approvals/{id}/withdraw", "lose_reply", delay_s=LONG_S)
    files = [part for name, value in ground.files.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "examples.reconciliation", "--task", TASK, "--day", DAY, *files]
    child = nursery.Popen(command, env=environment(DOUBTLESS_STORE=ground.store, RECON_SERVER=ground.office.url))
    try:
        assert ground.office.wait_for("approval_withdrawal")
    finally:
        child.kill()
        child.wait()
    ground.office.advance(LONG_S)
    ground.app.close()
    late = build(ground.store, ground.office.url)  # the real clock, as the process that was killed had
    try:
        with pytest.raises(TaskFailed):
            late.app.run(late.reconcile, TASK, day=DAY, **ground.files)
        assert late.app.show(TASK).status == "compensated"
    finally:
        late.app.close()
    assert ground.withdrawals() == (1, WITHDRAWN)
    assert ground.office.requests("POST /chat/messages") == 1
    assert ground.office.effects("sheet") == 3
