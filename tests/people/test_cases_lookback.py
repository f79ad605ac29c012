"""Cases from the field about look-backs that give a wrong or useless answer (group E)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from people_ground import Clock, Desk, answer, land_and_lose_the_reply, vanish

from doubtless import Doubtless, NeedsHuman, StepFailed, TaskFailed, injected
from doubtless.answers import Happened
from doubtless.outcomes import Absent, Found, NoEffect, Pending, Several, Unclear

MakeDesk = Callable[..., Desk]
SECOND = 1_000_000


class Search:
    """The other side's list of what it has, as its API shows it: newest first, in pages, after a lag."""

    def __init__(self, clock: Clock, *, lag: float = 0, page: int = 50) -> None:
        self.clock = clock
        self.lag = lag
        self.page = page
        self.records: list[tuple[int, str]] = []

    def add(self, key: str, late: float = 0) -> dict[str, Any]:
        self.records.insert(0, (self.clock.now().wall + round(late * SECOND), key))
        return {"id": key}

    def shown(self) -> list[str]:
        horizon = self.clock.now().wall - round(self.lag * SECOND)
        return [key for when, key in self.records if when <= horizon]

    def first_page(self) -> list[str]:
        return self.shown()[: self.page]

    def n(self) -> int:
        return sum(not key.startswith("other") for _, key in self.records)


def pay_through(app: Doubtless, search: Search, query: Callable[..., Any], *, late: float | None = None, **policy: Any) -> Any:
    """A task whose one write lands in `search` and loses its reply; `late`: that long after the call."""
    policy = {"effect": "non_idem_write", "timeout": "PT5S", "backoff": "PT1S", **policy}

    @app.step(query=query, **policy)
    def comment(text: str, idempotency_key: str = injected()) -> dict[str, Any]:
        search.add(idempotency_key, late or 0)
        raise ConnectionResetError("lost")

    @app.task
    def say() -> Any:
        return comment(text="t")["id"]

    return lambda **options: app.run(say, task_id="s1", **options)


def test_a_bounded_scan_that_does_not_see_it_is_unclear_and_never_absent(app: Doubtless, clock: Clock) -> None:
    """C52: our own record is at place 51 of a page of 50; the query says so with Unclear, and nothing is made again."""
    search = Search(clock)

    def scan(idempotency_key: str) -> Any:
        page = search.first_page()
        if idempotency_key in page:
            return Found({"id": idempotency_key})
        return Unclear("only the newest 50 were looked at") if len(page) == search.page else Absent()

    run = pay_through(app, search, scan, absent_after="PT1M", on_absent="retry", query_attempts=3)
    push_off(app, search)
    with pytest.raises(NeedsHuman):
        run()
    assert search.n() == 1
    (case,) = app.inbox().cases
    assert case.evidence["looks"][0] == {"answer": "unclear", "why": "only the newest 50 were looked at"}


def push_off(app: Doubtless, search: Search) -> None:
    """Whatever is written next is pushed off the first page by what others write."""
    add = search.add

    def and_others(key: str, late: float = 0) -> dict[str, Any]:
        made = add(key, late)
        for number in range(60):
            add(f"other-{number}")
        return made

    search.add = and_others  # type: ignore[method-assign]


def test_a_list_that_is_handed_over_as_it_came_is_unclear_whatever_is_in_it(app: Doubtless, clock: Clock) -> None:
    """C52: neither an empty page nor a full one reads as an answer."""
    search = Search(clock)
    run = pay_through(app, search, search.first_page, absent_after="PT1M", on_absent="retry", query_attempts=2)
    with pytest.raises(NeedsHuman):
        run()
    assert search.n() == 1
    assert "say Found(x)" in app.inbox().cases[0].evidence["looks"][0]["why"]


def test_a_first_look_that_says_absent_starts_no_second_payment_while_the_first_may_land(app: Doubtless, clock: Clock) -> None:
    """C55: it lands 60 s late; the look at once says not found; the resend that would have paid twice does not happen."""
    search = Search(clock)

    def find(idempotency_key: str) -> Any:
        return Found({"id": "p"}) if idempotency_key in search.shown() else None

    run = pay_through(app, search, find, late=60, absent_after="PT2M", on_absent="retry")
    assert run() == "p"
    assert search.n() == 1


def test_without_absent_after_an_absence_never_leads_to_a_second_send(app: Doubtless, clock: Clock) -> None:
    """C55: nothing says when absent is proof; a person does. The claim of a week later looks again first."""
    search = Search(clock)
    run = pay_through(app, search, lambda: None)
    with pytest.raises(NeedsHuman):
        run()
    clock.advance("P7D")
    with pytest.raises(NeedsHuman):
        run()
    assert search.n() == 1


def test_a_search_that_lags_less_than_declared_finds_it(app: Doubtless, clock: Clock) -> None:
    """C57: 30 s of lag, one minute declared: unproven until then, found before it."""
    search = Search(clock, lag=30)

    def find(idempotency_key: str) -> Any:
        return Found({"id": "p"}) if idempotency_key in search.shown() else None

    run = pay_through(app, search, find, absent_after="PT1M", on_absent="retry")
    assert run() == "p"
    assert search.n() == 1


def test_a_search_that_hides_then_shows_then_hides_is_not_believed_in_between(app: Doubtless, clock: Clock) -> None:
    """C57: replicas disagree: two absents in a row, far enough apart and both late enough, are what counts."""
    search = Search(clock)
    says = [None, None, Unclear("replica b is behind"), None, {"id": "p"}]

    def find() -> Any:
        return says.pop(0) if len(says) > 1 else says[0]

    run = pay_through(app, search, find, absent_after="PT1M", on_absent="retry", query_attempts=9)
    assert run() == "p"
    assert search.n() == 1


def test_two_proven_absences_in_a_row_do_send_again_under_the_same_key(make_desk: MakeDesk, clock: Clock) -> None:
    """C57: the other side of the rule: what never landed is sent again once both absents were late enough."""
    desk: Desk = make_desk(query=lambda idempotency_key: desk.world.find(idempotency_key), absent_after="PT1M", on_absent="retry")
    desk.goes = [vanish]
    assert desk.run() == "payment-1"
    assert desk.calls == 2
    assert len(desk.step().keys) == 1
    first, second = desk.step().attempts
    looks = [row for row in desk.rows() if row.kind == "LookedBack"]
    proofs = [row for row in looks if row.started_at and row.started_at >= (first.ended_at or 0) + 60 * SECOND]
    assert len(proofs) == 2
    assert (proofs[1].started_at or 0) - (proofs[0].started_at or 0) >= 15 * SECOND
    assert second.started_at >= (proofs[1].finished_at or 0)


def test_pending_is_not_done_and_a_final_failure_is_no_success(app: Doubtless, clock: Clock) -> None:
    """C58: settlement pending, then failed for good: four answers, each with its own meaning; nothing was done."""
    search = Search(clock)
    says: list[Any] = [Pending(look_again="PT1M"), Pending(look_again="PT1M"), NoEffect("settlement failed")]
    seen: list[str] = []

    def find() -> Any:
        seen.append(app.show("s1").steps[0].status)
        return says.pop(0) if len(says) > 1 else says[0]

    run = pay_through(app, search, find)
    with pytest.raises(TaskFailed) as failed:
        run()
    assert failed.value.context["failure"]["kind"] == "rejected"
    assert failed.value.context["failure"]["code"] == "no_effect"
    assert set(seen) == {"uncertain"}
    assert app.show("s1").steps[0].status == "not_applied"


def test_a_final_failure_does_not_count_while_a_call_may_still_land(app: Doubtless, clock: Clock) -> None:
    """C58: the failure of an earlier request is no news of the last one, until nothing can land under that key any more."""
    search = Search(clock)
    asked: list[int] = []

    def find() -> Any:
        asked.append(clock.now().wall)
        return NoEffect("card expired")

    run = pay_through(app, search, find, timeout="PT90S")
    with pytest.raises(TaskFailed):
        run()
    ended = app.show("s1").steps[0].attempts[0].ended_at or 0
    assert asked[0] < ended + 90 * SECOND <= asked[-1]


def test_more_than_one_match_is_a_question_for_a_person_and_never_a_choice(make_desk: MakeDesk) -> None:
    """C59: names may repeat; a query by a name that finds several adopts none of them."""
    desk = make_desk(query=lambda: Several([{"id": 1}, {"id": 2}]), absent_after="PT1M", on_absent="retry")
    desk.goes = [land_and_lose_the_reply]
    case = desk.doubt()
    assert case.evidence["looks"][0]["items"] == [{"id": 1}, {"id": 2}]
    answer(desk.app, case, Happened({"id": "payment-1"}))
    assert desk.run() == "payment-1"
    assert desk.calls == 1


def test_a_query_that_can_only_find_by_likeness_is_told_as_such(app: Doubtless) -> None:
    """C59: no key, no handle: the step's report says that somebody else's object may be what it finds."""
    from doubtless.report import report

    @app.step(effect="non_idem_write", query=lambda name: None)
    def create(name: str) -> dict[str, Any]:
        return {"id": 1}

    @app.step(effect="non_idem_write", query=lambda idempotency_key: None)
    def create_by_key(name: str, idempotency_key: str = injected()) -> dict[str, Any]:
        return {"id": 1}

    assert app.definitions[0].query_by == "likeness"
    assert app.definitions[1].query_by == "key"
    by_name, by_key = (" ".join(step.assumed) for step in report(app).steps)
    assert "only find by likeness" in by_name
    assert "likeness" not in by_key


def test_a_write_that_cannot_be_asked_about_ends_with_a_person_whatever_is_tried(make_desk: MakeDesk) -> None:
    """C59: no query, no key that the other side knows: there is no safe loop from the client's side."""
    desk = make_desk(attempts=5)
    desk.goes = [vanish] * 5
    case = desk.doubt()
    for _ in range(3):
        assert desk.needs_human() == (case.id,)
    assert desk.calls == 1


def test_a_proven_absence_with_on_absent_fail_is_a_failure_that_task_code_sees(app: Doubtless, clock: Clock) -> None:
    """C57: `fail` is the default: proven absent, not sent again, and the code may decide what that means."""
    search = Search(clock)
    seen: list[StepFailed] = []

    @app.step(effect="non_idem_write", query=lambda: None, absent_after="PT1M", timeout="PT5S")
    def comment(text: str) -> dict[str, Any]:
        raise ConnectionResetError("lost")

    @app.task
    def say() -> str:
        try:
            comment(text="t")
        except StepFailed as error:
            seen.append(error)
        return "without"

    assert app.run(say, "s1") == "without"
    assert [(error.kind, error.reason) for error in seen] == [("not_applied", "absent")]
    assert search.n() == 0
