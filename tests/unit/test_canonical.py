"""The canonical form: golden vectors, properties over value trees, and what is refused."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import json
import os
import re
import subprocess
import sys
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from decimal import Context, Decimal, localcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID  # noqa: F401  (the vectors name it)

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from doubtless import canonical_plain
from doubtless.canonical import FORMAT, content_hash, decode, encode, idempotency_key, input_hash, parse
from doubtless.canonical_writer import Writer
from doubtless.errors import NotCanonical, UsageError

VECTORS = json.loads((Path(__file__).parent / "canonical_vectors.json").read_text())

# ---------------------------------------------------------------- what the vectors name


class Color(enum.Enum):
    RED = "red"


class Mode(enum.StrEnum):
    FAST = "fast"


class Level(enum.IntEnum):
    HIGH = 3


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(enum.Enum):
    AB = ("a", 1)


class Odd(enum.Enum):
    THING = object()


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Money:
    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class Line:
    account: str
    money: Money


@dataclass
class Nothing:
    pass


class MoneyModel(pydantic.BaseModel):
    currency: str
    amount: Decimal


class Sheet(pydantic.BaseModel):
    id: str
    lines: list[Line]
    due: dt.date


class Loose(pydantic.BaseModel, extra="allow"):
    a: int


class Tags(pydantic.RootModel[list[str]]):
    pass


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Private(pydantic.BaseModel):
    token: str = pydantic.Field(exclude=True)


class NanoTime(dt.datetime):
    """A datetime that knows more than a datetime, as those of data frame libraries do."""

    nanosecond = 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NanoTime) and super().__eq__(other)

    __hash__ = dt.datetime.__hash__


def cyclic_list() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = {"me": value}
    return value


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def value_of(expression: str) -> Any:
    return eval(expression, globals())


def digests_of_all_vectors() -> str:
    """What another interpreter must find too; the order of a set of str differs with its hash seed."""
    texts = [encode(value_of(vector["python"])) for vector in VECTORS["values"]]
    texts.append(encode(dict.fromkeys({"alpha", "beta", "gamma", "delta", "epsilon"}, 0)))
    keys = [idempotency_key(b"salt", "t", "0", "s", text, 0).hex() + input_hash(b"salt", text).hex() for text in texts]
    return sha256("\n".join(keys).encode()).hexdigest()


def named(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", VECTORS[kind], ids=[vector["name"] for vector in VECTORS[kind]])


# ---------------------------------------------------------------- vectors


@named("values")
def test_a_value_has_the_text_of_its_golden_vector(vector: dict[str, str]) -> None:
    text = encode(value_of(vector["python"]))
    assert text == vector["canonical"]
    assert content_hash(text.encode()).hex() == vector["sha256"]


@named("values")
def test_the_text_of_a_golden_vector_is_read_back_to_a_value_of_that_text(vector: dict[str, str]) -> None:
    tree = decode(vector["canonical"])
    again = encode(tree)
    if '"$enum"' not in again + vector["canonical"] and '"$object"' not in vector["canonical"]:
        assert again == vector["canonical"]
    assert encode(decode(again)) == again


@named("refused")
def test_what_has_no_form_is_refused_and_its_place_named(vector: dict[str, str]) -> None:
    with pytest.raises(NotCanonical) as refusal:
        encode(value_of(vector["python"]), where="params")
    assert vector["says"] in refusal.value.message
    assert refusal.value.hint
    assert str(refusal.value.context["where"]).startswith("params")


@named("keys")
def test_digests_are_those_of_the_golden_vectors(vector: dict[str, Any]) -> None:
    namespace = bytes.fromhex(vector["namespace"])
    place = (vector["task_id"], vector["path"], vector["step_name"])
    assert idempotency_key(namespace, *place, vector["text"], vector["generation"]).hex() == vector["idempotency_key"]
    assert input_hash(namespace, vector["text"]).hex() == vector["input_hash"]


def test_the_vectors_are_many_and_of_this_format() -> None:
    assert VECTORS["format"] == FORMAT == "c14n:1"
    assert len(VECTORS["values"]) >= 60
    assert len({vector["canonical"] for vector in VECTORS["values"]}) >= 60


@pytest.mark.parametrize("absent", ["True", "1", "'1'", "None", "b'1'", "Decimal('1.0')", "Decimal('1.00')", "{}", "[]", "''"])
def test_values_of_different_kinds_never_share_a_text(absent: str) -> None:
    others = ["0.0", "True", "1", "'1'", "None", "b'1'", "Decimal('1.0')", "Decimal('1.00')", "{}", "[]", "''"]
    texts = [encode({"a": value_of(other)}) for other in others] + [encode({})]
    assert texts.count(encode({"a": value_of(absent)})) == 1


def test_two_interpreters_with_different_hash_seeds_make_the_same_digests() -> None:
    script = f"import runpy; print(runpy.run_path({__file__!r})['digests_of_all_vectors']())"
    found = set()
    for seed in ("1", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        found.add(run.stdout.strip())
    assert found == {digests_of_all_vectors()}


def test_importing_the_form_loads_no_heavy_module() -> None:
    heavy = "{'decimal', 'uuid', 'pydantic', 'zoneinfo'}"
    script = f"import sys, doubtless.canonical, doubtless.restore; print(sorted({heavy} & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-S", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# ---------------------------------------------------------------- properties

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.dates()
    | st.datetimes()
    | st.datetimes(
        min_value=dt.datetime(2, 1, 1),
        max_value=dt.datetime(9998, 1, 1),
        timezones=st.integers(-1439, 1439).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))),
    )
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
tags = st.sampled_from(
    ["$decimal", "$bytes", "$map", "$object", "$enum", "$date", "$", "$$map", "!", "a", "\ufb33", "\U0001f600"]
)
keys = tags | st.text(st.characters(exclude_categories=["Cs"]))
trees = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=12)


def same(value: Any, other: Any) -> bool:
    """Equal in type too, but for integral floats below 2**53: those come back as the int."""
    if type(value) is list:
        return type(other) is list and len(value) == len(other) and all(map(same, value, other))
    if type(value) is dict:
        return type(other) is dict and value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if type(value) is float and value.is_integer() and abs(value) < 2**53:
        return type(other) is int and value == other
    return type(value) is type(other) and bool(value == other)


def rewritten(value: Any) -> Any:
    """An equal tree in other clothes: keys in reverse, tuples, floats for ints, another zone, copies of every part."""
    if type(value) is list:
        return tuple(rewritten(item) for item in value)
    if type(value) is dict:
        return OrderedDict((str(key), rewritten(item)) for key, item in reversed(value.items()))
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is dt.datetime and value.tzinfo is not None:
        return value.astimezone(dt.timezone(dt.timedelta(hours=7)))
    return bytearray(value) if type(value) is bytes else value


@given(trees)
def test_what_is_read_back_is_what_was_written(tree: Any) -> None:
    assert same(tree, decode(encode(tree)))


@given(trees)
def test_equal_trees_have_equal_text(tree: Any) -> None:
    assert encode(rewritten(tree)) == encode(tree)
    assert encode([tree, tree]) == encode([tree, rewritten(tree)])


@given(trees)
def test_writing_what_was_read_back_changes_nothing(tree: Any) -> None:
    text = encode(tree)
    assert encode(decode(text)) == text


@given(trees)
@example([True, {"a": False, "b": None}, 1, "x", 0.5])
def test_the_short_road_and_the_long_road_write_the_same_text(tree: Any) -> None:
    writer = Writer("value")
    writer.write(tree)
    assert "".join(writer.out) == encode(tree)


@given(st.dictionaries(keys, trees, max_size=20))
def test_params_whose_names_are_known_have_the_same_text(params: dict[str, Any]) -> None:
    text = canonical_plain.plain_fields(canonical_plain.layout_of(params), params)
    assert text is None or text == encode(params)
    plain_ones = {name: value for name, value in params.items() if type(value) in (str, int, dict, type(None), bool)}
    assert canonical_plain.plain(plain_ones) == canonical_plain.plain_fields(canonical_plain.layout_of(plain_ones), plain_ones)


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 40])
def test_a_container_of_every_length_has_the_text_of_the_long_road(count: int) -> None:
    items = [1, "x", None, True, 0.5, {"b": "\u00e9", "a": [count]}, ("y", [2.0]), -3, Decimal("1.0")]
    several = [items[n % len(items)] for n in range(count)]
    for tree in (several, dict(zip(map(str, range(count)), several, strict=True)), {"k": several, "j": {"i": several[:3]}}):
        writer = Writer("value")
        writer.write(tree)
        assert "".join(writer.out) == encode(tree)


@pytest.mark.parametrize("wide", [3, 30])
def test_what_has_no_form_is_refused_at_its_place_in_a_container_of_every_length(wide: int) -> None:
    for bad in (float("nan"), {1}, object(), "\ud800", {7: 1}, {Mode.FAST: 1, "a": 2}):
        with pytest.raises(NotCanonical) as refused:
            encode({f"k{n:02}": [n] if n else [0] * wide + [bad] for n in range(wide)})
        assert f"value.k00[{wide}]" in str(refused.value)
        with pytest.raises(NotCanonical, match=r"value\.k00"):
            encode({f"k{n:02}": n or bad for n in range(wide)})


@given(trees)
def test_the_text_is_json_without_white_space_and_with_keys_in_utf16_order(tree: Any) -> None:
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        units = [key.encode("utf-16-be") for key, _ in pairs]
        assert units == sorted(units)
        return dict(pairs)

    text = encode(tree)
    value = json.loads(text, object_pairs_hook=check)
    pairs_kept = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert re.sub(r"-?\d[\d.e+-]*", "#", pairs_kept) == re.sub(r"-?\d[\d.e+-]*", "#", text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_has_the_form_of_ecmascript_and_the_same_bits_after_reading(number: float) -> None:
    text = encode(number)
    assert float(text) == number
    assert re.fullmatch(r"-?(0|[1-9]\d{0,15}|(0|[1-9]\d*)\.\d*[1-9]|[1-9](\.\d*[1-9])?e[+-][1-9]\d*)", text)
    assert ("e" in text) == (number != 0 and not 1e-6 <= abs(number) < 2**53)


@given(st.integers(min_value=2**53) | st.integers(max_value=-(2**53)))
def test_a_large_int_never_has_the_text_of_a_float(number: int) -> None:
    assert encode(number) == str(number)
    assert type(decode(encode(number))) is int


# ---------------------------------------------------------------- single guarantees


def test_an_int_has_the_same_text_whatever_limit_the_interpreter_sets() -> None:
    number = -(7**3000)
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        text = encode({"n": number})
        assert text == f'{{"n":{number}}}'
        sys.set_int_max_str_digits(640)
        assert encode({"n": number}) == text
        assert decode(text) == {"n": number}
        assert parse(text) == {"n": number}
    finally:
        sys.set_int_max_str_digits(before)


def test_without_the_c_encoder_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"b": [1, 0.25, None, True, ("x", 'q"\\\x01')], "a": {"é": "ü", "d": -5}, "": []}
    expected = encode(value)
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    monkeypatch.setattr(canonical_plain, "_dump", canonical_plain._dumper())
    assert encode(value) == expected == '{"":[],"a":{"d":-5,"é":"ü"},"b":[1,0.25,null,true,["x","q\\"\\\\\\u0001"]]}'


def test_200_levels_are_written_and_read() -> None:
    assert decode(encode(nested(200))) == nested(200)
    assert decode(encode({"x": Decimal(1), "y": nested(199)})) == {"x": 1, "y": nested(199)}


def test_a_call_stack_that_is_nearly_full_refuses_and_never_overflows() -> None:
    def at_depth(more: int, value: Any) -> str:
        return encode(value) if more == 0 else at_depth(more - 1, value)

    room = sys.getrecursionlimit() - len(inspect.stack(0)) - 120
    with pytest.raises(NotCanonical, match="call stack"):
        at_depth(room, nested(190))


def test_the_context_of_a_thread_does_not_change_the_text_of_a_decimal() -> None:
    with localcontext(Context(prec=2, capitals=0)):
        assert encode(Decimal("1234.5E+10")) == '{"$decimal":"1.2345E+13"}'
        assert decode('{"$decimal":"1.2345E+13"}') == Decimal("1.2345E+13")


class Summer(dt.tzinfo):
    """A zone whose clock is turned back on 2026-10-25 at 03:00: that hour comes twice, told apart by `fold`."""

    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        assert when is not None
        return dt.timedelta(hours=1 if when.fold else 2)

    def dst(self, when: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(0)

    def tzname(self, when: dt.datetime | None) -> str:
        return "summer"


def test_the_hour_that_comes_twice_is_two_instants() -> None:
    first = dt.datetime(2026, 10, 25, 2, 30, tzinfo=Summer())
    assert encode(first) == '{"$datetime":"2026-10-25T00:30:00Z"}'
    assert encode(first.replace(fold=1)) == '{"$datetime":"2026-10-25T01:30:00Z"}'
    assert decode(encode(first)) == dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)


class Stamp(dt.datetime):
    """A datetime by another name, and no more than one."""


class Text(str):
    def __str__(self) -> str:
        return "something else"


class Count(int):
    def __repr__(self) -> str:
        return "something else"


def test_a_subclass_is_written_as_its_base_and_never_by_its_own_str() -> None:
    assert encode(Stamp(2026, 11, 28, tzinfo=dt.UTC)) == encode(dt.datetime(2026, 11, 28, tzinfo=dt.UTC))
    twice = Stamp(2026, 10, 25, 2, 30, tzinfo=Summer(), fold=1)
    assert encode(twice) == '{"$datetime":"2026-10-25T01:30:00Z"}'
    assert encode({Text("k"): [Text("v"), Count(5)]}) == '{"k":["v",5]}'
    assert encode(defaultdict(list, {"a": [1]})) == '{"a":[1]}'


def test_two_keys_of_one_text_are_refused() -> None:
    class Apart(str):
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(NotCanonical, match="two keys of a dict are the same text"):
        encode({Apart("a"): 1, Apart("a"): 2})


def test_fields_that_a_constructor_does_not_take_are_written_too() -> None:
    @dataclass
    class Total:
        lines: list[int]
        total: int = field(init=False, compare=False, repr=False)

        def __post_init__(self) -> None:
            self.total = sum(self.lines)

    assert encode(Total([1, 2])) == '{"$object":{"lines":[1,2],"total":3}}'
    unset = Total([1])
    del unset.total
    with pytest.raises(NotCanonical, match=r"value\.total: the field has no value"):
        encode(unset)


def test_a_refusal_never_shows_the_value() -> None:
    class Token:
        def __repr__(self) -> str:
            return "sk_live_4242"

    for value in ({"token": Token()}, {"token": {"sk_live_4242"}}, ["sk_live_4242\ud800"]):
        with pytest.raises(NotCanonical) as refusal:
            encode(value)
        assert "4242" not in str(refusal.value)


def test_the_same_part_twice_is_no_cycle() -> None:
    part = {"x": Decimal(1)}
    assert encode([part, part, [part]]) == encode([{"x": Decimal(1)}, {"x": Decimal(1)}, [{"x": Decimal(1)}]])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1,]", "[1] 2", "NaN", '{"$later":1}', '{"$date":5}', '{"$date":"x"}', '{"$map":3}', '{"$decimal":"x"}', "nul"],
)
def test_text_that_was_not_written_here_is_refused(text: str) -> None:
    with pytest.raises(NotCanonical, match="not in canonical form"):
        decode(text)


# ---------------------------------------------------------------- parse


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1,\n "b": 2,\n "a": 3}', 'line 3, column 2: the key "a" is written twice'),
        ('[{"a": {"b": 1}, "b": 1}, {"c": 1, "\\u0063": 2}]', 'line 1, column 36: the key "\\u0063" is written twice'),
        ("[1, NaN]", "line 1, column 5: NaN is no JSON"),
        ("[\n-Infinity]", "line 2, column 1: -Infinity is no JSON"),
        ('["NaN", 1e999]', "line 1, column 9: the number is too large"),
        ('{"x": "\\ud800"}', "line 1, column 7: a lone surrogate"),
        ("{'a': 1}", "line 1, column 2: Expecting property name"),
        ("[1, 2", "line 1, column 6: Expecting"),
        ("", "line 1, column 1: Expecting value"),
        ("{} {}", "line 1, column 4: Extra data"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_is_not_strict_is_refused_with_its_line_and_column(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(text, where="--output")
    assert refusal.value.message.startswith("--output: ")
    assert says in refusal.value.message


def test_strict_json_is_read_as_plain_data() -> None:
    text = ' {"a": [1, 2.5, -0, {"a": "\\"a\\": NaN"}], "b": {"a": null}, "big": 123456789012345678901, "$date": "😀"} '
    assert parse(text) == {
        "a": [1, 2.5, 0, {"a": '"a": NaN'}],
        "b": {"a": None},
        "big": 123456789012345678901,
        "$date": "😀",
    }


@given(trees)
def test_every_canonical_text_is_strict_json(tree: Any) -> None:
    text = encode(tree)
    assert parse(text) == json.loads(text)


# ---------------------------------------------------------------- digests


def test_a_key_depends_on_each_of_its_parts_and_on_where_each_ends() -> None:
    base = (b"salt", "task", "3", "pay", '{"a":1}', 0)
    others = [
        (b"tlas", "task", "3", "pay", '{"a":1}', 0),
        (b"salt", "task3", "", "pay", '{"a":1}', 0),
        (b"salt", "task", "3pay", "", '{"a":1}', 0),
        (b"salt", 'task","3', "pay", "", '{"a":1}', 0),
        (b"salt", "task", "3", "pay", '{"a":2}', 0),
        (b"salt", "task", "3", "pay", '{"a":1}', 1),
        (b"salt", "task", "31", "pay", '{"a":1}', 0),
        (b"salt", "task", "3", "pay,0", '{"a":1}', 0),
    ]
    keys = {idempotency_key(*parts) for parts in [base, *others]}
    assert len(keys) == len(others) + 1
    assert {len(key) for key in keys} == {32}


def test_an_input_hash_cannot_be_tried_out_without_the_namespace() -> None:
    text = encode({"pin": 1234})
    found = {input_hash(namespace, text) for namespace in (b"", b"one", b"two", b"x" * 64, b"x" * 65)}
    assert len(found) == 5
    assert sha256(text.encode()).digest() not in found
    assert idempotency_key(b"one", "", "", "", text, 0) not in found
