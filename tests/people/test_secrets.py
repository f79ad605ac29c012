"""A secret's value is nowhere in what is stored or shown; its resolver is, and is asked anew at each send (section 6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people_ground import Clock, MakeApp, answer, everything_on_disk

from doubtless import Abort, Doubtless, NeedsHuman, Secret, StepFailed, TaskFailed, injected, record_handle
from doubtless.answers import Happened, Retry
from doubtless.errors import StoreUnavailable, UsageError
from doubtless.outcomes import NoEffect, Rejected, Several, Unclear
from doubtless.secrets import Vault

OLD, NEW = 'sk-"live"/öß\\4711', "sk-live-after-the-rotation-0815"
"""The first has what JSON, URLs and reprs write differently."""


def forms(value: str) -> list[str]:
    """How a secret may be written: as it is, in JSON, in JSON in JSON, all in ASCII, in a repr, in a URL."""
    from urllib.parse import quote, quote_plus

    once = json.dumps(value, ensure_ascii=False)[1:-1]
    return [
        value, once, json.dumps(once, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1],
        json.dumps(json.dumps(value)[1:-1])[1:-1],
        repr(value)[1:-1], quote(value), quote(value, safe=""), quote_plus(value),
    ]  # fmt: skip


class Bank:
    """An app whose one write takes a secret; `says` is what the other side does with it."""

    def __init__(self, app: Doubtless, says: Callable[[str], Any], **policy: Any) -> None:
        self.app = app
        self.tokens: list[str] = []
        self.keys: list[str] = []
        policy = {"effect": "non_idem_write", "timeout": "PT5S", **policy}

        @app.step(secret="token", **policy)
        def pay(order: str, token: str, idempotency_key: str = injected()) -> dict[str, Any]:
            self.tokens.append(token)
            self.keys.append(idempotency_key)
            return says(token)  # type: ignore[no-any-return]

        @app.task
        def settle_order(order: str) -> Any:
            return pay(order=order, token=Secret("env:BANK_TOKEN"))

        self.pay, self.task = pay, settle_order

    def run(self) -> Any:
        return self.app.run(self.task, "s1", order="o1")

    def ends(self) -> BaseException | None:
        """Run it, however it ends."""
        try:
            self.run()
        except (NeedsHuman, TaskFailed, StoreUnavailable) as error:
            return error
        return None


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    def put(value: str | None) -> None:
        if value is None:
            monkeypatch.delenv("BANK_TOKEN", raising=False)
        else:
            monkeypatch.setenv("BANK_TOKEN", value)

    put(OLD)
    return put


def nowhere(app: Doubtless, folder: Path, *more: object, values: tuple[str, ...] = (OLD,)) -> None:
    """Fail where a secret is in a file of the store, or in anything that the app shows."""
    shown = [repr(app.inbox()), repr(app.show("s1")), repr(app.store.rows("s1")), *map(str, more), *map(repr, more)]
    for case in app.inbox().cases:
        shown += [json.dumps(case.evidence), json.dumps(case.evidence, ensure_ascii=False), case.why]
    disk = everything_on_disk(folder)
    for value in values:
        for form in forms(value):
            assert form.encode() not in disk, f"{form!r} is on disk"
            assert not any(form in text for text in shown), f"{form!r} is shown"


# ---------------------------------------------------------------- where the value comes from


def test_the_value_is_resolved_for_the_call_and_only_the_resolver_is_stored(app: Doubtless, tmp_path: Path, token: Any) -> None:
    bank = Bank(app, lambda value: {"id": "payment-1"})
    assert bank.run() == {"id": "payment-1"}
    assert bank.tokens == [OLD]
    nowhere(app, tmp_path)
    assert "env:BANK_TOKEN" in json.dumps(app.show("s1").steps[0].params)


def test_a_rotation_between_two_attempts_changes_neither_the_key_nor_the_stored_params(
    app: Doubtless, tmp_path: Path, token: Any
) -> None:
    """C33, C106: the credential is resolved at each send and never enters key or input_hash."""

    def lose_once(value: str) -> Any:
        if len(bank.tokens) == 1:
            token(NEW)
            raise ConnectionResetError("lost")
        return {"id": "payment-1"}

    bank = Bank(app, lose_once, effect="idem_write")
    assert bank.run() == {"id": "payment-1"}
    assert bank.tokens == [OLD, NEW]
    assert len(set(bank.keys)) == 1
    assert sum(row.input_ref is not None and row.path == "1" for row in app.store.rows("s1")) == 1
    nowhere(app, tmp_path, values=(OLD, NEW))


def test_a_rotation_between_two_runs_is_no_divergence(app: Doubtless, token: Any) -> None:
    """C106: the same task with another value of its secret is the same task, and its steps are met again."""

    def lose_once(value: str) -> Any:
        if len(bank.tokens) == 1:
            raise ConnectionResetError("lost")
        return {"id": "payment-1"}

    bank = Bank(app, lose_once)
    with pytest.raises(NeedsHuman):
        bank.run()
    token(NEW)
    answer(app, app.inbox().cases[0], Happened({"id": "payment-1"}))
    assert bank.run() == {"id": "payment-1"}


def test_two_installations_hash_the_same_params_differently(tmp_path: Path, clock: Clock) -> None:
    """C106: a small space of params is not recoverable from the log; the hash is salted with the store's namespace."""
    hashes = set()
    for name in ("a", "b"):
        app = Doubtless(f"sqlite:///{tmp_path}/{name}.db", clock=clock)

        @app.step(effect="non_idem_write")
        def pay(pin: str) -> dict[str, Any]:
            return {"ok": True}

        @app.task
        def run_it() -> None:
            pay(pin="0000")

        app.run(run_it, "t1")
        hashes.add(next(row.input_hash for row in app.store.rows("t1") if row.kind == "StepIntended"))
        app.close()
    assert len(hashes) == 2


def test_a_file_or_a_resolver_of_the_house_can_hold_it(make_app: MakeApp, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    app = make_app(secrets={"vault": {"bank": "from-the-vault"}.get})
    got: list[str | None] = []

    @app.step(effect="non_idem_write", secret=("a", "b", "c"))
    def pay(a: str, b: str, c: str | None = None) -> dict[str, Any]:
        got.extend((a, b, c))
        return {"ok": True}

    @app.task
    def run_it() -> None:
        pay(a=Secret(f"file:{tmp_path}/token"), b=Secret("vault:bank"))

    app.run(run_it, "t1")
    assert got == ["from-a-file", "from-the-vault", None]


@pytest.mark.parametrize("ref", ["", "BANK_TOKEN", "env:", ":BANK_TOKEN", 7, None])
def test_a_secret_that_names_no_resolver_is_refused_where_it_is_written(ref: Any) -> None:
    with pytest.raises(UsageError, match="env:NAME"):
        Secret(ref)


# ---------------------------------------------------------------- refused before anything is written


@pytest.mark.parametrize("given", ["sk-live-raw", 4711, {"token": "sk-live-raw"}, ["sk-live-raw"]])
def test_a_raw_value_is_refused_and_neither_written_nor_sent_nor_shown(app: Doubtless, tmp_path: Path, given: Any) -> None:
    sent: list[str] = []

    @app.step(effect="non_idem_write", secret="token")
    def pay(order: str, token: str) -> dict[str, Any]:
        sent.append(token)
        return {"ok": True}

    seen: list[UsageError] = []

    @app.task
    def settle_order() -> None:
        try:
            pay(order="o1", token=given)
        except UsageError as error:
            seen.append(error)
            raise

    with pytest.raises(NeedsHuman):
        app.run(settle_order, "s1")
    (error,) = seen
    assert "param token is secret" in error.message
    assert "Secret('env:NAME')" in error.hint
    assert "sk-live-raw" not in str(error)
    assert sent == []
    assert not any(row.path for row in app.store.rows("s1"))
    assert b"sk-live-raw" not in everything_on_disk(tmp_path)


def test_a_missing_variable_is_named_and_nothing_is_written_or_sent(app: Doubtless, token: Any) -> None:
    token(None)
    bank = Bank(app, lambda value: {"id": "payment-1"})
    with pytest.raises(NeedsHuman, match="the secret env:BANK_TOKEN has no value here"):
        bank.run()
    assert bank.tokens == []
    assert not any(row.path for row in app.store.rows("s1"))
    token(OLD)
    answer(app, app.inbox().cases[0], Retry())
    assert bank.run() == {"id": "payment-1"}


def test_a_variable_that_is_missing_at_the_second_attempt_sends_nothing_and_loses_nothing(app: Doubtless, token: Any) -> None:
    def lose_once(value: str) -> Any:
        if len(bank.tokens) == 1:
            token(None)
            raise ConnectionResetError("lost")
        return {"id": "payment-1"}

    bank = Bank(app, lose_once, effect="idem_write")
    with pytest.raises(NeedsHuman, match="env:BANK_TOKEN"):
        bank.run()
    rows = [row.kind for row in app.store.rows("s1") if row.path]
    assert (rows, len(bank.tokens)) == (["StepIntended", "AttemptEnded"], 1)
    assert [doubt.path for doubt in app.inbox().doubts] == ["1"] or app.inbox().cases
    token(NEW)
    assert bank.run() == {"id": "payment-1"}
    assert len(set(bank.keys)) == 1


def test_a_scheme_that_nobody_resolves_is_named_with_those_that_are(app: Doubtless) -> None:
    @app.step(effect="non_idem_write", secret="token")
    def pay(token: str) -> dict[str, Any]:
        return {"ok": True}

    @app.task
    def run_it() -> None:
        pay(token=Secret("hsm:bank"))

    with pytest.raises(NeedsHuman, match="no resolver for the secret hsm:bank"):
        app.run(run_it, "s1")
    assert not any(row.path for row in app.store.rows("s1"))


def test_a_secret_in_a_param_that_is_not_declared_secret_is_refused(app: Doubtless, tmp_path: Path, token: Any) -> None:
    @app.step(effect="non_idem_write", volatile="note")
    def pay(order: Any, note: Any = None) -> dict[str, Any]:
        pytest.fail("it was called")

    given: dict[str, Any] = {}

    @app.task
    def run_it(which: int) -> None:
        pay(**given)

    for number, params in enumerate([{"order": Secret("env:BANK_TOKEN")}, {"order": "o1", "note": Secret("env:BANK_TOKEN")}]):
        given.clear()
        given.update(params)
        with pytest.raises(NeedsHuman):
            app.run(run_it, f"s{number}", which=number)
        assert not any(row.path for row in app.store.rows(f"s{number}"))


def test_a_known_value_in_the_open_is_refused_in_params_of_steps_and_tasks(app: Doubtless, tmp_path: Path, token: Any) -> None:
    bank = Bank(app, lambda value: {"id": "payment-1"})
    bank.run()

    @app.step(effect="non_idem_write")
    def tell(text: str) -> dict[str, Any]:
        pytest.fail("it was called")

    @app.task
    def leak(text: str) -> None:
        tell(text="the token is " + OLD)

    with pytest.raises(NeedsHuman, match="holds the value of a known secret"):
        app.run(leak, "l1", text="harmless")
    with pytest.raises(UsageError, match="known secret") as refused:
        app.run(leak, "l2", text=OLD)
    nowhere(app, tmp_path, refused.value)
    assert sorted(head.task_id for head in app.tasks()) == ["l1", "s1"]


# ---------------------------------------------------------------- echoes


def echo(value: str) -> Any:
    return {"id": "payment-1", "you_sent": value, "raw": json.dumps({"token": value}), "list": [value, {value: 1}]}


def raise_it(error: Callable[[str], Exception]) -> Callable[[str], Any]:
    def says(value: str) -> Any:
        raise error(value)

    return says


ECHOES: dict[str, Callable[[str], Any]] = {
    "a reply": echo,
    "a long reply": lambda value: {"id": "payment-1", "text": "x" * 5000 + value},
    "an exception": raise_it(lambda value: ConnectionError(f"401: token {value} is unknown")),
    "an exception's repr": raise_it(lambda value: KeyError(value)),
    "an exception with JSON in it": raise_it(lambda value: RuntimeError(json.dumps({"bad": value}))),
    "an exception with ASCII JSON in JSON": raise_it(lambda value: RuntimeError(json.dumps({"bad": json.dumps(value)}))),
    "a URL": raise_it(lambda value: RuntimeError(f"https://bank/?token={__import__('urllib.parse').parse.quote_plus(value)}")),
    "a rejection": raise_it(lambda value: Rejected(f"bad {value}", {"token": value})),
    "text that is cut in the middle of it": raise_it(lambda value: ConnectionError("y" * 480 + value)),
    "an output that cannot be stored": lambda value: {"token": value, "odd": {1, 2}},
    "an output of another type": lambda value: [value],
}


@pytest.mark.parametrize("how", ECHOES)
def test_what_echoes_a_secret_is_masked_everywhere(app: Doubtless, tmp_path: Path, token: Any, how: str) -> None:
    """C105: reply, error, case, story: the write path passes one filter, in all the forms in which a value is written."""
    bank = Bank(app, ECHOES[how])
    error = bank.ends()
    assert bank.tokens == [OLD]
    nowhere(app, tmp_path, error, getattr(error, "context", None))
    app.close()
    nowhere(app, tmp_path)


@pytest.mark.parametrize(
    "says",
    [
        lambda value: {"token": value}, lambda value: Several([{"token": value}, value]),
        lambda value: Unclear(f"401 for {value}"),
        lambda value: NoEffect(f"{value} is unknown"), raise_it(lambda value: OSError(json.dumps(value))),
    ],
    ids=["found", "several", "unclear", "no_effect", "raises"],
)  # fmt: skip
def test_a_look_back_that_echoes_a_secret_is_masked(
    app: Doubtless, tmp_path: Path, token: Any, says: Callable[[str], Any]
) -> None:
    """C105: the query gets the resolved value too, and what it answers is filtered like a reply."""
    bank = Bank(
        app, raise_it(lambda value: ConnectionResetError("lost")), query=lambda token: says(token), query_attempts=1,
        absent_after="PT1S",
    )  # fmt: skip
    error = bank.ends()
    nowhere(app, tmp_path, error)


def test_a_handle_that_holds_a_secret_is_masked(app: Doubtless, tmp_path: Path, token: Any) -> None:
    def handle(value: str) -> Any:
        record_handle({"url": f"https://bank/jobs/7?token={value}", "token": value})
        return {"id": "payment-1"}

    Bank(app, handle).run()
    assert app.show("s1").steps[0].handles[0]["token"] == "***"
    nowhere(app, tmp_path)


def test_a_result_that_is_spilled_is_masked_too(make_app: MakeApp, tmp_path: Path, token: Any) -> None:
    app = make_app(store_patience=1)

    def fill(value: str) -> Any:
        app.store.limit_pages(app.store.pages())  # type: ignore[attr-defined]
        return {"text": "x" * 20_000, "token": value}

    error = Bank(app, fill).ends()
    assert list((tmp_path / "people.db.spill").iterdir())
    nowhere(app, tmp_path, error)


def test_task_code_never_sees_the_value(app: Doubtless, token: Any, tmp_path: Path) -> None:
    """On the first run as on replay, an output that echoed the value has a mask in its place."""
    bank = Bank(app, echo)
    first, again = bank.run(), bank.run()
    assert first == again
    assert first["you_sent"] == "***"
    nowhere(app, tmp_path, first)


def test_a_step_that_failed_for_good_tells_task_code_nothing_of_the_value(app: Doubtless, token: Any) -> None:
    seen: list[StepFailed] = []

    @app.step(effect="non_idem_write", secret="token")
    def pay(token: str) -> dict[str, Any]:
        raise Rejected("422", f"token {token} is unknown")

    @app.task
    def run_it() -> str:
        try:
            pay(token=Secret("env:BANK_TOKEN"))
        except StepFailed as error:
            seen.append(error)
        return "done"

    for _ in range(2):
        app.run(run_it, "s1")
    assert str(seen[0]) == "step pay at 1 failed for good (rejected: 422: token *** is unknown)"
    assert not any(form in repr(vars(error)) for error in seen for form in forms(OLD))


@pytest.mark.parametrize("error", [KeyError, RuntimeError])
def test_a_bug_of_task_code_that_quotes_the_value_shows_none_of_it(
    app: Doubtless, tmp_path: Path, token: Any, error: type[Exception]
) -> None:
    @app.step(effect="non_idem_write", secret="token")
    def pay(token: str) -> dict[str, Any]:
        return {"ok": True}

    @app.task
    def run_it() -> None:
        pay(token=Secret("env:BANK_TOKEN"))
        raise error(f"here is {OLD}")

    with pytest.raises(NeedsHuman) as stopped:
        app.run(run_it, "s1")
    nowhere(app, tmp_path, stopped.value)


def test_an_abort_that_quotes_the_value_shows_none_of_it(app: Doubtless, tmp_path: Path, token: Any) -> None:
    @app.step(effect="non_idem_write", secret="token")
    def pay(token: str) -> dict[str, Any]:
        return {"ok": True}

    @app.task
    def run_it() -> None:
        pay(token=Secret("env:BANK_TOKEN"))
        raise Abort(f"here is {OLD}")

    with pytest.raises(TaskFailed) as failed:
        app.run(run_it, "s1")
    nowhere(app, tmp_path, failed.value, failed.value.context)


def test_a_hook_that_fails_with_the_value_in_its_error_prints_none_of_it(
    app: Doubtless, token: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def hook(case: Any) -> None:
        raise RuntimeError(f"could not post with {OLD}")

    app.on_case(hook)
    bank = Bank(app, raise_it(lambda value: ConnectionResetError("lost")))
    bank.ends()
    err = capsys.readouterr().err
    assert "could not post with ***" in err
    assert OLD not in err


# ---------------------------------------------------------------- the vault itself


def test_short_values_are_not_looked_for_because_they_would_mask_ordinary_text() -> None:
    vault = Vault({"env": {"PIN": "12"}.get})
    vault.resolve({"$secret": "env:PIN"})
    assert vault.mask("12 of 1200") == "12 of 1200"


def test_the_longer_of_two_values_is_masked_first() -> None:
    vault = Vault({})
    vault.remember("abcd")
    vault.remember("abcdefgh")
    assert vault.mask("x abcdefgh abcd") == "x *** ***"


def test_a_masked_text_is_still_json() -> None:
    vault = Vault({})
    vault.remember(OLD)
    text = json.dumps({"a": OLD, "b": json.dumps({"c": OLD})}, ensure_ascii=False)
    assert json.loads(vault.mask(text)) == {"a": "***", "b": '{"c": "***"}'}
