"""Annotations: what a decoded value becomes, and what does not fit."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
import sys
import typing
from collections import namedtuple
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from inspect import Parameter
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID

import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from doubtless.canonical import decode, encode
from doubtless.errors import UsageError
from doubtless.restore import DoesNotFit, restorer

T = TypeVar("T")
Plain: Any = dict  # as people write it, without parameters
Account = NewType("Account", str)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Pair(enum.Enum):
    AB = ("a", 1)
    ODD = object()


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: float = 0.0


Words = Literal["a", 1, None, Color.RED]  # noqa: PYI061  (None inside)
Bare = namedtuple("Bare", "a b")


@dataclass(frozen=True, slots=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclass
class Line:
    account: Account
    money: Money
    tags: tuple[str, ...] = ()
    count: int = field(init=False, default=0)
    note: str | None = field(default=None, kw_only=True)


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


@dataclass
class Positive:
    amount: int

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ValueError("amount must be positive")


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Needy:
    seed: InitVar[int]
    value: int = 0


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Partial(TypedDict, total=False):
    title: Required[Annotated[str, "shown"]]
    when: dt.date


class Sheet(pydantic.BaseModel):
    id: str
    total: Decimal = pydantic.Field(alias="totalAmount")
    due: dt.date
    color: Color = Color.RED


class Strict(pydantic.BaseModel, strict=True):
    pair: tuple[int, int]
    color: Color
    money: Money
    next: Strict | None = None


class Tags(pydantic.RootModel[list[str]]):
    pass


class Circle(pydantic.BaseModel):
    size: int


class Square(pydantic.BaseModel):
    size: int
    color: str = "none"


@dataclass
class Cat:
    name: str
    kind: Literal["cat"] = field(default="cat", init=False)


@dataclass
class Dog:
    name: str
    kind: Literal["dog"] = "dog"


@pydantic.dataclasses.dataclass
class Checked:
    amount: int


class Shape(typing.Protocol):
    size: int


Alias = typing_extensions.TypeAliasType("Alias", list[Money])
Lost = typing_extensions.TypeAliasType("Lost", "Nowhere")  # type: ignore[name-defined]  # noqa: F821


def restored(annotation: Any, value: Any) -> Any:
    """What code sees: the value written, read back and restored."""
    restore = restorer(annotation)
    tree = decode(encode(value))
    return tree if restore is None else restore(tree)


ROUND_TRIPS: list[tuple[Any, Any]] = [
    (None, None),
    (type(None), None),
    (bool, True),
    (int, 5),
    (int, 10**400),
    (float, 1.0),
    (float, 1e300),
    (float, -0.5),
    (str, "a"),
    (bytes, b"\x00"),
    (bytearray, bytearray(b"a")),
    (Decimal, Decimal("1.00")),
    (dt.date, dt.date(2026, 11, 28)),
    (dt.datetime, dt.datetime(2026, 11, 28, 10, tzinfo=dt.UTC)),
    (dt.datetime, dt.datetime(2026, 11, 28, 10)),
    (dt.time, dt.time(10, 0)),
    (dt.timedelta, dt.timedelta(minutes=10)),
    (UUID, UUID(int=5)),
    (Color, Color.BLUE),
    (Level, Level.HIGH),
    (Pair, Pair.AB),
    (Right, Right.READ | Right.WRITE),
    (Right, Right(0)),
    (Words, 1),
    (Words, None),
    (Words, Color.RED),
    (Optional[Decimal], None),  # noqa: UP045
    (Union[int, str], "a"),  # noqa: UP007
    (int | None, 3),
    (float | int, 2),
    (dt.date | str, "2026-11-28"),
    (dt.date | str, dt.date(2026, 11, 28)),
    (Color | str, Color.RED),
    (Color | str, "green"),
    (list[float] | list[int], [1, 2]),
    (list[Money] | None, [Money(Decimal(1))]),
    (Money | dict[Any, Any], Money(Decimal(1))),
    (Money | dict[str, Any], {"amount": "1"}),
    (dict[str, Any] | Money, Money(Decimal(1))),
    (Cat | Dog, Dog("a")),
    (Dog | Cat, Dog("a")),
    (Circle | Square, Square(size=1)),
    (Square | Circle, Circle(size=1)),
    (list, [1, "a"]),
    (typing.List, [1]),  # noqa: UP006
    (list[Any], [1, None]),
    (list[float], [1.0, 2.5]),
    (list[list[Color]], [[Color.RED], []]),
    (Sequence[dt.date], [dt.date(2026, 1, 1)]),
    (Iterable[int], [1]),
    (tuple, (1, 2)),
    (typing.Tuple, (1, 2)),  # noqa: UP006
    (tuple[()], ()),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str], (1, "a")),
    (tuple[Point, Bare], (Point(1.0, 2.0), Bare(1, "b"))),
    (dict, {"a": 1}),
    (dict[str, Decimal], {"a": Decimal(1)}),
    (dict[Account, float], {"a": 1.0}),
    (dict[Literal["a", "b"], int], {"a": 1}),
    (Mapping[str, Point], {"a": Point(1.5)}),
    (MutableMapping[str, Any], {"$a": 1}),
    (Mapping, {}),
    (Movie, {"title": "x"}),
    (Movie, {"title": "x", "year": 1999}),
    (Partial, {"title": "x", "when": dt.date(2026, 1, 1)}),
    (Money, Money(Decimal("1.00"), "CHF")),
    (Line, Line(Account("A"), Money(Decimal(1)), ("x",), note="n")),
    (Node, Node("a", [Node("b", [Node("c")]), Node("d")])),
    (Page[int], Page([1])),
    (Sheet, Sheet(id="s", totalAmount=Decimal("1.00"), due=dt.date(2026, 1, 1), color=Color.BLUE)),
    (list[Sheet], [Sheet(id="s", totalAmount=Decimal(1), due=dt.date(2026, 1, 1))]),
    (Strict, Strict(pair=(1, 2), color=Color.RED, money=Money(Decimal(1)), next=None)),
    (
        Strict,
        Strict(
            pair=(1, 2),
            color=Color.RED,
            money=Money(Decimal(1)),
            next=Strict(pair=(3, 4), color=Color.BLUE, money=Money(Decimal(2))),
        ),
    ),
    (Tags, Tags(["b", "a"])),
    (Checked, Checked(amount=3)),
    (Annotated[list[Annotated[Point, "place"]], "places"], [Point(1.0)]),
    (Account, Account("a")),
    (Alias, [Money(Decimal(1))]),
    (typing.LiteralString, "a"),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=[str(number) for number in range(len(ROUND_TRIPS))])
def test_a_value_comes_back_from_the_log_as_what_its_annotation_says(annotation: Any, value: Any) -> None:
    result = restored(annotation, value)
    assert result == value
    assert type(result) is type(value)
    assert repr(result) == repr(value)  # the types inside too


@pytest.mark.parametrize("annotation", [Any, object, Parameter.empty, T, Any | None, typing.Self, Shape])
def test_what_takes_everything_needs_no_restoring(annotation: Any) -> None:
    assert restorer(annotation) is None


@pytest.mark.parametrize("annotation", [dict, list[Plain], str, int, list, tuple, None, bool, Path, list[str]])
def test_a_plain_annotation_still_checks(annotation: Any) -> None:
    restore = restorer(annotation)
    assert restore is not None
    with pytest.raises(DoesNotFit):
        restore(1.5)


MISFITS: list[tuple[Any, Any, str, str, str]] = [
    (int, True, "", "int", "bool"),
    (int, 1.5, "", "int", "float"),
    (int, "1", "", "int", "str"),
    (bool, 1, "", "bool", "int"),
    (float, True, "", "float", "bool"),
    (float, "1.5", "", "float", "str"),
    (float, 2**53 + 1, "", "float", "int that is none"),
    (float, 10**400, "", "float", "int that is none"),
    (str, 1, "", "str", "int"),
    (str, None, "", "str", "None"),
    (None, "", "", "None", "str"),
    (bytes, "a", "", "bytes", "str"),
    (Decimal, 1.5, "", "Decimal", "float"),
    (Decimal, "x", "", "Decimal", "str that is none"),
    (Decimal, "NaN", "", "Decimal", "str that is none"),
    (dt.date, "tomorrow", "", "date", "str that is none"),
    (dt.date, dt.datetime(2026, 1, 1), "", "date", "datetime"),
    (dt.datetime, dt.date(2026, 1, 1), "", "datetime", "date"),
    (dt.timedelta, 5, "", "timedelta", "int"),
    (UUID, "x", "", "UUID", "str that is none"),
    (Color, "green", "", "a value of Color", "str that is none of them"),
    (Level, True, "", "a value of Level", "bool that is none of them"),
    (Level, "1", "", "a value of Level", "str that is none of them"),
    (Right, 8, "", "a value of Right", "int that is none of them"),
    (Right, True, "", "a value of Right", "bool that is none of them"),
    (Literal[1, "a"], True, "", "one of 1, 'a'", "bool that is none of them"),
    (Literal[1, "a"], {"x": 1}, "", "one of 1, 'a'", "dict that is none of them"),
    (int | None, "a", "", "int | None", "str"),
    (dict, [], "", "dict", "list"),
    (list[Plain], {"a": 1}, "", "list[dict]", "dict"),
    (list[Plain], [{}, 3], "[1]", "dict", "int"),
    (list[int], [1, True], "[1]", "int", "bool"),
    (Sequence[str], "abc", "", "Sequence[str]", "str"),
    (tuple[int, str], [1], "", "tuple[int, str]", "1 items"),
    (tuple[int, str], [1, 2], "[1]", "str", "int"),
    (tuple[int, ...], [1, "a"], "[1]", "int", "str"),
    (tuple[()], [1], "", "tuple[()]", "1 items"),
    (dict[str, int], {"a b": "x"}, "['a b']", "int", "str"),
    (dict[str, list[int]], {"a": [1, None]}, ".a[1]", "int", "None"),
    (dict[int, int], {"1": 1}, "['1']", "int", "str"),
    (Point, [1, 2, 3], "", "Point", "3 items"),
    (Point, ["x"], ".x", "float", "str"),
    (Movie, {"year": 1}, "", "Movie", "a dict without 'title'"),
    (Movie, {"title": 1}, ".title", "str", "int"),
    (Movie, [], "", "Movie", "list"),
    (Partial, {}, "", "Partial", "a dict without 'title'"),
    (Money, {"currency": "EUR"}, "", "Money", "a dict without 'amount'"),
    (Money, {"amount": 1, "b": 1, "a": 1}, "", "Money", "a dict with 'a', 'b', which it does not know"),
    (Node, {"name": "a", "children": [{"name": "b", "children": [{"name": 3}]}]}, ".children[0].children[0].name", "str", "int"),
    (Positive, {"amount": -1}, "", "Positive", "what it refuses: ValueError: amount must be positive"),
    (list[Positive], [{"amount": 1}, {"amount": 0}], "[1]", "Positive", "what it refuses: ValueError: amount must be positive"),
    (list[Money] | None, [{"amount": 1}, {"amount": []}], "[1].amount", "Decimal", "list"),
    (list[Money] | Money, [{"amount": []}], "[0].amount", "Decimal", "list"),
    (Money | list[Money], [{"amount": []}], "[0].amount", "Decimal", "list"),
    (Strict, {"pair": [1, "2"], "color": "red", "money": {"amount": 1}}, ".pair[1]", "int", "str"),
    (Checked, {"amount": "x"}, ".amount", "int", "str"),
    (Path, "a", "", "Path", "str"),
    (set[int], [1], "", "set", "list"),
    (typing.Never, None, "", "no value", "None"),
]


@pytest.mark.parametrize(("annotation", "value", "where", "expected", "got"), MISFITS, ids=[str(n) for n in range(len(MISFITS))])
def test_what_does_not_fit_is_said_with_its_place(annotation: Any, value: Any, where: str, expected: str, got: str) -> None:
    restore = restorer(annotation)
    assert restore is not None
    with pytest.raises(DoesNotFit) as misfit:
        restore(value)
    assert misfit.value.where == where
    assert misfit.value.expected == expected
    assert misfit.value.got == got


def test_a_misfit_seen_from_further_out_names_the_whole_place() -> None:
    restore = restorer(list[Money])
    assert restore is not None
    with pytest.raises(DoesNotFit) as misfit:
        restore([{"amount": "sk_live_4242"}])
    outer = misfit.value.within("output")
    assert str(outer) == "output[0].amount: expected Decimal, got str that is none"
    assert outer.code == "does_not_fit"
    assert pickle.loads(pickle.dumps(outer)).where == "output[0].amount"


def test_a_pydantic_model_refuses_with_the_place_and_without_the_input() -> None:
    restore = restorer(dict[str, Sheet])
    assert restore is not None
    with pytest.raises(DoesNotFit) as misfit:
        restore({"a": {"id": "s", "total": "sk_live_4242", "due": "2026-01-01"}})
    assert misfit.value.where == ".a.total"
    assert misfit.value.expected == "Sheet"
    assert "decimal" in misfit.value.got
    assert "4242" not in str(misfit.value)


def test_a_model_is_restored_by_the_names_of_its_fields_and_by_their_aliases() -> None:
    restore = restorer(Sheet)
    assert restore is not None
    by_name = {"id": "s", "total": "1.5", "due": dt.date(2026, 1, 1)}
    by_alias = {"id": "s", "totalAmount": "1.5", "due": "2026-01-01"}
    assert restore(by_name) == restore(by_alias) == Sheet(id="s", totalAmount=Decimal("1.5"), due=dt.date(2026, 1, 1))


@pytest.mark.parametrize(
    ("annotation", "value", "result"),
    [
        (Decimal, "1.50", Decimal("1.50")),
        (Decimal, 3, Decimal(3)),
        (dt.date, "2026-11-28", dt.date(2026, 11, 28)),
        (dt.datetime, "2026-11-28T10:00:00Z", dt.datetime(2026, 11, 28, 10, tzinfo=dt.UTC)),
        (dt.time, "10:30", dt.time(10, 30)),
        (UUID, "00000000-0000-0000-0000-000000000005", UUID(int=5)),
        (Decimal | None, "1", Decimal(1)),
        (float | str, 1, 1.0),
        (Money, {"amount": "2"}, Money(Decimal(2))),
        (Point, [1], Point(1.0)),
    ],
)
def test_json_from_outside_may_spell_a_scalar_as_text(annotation: Any, value: Any, result: Any) -> None:
    restore = restorer(annotation)
    assert restore is not None
    assert restore(value) == result
    assert type(restore(value)) is type(result)


def test_a_typed_dict_may_have_more_keys_than_it_names() -> None:
    restore = restorer(Movie)
    assert restore is not None
    assert restore({"title": "x", "rating": 5}) == {"title": "x", "rating": 5}


def test_a_field_that_the_constructor_does_not_take_is_as_it_was_stored() -> None:
    line = Line(Account("A"), Money(Decimal(1)))
    line.count = 7
    assert restored(Line, line).count == 7


def test_an_instance_passes_as_it_is() -> None:
    path, money, sheet = Path("x"), Money(Decimal(1)), Circle(size=1)
    for annotation, value in ((Path, path), (Money, money), (Circle, sheet), (Point, Point(1.0))):
        restore = restorer(annotation)
        assert restore is not None
        assert restore(value) is value


def test_a_value_of_plain_parts_is_checked_and_not_copied() -> None:
    for annotation, value in ((list[str], ["a"]), (dict[str, int], {"a": 1}), (list[Plain], [{}]), (list[Any], [1])):
        restore = restorer(annotation)
        assert restore is not None
        assert restore(value) is value


@pytest.mark.parametrize("annotation", ["int", typing.ForwardRef("int"), list["Nowhere"], Lost])  # type: ignore[name-defined]  # noqa: F821
def test_a_name_that_nobody_resolved_is_a_usage_error(annotation: Any) -> None:
    with pytest.raises(UsageError, match="resolved"):
        restorer(annotation)


def test_a_dataclass_with_an_unknown_annotation_or_an_unstored_argument_is_a_usage_error() -> None:
    @dataclass
    class Hidden:
        value: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="annotations of Hidden cannot be resolved"):
        restorer(list[Hidden])
    with pytest.raises(UsageError, match="Needy cannot be restored: it takes 'seed'"):
        restorer(Needy | None)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_an_alias_may_name_itself() -> None:
    names: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | list[Json] | int | str | None", names)  # noqa: S102  (no syntax of Python 3.11)
    assert restored(names["Json"], {"a": [1, {"b": None}], "c": "x"}) == {"a": [1, {"b": None}], "c": "x"}
    with pytest.raises(DoesNotFit) as misfit:
        restored(names["Json"], {"a": [1, 1.5]})
    assert misfit.value.where == ".a[1]"


names = st.text(max_size=3)
nodes = st.recursive(st.builds(Node, names), lambda inner: st.builds(Node, names, st.lists(inner)), max_leaves=8)


@given(nodes)
def test_any_tree_of_dataclasses_comes_back_as_it_was(tree: Node) -> None:
    assert restored(Node, tree) == tree
