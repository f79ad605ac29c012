"""Rows of the log: whatever one holds, it is stored, hashed and read back as itself; and whatever is read as one is a row or damage."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import apsw
import pytest
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from doubtless.errors import DoubtlessError, StoreDamaged
from doubtless.events import COLUMNS, Effect, Event, Kind, StepStatus, TaskStatus, dump, row_hash, seal
from doubtless.store.chain import START, as_events, follow, links_of
from doubtless.store.pg.rows import event_of, params_of, rows_json
from doubtless.store.schema import queries

# what columns may hold: text without NUL (names are printable, JSON escapes it), digests of 32 bytes
texts = st.text(alphabet=st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=12)
digests = st.binary(min_size=32, max_size=32)
numbers = st.integers(1, 2**62)
refs = st.one_of(st.none(), digests, texts.map("inline:".__add__))
data = st.one_of(st.none(), digests, st.dictionaries(texts, st.one_of(st.integers(), texts, st.none()), max_size=3).map(dump))


def maybe(strategy: Any) -> Any:
    return st.one_of(st.none(), strategy)


events = st.builds(
    Event, task_id=texts, event_seq=st.just(1), step_seq=maybe(numbers), path=maybe(texts), step_name=maybe(texts),
    kind=st.sampled_from(sorted(Kind)).map(str), status=maybe(st.sampled_from([*StepStatus, *TaskStatus]).map(str)),
    attempt=maybe(numbers), effect_class=maybe(st.sampled_from(sorted(Effect)).map(str)), idempotency_key=maybe(digests),
    input_hash=maybe(digests), input_ref=refs, output_ref=refs, error=maybe(texts), data=data, started_at=numbers,
    finished_at=maybe(numbers), boot_at=numbers, epoch=maybe(numbers), format=st.just(1), prev_hash=st.none(),
)  # fmt: skip
junk = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8), st.booleans())


@pytest.fixture(scope="module")
def table() -> Iterator[apsw.Connection]:
    """The columns of the log without their checks: what stands here may be damaged."""
    db = apsw.Connection(":memory:")
    db.execute(f"CREATE TABLE events ({', '.join(COLUMNS)})")
    yield db
    db.close()


def stored(table: apsw.Connection, rows: list[Any]) -> list[tuple[int, Any, bytes]]:
    """What SQLite says of rows for the chain: their places, what they are chained to, the text that is hashed."""
    table.execute("DELETE FROM events")
    table.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(COLUMNS))})", rows)  # noqa: S608
    return table.execute(queries()["links"], (rows[0][0], 0, len(rows))).fetchall()


@examples(150)
@given(events)
def test_a_row_is_read_back_as_itself_and_sqlite_spells_the_text_of_its_hash(table: apsw.Connection, event: Event) -> None:
    ((seq, before, text),) = stored(table, [event])
    assert (seq, before, sha256(text).digest()) == (event.event_seq, event.prev_hash, row_hash(event))
    (row,) = table.execute(f"SELECT {', '.join(COLUMNS)} FROM events").fetchall()  # noqa: S608
    assert as_events([row]) == [event]
    assert event_of(params_of(event)) == event
    assert rows_json([event])


@examples(80)
@given(st.lists(events, min_size=2, max_size=5), st.integers(0, 3), st.sampled_from(COLUMNS[2:-1]), junk)
def test_a_row_whose_column_is_another_value_does_not_chain(
    table: apsw.Connection, drafts: list[Event], at: int, column: str, value: Any
) -> None:
    rows = seal([draft._replace(task_id="t-1") for draft in drafts], 0, None)
    link = follow("t-1", links_of(rows), START, None)
    at %= len(rows) - 1
    before = getattr(rows[at], column)
    if type(value) is type(before) and value == before:
        return
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:  # which no column holds
        return
    changed: list[Any] = [*rows]
    changed[at] = tuple(rows[at]._replace(**{column: value}))
    for chained in (links_of(Event(*row) for row in changed), [(s, p, sha256(t).digest()) for s, p, t in stored(table, changed)]):
        if same_spelling(before, value):
            continue
        with pytest.raises(StoreDamaged, match=f"row {at + 1} of its log"):
            follow("t-1", chained, START, link)


def same_spelling(one: Any, other: Any) -> bool:
    """Whether two values are one text in a hash. What a column can hold is not: a number is no text there (STRICT)."""
    return str(one) == str(other) or "\0" in str(other) or isinstance(other, bool | float)


@examples(80)
@given(st.lists(junk, min_size=len(COLUMNS), max_size=len(COLUMNS)))
def test_whatever_stands_in_a_row_it_is_a_row_or_damage(values: list[Any]) -> None:
    try:
        (event,) = as_events([tuple(values)])
    except DoubtlessError as error:
        assert error.hint
        return
    assert isinstance(event, Event)


@examples(80)
@given(events, st.one_of(st.text(max_size=30), st.text(alphabet='{}[]":,0123456789.eE-', max_size=30)))
def test_whatever_text_stands_for_the_data_of_a_row_it_is_an_object_or_damage(event: Event, text: str) -> None:
    try:
        found = event._replace(data=text).details
    except StoreDamaged as error:
        assert error.hint
        assert len(error.message) < 1000
    else:
        assert isinstance(found, dict)




@pytest.mark.parametrize("column", ["path", "step_name", "kind", "status", "effect_class", "error", "input_hash", "idempotency_key"])
def test_the_same_bytes_as_a_value_of_another_type_are_another_row(table: apsw.Connection, column: str) -> None:
    """One flipped bit in a row's header makes bytes of a text, and a text of bytes."""
    row = Event(
        "t-1", 1, 1, "1", "pay", "StepIntended", "uncertain", 1, "idem_write", b"k" * 32, b"i" * 32, None, None, "none", None, 1, 1,
        1, 1, 1, None,
    )  # fmt: skip
    value = getattr(row, column)
    other = value.decode() if isinstance(value, bytes) else value.encode()
    texts = [stored(table, [each])[0][2] for each in (row, row._replace(**{column: other}))]
    assert sha256(texts[0]).digest() == row_hash(row)
    assert texts[0] != texts[1]
