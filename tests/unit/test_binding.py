"""Binding: calls by name before anything is stored, the injected key, and what callbacks are given."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.binding import (
    BareCall,
    Binder,
    function_name,
    injected,
    is_async,
    is_generator,
    resolve_hints,
    select,
    signature_faults,
    validate_task_signature,
)
from doubtless.errors import UsageError

if TYPE_CHECKING:
    from somewhere import Elsewhere  # type: ignore[import-not-found]


def binder(fn: Callable[..., Any]) -> Binder:
    return Binder(inspect.signature(fn), "pay")


def refusal(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UsageError) as caught:
        binder(fn).bind(args, kwargs)
    assert caught.value.context["step"] == "pay"
    return str(caught.value)


def pay(order: str, amount: int = 1, idempotency_key: str = injected(), *, note: str = "") -> None: ...


# ---------------------------------------------------------------- injected()

USES: list[Callable[[Any], object]] = [
    str, bool, len, iter, list, bytes, int, float, "{}".format, "%s".__mod__, lambda key: f"{key}", lambda key: f"{key!s:>10}",
    lambda key: key.encode(), lambda key: key[:32], lambda key: "order-" + key, lambda key: key + "-1", lambda key: key or "x",
    lambda key: "a" in key, lambda key: key < "a", lambda key: key >= "a", lambda key: key(), os.fspath,
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_key_that_nobody_passed_says_so_where_it_is_used(use: Callable[[Any], object]) -> None:
    with pytest.raises(UsageError, match=r"idempotency_key is injected by Doubtless; step\.fn was called bare: pass it yourself"):
        use(injected())


def test_the_injected_default_is_safe_for_debuggers_copies_and_pickles() -> None:
    key = injected()
    assert repr(key) == "injected()"
    assert not hasattr(key, "anything")
    assert not hasattr(key, "__html__")
    assert copy.copy(key) is copy.deepcopy(key) is pickle.loads(pickle.dumps(key)) is key is injected()
    assert inspect.signature(pay) == inspect.signature(pay)
    assert "idempotency_key: 'str' = injected()" in str(inspect.signature(pay))
    with pytest.raises(TypeError, match="Injected is not JSON serializable"):
        json.dumps({"key": key})


def test_the_bare_call_has_a_code_and_a_hint() -> None:
    with pytest.raises(BareCall) as caught:
        injected().upper()
    assert caught.value.code == "bare_call"
    assert caught.value.hint == "step.fn(…, idempotency_key=…)"


# ---------------------------------------------------------------- binding


def test_a_call_is_bound_in_the_order_of_the_signature_with_defaults_and_without_the_key() -> None:
    bound = binder(pay).bind((), {"note": "n", "order": "o"})
    assert list(bound.items()) == [("order", "o"), ("amount", 1), ("note", "n")]
    assert list(binder(pay).bind(("o", 7), {})) == ["order", "amount", "note"]


def test_the_shape_of_a_binder() -> None:
    known = binder(pay)
    assert known.names == ("order", "amount", "note")
    assert known.required == ("order",)
    assert known.defaults == {"amount": 1, "note": ""}
    assert known.injected == ("idempotency_key",)
    assert known.accepts == {"order", "amount", "note"}


def test_none_is_a_value_and_not_missing() -> None:
    assert binder(pay).bind((None,), {"amount": None}) == {"order": None, "amount": None, "note": ""}


def test_a_function_without_params_binds_nothing() -> None:
    def ping() -> None: ...

    assert binder(ping).bind((), {}) == {}
    assert refusal(ping, x=1) == "pay() got an unexpected parameter 'x'; it takes no parameters"
    assert refusal(ping, 1) == "pay() takes 0 by position but was given 1; it takes no parameters"


def test_wrong_calls_name_the_step_and_everything_that_is_wrong() -> None:
    def create(difference: dict[str, Any], requested_at: str) -> None: ...

    assert refusal(create, difference={}, requested_at="", foo=1) == (
        "pay() got an unexpected parameter 'foo'; it takes difference, requested_at"
    )
    assert refusal(create, difference={}, requested_at="", a=1, b=2).startswith("pay() got unexpected parameters 'a', 'b';")
    assert refusal(create) == "pay() was called without 'difference', 'requested_at'; it takes difference, requested_at"
    assert "got an unexpected parameter 'diference'; was called without 'difference'" in refusal(
        create, diference={}, requested_at=""
    )
    assert refusal(create, {}, "", 3).startswith("pay() takes 2 by position (difference, requested_at) but was given 3;")
    assert refusal(create, {}, difference={}, requested_at="").startswith(
        "pay() got 'difference' twice, by position and by name;"
    )


def test_a_caller_who_passes_the_key_is_refused() -> None:
    for message in (refusal(pay, "o", idempotency_key="k"), refusal(pay, "o", 1, "k")):
        assert message.startswith("pay() was given 'idempotency_key', which Doubtless injects: leave it out;")


def test_keyword_only_params_are_not_taken_by_position() -> None:
    def send(to: str, *, text: str) -> None: ...

    assert refusal(send, "a", "b").startswith("pay() takes 1 by position (to) but was given 2;")
    assert binder(send).bind(("a",), {"text": "b"}) == {"to": "a", "text": "b"}


def test_positional_only_params_are_not_taken_by_name_and_are_passed_on_by_position() -> None:
    def send(to: str, cc: str = "", /, text: str = "hi") -> tuple[str, str, str]:
        return to, cc, text

    known = binder(send)
    with pytest.raises(UsageError, match="takes 'to' by position only"):
        known.bind((), {"to": "a"})
    params = known.bind(("a",), {"text": "b"})
    assert params == {"to": "a", "cc": "", "text": "b"}
    args, kwargs = known.arguments(params)
    assert send(*args, **kwargs) == ("a", "", "b")


def test_a_call_by_name_needs_no_positions() -> None:
    assert binder(pay).arguments({"order": "o", "idempotency_key": "k"}) == ([], {"order": "o", "idempotency_key": "k"})


def test_mutable_defaults_are_not_shared_between_calls_nor_with_the_function() -> None:
    def tag(labels: list[str] = ["a"], options: dict[str, list[int]] = {"x": [1]}) -> None: ...  # noqa: B006

    known = binder(tag)
    first = known.bind((), {})
    first["labels"].append("b")
    first["options"]["x"].append(2)
    tag.__defaults__[0].append("c")  # type: ignore[index]
    assert known.bind((), {}) == {"labels": ["a"], "options": {"x": [1]}}
    mine = ["z"]
    assert known.bind((), {"labels": mine})["labels"] is mine


def test_a_default_that_cannot_be_copied_is_passed_as_it_is() -> None:
    import threading

    lock = threading.Lock()

    def hold(lock: Any = lock) -> None: ...

    assert binder(hold).bind((), {}) == {"lock": lock}


def test_values_are_not_compared_while_binding() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # type: ignore[assignment]

    def load(rows: Any, more: Any = None) -> None: ...

    assert set(binder(load).bind((Array(),), {"more": Array()})) == {"rows", "more"}


def _free(a: Any, b: Any, c: Any = 3, *, d: Any, e: Any = 5) -> None: ...


def _strict(a: Any, b: Any = 2, /, c: Any = 3, *, d: Any = 4) -> None: ...


@given(
    fn=st.sampled_from([_free, _strict]),
    args=st.lists(st.integers(), max_size=5),
    kwargs=st.dictionaries(st.sampled_from("abcdef"), st.integers()),
)
def test_binding_agrees_with_the_interpreter(fn: Callable[..., Any], args: list[int], kwargs: dict[str, int]) -> None:
    known = binder(fn)
    try:
        expected = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(UsageError):
            known.bind(tuple(args), kwargs)
    else:
        expected.apply_defaults()
        assert list(known.bind(tuple(args), kwargs).items()) == list(expected.arguments.items())


# ---------------------------------------------------------------- callbacks


def test_a_callback_gets_by_name_what_it_declares() -> None:
    def find(order: str, idempotency_keys: list[str], extra: int = 5) -> None: ...

    wants = select(find)
    assert wants({"order": "o", "amount": 1, "idempotency_keys": ["k"], "handle": None}) == {
        "order": "o",
        "idempotency_keys": ["k"],
    }
    assert wants.faults(["order", "idempotency_keys"]) == []
    assert wants.asks_for("idempotency_keys")
    assert not wants.asks_for("handle", "handles")


def test_a_callback_with_open_kwargs_gets_everything() -> None:
    def find(order: str, **rest: Any) -> None: ...

    offered = {"order": "o", "amount": 1, "handle": None}
    wants = select(find)
    assert wants(offered) == offered
    assert wants(offered) is not offered
    assert wants.asks_for("handle")


def test_a_callback_that_asks_for_more_than_it_is_offered_is_a_fault() -> None:
    def find(order: str, invoice: str, when: str) -> None: ...

    assert select(find).faults(["order", "handle"]) == [
        "asks for 'invoice', 'when', which it is not offered; it can have order, handle"
    ]


def test_a_callback_that_takes_its_params_by_position_only_is_a_fault() -> None:
    def find(order: str, /) -> None: ...

    assert select(find).faults(["order"]) == ["takes 'order' by position only; callbacks get theirs by name"]


# ---------------------------------------------------------------- functions


async def _coroutine() -> None: ...


def _generator() -> Any:
    yield 1


async def _stream() -> Any:
    yield 1


class _Callable:
    def __call__(self, order: str) -> int:
        return 1


class _AsyncCallable:
    async def __call__(self) -> None: ...


class _GeneratorCallable:
    def __call__(self) -> Any:
        yield 1


def test_async_functions_are_known_through_partials_and_objects() -> None:
    assert is_async(_coroutine)
    assert is_async(functools.partial(_coroutine))
    assert is_async(_AsyncCallable())
    assert not is_async(pay)
    assert not is_async(_Callable())
    assert not is_async(_AsyncCallable)


def test_generators_are_known_through_partials_and_objects() -> None:
    for fn in (_generator, _stream, functools.partial(_generator), _GeneratorCallable()):
        assert is_generator(fn)
    plain: list[Callable[..., Any]] = [pay, _coroutine, _Callable(), int]
    assert not any(is_generator(fn) for fn in plain)


def test_what_has_no_name_of_its_own_has_none() -> None:
    assert function_name(pay) == "pay"
    assert function_name(lambda: None) is None
    assert function_name(functools.partial(pay)) is None
    assert function_name(_Callable()) is None


def test_reserved_names_are_faults_of_a_step() -> None:
    def step(call_id: str, handle: str, handles: str, first_sent_at: str, idempotency_keys: str, result: str) -> None: ...

    found = signature_faults(inspect.signature(step))
    assert found == [
        f"has a parameter of the reserved name {name!r}: rename it, for instance to {name}_"
        for name in ("call_id", "handle", "handles", "first_sent_at", "idempotency_keys")
    ]
    assert signature_faults(inspect.signature(step), compensates=True) == [found[0]]


# ---------------------------------------------------------------- tasks


def test_a_plain_task_has_no_faults() -> None:
    def reconcile(day: str, *, result: str = "") -> None: ...

    assert validate_task_signature(reconcile) == []
    assert validate_task_signature(_coroutine) == []


def test_every_fault_of_a_task_signature_is_listed() -> None:
    def reconcile(task_id: str, wait: bool, goal: str, *days: str, key: str = injected(), **more: str) -> None: ...

    found = validate_task_signature(reconcile)
    assert all(fault.startswith("task 'reconcile': ") for fault in found)
    text = "\n".join(found)
    for part in (
        "takes *days: declare each parameter by name",
        "takes **more: declare each parameter by name",
        "the reserved name 'task_id'",
        "the reserved name 'wait'",
        "the reserved name 'goal'",
        "injects 'key': a task has no key",
    ):
        assert part in text
    assert len(found) == 6


def test_what_cannot_be_a_task_is_said() -> None:
    assert validate_task_signature(_generator, "t") == ["task 't': is a generator; return the result instead of yielding it"]
    assert validate_task_signature(_stream, "t") == ["task 't': is a generator; return the result instead of yielding it"]
    assert validate_task_signature(5, "t") == ["task 't': cannot be called; a task is a function"]  # type: ignore[arg-type]
    assert "its signature cannot be read" in validate_task_signature(_unreadable, "t")[0]


def _unreadable() -> None: ...


_unreadable.__signature__ = "none"  # type: ignore[attr-defined]


# ---------------------------------------------------------------- annotations


def _annotated(day: str, rows: Annotated[list[int], "n"], plain) -> dict[str, int]: ...  # type: ignore[no-untyped-def,empty-body]


def _half(day: str, who: Elsewhere) -> list[int]: ...  # type: ignore[empty-body]


def _nothing(day: str) -> None: ...


def test_annotations_are_resolved() -> None:
    hints = resolve_hints(_annotated)
    assert hints.returns == dict[str, int]
    assert hints.params == {"day": str, "rows": Annotated[list[int], "n"]}
    assert hints.unresolved == ()
    assert resolve_hints(_nothing).returns is type(None)
    assert resolve_hints(lambda x: x).returns is None


def test_an_annotation_that_cannot_be_resolved_does_not_cost_the_others() -> None:
    hints = resolve_hints(_half)
    assert hints.returns == list[int]
    assert hints.params == {"day": str}
    assert hints.unresolved == ("who",)


def test_annotations_are_found_behind_partials_wrappers_objects_and_methods() -> None:
    @functools.wraps(_annotated)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert resolve_hints(functools.partial(_annotated, day="x")).returns == dict[str, int]
    assert resolve_hints(wrapper).returns == dict[str, int]
    assert resolve_hints(_Callable()) == (int, {"order": str}, ())
    assert resolve_hints(_Callable().__call__) == (int, {"order": str}, ())
    assert resolve_hints(_Callable).returns is _Callable
