"""What `doubtless steps` says is what `decide` does: every class, policy and trouble is played and compared."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from email.message import Message
from functools import cache
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import S, StepLog

from doubtless import Doubtless
from doubtless.binding import injected
from doubtless.declaring import define
from doubtless.effects import Policy, StepDefinition
from doubtless.events import Effect, StepStatus
from doubtless.fold import Look, StepRecord
from doubtless.foresight import (
    LABELS,
    THEN,
    Asks,
    AwaitsProof,
    AwaitsQuiet,
    Calls,
    Deed,
    Foresight,
    Looks,
    Settles,
    Trouble,
    foresee,
    in_words,
    resend_within,
)
from doubtless.outcomes import classify_raised
from doubtless.protocol import Action, AskHuman, Call, Fail, LookBack, Reuse, WaitUntil, counts, decide
from doubtless.report import ASSUMED, WIDTH, StepReport, report

HOUR = 3600 * S
FAR = 1000 * 365 * 24 * HOUR
ENDLESS = 20  # as many looks in a row, with a case open, or calls: nothing but another answer ends it


# ---------------------------------------------------------------- the world that each trouble is


class World(NamedTuple):
    """How a trouble begins, how every call ends in it, and what every look-back answers."""

    begins: Literal["call", "budget", "late", "suspect"] = "call"
    ends: Literal["killed", "timed_out", "lost", "not_sent", "rejected"] = "lost"
    answer: str = "found"
    handle: bool = False


WORLDS = {
    Trouble.KILLED: World(ends="killed"),
    Trouble.TIMED_OUT: World(ends="timed_out"),
    Trouble.NOT_SENT: World(ends="not_sent"),
    Trouble.REJECTED: World(ends="rejected"),
    Trouble.USED_UP: World(begins="budget"),
    Trouble.KEY_OVER: World(begins="late"),
    Trouble.RESTORED: World(begins="suspect"),
    Trouble.ABSENT: World(answer="absent"),
    Trouble.ABSENT_KEY_OVER: World(begins="late", answer="absent"),
    Trouble.ABSENT_RESTORED: World(begins="suspect", answer="absent"),
    Trouble.ABSENT_HANDLE: World(answer="absent", handle=True),
    Trouble.SEVERAL: World(answer="several"),
    Trouble.PENDING: World(answer="pending"),
    Trouble.UNCLEAR: World(answer="unclear"),
    Trouble.NO_EFFECT: World(answer="no_effect"),
}


class Play:
    """Plays the executor's part over `decide` in one world, and writes down what is done, deed by deed."""

    def __init__(self, policy: Policy, world: World) -> None:
        self.policy = policy
        self.world = world
        self.log = StepLog(policy.effect)
        self.deeds: list[Deed] = []
        self.looks: list[int] = []  # when each look of the current row of looks started
        self.quiet = 0  # the last possible send
        self.cases: list[int] = []  # when a case was opened
        self.backoffs: list[tuple[int, int]] = []  # calls before, and the wait for the next one

    # ------------------------------------------------------------ the world

    def begin(self) -> None:
        match self.world.begins:
            case "call":
                self.call(Call(1))
            case "budget":
                for _ in range(self.policy.attempts - 1):
                    self.log.attempt("not_sent")
                self.call(Call(1))
            case "late":  # killed inside the call, and taken over when the other side has forgotten the key
                self.log.begin()
                self.log.advance((self.policy.key_window_us or 0) + S)
                self.log.claim()
            case "suspect":
                self.log.suspect()
        self.quiet = self.log.wall
        self.deeds.clear()

    def call(self, action: Call) -> None:
        log, policy = self.log, self.policy
        number = log.begin(next_key=action.next_generation)
        if self.world.handle:
            log.handle()
        log.advance(policy.timeout_us if self.world.ends == "timed_out" else S // 10)
        match self.world.ends:
            case "killed":  # of a read there is no row then
                log.claim()
            case "timed_out":
                log.end("unknown", number, code="timeout", running=True)
            case "lost":
                log.end("unknown", number, code="ConnectionResetError")
            case outcome:
                log.end(outcome, number)
        self.quiet = log.wall

    def look(self, record: StepRecord) -> None:
        log, answer = self.log, self.world.answer
        self.looks.append(log.wall)
        if answer == "found":
            log.found()
            self.end_looks()
            return
        seen = Look(0, answer, "", log.now, log.now, log.epoch, record.attempts[-1].number, None)
        counted = counts(self.policy, record, seen)
        log.look(answer, counts=counted)
        if counted:
            self.end_looks(counted=True)

    # ------------------------------------------------------------ what was done

    def end_looks(self, *, counted: bool = False, endless: bool = False) -> None:
        """A row of looks is over: as many, or one and then the wait for what counts."""
        looks, self.looks = self.looks, []
        if not looks:
            return
        if not counted:
            self.deeds.append(Looks(None if endless else len(looks)))
        elif self.world.answer == "absent":
            self.deeds += [Looks(1), AwaitsProof(looks[-2] - self.quiet, looks[-1] - looks[-2])]
        else:
            self.deeds += [Looks(1), AwaitsQuiet(looks[-1] - self.quiet)]

    def run(self) -> tuple[Deed, ...]:
        self.begin()
        for _ in range(1000):
            record = self.log.record()
            action = decide(self.policy, record, self.log.now)
            if record is None:
                assert isinstance(action, Call)
                self.deeds.append(Calls(1, "same"))
                self.call(action)
                if len(self.deeds) >= ENDLESS:
                    return (Calls(None, "same"),)
            elif self.ended(action, record):
                return folded(self.deeds)
        raise AssertionError(f"no end: {self.deeds[-5:]}")

    def ended(self, action: Action, record: StepRecord) -> bool:
        """Act as the executor does; whether that was the end."""
        log = self.log
        match action:
            case Call():
                self.end_looks()
                key: Literal["same", "next"] = "next" if action.next_generation else "same"
                doubt = record.gravest == "unknown" and record.effect != Effect.READ
                self.deeds.append(Calls(1, key, self.resends_within() if doubt else None))
                self.call(action)
            case LookBack():
                if len(self.looks) >= ENDLESS and record.doubt_case is not None:
                    self.end_looks(endless=True)
                    return True
                self.look(record)
            case WaitUntil(at):
                ended = record.attempts[-1].ended
                if not self.looks and ended is not None and record.doubt_case is None:
                    self.backoffs.append((len(record.attempts), at - ended.wall))
                log.advance(at - log.wall)
            case AskHuman() if record.doubt_case is None:
                self.cases.append(log.wall)
                log.open_case()
            case AskHuman():
                self.end_looks()
                log.epoch += 1  # the next run of the task
                self.deeds.append(Asks(isinstance(decide(self.policy, log.record(), log.now), LookBack)))
                return True
            case Fail(kind):
                self.end_looks()
                self.deeds.append(Settles(StepStatus.FAILED if record.effect == Effect.READ else StepStatus.NOT_APPLIED, kind))
                return True
            case Reuse():
                self.deeds.append(Settles(StepStatus.DONE, None))
                return True
        return False

    def resends_within(self) -> int | None:
        """How long after the first send `decide` would still call again: the first microsecond at which it does not."""
        log, first = StepLog(self.policy.effect), self.log.folded().attempts[0].started
        log.rows = list(self.log.rows)
        log.epoch, log.wall, log.boot, log.boot_id = self.log.epoch, self.log.wall, self.log.boot, self.log.boot_id
        if log.folded().doubt_case is None:
            log.open_case()  # so that no deadline is in the way
        here = log.wall

        def calls(at: int) -> bool:
            log.advance(at - log.wall)
            return isinstance(decide(self.policy, log.record(), log.now), Call)

        low, high = here, here + FAR
        if calls(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if calls(middle) else (low, middle)
        return high - first.wall


def folded(deeds: list[Deed]) -> tuple[Deed, ...]:
    """Calls in a row as one deed; looks and a call that come again and again as one row of looks and `each` call."""
    merged: list[Deed] = []
    for deed in deeds:
        last = merged[-1] if merged else None
        if isinstance(deed, Calls) and isinstance(last, Calls) and last.key == deed.key:
            merged[-1] = last._replace(times=often(last) + often(deed))
        else:
            merged.append(deed)
    times = 0
    while len(merged) >= 6 and isinstance(merged[2], Calls) and merged[:2] == merged[3:5]:
        call, merged = merged[2], merged[3:]
        times += often(call)
    if times:
        merged.insert(2, call._replace(times=times, each=True))
    return tuple(merged)


def often(deed: Deed) -> int:
    """How often it calls; of the others not at all."""
    return deed.times or 0 if isinstance(deed, Calls) else 0


@cache
def played(policy: Policy, trouble: Trouble) -> tuple[tuple[Deed, ...], Play]:
    play = Play(policy, WORLDS[trouble])
    return play.run(), play


def done_by_decide(step: StepDefinition, trouble: Trouble) -> tuple[Deed, ...]:
    """The trace of `decide`; what it says of keys is worded for a step that takes none."""
    deeds, _ = played(step.effective, trouble)
    if step.takes_key:
        return deeds
    return tuple(deed._replace(key="none") if isinstance(deed, Calls) else deed for deed in deeds)


def can_arise(step: StepDefinition, trouble: Trouble) -> bool:
    """Whether a trouble can arise, as `decide` sees it: by whether it ever looks back, and whether a window ever closes."""
    world = WORLDS[trouble]
    looks = isinstance(played(step.effective, Trouble.USED_UP)[0][0], Looks)
    first = played(step.effective, Trouble.KILLED)[0][0]
    two = played(step.effective._replace(attempts=2), Trouble.KILLED)[0][0]  # one attempt alone never shows its window
    closes = any(isinstance(deed, Calls) and deed.within_us is not None for deed in (first, two))
    if world.begins == "late" and not closes:
        return False
    if world.begins == "suspect" and step.effect == Effect.READ:
        return False
    return looks or (world.answer == "found" and not world.handle)


# ---------------------------------------------------------------- the steps that are enumerated


def keyed(order: str, idempotency_key: str = injected()) -> dict[str, int]:
    return {}


def bare(order: str) -> dict[str, int]:
    return {}


def find_by_key(idempotency_key: str) -> dict[str, int] | None:
    return None


def find_alike(order: str) -> dict[str, int] | None:
    return None


QUERIES = {"none": None, "key": find_by_key, "likeness": find_alike}


def make(call: Any, **options: Any) -> StepDefinition:
    step, faults = define("pay", call=call, **options)
    assert faults == []
    assert step is not None
    return step


def enumerated() -> Iterator[StepDefinition]:
    """3 classes × query × absent_after × on_absent × key_window × retry_rejected × attempts × idempotent_by × single_request."""
    for single in (False, True):
        for retry_rejected in (False, True):
            for attempts in (1, 3):
                common: dict[str, Any] = {"single_request": single, "retry_rejected": retry_rejected, "attempts": attempts}
                yield make(bare, effect="read", **common)
                for query, absence in looking_back():
                    writes: dict[str, Any] = {**common, "query": QUERIES[query], **absence}
                    for call in (keyed, bare):
                        yield make(call, effect="non_idem_write", **writes)
                    for window in (None, "P1D", "PT20S"):
                        yield make(keyed, effect="idem_write", key_window=window, **writes)
                        yield make(bare, effect="idem_write", idempotent_by="order", key_window=window, **writes)


def looking_back() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "none", {}
    for query in ("key", "likeness"):
        yield query, {}
        for on_absent in ("fail", "retry"):
            yield query, {"absent_after": "PT2M", "on_absent": on_absent}


STEPS = list(enumerated())


def described(step: StepDefinition) -> str:
    policy = {name: value for name, value in step.effective._asdict().items() if value is not None}
    return f"{step.effect} takes_key={step.takes_key} {policy}"


# ---------------------------------------------------------------- the sentences are what decide does


@pytest.mark.parametrize("trouble", Trouble)
def test_each_printed_sentence_is_what_decide_does(trouble: Trouble) -> None:
    compared = 0
    for step in STEPS:
        for foresight in foresee(step):
            if foresight.trouble == trouble:
                done = done_by_decide(step, trouble)
                assert foresight.then == done, described(step)
                assert foresight.sentence == Foresight(trouble, done).sentence
                compared += 1
    assert compared >= 40


def test_each_trouble_that_can_arise_is_told_and_no_other() -> None:
    for step in STEPS:
        told = [foresight.trouble for foresight in foresee(step)]
        assert told == [trouble for trouble in Trouble if can_arise(step, trouble)], described(step)


def test_every_combination_is_among_the_steps() -> None:
    assert len(STEPS) == 8 * (1 + 7 * (2 + 6))
    assert len({(step.effective, step.takes_key, step.single_request, step.query_by) for step in STEPS}) == len(STEPS)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["read", "idem_write", "non_idem_write"]), st.booleans(), st.booleans(), st.sampled_from(["fail", "retry"]),
    st.none() | st.integers(1, 72 * 3600), st.integers(1, 4), st.integers(1, 6), st.integers(1, 90), st.integers(1, 600),
    st.integers(1, 7200), st.sampled_from([None, "forever", "shorter"]),
)  # fmt: skip
def test_the_sentences_hold_for_policies_that_nobody_thought_of(
    effect: str, query: bool, retry_rejected: bool, on_absent: str, absent_after: int | None, attempts: int, query_attempts: int,
    backoff: int, timeout: int, settle_within: int, window: str | None,
) -> None:  # fmt: skip
    said: dict[str, Any] = {
        "effect": effect, "retry_rejected": retry_rejected, "attempts": attempts, "backoff": backoff, "timeout": timeout,
        "settle_within": settle_within, "query_attempts": query_attempts,
    }  # fmt: skip
    if effect != "read" and query:
        said["query"] = find_by_key
        if absent_after is not None:
            said |= {"absent_after": absent_after, "on_absent": on_absent}
    if effect == "idem_write" and window is not None:
        said["key_window"] = timeout if window == "shorter" else 10**9
    step = make(bare if effect == "read" else keyed, **said)
    for foresight in foresee(step):
        assert foresight.then == done_by_decide(step, foresight.trouble), foresight.trouble


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_how_often_the_query_is_asked_is_told_and_done(attempts: int) -> None:
    step = make(keyed, effect="non_idem_write", query=find_by_key, query_attempts=attempts)
    for trouble in (Trouble.UNCLEAR, Trouble.ABSENT_HANDLE):
        told = next(foresight.then for foresight in foresee(step) if foresight.trouble == trouble)
        assert told == done_by_decide(step, trouble) == (Looks(attempts), Asks(True))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 100_000), st.integers(1, 600), st.integers(0, 120))
def test_how_long_a_key_protects_is_told_to_the_microsecond(window: int, timeout: int, backoff: int) -> None:
    step = make(keyed, effect="idem_write", key_window=window, timeout=timeout, backoff=backoff, settle_within=10**6)
    room = resend_within(step)
    assert room is not None
    play = Play(step.effective, World())
    play.begin()
    action = decide(step.effective, play.log.record(), play.log.now)
    if isinstance(action, WaitUntil):
        play.log.advance(action.at - play.log.wall)
        action = decide(step.effective, play.log.record(), play.log.now)
    told = foresee(step)[0].then[0]
    if isinstance(action, Call):
        assert told == Calls(2, "same", room)
        assert play.resends_within() == room
    else:  # the jitter of this step's backoff may have taken what the shortest one would have left
        assert isinstance(action, AskHuman)
        assert room <= S // 10 + backoff * S * 125 // 100
        assert (told == Asks(False)) == (room <= backoff * S * 75 // 100)


def test_the_backoff_that_is_told_is_the_one_that_is_kept() -> None:
    kept = 0
    for trouble in (Trouble.KILLED, Trouble.TIMED_OUT, Trouble.NOT_SENT, Trouble.REJECTED):
        for step in STEPS:
            deeds, play = played(step.effective, trouble)
            assert len(play.backoffs) == sum(often(deed) for deed in deeds)
            for calls, wait in play.backoffs:
                base = min(S * 2 ** (calls - 1), 60 * S)
                assert base * 75 // 100 <= wait <= base * 125 // 100
                kept += 1
            told = "backoff 1 s doubling to 1 min, give or take a quarter" in report_on(step).traits
            assert told == (step.attempts > 1)
    assert kept > 100
    assert "no backoff" in report_on(keyed_step(backoff=0)).traits


def test_settle_within_opens_the_case_that_is_told_while_the_looks_go_on() -> None:
    step = make(keyed, effect="non_idem_write", query=find_by_key, settle_within="PT20M")
    then, play = played(step.effective, Trouble.PENDING)
    assert then == (Looks(None),)
    assert [at - play.log.rows[0].at.wall for at in play.cases] == [1200 * S]
    assert "a case 20 min after the intent, whatever else is going on" in report_on(step).traits


def test_no_two_deeds_and_no_two_chains_of_the_table_read_alike() -> None:
    deeds = {deed for step in STEPS for foresight in foresee(step) for deed in foresight.then}
    assert len({in_words(deed) for deed in deeds}) == len(deeds) > 15
    chains = {foresight.then: foresight.sentence for step in STEPS for foresight in foresee(step)}
    assert len(set(chains.values())) == len(chains)
    assert len(set(LABELS.values())) == len(LABELS) == len(Trouble) == len(THEN)


# ---------------------------------------------------------------- what is assumed


def report_on(step: StepDefinition, *more: StepDefinition) -> StepReport:
    class Table:
        definitions = [step, *more]

        def check(self) -> list[str]:
            return []

    return report(Table()).steps[0]


def keyed_step(effect: str = "idem_write", **options: Any) -> StepDefinition:
    return make(keyed, effect=effect, **options)


def assumes(step: StepDefinition, opening: str) -> bool:
    return any(line.startswith(opening) for line in report_on(step).assumed)


def test_no_key_window_is_told_as_for_ever_and_is() -> None:
    for step in STEPS:
        told = assumes(step, "no key_window: for ever")
        assert told == (step.effect == Effect.IDEM_WRITE and step.key_window_us is None)
        if told:
            log = StepLog(step.effect)
            log.attempt("unknown")
            log.open_case()
            log.advance(FAR)
            assert isinstance(decide(step.effective._replace(attempts=2), log.record(), log.now), Call)


def test_no_absent_after_is_told_as_never_a_proof_and_is() -> None:
    for step in STEPS:
        told = assumes(step, "no absent_after: an absence is never proof")
        assert told == (step.query is not None and step.absent_after_us is None)
        if step.query is not None:
            proven = any(isinstance(deed, AwaitsProof) for deed in done_by_decide(step, Trouble.ABSENT))
            assert proven != told


def test_without_single_request_what_a_client_raises_is_told_as_unknown_and_is() -> None:
    refused = urllib.error.HTTPError("http://erp/sheets", 422, "Unprocessable", Message(), None)
    for step in STEPS:
        outcome = classify_raised(
            refused, single_request=step.single_request, classify=step.classify, uncertain_before=False, handle_recorded=False
        )
        assert assumes(step, "no single_request") == (outcome.kind == "unknown")
        assert assumes(step, "single_request:") == (outcome.kind == "rejected")
    refused.close()


def test_a_classify_is_told_as_trusted() -> None:
    step = keyed_step(classify=lambda subject: None)
    assert assumes(step, "classify: ")
    assert not assumes(step, "no single_request")


def test_no_query_is_told_and_the_doubt_goes_to_a_person() -> None:
    for step in STEPS:
        told = assumes(step, "no query")
        assert told == (step.effect != Effect.READ and isinstance(done_by_decide(step, Trouble.USED_UP)[-1], Asks))


def test_a_query_that_takes_neither_key_nor_handle_is_told_as_finding_by_likeness() -> None:
    for step in STEPS:
        assert assumes(step, "the query takes neither key nor handle: it can only find by likeness") == (step.query is find_alike)
    by_handle = keyed_step("non_idem_write", query=lambda handle: None)
    assert assumes(by_handle, "the query takes a handle and no key")
    assert not assumes(by_handle, "the query takes neither")


def test_what_makes_a_second_send_harmless_is_told_in_the_developers_words() -> None:
    step = make(bare, effect="idem_write", idempotent_by="the order's number")
    assert 'idempotent_by "the order\'s number": that makes a second send harmless' in report_on(step).assumed


def test_without_a_key_nothing_is_promised_about_a_first_send_that_comes_late() -> None:
    for window in (None, "P1D"):
        step = make(bare, effect="idem_write", idempotent_by="order", key_window=window)
        assert assumes(step, "no key: nothing protects the order; a late first send may still arrive after later writes")
        assert not any("however late" in line or "remembers the key" in line for line in report_on(step).assumed)
    assert not assumes(keyed_step(), "no key: ")


def test_a_window_is_told_with_its_length() -> None:
    assert assumes(keyed_step(key_window="P1D"), "key_window 1 d: ")
    assert assumes(keyed_step(query=find_by_key, absent_after="PT90S"), "absent_after 1 min 30 s: ")


def test_a_business_key_is_told_with_its_template_and_window() -> None:
    step = keyed_step("non_idem_write", once="pay:{order}")
    assert "at most one send for each 'pay:{order}'" in report_on(step).traits
    assert assumes(step, "once 'pay:{order}': what is another effect has another key")
    assert not assumes(step, "once_window")
    step = keyed_step("non_idem_write", once="pay:{order}", once_window="P1D")
    assert "at most one send for each 'pay:{order}' in 1 d" in report_on(step).traits
    assert assumes(step, "once_window 1 d: ")


def test_every_assumption_is_made_of_some_step() -> None:
    steps = [
        *STEPS,
        keyed_step(classify=lambda subject: None),
        keyed_step("non_idem_write", query=lambda handle: None),
        keyed_step("non_idem_write", compensate=bare),
        keyed_step("non_idem_write", compensate=bare, compensate_deadline="PT10M"),
        keyed_step("non_idem_write", once="pay:{order}", once_window="P1D"),
    ]
    undoes = report_on(make(bare, effect="non_idem_write"), keyed_step("non_idem_write", compensate="pay"))
    lines = {line for step in steps for line in report_on(step).assumed} | set(undoes.assumed)
    for _, template in ASSUMED:
        assert any(line.startswith(template.partition("{")[0]) for line in lines), template


# ---------------------------------------------------------------- which steps end with a person


def test_who_ends_a_doubt_is_what_the_traces_end_with() -> None:
    seen = set()
    for step in STEPS:
        person = report_on(step).person
        killed = done_by_decide(step, Trouble.KILLED)
        asking = [
            trouble for trouble in Trouble if can_arise(step, trouble) and isinstance(done_by_decide(step, trouble)[-1], Asks)
        ]
        match person:
            case "only":
                assert killed == (Asks(False),)
            case "at_last":
                assert isinstance(killed[0], Calls)
                assert isinstance(killed[-1], Asks)
            case "sometimes":
                assert asking
                assert not isinstance(killed[-1], Asks)
            case "never":
                assert not asking
        assert [foresight.trouble for foresight in foresee(step) if foresight.asks] == asking
        seen.add(person)
    assert seen == {"only", "at_last", "sometimes", "never"}


# ---------------------------------------------------------------- the report


def withdraw(order: str, result: dict[str, int]) -> None: ...


def office() -> Doubtless:
    app = Doubtless()
    app.add_steps(
        {
            "load": {"effect": "read", "call": bare, "single_request": True},
            "create_sheet": {
                "effect": "non_idem_write", "call": keyed, "query": find_by_key, "absent_after": "PT2M", "on_absent": "retry",
                "compensate": withdraw, "compensate_deadline": "PT10M",
            },
            "notify": {"effect": "non_idem_write", "call": bare},
            "close_run": {"effect": "idem_write", "call": keyed, "key_window": "PT20S", "query": find_alike},
        }
    )  # fmt: skip
    return app


def test_the_report_of_an_app_names_every_step_the_implied_compensations_too() -> None:
    told = report(office())
    assert [step.name for step in told.steps] == ["load", "create_sheet", "notify", "close_run", "withdraw"]
    assert told.faults == ()
    assert told.steps[4].undoes == ("create_sheet",)
    assert told.summary == {
        "only": ["notify", "withdraw"],
        "at_last": [],
        "sometimes": ["create_sheet", "close_run"],
        "never": ["load"],
    }


def test_the_text_says_every_trait_sentence_assumption_and_note() -> None:
    told = report(office())
    whole = " ".join(told.text().split())
    right = " ".join(row[30:] for row in told.text().splitlines())
    for step in told.steps:
        assert all(LABELS[foresight.trouble] in told.text() for foresight in step.foresights)
        assert f"{step.name}: {'; '.join(step.traits)}" in whole
        for line in (*(sentence for _, sentence in step.grouped), *step.assumed, *step.definition.notes):
            assert line in right
    assert told.steps[3].definition.notes
    assert "a doubt can only ever end with a person: notify, withdraw" in whole


def test_the_text_fits_a_hundred_columns_and_keeps_its_columns_apart() -> None:
    app = office()
    app.add_steps(
        {"x" * 100: {"effect": "idem_write", "call": keyed, "query": find_by_key, "key_window": "P1D", "retry_rejected": True}}
    )
    app.add_steps({"faulty": {"effect": "read", "call": bare, "querry": find_by_key, "compensate": "nobody " * 30}})
    assert max(len(line) for line in report(app).text().splitlines()) <= WIDTH
    assert all(len(f"{label},") < 28 for label in LABELS.values())


def test_the_same_sentence_is_said_once_for_all_troubles_that_it_is_true_of() -> None:
    for step in STEPS[:60]:
        grouped = report_on(step).grouped
        assert len({sentence for _, sentence in grouped}) == len(grouped)
        assert sorted(label for labels, _ in grouped for label in labels) == sorted(LABELS[f.trouble] for f in foresee(step))


def test_faults_come_first_and_hide_nothing() -> None:
    app = office()
    app.add_steps({"faulty": {"effect": "read", "call": bare, "query": find_by_key}})
    told = report(app)
    assert list(told.faults) == app.check()
    assert told.text().startswith("1 fault; nothing of this app runs until they are mended:\n  - step 'faulty': query on a read")
    assert "faulty" in [step.name for step in told.steps]


def test_an_app_without_steps_is_reported_too() -> None:
    assert report(Doubtless()).text() == "0 steps\n"
    assert report(Doubtless()).as_json() == {
        "faults": [],
        "summary": {"only": [], "at_last": [], "sometimes": [], "never": []},
        "steps": [],
    }


def test_the_report_as_json_holds_what_the_text_says_and_the_deeds() -> None:
    told = report(office())
    plain = json.loads(json.dumps(told.as_json()))
    assert [step["name"] for step in plain["steps"]] == [step.name for step in told.steps]
    for step, said in zip(told.steps, plain["steps"], strict=True):
        assert said["assumed"] == list(step.assumed)
        assert said["notes"] == list(step.definition.notes)
        assert [trouble["sentence"] for trouble in said["troubles"]] == [foresight.sentence for foresight in step.foresights]
    killed = plain["steps"][1]["troubles"][0]
    assert killed["trouble"] == "killed"
    assert killed["then"] == [{"does": "looks", "times": 1}, {"does": "settles", "status": "done", "kind": None}]
    absent = next(trouble for trouble in plain["steps"][1]["troubles"] if trouble["trouble"] == "absent")
    assert absent["then"][1] == {"does": "awaits_proof", "after_us": 120 * S, "apart_us": 30 * S}
    assert absent["asks_a_person"] is True


def test_the_report_opens_no_store(tmp_path: Any) -> None:
    app = Doubtless(f"sqlite:///{tmp_path}/never.db")
    report(app).text()
    assert list(tmp_path.iterdir()) == []
