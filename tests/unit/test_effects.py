"""The step table: both forms, every fault found and said, and what holds for an intent that an older deploy left open."""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from numbers import Real
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NewType,
    NoReturn,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import pydantic
import pytest

from doubtless.binding import injected
from doubtless.declaring import OPTIONS, define
from doubtless.effects import StepDefinition, tighten
from doubtless.errors import StepTableError, UnknownStep, UsageError
from doubtless.events import Effect
from doubtless.table import StepTable

if TYPE_CHECKING:
    from somewhere import Elsewhere  # type: ignore[import-not-found]

S = 1_000_000


def load(day: str) -> list[dict[str, int]]:
    return []


def pay(order: str, amount: int, at: str = "", token: str = "", idempotency_key: str = injected()) -> dict[str, int]:
    return {}


def find(order: str, idempotency_key: str) -> dict[str, int] | None:
    return None


def withdraw(order: str, result: dict[str, int], handle: str | None = None) -> None: ...


def definition(**options: Any) -> StepDefinition:
    said: dict[str, Any] = {"call": pay, "effect": "non_idem_write"} | options
    found, faults = define(**said)
    assert faults == []
    assert found is not None
    return found


def table(*steps: Mapping[str, Any], tasks: Mapping[str, Any] | None = None) -> StepTable:
    made = StepTable(tasks)
    for step in steps:
        made.add(None, step)
    return made


class Step(NamedTuple):
    """What an app hands out for a step."""

    definition: StepDefinition

    def __call__(self) -> None: ...


class Task(NamedTuple):
    """What an app hands out for a task."""

    name: str
    fn: Callable[..., Any]

    def __call__(self) -> None: ...


# ---------------------------------------------------------------- both forms


def test_the_table_as_data_is_taken_as_it_stands_in_the_readme() -> None:
    def create_adjustment(difference: dict[str, int], requested_at: str, idempotency_key: str = injected()) -> None: ...

    def query_adjustment(idempotency_key: str) -> None: ...

    def withdraw_adjustment(result: dict[str, int]) -> None: ...

    steps = {
        "create_adjustment": {"effect": "non_idem_write", "call": create_adjustment, "query": query_adjustment,
                              "compensate": withdraw_adjustment, "compensate_deadline": "PT10M"},
        "match_orders":      {"effect": "read", "call": load, "query": None, "compensate": None},
    }  # fmt: skip
    made = StepTable()
    for name, options in steps.items():
        made.add(name, options)
    made.validate()
    assert list(made) == ["create_adjustment", "match_orders", "withdraw_adjustment"]
    assert len(made) == 3
    create = made["create_adjustment"]
    assert (create.effect, create.compensate, create.compensate_deadline_us) == (
        Effect.NON_IDEM_WRITE,
        "withdraw_adjustment",
        600 * S,
    )
    assert made["match_orders"].effect is Effect.READ
    assert made["withdraw_adjustment"].effect is Effect.NON_IDEM_WRITE
    assert made["withdraw_adjustment"].query is None


def test_every_option_has_the_default_of_the_design() -> None:
    step = definition()
    assert (step.name, step.timeout_us, step.attempts, step.backoff_us, step.backoff_max_us) == ("pay", 30 * S, 3, S, 60 * S)
    assert (step.query_attempts, step.settle_within_us, step.on_absent) == (5, 3600 * S, "fail")
    assert step.volatile == step.secret == frozenset()
    for option in ("query", "classify", "compensate", "compensate_deadline_us", "key_window_us", "absent_after_us",
                   "idempotent_by", "cost", "query_by"):  # fmt: skip
        assert getattr(step, option) is None, option
    for option in ("retry_rejected", "single_request", "independent", "is_async", "query_is_async"):
        assert getattr(step, option) is False, option
    assert step.takes_key is True


def test_every_option_is_taken() -> None:
    step = definition(
        name="pay_order", query=find, compensate="undo", compensate_deadline="PT10M", volatile=("at",), secret="token",
        timeout=5, attempts=7, backoff="PT2M", retry_rejected=True, absent_after="PT2M", on_absent="retry", query_attempts=2,
        settle_within="PT30M", single_request=True, classify=lambda answer: None, cost=0.5,
    )  # fmt: skip
    assert (step.name, step.fn, step.query, step.compensate) == ("pay_order", pay, find, "undo")
    assert step.volatile == {"at"}
    assert step.secret == {"token"}
    assert (step.timeout_us, step.attempts, step.backoff_us, step.backoff_max_us) == (5 * S, 7, 120 * S, 120 * S)
    assert (step.absent_after_us, step.on_absent, step.query_attempts) == (120 * S, "retry", 2)
    assert (step.settle_within_us, step.cost) == (1800 * S, 0.5)
    assert step.retry_rejected is step.single_request is True
    assert callable(step.classify)
    idem = definition(effect=Effect.IDEM_WRITE, key_window="PT24H")
    assert (idem.effect, idem.key_window_us) == (Effect.IDEM_WRITE, 86400 * S)
    by = definition(effect="idem_write", call=load, idempotent_by="PUT of the whole record")
    assert (by.idempotent_by, by.takes_key) == ("PUT of the whole record", False)
    assert definition(effect="read", call=load, independent=True).independent is True


@pytest.mark.parametrize("names", ["at", ("at",), ["at"], {"at"}, frozenset({"at"})])
def test_one_name_is_one_name_and_not_its_letters(names: Any) -> None:
    assert definition(volatile=names).volatile == {"at"}
    assert definition(secret=names).secret == {"at"}


def test_no_time_at_all_is_allowed_where_it_has_a_meaning() -> None:
    step = definition(backoff=0)
    assert (step.backoff_us, step.backoff_max_us) == (0, 60 * S)


def test_none_is_the_same_as_not_saying_it() -> None:
    options = ("query", "compensate", "compensate_deadline", "key_window", "absent_after", "on_absent", "classify",
               "idempotent_by", "once", "once_window", "cost", "volatile", "secret", "name")  # fmt: skip
    assert definition(**dict.fromkeys(options)).policy() == definition().policy()


def test_async_steps_and_queries_are_known() -> None:
    async def apay(order: str) -> None: ...

    async def afind(order: str) -> None: ...

    step = definition(call=apay, query=afind)
    assert (step.is_async, step.query_is_async) == (True, True)
    assert definition(call=functools.partial(apay), name="x").is_async is True


def test_a_step_given_as_call_or_query_stands_for_its_bare_function() -> None:
    finder = Step(definition(name="finder", call=find_bare, effect="read"))
    assert definition(query=finder).query is find_bare
    assert definition(call=finder, effect="read").fn is find_bare


def find_bare(order: str) -> None: ...


def test_an_object_with_a_call_can_be_a_step() -> None:
    class Client:
        def __call__(self, order: str) -> int:
            return 1

    step = definition(name="client", call=Client())
    assert step.binder.names == ("order",)
    assert step.returns is int


# ---------------------------------------------------------------- faults of one step


def _stars(order: str, *rest: str) -> None: ...


def _open(order: str, **rest: str) -> None: ...


def _reserved(order: str, call_id: str, handle: str, handles: str, first_sent_at: str, idempotency_keys: str) -> None: ...


def _bare_key(order: str, idempotency_key: str) -> None: ...


def _other_key(order: str, key: str = injected()) -> None: ...


def _keyed_read(day: str, idempotency_key: str = injected()) -> None: ...


def _generator(order: str) -> Any:
    yield order


async def _stream(order: str) -> Any:
    yield order


def _find_stranger(order: str, invoice: str) -> None: ...


def _find_result(result: str) -> None: ...


def _find_by_position(order: str, /) -> None: ...


async def _aclassify(answer: object) -> None: ...


def _classify_two(answer: object, order: str) -> None: ...


def _unreadable() -> None: ...


_unreadable.__signature__ = "none"  # type: ignore[attr-defined]

NOT_UTF8 = "by \ud800"

FAULTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("unknown effect", {"effect": "non_idem_wrte"}, ["unknown effect 'non_idem_wrte'; did you mean 'non_idem_write'?"]),
    ("effect of elsewhere", {"effect": "write"}, ["unknown effect 'write'; did you mean 'non_idem_write'?"]),
    ("effect in capitals", {"effect": "READ"}, ["unknown effect 'READ'; did you mean 'read'?"]),
    ("effect far off", {"effect": "zzz"}, ["unknown effect 'zzz'; say one of read, idem_write, non_idem_write"]),
    ("effect of another type", {"effect": ["read"]}, ["unknown effect ['read']"]),
    ("no effect", {"effect": None}, ["says no effect: say effect='read', 'idem_write' or 'non_idem_write'"]),
    ("unknown option", {"time_out": 5}, ["unknown option 'time_out'; did you mean 'timeout'?"]),
    ("option of elsewhere", {"retries": 5}, ["unknown option 'retries'; did you mean 'attempts'?"]),
    ("option far off", {"zzz": 5}, ["unknown option 'zzz'; the options are name, effect, call, query"]),
    ("no call", {"call": None, "name": "pay"}, ["says no call: say call=<the function>"]),
    ("call not callable", {"call": "pay", "name": "pay"}, ["call is 'pay', which cannot be called: say the function itself"]),
    ("call without signature", {"call": _unreadable, "name": "pay"}, ["its signature cannot be read: wrap it in a def"]),
    ("calendar duration", {"timeout": "P1M"}, ["timeout: P1M is counted by a calendar month, whose length differs (say P30D"]),
    ("bad duration", {"settle_within": "10m"}, ["settle_within: '10m' is not a duration (say PT10M)"]),
    ("duration None", {"timeout": None}, ["timeout: a duration cannot be a NoneType"]),
    ("timeout zero", {"timeout": 0}, ["timeout: 0 is no time at all"]),
    ("timeout negative", {"timeout": -1}, ["timeout: -1 is negative"]),
    ("backoff negative", {"backoff": -1}, ["backoff: -1 is negative"]),
    ("settle_within zero", {"settle_within": "PT0S"}, ["settle_within: PT0S is no time at all"]),
    ("key_window zero", {"effect": "idem_write", "key_window": 0}, ["key_window: 0 is no time at all"]),
    ("deadline zero", {"compensate": withdraw, "compensate_deadline": 0}, ["compensate_deadline: 0 is no time at all"]),
    ("absent_after negative", {"query": find, "absent_after": -1}, ["absent_after: -1 is negative"]),
    ("absent_after zero", {"query": find, "absent_after": 0}, ["absent_after: 0 is no time at all"]),
    ("once_window", {"once_window": "PT1M"}, ["once_window without once: say once=… too, or take it out"]),
    ("attempts zero", {"attempts": 0}, ["attempts is 0: say a whole number, at least 1"]),
    ("attempts a fraction", {"attempts": 1.5}, ["attempts is 1.5: say a whole number, at least 1"]),
    ("attempts a bool", {"attempts": True}, ["attempts is True: say a whole number, at least 1"]),
    ("attempts None", {"attempts": None}, ["attempts is None: say a whole number, at least 1"]),
    ("query_attempts zero", {"query": find, "query_attempts": 0}, ["query_attempts is 0: say a whole number, at least 1"]),
    ("retry_rejected no bool", {"retry_rejected": "yes"}, ["retry_rejected is 'yes': say True or False"]),
    ("single_request no bool", {"single_request": 1}, ["single_request is 1: say True or False"]),
    ("independent no bool", {"independent": "no"}, ["independent is 'no': say True or False"]),
    ("on_absent unknown", {"query": find, "absent_after": 1, "on_absent": "resend"},
     ["on_absent is 'resend': say 'fail' or 'retry'"]),
    ("cost negative", {"cost": -1}, ["cost is -1: say a number, zero or more"]),
    ("cost infinite", {"cost": float("inf")}, ["cost is inf: say a number, zero or more"]),
    ("cost NaN", {"cost": float("nan")}, ["cost is nan: say a number, zero or more"]),
    ("cost a bool", {"cost": True}, ["cost is True: say a number, zero or more"]),
    ("cost a Decimal", {"cost": Decimal(1)}, ["cost is Decimal('1'): say a number, zero or more"]),
    ("deadline alone", {"compensate_deadline": "PT1M"}, ["compensate_deadline without compensate: say compensate=… too"]),
    ("once of no param", {"once": "pay:{oder}"}, ["once names 'oder', which is no parameter of it"]),
    ("once of an attribute", {"once": "pay:{order.id}"}, ["once names {order.id}, which is no parameter of its own"]),
    ("once with a format", {"once": "pay:{amount:05}"}, ["once names {amount} with a format: say {amount}"]),
    ("once that is no template", {"once": "pay:{"}, ["once is 'pay:{', which is no template"]),
    ("once of a volatile", {"once": "pay:{at}", "volatile": "at"}, ["once names 'at', which is volatile"]),
    ("once of a secret", {"once": "pay:{token}", "secret": "token"}, ["once names 'token', which is secret"]),
    ("once of the key", {"once": "pay:{idempotency_key}"}, ["once names 'idempotency_key', which is no parameter of it"]),
    ("once no text", {"once": 7}, ["once is 7: say it in words, as a text"]),
    ("once_window zero", {"once": "pay:{order}", "once_window": 0}, ["once_window: 0 is no time at all"]),
    ("once on a read", {"effect": "read", "call": load, "once": "load:{day}"},
     ["once on a read: a read has no effect that could happen twice"]),
    ("query on a read", {"effect": "read", "call": load, "query": lambda: None},
     ["query on a read: a read is simply called again"]),
    ("compensate on a read", {"effect": "read", "call": load, "compensate": "undo"},
     ["compensate on a read: a read leaves nothing"]),
    ("absent_after alone", {"absent_after": "PT1M"}, ["absent_after without query: say query=… too, or take it out"]),
    ("on_absent alone", {"query": find, "on_absent": "retry"}, ["on_absent without absent_after: say absent_after=… too"]),
    ("key_window on a non_idem_write", {"key_window": "PT1M"},
     ["key_window on a non_idem_write: it speaks of what makes an idem_write"]),
    ("key_window on a read", {"effect": "read", "call": load, "key_window": "PT1M"}, ["key_window on a read: it speaks of"]),
    ("idempotent_by elsewhere", {"idempotent_by": "PUT"}, ["idempotent_by on a non_idem_write: it speaks of what makes"]),
    ("idempotent_by no text", {"effect": "idem_write", "idempotent_by": True},
     ["idempotent_by is True: say it in words, as a text"]),
    ("idempotent_by blank", {"effect": "idem_write", "idempotent_by": " "}, ["idempotent_by is ' ': say it in words, as a text"]),
    ("idempotent_by not UTF-8", {"effect": "idem_write", "idempotent_by": NOT_UTF8}, ["say it in words, as a text"]),
    ("idem_write without a key", {"effect": "idem_write", "call": load},
     ["an idem_write that takes no key: add the parameter idempotency_key: str = injected(), or say idempotent_by='…'"]),
    ("injected on a read", {"effect": "read", "call": _keyed_read}, ["injected() on a read: only writes have a key"]),
    ("injected elsewhere", {"call": _other_key}, ["injects 'key', but only idempotency_key is injected"]),
    ("a key from the caller", {"call": _bare_key},
     ["takes idempotency_key from its caller: write idempotency_key: str = injected()"]),
    ("reserved names", {"call": _reserved}, [f"the reserved name '{name}': rename it, for instance to {name}_" for name in
     ("call_id", "handle", "handles", "first_sent_at", "idempotency_keys")]),
    ("*args", {"call": _stars}, ["takes *rest: declare each parameter by name"]),
    ("**kwargs", {"call": _open}, ["takes **rest: declare each parameter by name"]),
    ("volatile unknown", {"volatile": ("when",)},
     ["volatile names 'when', which is no parameter of it; it takes order, amount, at"]),
    ("volatile the key", {"volatile": "idempotency_key"}, ["volatile names 'idempotency_key', which is no parameter"]),
    ("secret unknown", {"secret": "key"}, ["secret names 'key', which is no parameter of it"]),
    ("secret of another type", {"secret": 5}, ["secret is 5: say the names of parameters"]),
    ("volatile of numbers", {"volatile": (5,)}, ["volatile is (5,): say the names of parameters"]),
    ("independent write", {"independent": True}, ["independent on a write: no write may begin while another step is in doubt"]),
    ("query a name", {"query": "find"}, ["query is 'find': say the function itself"]),
    ("query asks too much", {"query": _find_stranger},
     ["query: _find_stranger asks for 'invoice', which it is not offered; it can have order,"]),
    ("query asks for the result", {"query": _find_result}, ["query: _find_result asks for 'result', which it is not offered"]),
    ("query by position", {"query": _find_by_position}, ["query: _find_by_position takes 'order' by position only"]),
    ("query without signature", {"query": _unreadable}, ["query: the signature of _unreadable cannot be read"]),
    ("query a generator", {"query": _generator}, ["query: _generator is a generator: return the answer instead"]),
    ("query an async generator", {"query": _stream}, ["query: _stream is a generator: return the answer instead"]),
    ("classify a name", {"classify": "http"}, ["classify is 'http': say the function itself"]),
    ("classify takes nothing", {"classify": lambda: None}, ["has to take one thing by position"]),
    ("classify takes more", {"classify": _classify_two}, ["classify: _classify_two has to take one thing by position"]),
    ("classify async", {"classify": _aclassify}, ["classify: _aclassify is async: a classifier only looks at what came"]),
    ("classify a generator", {"classify": _generator}, ["classify: _generator is a generator"]),
    ("generator", {"call": _generator}, ["is a generator: return the result instead of yielding it"]),
    ("async generator", {"call": _stream}, ["is a generator: return the result instead of yielding it"]),
    ("lambda", {"call": lambda order: None}, ["<lambda> has no name of its own: say name='…'"]),
    ("lambda by its own name", {"call": lambda order: None, "name": "<lambda>"}, ["<lambda> has no name of its own"]),
    ("partial", {"call": functools.partial(load)}, ["partial has no name of its own: say name='…'"]),
    ("name with a space", {"name": "pay order"}, ["the name may hold printable characters only, and no spaces"]),
    ("name with a newline", {"name": "pay\n"}, ["the name may hold printable characters only, and no spaces"]),
    ("name with a surrogate", {"name": "pay\ud800"}, ["the name may hold printable characters only, and no spaces"]),
    ("name too long", {"name": "x" * 101}, ["the name has 101 characters: 1 to 100 are allowed"]),
    ("name empty", {"name": ""}, ["the name has 0 characters: 1 to 100 are allowed"]),
    ("name of all steps", {"name": "*"}, ["'*' means all steps where steps are frozen"]),
    ("name of another type", {"name": 5}, ["the name is not a text"]),
    ("compensate unknown", {"compensate": "undo_pay"}, ["compensate names 'undo_pay', which is no step and no task: declare it"]),
    ("compensate a number", {"compensate": 5}, ["compensate is 5: say a step, a task, their name, or a function"]),
    ("compensate a lambda", {"compensate": lambda result: None},
     ["which has no name: register it as a step of its own and name that"]),
    ("compensates itself", {"compensate": pay}, ["compensates itself: say the step that undoes it"]),
    ("compensates itself by name", {"compensate": "pay"}, ["compensates itself: say the step that undoes it"]),
    ("compensate asks too much", {"compensate": _find_stranger},
     ["compensate: _find_stranger asks for 'invoice', which it is not offered"]),
    ("compensate takes anything", {"compensate": _open},
     ["compensate: step '_open': takes **rest: declare each parameter by name"]),
    ("compensate a generator", {"compensate": _generator}, ["compensate: step '_generator': is a generator"]),
    ("compensate unreadable", {"compensate": _unreadable}, ["compensate: step '_unreadable': its signature cannot be read"]),
    ("compensate empty", {"compensate": ""}, ["compensate names '', which is no step and no task"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_each_fault_is_found_alone_and_says_what_to_write(options: dict[str, Any], expected: list[str]) -> None:
    made = StepTable()
    made.add(None, {"call": pay, "effect": "non_idem_write"} | options)
    found = made.check()
    assert len(found) == len(expected), found
    for fault, part in zip(found, expected, strict=True):
        assert part in fault
        assert fault.startswith("step ")
        assert "\n" not in fault
        with pytest.raises(StepTableError) as caught:
            made.validate()
        assert fault in caught.value.faults


def test_the_same_table_without_the_faults_has_none() -> None:
    made = StepTable()
    made.add(None, {"call": pay, "effect": "non_idem_write"})
    assert made.check() == []


@pytest.mark.parametrize("name", ["x" * 100, "对账", "erp/create", "a.b-c_d"])
def test_names_of_a_hundred_printable_characters_are_allowed(name: str) -> None:
    assert definition(name=name).name == name


def test_define_never_raises_and_still_makes_a_definition_with_cautious_defaults() -> None:
    found, faults = define(call=pay, effect="writes", timeout="P1M", attempts=0, on_absent=5, volatile=5, backoff="x")
    assert len(faults) == 7  # on_absent stands without absent_after too
    assert found is not None
    assert (found.effect, found.timeout_us, found.attempts, found.on_absent) == (Effect.NON_IDEM_WRITE, 30 * S, 3, "fail")
    assert found.backoff_us == S


@pytest.mark.parametrize("junk", [None, 5, "pay", [], {}, float("nan"), object(), lambda: None, int, _generator, ("a", 5)])
def test_no_value_of_any_option_makes_the_check_raise(junk: Any) -> None:
    for option in OPTIONS:
        made = StepTable()
        made.add(None, {"call": pay, "effect": "non_idem_write", "query": find, "compensate": withdraw} | {option: junk})
        made.check()


# ---------------------------------------------------------------- faults of the whole table


def test_one_error_lists_every_fault_of_every_step() -> None:
    made = StepTable()
    made.add("match", {"effect": "read", "call": load, "query": find, "compensate": None})
    made.add("pay", {"effect": "idem_write", "call": pay, "timeout": "P1M", "retrys": 3, "compensate": "undo"})
    made.add("notify", {"effect": "write"})
    with pytest.raises(StepTableError) as caught:
        made.validate()
    faults = caught.value.faults
    assert len(faults) == 7
    assert [fault.split(":")[0] for fault in faults] == [
        "step 'match'", "step 'match'", "step 'pay'", "step 'pay'", "step 'notify'", "step 'notify'", "step 'pay'",
    ]  # fmt: skip
    assert str(caught.value).startswith("the step table has 7 faults:\n  - step 'match': ")
    assert isinstance(caught.value, UsageError)


def test_a_table_goes_on_refusing_until_it_is_sound() -> None:
    made = table({"call": pay, "effect": "non_idem_write", "compensate": "undo"})
    for _ in range(2):
        with pytest.raises(StepTableError, match="'undo', which is no step"):
            made.validate()
    made.add("undo", {"call": withdraw_plain, "effect": "non_idem_write"})
    made.validate()
    made.validate()
    made.add("undo", {"call": withdraw_plain, "effect": "non_idem_write"})
    with pytest.raises(StepTableError, match="step 'undo': is declared twice: give one of them another name"):
        made.validate()


def withdraw_plain(order: str, result: dict[str, int]) -> None: ...


def test_two_steps_of_one_name_are_a_fault_also_without_saying_the_name() -> None:
    made = table({"call": load, "effect": "read"}, {"call": load, "effect": "read"})
    assert made.check() == ["step 'load': is declared twice: give one of them another name"]


def test_a_step_that_is_faulty_is_not_reported_as_missing_too() -> None:
    made = StepTable()
    made.add("undo", {"effect": "non_idem_write"})
    made.add("pay", {"call": pay, "effect": "non_idem_write", "compensate": "undo"})
    assert made.check() == ["step 'undo': says no call: say call=<the function>"]


def test_lambdas_without_names_are_not_taken_for_one_step() -> None:
    made = StepTable()
    for name in (None, None, "<lambda>"):
        made.add(name, {"call": lambda: None, "effect": "read"})
    assert made.check() == ["step '(no name)': <lambda> has no name of its own: say name='…'"] * 3


def test_options_that_are_no_mapping_are_a_fault() -> None:
    made = StepTable()
    assert made.add("pay", pay) is None  # type: ignore[arg-type]
    assert "is no mapping of options: say {'effect': …, 'call': …}" in made.check()[0]


def test_two_names_for_one_step_are_a_fault() -> None:
    made = StepTable()
    made.add("pay", {"call": pay, "effect": "non_idem_write", "name": "charge"})
    assert made.check() == ["step 'pay': says name='charge' too: say one of them"]
    made = StepTable()
    made.add("pay", {"call": pay, "effect": "non_idem_write", "name": "pay"})
    assert made.check() == []


def test_a_step_that_is_not_there_is_none_or_an_error_with_the_nearest() -> None:
    made = table({"call": pay, "effect": "non_idem_write"})
    assert made.get("pay") is made["pay"]
    assert made.get("gone") is None
    assert "pay" in made
    assert "gone" not in made
    with pytest.raises(UnknownStep) as caught:
        made["pai"]
    assert str(caught.value) == "there is no step 'pai' (did you mean 'pay'?)"
    with pytest.raises(UnknownStep, match="the steps are none yet"):
        StepTable()["pay"]


# ---------------------------------------------------------------- compensation


def test_a_compensation_may_be_named_before_it_is_declared() -> None:
    made = table(
        {"call": pay, "effect": "non_idem_write", "compensate": "withdraw_plain"},
        {"call": withdraw_plain, "effect": "non_idem_write"},
    )
    assert made.check() == []


def test_a_compensation_may_be_a_step_of_this_table() -> None:
    made = StepTable()
    undo = made.add("undo", {"call": withdraw_plain, "effect": "non_idem_write"})
    assert undo is not None
    made.add("pay", {"call": pay, "effect": "non_idem_write", "compensate": Step(undo)})
    assert made.check() == []
    assert made["pay"].compensate == "undo"


def test_a_step_of_another_table_is_a_fault() -> None:
    stranger = Step(definition(name="undo", call=withdraw_plain))
    made = table({"call": pay, "effect": "non_idem_write", "compensate": stranger})
    assert "compensate names 'undo', which is no step and no task" in made.check()[0]
    made.add("undo", {"call": load, "effect": "non_idem_write"})
    assert "compensate is a step or task 'undo', but the one of that name here is another" in made.check()[0]


def test_a_function_becomes_a_write_without_a_query_that_may_take_what_callbacks_are_offered() -> None:
    made = table({"call": pay, "effect": "non_idem_write", "compensate": withdraw})
    assert made.get("withdraw") is None  # known when the table is checked
    made.validate()
    undo = made["withdraw"]
    assert (undo.effect, undo.query, undo.binder.names) == (Effect.NON_IDEM_WRITE, None, ("order", "result", "handle"))
    assert made.check() == []
    assert made["withdraw"].definition_hash == undo.definition_hash


def test_one_function_may_undo_several_steps() -> None:
    made = table(
        {"call": pay, "effect": "non_idem_write", "compensate": withdraw},
        {"call": pay, "name": "pay2", "effect": "non_idem_write", "compensate": withdraw},
    )
    assert made.check() == []
    assert len(made) == 3


def test_a_function_that_is_a_step_already_stands_for_that_step() -> None:
    made = table(
        {"call": pay, "effect": "non_idem_write", "compensate": withdraw_plain},
        {"call": withdraw_plain, "effect": "idem_write", "idempotent_by": "DELETE by id"},
    )
    assert made.check() == []
    assert made["withdraw_plain"].effect is Effect.IDEM_WRITE
    assert len(made) == 2


def test_a_function_that_is_a_step_of_another_name_has_to_be_named_by_it() -> None:
    made = table(
        {"call": pay, "effect": "non_idem_write", "compensate": withdraw_plain},
        {"call": withdraw_plain, "name": "undo", "effect": "non_idem_write"},
    )
    assert made.check() == [
        "step 'pay': compensate is the function withdraw_plain, which is registered as 'undo': say compensate='undo'"
    ]


def test_two_functions_of_one_name_cannot_both_become_steps() -> None:
    def other() -> Callable[..., None]:
        def withdraw(order: str) -> None: ...

        return withdraw

    made = table(
        {"call": pay, "effect": "non_idem_write", "compensate": withdraw},
        {"call": pay, "name": "pay2", "effect": "non_idem_write", "compensate": other()},
    )
    assert made.check() == [
        "step 'pay2': compensate is a function named withdraw, as another step or task is: "
        + "register it as a step under its own name"
    ]
    made = table(
        {"call": load, "name": "withdraw", "effect": "read"}, {"call": pay, "effect": "non_idem_write", "compensate": withdraw}
    )
    assert "a function named withdraw, as another step or task is" in made.check()[0]


def test_a_read_cannot_undo_anything() -> None:
    made = table({"call": load, "effect": "read"}, {"call": pay, "effect": "non_idem_write", "compensate": "load"})
    assert made.check() == ["step 'pay': compensate names 'load', which is a read: a read undoes nothing"]


def test_a_compensating_step_that_asks_for_what_it_is_not_offered_is_a_fault() -> None:
    made = table(
        {"call": _find_stranger, "effect": "non_idem_write"},
        {"call": pay, "effect": "non_idem_write", "compensate": "_find_stranger"},
    )
    offered = "order, amount, at, token, idempotency_key, idempotency_keys, handle, handles, first_sent_at, result"
    assert made.check() == [
        f"step 'pay': compensate: _find_stranger asks for 'invoice', which it is not offered; it can have {offered}"
    ]


def test_a_compensating_step_gets_a_key_of_its_own() -> None:
    def undo(order: str, idempotency_key: str = injected()) -> None: ...

    made = table({"call": pay, "effect": "non_idem_write", "compensate": undo})
    made.validate()
    assert made["undo"].takes_key


def test_a_compensation_may_be_a_task_by_name_or_itself() -> None:
    def undo_all(order: str, result: dict[str, int]) -> None: ...

    def greedy(invoice: str) -> None: ...

    tasks = {"undo_all": Task("undo_all", undo_all), "greedy": Task("greedy", greedy)}
    for undo in ("undo_all", tasks["undo_all"], undo_all):
        made = table({"call": pay, "effect": "non_idem_write", "compensate": undo}, tasks=tasks)
        assert made.check() == []
        assert made["pay"].compensate == "undo_all"
        assert len(made) == 1
    made = table({"call": pay, "effect": "non_idem_write", "compensate": "greedy"}, tasks=tasks)
    assert "compensate: greedy asks for 'invoice', which it is not offered" in made.check()[0]
    made = table({"call": pay, "effect": "non_idem_write", "compensate": Task("undo_all", undo_all)}, tasks={})
    assert "compensate names 'undo_all', which is no step and no task" in made.check()[0]


def test_tasks_that_are_declared_after_the_table_are_seen() -> None:
    tasks: dict[str, Any] = {}
    made = table({"call": pay, "effect": "non_idem_write", "compensate": "undo_all"}, tasks=tasks)
    assert len(made.check()) == 1
    tasks["undo_all"] = withdraw_plain
    assert made.check() == []


# ---------------------------------------------------------------- what a definition says of itself


def test_the_policy_is_plain_json_with_names_and_values_and_no_source() -> None:
    step = definition(query=find, compensate=withdraw, classify=_classify_one, volatile="at", secret="token")
    policy = step.policy()
    assert json.loads(step.policy_text) == policy
    assert step.policy_text is step.policy_text
    assert (policy["query"], policy["compensate"], policy["classify"]) == ("find", "withdraw", "_classify_one")
    assert (policy["effect"], policy["params"]) == ("non_idem_write", ["order", "amount", "at", "token"])
    assert (policy["volatile"], policy["secret"]) == (["at"], ["token"])
    assert set(policy) >= {
        "timeout_us",
        "attempts",
        "backoff_us",
        "key_window_us",
        "absent_after_us",
        "on_absent",
        "settle_within_us",
    }
    assert list(json.loads(step.policy_text)) == sorted(policy)


def _classify_one(answer: object) -> None: ...


def test_the_definition_hash_changes_with_names_class_policy_and_params_and_not_with_the_body() -> None:
    def pay(order: str, amount: int, at: str = "", token: str = "", idempotency_key: str = injected()) -> dict[str, int]:
        raise NotImplementedError("another body")

    base = definition()
    assert base.definition_hash == sha256(base.policy_text.encode()).digest()
    assert definition(call=pay).definition_hash == base.definition_hash
    others = [
        definition(name="pay2"), definition(effect="idem_write"), definition(timeout=5), definition(query=find),
        definition(compensate="undo"), definition(volatile="at"), definition(call=load, name="pay"), definition(cost=1),
        definition(single_request=True), definition(classify=_classify_one),
    ]  # fmt: skip
    assert len({step.definition_hash for step in [base, *others]}) == 11


def test_the_definition_hash_is_the_same_in_every_process() -> None:
    code = (
        "from doubtless.declaring import define\n"
        "def pay(a, b, c, d): ...\n"
        "print(define(call=pay, effect='non_idem_write', volatile={'a', 'b', 'c'}, secret={'d'})[0].definition_hash.hex())"
    )
    source = str(Path(__file__).parents[2] / "src")
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


def test_the_effective_policy_is_the_definition_itself_and_made_once() -> None:
    step = definition(query=find, absent_after=5, on_absent="retry")
    policy = step.effective
    assert policy is step.effective
    assert policy.has_query is True
    assert definition().effective.has_query is False
    assert policy.undo_by is None  # the log of a compensation says it
    for field in set(policy._fields) - {"has_query", "undo_by"}:
        assert getattr(policy, field) == getattr(step, field), field


@pytest.mark.parametrize(
    ("query", "by"),
    [
        (find, "key"),
        (lambda idempotency_keys: None, "key"),
        (lambda handle: None, "handle"),
        (lambda handles: None, "handle"),
        (lambda handle, idempotency_key: None, "key"),
        (lambda order, first_sent_at: None, "likeness"),
        (lambda **offered: None, "key"),
    ],
)
def test_it_is_known_by_what_a_query_finds(query: Callable[..., Any], by: str) -> None:
    assert definition(query=query).query_by == by


def test_a_query_is_given_what_it_declares() -> None:
    offered = {"order": "o", "amount": 1, "idempotency_key": "k", "handle": None}
    assert definition(query=find).query_params(offered) == {"order": "o", "idempotency_key": "k"}
    assert definition().query_params(offered) == {}


def test_params_and_outputs_get_the_types_of_their_annotations() -> None:
    nothing: Any = None

    def send(amount: Decimal, note: str = nothing, token: Decimal = Decimal(0)) -> tuple[int, str]: ...  # type: ignore[empty-body]

    step = definition(call=send, secret="token")
    params: dict[str, Any] = {"amount": "1.50", "note": None, "token": "secret"}
    step.restore_params(params)
    assert params == {"amount": Decimal("1.50"), "note": None, "token": "secret"}
    assert step.restore_output([1, "a"]) == (1, "a")
    assert step.notes == ()


def test_what_does_not_fit_an_annotation_is_said_with_its_place() -> None:
    from doubtless.restore import DoesNotFit

    def send(rows: list[int]) -> list[int]: ...  # type: ignore[empty-body]

    step = definition(call=send)
    with pytest.raises(DoesNotFit) as caught:
        step.restore_params({"rows": [1, "2"]})
    assert caught.value.where == "rows[1]"
    with pytest.raises(DoesNotFit):
        step.restore_output(["x"])


def test_without_annotations_values_come_back_as_they_are_stored() -> None:
    def send(rows, note): ...  # type: ignore[no-untyped-def]

    step = definition(call=send)
    params = {"rows": [1], "note": {"a": 1}}
    step.restore_params(params)
    assert params == {"rows": [1], "note": {"a": 1}}
    assert step.restore_output([1]) == [1]
    assert (step.returns, step.param_types) == (None, {})


def _unresolved(order: str, who: Elsewhere) -> Elsewhere: ...


def test_an_annotation_that_cannot_be_resolved_is_a_note_and_no_crash() -> None:
    step = definition(call=_unresolved)
    assert step.returns is None
    assert step.param_types == {"order": str}
    assert step.restore_output({"a": 1}) == {"a": 1}
    assert step.notes == (
        "the annotation of 'who' cannot be resolved: its values come back as plain JSON values",
        "the annotation of the result cannot be resolved: its values come back as plain JSON values",
    )


def test_annotations_are_not_looked_at_before_they_are_needed() -> None:
    def send(later: Later) -> Later: ...  # type: ignore[empty-body]

    step = definition(call=send)
    step.policy_text, step.definition_hash, step.effective  # noqa: B018
    send.__globals__["Later"] = int
    try:
        assert step.returns is int
    finally:
        del send.__globals__["Later"]


if TYPE_CHECKING:
    Later = int


def test_a_key_window_without_room_for_a_call_is_a_note_and_no_fault() -> None:
    no_room = "key_window 35 s leaves no room for a call of 30 s and the margin"
    note = f"{no_room}: an attempt whose outcome is unknown is never sent again"
    assert definition(effect="idem_write", key_window=35).notes == (note,)
    assert definition(effect="idem_write", key_window=36).notes == ()
    assert definition(effect="idem_write").notes == ()


def test_a_query_for_a_key_that_was_never_sent_is_a_note() -> None:
    def send(order: str) -> None: ...

    assert definition(call=send, query=find).notes == (
        "find is given a key that the step does not send: add idempotency_key: str = injected()",
    )
    assert definition(query=find).notes == ()


# ---------------------------------------------------------------- types that cannot keep their word


class Approved(pydantic.BaseModel):
    id: str


class Declined(pydantic.BaseModel):
    id: str
    note: str = ""


class Tagged(pydantic.BaseModel):
    kind: Literal["tagged"] = "tagged"
    id: str


class Labelled(pydantic.BaseModel):
    kind: Literal["labelled"] = "labelled"
    id: str


class Hidden(pydantic.BaseModel):
    id: str
    inner: int = pydantic.Field(default=1, exclude=True)


class Locked(pydantic.BaseModel):
    token: pydantic.SecretStr | None = None
    mail: pydantic.NaiveDatetime | None = None
    sorted_set: Annotated[set[int], pydantic.AfterValidator(sorted)] = set()


class Holder(pydantic.BaseModel):
    answer: Approved | Declined


class Chosen(pydantic.BaseModel):
    answer: Annotated[
        Annotated[Approved, pydantic.Tag("a")] | Annotated[Declined, pydantic.Tag("d")],
        pydantic.Discriminator(lambda value: "d" if "note" in value else "a"),
    ]


@dataclass
class Base:
    id: str


@dataclass
class Wider(Base):
    extra: int = 0


@dataclass
class Further(Base):
    extra: int


@dataclass
class Numbered:
    id: int
    next: Numbered | None = None


@dataclass
class Outer:
    lines: list[Base | Wider]
    counter: ClassVar[set[int]] = set()


class Keyed(TypedDict):
    a: int


class KeyedMore(TypedDict):
    a: int
    b: NotRequired[int]


class Place(NamedTuple):
    x: float
    y: float


class Size(NamedTuple):
    width: float
    height: float


class Words(NamedTuple):
    one: str
    two: str


class Kind(StrEnum):
    A = "a"


class Opaque: ...


def faults_of_result(annotation: Any) -> list[str]:
    def send(order: str) -> None: ...

    send.__annotations__ = {"order": str, "return": annotation}
    return table({"call": send, "effect": "non_idem_write"}).check()


def faults_of_param(annotation: Any) -> list[str]:
    def send(order: str) -> None: ...

    send.__annotations__ = {"order": annotation, "return": None}
    return table({"call": send, "effect": "non_idem_write"}).check()


@pytest.mark.parametrize(
    ("annotation", "union", "why"),
    [
        (Approved | Declined, "Approved | Declined", "both have the field id"),
        (Base | Wider | None, "Base | Wider", "both have the field id"),
        (list[Base | Wider], "Base | Wider", "both have the field id"),
        (dict[str, tuple[Approved | Base, ...]], "Approved | Base", "both have the field id"),
        (list[Approved] | list[Declined], "list[Approved] | list[Declined]", "both have the field id"),
        (Keyed | KeyedMore, "Keyed | KeyedMore", "both have the field a"),
        (Place | Size, "Place | Size", "both are stored as lists of the same length"),
        (Place | list[float], "Place | list[float]", "both are stored as lists of the same length"),
    ],
)
def test_a_union_of_classes_that_look_alike_once_stored_is_a_fault(annotation: Any, union: str, why: str) -> None:
    told = (
        f"union {union} cannot be told apart once stored: {why}; "
        "give one of them a required field that the other lacks, or both a Literal tag"
    )
    assert faults_of_result(annotation) == [f"step 'send': the result's {told}"]
    assert faults_of_param(annotation) == [f"step 'send': the parameter order's {told}"]


def test_a_union_inside_a_class_is_found_with_its_field() -> None:
    for kind, place in ((Outer, "Outer.lines"), (Holder, "Holder.answer")):
        (fault,) = faults_of_result(list[kind])  # type: ignore[valid-type]
        assert fault.startswith(f"step 'send': {place}'s union ")


@pytest.mark.parametrize(
    "annotation",
    [
        Tagged | Labelled, Base | Further, Base | Numbered, Approved | None, Approved | str, Place | Words, int | str | None,
        Base | Any, Chosen, list[int] | list[str], list[str] | tuple[str, ...], Approved | dict[str, Any], Base | Base,
    ],
)  # fmt: skip
def test_a_union_that_can_be_told_apart_is_none(annotation: Any) -> None:
    assert faults_of_result(annotation) == faults_of_param(annotation) == []


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (set[int], "the result's type set[int] has no stored form: return a sorted list"),
        (list[frozenset[str]], "the result's type frozenset[str] has no stored form: return a sorted list"),
        (dict[int, str], "the result's type dict[int, str] has no stored form: return a dict with keys of type str, or a list"),
        (dict[Kind, str], "the result's type dict[Kind, str] has no stored form: return a dict with keys of type str"),
        (Path, "the result's type Path has no stored form: return it as a str"),
        (complex, "the result's type complex has no stored form: return plain data, a dataclass or a pydantic model"),
        (Opaque, "the result's type Opaque has no stored form: return plain data, a dataclass or a pydantic model"),
        (str | Path, "the result's type Path has no stored form: return it as a str"),
        (Iterator[int], "the result's type Iterator[int] has no stored form: return plain data"),
        (pydantic.SecretStr, "the result's type SecretStr has no stored form: return what is no secret"),
        (Locked, "Locked.token's type SecretStr has no stored form: return what is no secret"),
        (Hidden, "Hidden.inner is excluded from serialisation, so it is not stored: return the other fields, as a dict"),
    ],
)
def test_a_result_that_can_never_be_stored_is_a_fault(annotation: Any, told: str) -> None:
    (fault,) = faults_of_result(annotation)
    assert fault.startswith(f"step 'send': {told}")


def test_a_param_needs_one_member_that_can_be_stored() -> None:
    assert faults_of_param(str | Path) == []
    assert faults_of_param(set[int]) == [
        "step 'send': the parameter order's type set[int] has no stored form: pass a sorted list"
    ]


@pytest.mark.parametrize(
    "annotation",
    [
        None, Any, object, bytes, bytearray, Decimal, UUID, dt.datetime, dt.timedelta, Kind, list, dict, tuple, Hashable, Real,
        dict[str, Any], dict[Literal["a"], int], Mapping[Any, int], Sequence[int], Numbered, Place, Keyed, Tagged, TypeVar("T"),
        NewType("Account", str), pydantic.EmailStr, pydantic.RootModel[list[str]], NoReturn,
    ],
)  # fmt: skip
def test_what_can_be_stored_or_may_be_is_no_fault(annotation: Any) -> None:
    assert faults_of_result(annotation) == []


def test_a_secret_param_is_not_stored_and_may_have_any_type() -> None:
    def send(token: pydantic.SecretStr) -> None: ...

    assert table({"call": send, "effect": "non_idem_write", "secret": "token"}).check() == []


def test_the_function_of_a_compensation_is_checked_too() -> None:
    def undo(order: str) -> set[int]: ...  # type: ignore[empty-body]

    (fault,) = table({"call": pay, "effect": "non_idem_write", "compensate": undo}).check()
    assert fault.startswith("step 'undo': the result's type set[int] has no stored form")


def test_types_are_looked_at_when_the_table_is_checked_and_not_when_a_step_is_declared() -> None:
    def send(later: LaterSet) -> None: ...

    made = table({"call": send, "effect": "non_idem_write"})
    send.__globals__["LaterSet"] = set[int]
    try:
        assert made.check() == ["step 'send': the parameter later's type set[int] has no stored form: pass a sorted list"]
    finally:
        del send.__globals__["LaterSet"]
    assert table({"call": _unresolved, "effect": "non_idem_write"}).check() == []


if TYPE_CHECKING:
    LaterSet = set[int]


# ---------------------------------------------------------------- an open intent and a new deploy


def policy_of(frozen: dict[str, Any], current: dict[str, Any]) -> Any:
    return tighten(definition(**frozen).policy(), definition(**current))


READ = {"effect": "read", "call": load, "name": "pay"}
IDEM = {"effect": "idem_write"}
NON_IDEM = {"effect": "non_idem_write"}


@pytest.mark.parametrize(
    ("frozen", "current", "holds"),
    [
        (READ, IDEM, Effect.IDEM_WRITE), (IDEM, READ, Effect.IDEM_WRITE), (IDEM, NON_IDEM, Effect.NON_IDEM_WRITE),
        (NON_IDEM, IDEM, Effect.NON_IDEM_WRITE), (NON_IDEM, READ, Effect.NON_IDEM_WRITE), (READ, READ, Effect.READ),
        (IDEM, IDEM, Effect.IDEM_WRITE),
    ],
)  # fmt: skip
def test_of_two_classes_the_stricter_holds(frozen: dict[str, Any], current: dict[str, Any], holds: Effect) -> None:
    policy, gone = policy_of(frozen, current)
    assert policy.effect is holds
    assert gone == ()


@pytest.mark.parametrize(
    ("frozen", "current", "holds"), [(60, 90, 60), (90, 60, 60), (None, 60, 60), (60, None, 60), (None, None, None)]
)
def test_of_two_key_windows_the_shorter_holds_and_none_is_the_longest(frozen: Any, current: Any, holds: Any) -> None:
    policy, _ = policy_of(IDEM | {"key_window": frozen}, IDEM | {"key_window": current})
    assert policy.key_window_us == (holds and holds * S)


@pytest.mark.parametrize(("frozen", "current", "holds"), [(60, 90, 90), (90, 60, 90), (None, 60, None), (60, None, None)])
def test_of_two_lags_the_longer_holds_and_none_is_the_longest(frozen: Any, current: Any, holds: Any) -> None:
    policy, _ = policy_of({"query": find, "absent_after": frozen}, {"query": find, "absent_after": current})
    assert policy.absent_after_us == (holds and holds * S)


@pytest.mark.parametrize(
    ("frozen", "current", "holds"), [("fail", "retry", "fail"), ("retry", "fail", "fail"), ("retry", "retry", "retry")]
)
def test_fail_holds_over_retry(frozen: str, current: str, holds: str) -> None:
    policy, _ = policy_of(
        {"query": find, "absent_after": 1, "on_absent": frozen}, {"query": find, "absent_after": 1, "on_absent": current}
    )
    assert policy.on_absent == holds


@pytest.mark.parametrize(("frozen", "current"), [(2, 5), (5, 2)])
def test_of_two_budgets_and_settling_times_the_smaller_holds(frozen: int, current: int) -> None:
    policy, _ = policy_of({"attempts": frozen, "settle_within": frozen}, {"attempts": current, "settle_within": current})
    assert (policy.attempts, policy.settle_within_us) == (2, 2 * S)


def test_everything_else_is_as_the_current_code_says() -> None:
    policy, gone = policy_of(
        {"timeout": 5, "backoff": 5, "retry_rejected": True, "query_attempts": 9},
        {"timeout": 7, "backoff": 90, "query": find, "query_attempts": 2},
    )
    assert (policy.timeout_us, policy.backoff_us, policy.backoff_max_us) == (7 * S, 90 * S, 90 * S)
    assert (policy.retry_rejected, policy.query_attempts, policy.has_query) == (False, 2, True)
    assert gone == ()


def test_a_step_that_was_a_write_is_not_independent() -> None:
    policy, _ = policy_of(IDEM, READ | {"independent": True})
    assert policy.independent is False
    policy, _ = policy_of(READ, READ | {"independent": True})
    assert policy.independent is True


def test_an_unchanged_definition_holds_as_it_is() -> None:
    step = definition(query=find, absent_after=5, on_absent="retry", compensate="undo", attempts=9)
    assert tighten(json.loads(step.policy_text), step, ["pay", "undo"]) == (step.effective, ())


def test_what_the_intent_relied_on_and_is_gone_is_named() -> None:
    _, gone = policy_of({"query": find, "classify": _classify_one, "compensate": "undo"}, {})
    assert gone == ("query", "classify", "compensate")


def test_a_compensation_is_gone_when_no_step_and_no_task_bears_its_name() -> None:
    frozen = definition(compensate="undo").policy()
    assert tighten(frozen, definition(compensate="other"), ["pay", "undo"])[1] == ()
    assert tighten(frozen, definition(compensate="other"), ["pay", "other"])[1] == ("compensate",)
    assert tighten(frozen, definition(compensate="other"))[1] == ()
    assert tighten(frozen, definition())[1] == ("compensate",)


def test_a_step_that_is_gone_keeps_its_class_and_has_no_attempts_and_no_query() -> None:
    step = definition(effect="idem_write", key_window=60, query=find, absent_after=5, on_absent="retry", settle_within=7)
    policy, gone = tighten(step.policy(), None)
    assert gone == ("step",)
    assert (policy.effect, policy.attempts, policy.has_query, policy.on_absent) == (Effect.IDEM_WRITE, 0, False, "fail")
    assert (policy.key_window_us, policy.absent_after_us, policy.settle_within_us) == (60 * S, 5 * S, 7 * S)
    assert policy.retry_rejected is policy.independent is False


def test_what_an_older_release_did_not_freeze_is_taken_from_the_current_code() -> None:
    step = definition(query=find, absent_after=5, on_absent="retry")
    assert tighten({}, step) == (step.effective, ())
    assert tighten({}, None)[0].effect is Effect.NON_IDEM_WRITE
