"""A long log is read in pieces: to its end, in order, checked as a whole, and never in memory as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from store_ground import Begin, MakeStore, TurnClock, Writer, intended, settled
from test_damage import TOLD, Spoil, spoil  # noqa: F401  (a fixture)

from doubtless.errors import StoreDamaged
from doubtless.log import TaskLog
from doubtless.store import reading
from doubtless.store.base import Claim, Store

ROWS = 11


@pytest.fixture
def w(begin: Begin, clock: TurnClock) -> Writer:
    """A task with eleven rows: accepted, five intents with their outcomes."""
    w = begin()
    for step in range(1, 6):
        w.append(intended("recon-1", clock(), w.epoch, step))
        w.append(settled("recon-1", clock(), w.epoch, step))
    return w


@pytest.fixture(params=[1, 2, 5, 10, ROWS, ROWS + 1])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(reading, "PIECE", request.param)
    return int(request.param)


def test_a_log_that_is_longer_than_a_piece_is_read_to_its_end_and_in_order(w: Writer, store: Store, piece: int) -> None:
    rows = store.rows("recon-1")
    assert [row.event_seq for row in rows] == list(range(1, ROWS + 1))
    assert list(store.next_rows("recon-1")) == rows
    assert list(store.next_rows("recon-1", after=3)) == rows[3:]
    assert list(store.next_rows("recon-1", after=ROWS)) == []
    assert [row[0] for row in store.outline("recon-1")] == list(range(1, ROWS + 1))
    assert [row[0] for row in store.outline("recon-1", after=4)] == list(range(5, ROWS + 1))


@pytest.mark.parametrize("seq", [1, 4, 6, 10])
def test_a_changed_row_is_found_in_whatever_piece_it_lies(
    w: Writer, make_store: MakeStore, spoil: Spoil, piece: int, seq: int  # noqa: F811
) -> None:
    spoil(f"UPDATE events SET started_at = 1 WHERE event_seq = {seq}")
    for read in (lambda other: other.check_chain("recon-1"), lambda other: list(other.next_rows("recon-1"))):
        with pytest.raises(TOLD, match=f"row {seq} of "):
            read(make_store())


@pytest.mark.parametrize("last", [6, 9])
def test_missing_rows_between_two_pieces_are_found(
    w: Writer, make_store: MakeStore, spoil: Spoil, piece: int, last: int  # noqa: F811
) -> None:
    spoil(f"DELETE FROM events WHERE event_seq BETWEEN 6 AND {last}")
    for read in (lambda other: other.check_chain("recon-1"), lambda other: list(other.next_rows("recon-1"))):
        with pytest.raises(StoreDamaged, match="row 5 of its log"):
            read(make_store())


def test_no_read_of_a_load_gives_more_rows_than_a_piece_has(
    w: Writer, store: Store, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    counts: list[int] = []
    link: Any = store._link  # type: ignore[attr-defined]
    real = link.all

    def counting(*args: Any) -> Any:
        rows = real(*args)
        counts.append(len(rows))
        return rows

    head = store.head("recon-1")
    assert head is not None and head.epoch is not None
    monkeypatch.setattr(link, "all", counting)
    log = TaskLog(store, Claim(head, head.epoch, True), owner=head.owner)
    log.make_sure()
    assert len(log.settled) == 5 and log.seq == ROWS
    assert max(counts) <= piece and sum(counts) >= ROWS


def test_rows_that_go_round_in_a_damaged_file_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE", 2)
    link: Any = store._link  # type: ignore[attr-defined]
    row = (7, "D", "1", "pay", b"x" * 32, None, 1, "done", None)
    for damaged in ([row, (3, *row[1:])], [row, ("x", *row[1:])]):
        asked: list[int] = []

        def read(sql: str, args: Any, damaged: list[Any] = damaged, asked: list[int] = asked) -> list[Any]:
            asked.append(args[1])
            return damaged if len(asked) < 50 else []

        monkeypatch.setattr(link, "all", read)
        assert len(list(store.outline("recon-1", after=5))) == 2
        assert asked == [5]


def test_on_postgresql_a_piece_is_bounded_whatever_the_planner_knows_of_the_log(w: Writer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It read all that was left for each piece, sorted it and kept the first rows: ten thousand steps took twice as long."""
    if not store.far:
        pytest.skip("SQLite follows the order of the key")
    monkeypatch.setattr(reading, "PIECE", 3)
    link: Any = store._link  # type: ignore[attr-defined]
    asked: list[bool] = []
    real = link.all

    def noted(sql: str, args: Any = ()) -> Any:
        asked.append("event_seq <= $2" in sql)
        return real(sql, args)

    monkeypatch.setattr(link, "all", noted)
    assert [row[0] for row in store.outline("recon-1")] == list(range(1, ROWS + 1))
    assert asked == [False, True, True, True, False]  # the first, those behind it, and whether the last short one was the end
