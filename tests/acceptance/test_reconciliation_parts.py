"""The parts of the reconciliation example: its files, its matcher, its loader, and the server that counts."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from examples.reconciliation import client, generate, match, naive
from examples.reconciliation.load import (
    ORDER_COLUMNS,
    STATEMENT_COLUMNS,
    BadInput,
    BadRow,
    Entry,
    check,
    load_orders,
    load_statement,
)
from examples.reconciliation.match import GRACE, WIRE_CHARGES
from examples.reconciliation.mess import DIFFERENCES
from examples.reconciliation.money import NOTATIONS, parse_amount, write_amount
from examples.reconciliation.outside import Outside, environment

DIFFERENCE: match.Difference = {
    "id": "SO-100001:underpayment", "kind": "underpayment", "order": "SO-100001", "entries": ["ST-000001"],
    "customer": "深圳市华强电子有限公司", "currency": "CNY", "expected": "100.00", "received": "90.00", "delta": "-10.00",
}  # fmt: skip


def found_in(folder: Path, made: generate.Generated) -> list[generate.Truth]:
    differences = match.match(load_statement(folder / "statement.csv"), load_orders(folder / "orders.csv"), made.day)
    return sorted(
        generate.Truth(each["kind"], each["order"], tuple(each["entries"]), each["currency"], each["expected"], each["received"])
        for each in differences
    )


# ---------------------------------------------------------------- the generator


def test_one_seed_gives_the_same_bytes_in_any_interpreter(tmp_path: Path) -> None:
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "examples.reconciliation.generate", "--seed", "7", "--out", str(tmp_path / hash_seed)]
        subprocess.run(command, env=environment(PYTHONHASHSEED=hash_seed), check=True, stdout=subprocess.DEVNULL)
    for name in ("statement.csv", "orders.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert (tmp_path / "1" / "orders.csv").read_bytes() == generate.generate(7).orders
    assert generate.generate(7).statement != generate.generate(8).statement


def test_the_files_hold_the_mess_of_the_real_thing(tmp_path: Path) -> None:
    made = generate.write(tmp_path, 3)
    entries, orders = load_statement(tmp_path / "statement.csv"), load_orders(tmp_path / "orders.csv")
    assert len(entries) >= 500
    assert len(orders) >= 500
    assert made.orders.startswith(b"\xef\xbb\xbf")
    assert not made.statement.startswith(b"\xef\xbb\xbf")
    text = made.statement.decode()
    assert all(sample in text for sample in ("深圳市", "ＳＯ－", '"Müller, Söhne & Co. KG"', "货款"))
    assert any("\n" in entry.reference for entry in entries)
    assert any("," in order.customer for order in orders)
    assert {entry.currency for entry in entries} == set(NOTATIONS)
    assert {entry.type for entry in entries} == {"payment", "card", "wire", "refund", "reversal", "fee"}
    assert any(entry.fee for entry in entries)
    assert any(entry.booked_on != entry.value_date for entry in entries)
    assert any(count > 1 for count in Counter(entry.bank_ref for entry in entries).values())
    assert any(order.kind == "credit" for order in orders)
    assert any(order.status == "cancelled" for order in orders)
    euros = next(entry for entry in entries if entry.currency == "EUR" and entry.amount > 1000)
    dollars = next(entry for entry in entries if entry.currency == "USD" and entry.amount > 1000)
    for entry in (euros, dollars):
        assert any(write_amount(entry.amount, entry.currency, grouped=grouped) in text for grouped in (True, False))


def test_about_a_dozen_true_differences_of_every_kind_are_planted() -> None:
    truth = generate.generate(1).truth
    assert len(truth) == len(DIFFERENCES) == 12
    assert {each.kind for each in truth} == {
        "missing_payment", "underpayment", "overpayment", "duplicate_payment", "unknown_payment", "refund_without_order",
        "missing_refund", "wrong_currency", "paid_although_cancelled",
    }  # fmt: skip


# ---------------------------------------------------------------- the matcher


@pytest.mark.parametrize("seed", range(30))
def test_the_matcher_finds_the_true_differences_and_no_other(tmp_path: Path, seed: int) -> None:
    made = generate.write(tmp_path, seed)
    assert found_in(tmp_path, made) == list(made.truth)


def test_the_order_of_the_rows_changes_nothing(tmp_path: Path) -> None:
    made = generate.write(tmp_path, 5)
    entries, orders = load_statement(tmp_path / "statement.csv"), load_orders(tmp_path / "orders.csv")
    first = match.match(entries, orders, made.day)
    random.Random(1).shuffle(entries)
    random.Random(2).shuffle(orders)
    again = match.match(entries, orders, made.day)
    assert again == first


def test_each_tolerance_of_the_matcher_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate.write(tmp_path, 11)
    with monkeypatch.context() as without:
        without.setattr(match, "WIRE_CHARGES", dict.fromkeys(WIRE_CHARGES, Decimal(0)))
        assert found_in(tmp_path, made) != list(made.truth)
    with monkeypatch.context() as without:
        without.setattr(match, "GRACE", timedelta(0))
        assert found_in(tmp_path, made) != list(made.truth)
    entries, orders = load_statement(tmp_path / "statement.csv"), load_orders(tmp_path / "orders.csv")
    right = match.match(entries, orders, made.day)
    damages: list[Callable[[Entry], Entry]] = [
        lambda entry: replace(entry, fee=Decimal(0)),
        lambda entry: replace(entry, counterparty="somebody else"),
        lambda entry: replace(entry, bank_ref=entry.entry_id),
        lambda entry: replace(entry, reference=entry.reference.replace("BR", "")),
    ]
    for damage in damages:
        assert match.match([damage(entry) for entry in entries], orders, made.day) != right
    assert found_in(tmp_path, made) == list(made.truth)
    assert WIRE_CHARGES.keys() == NOTATIONS.keys()
    assert GRACE > timedelta(0)


def test_a_refund_of_another_amount_than_its_credit_note_is_a_difference(tmp_path: Path) -> None:
    made = generate.write(tmp_path, 2)
    entries, orders = load_statement(tmp_path / "statement.csv"), load_orders(tmp_path / "orders.csv")
    notes = [order.document_id for order in orders if order.kind == "credit"]
    place, refund = next(
        (place, entry)
        for place, entry in enumerate(entries)
        if entry.type == "refund" and any(note in entry.reference for note in notes)
    )
    entries[place] = replace(refund, amount=refund.amount - 1)
    extra = [each for each in match.match(entries, orders, made.day) if each["kind"] == "wrong_refund"]
    assert [(each["entries"], each["delta"]) for each in extra] == [
        ([refund.entry_id], "-1" if refund.currency == "JPY" else "-1.00")
    ]


# ---------------------------------------------------------------- the loader

ENTRY = 'ST-1,BR00000001,2026-11-01,2026-11-01,payment,张伟,USD,"1,234.50",,SO-100001'
ORDER = 'SO-100001,order,2026-10-20,2026-11-03,张伟,EUR,"1.234,50",open,,'


def statement_of(*rows: str, header: str = ",".join(STATEMENT_COLUMNS)) -> bytes:
    return "\n".join([header, *rows, ""]).encode()


def orders_of(*rows: str, header: str = ",".join(ORDER_COLUMNS)) -> bytes:
    return "\r\n".join([header, *rows, ""]).encode()


def faults_of(tmp_path: Path, data: bytes, load: Callable[[Path], object] = load_statement) -> tuple[BadRow, ...]:
    path = tmp_path / "book.csv"
    path.write_bytes(data)
    with pytest.raises(BadInput) as caught:
        load(path)
    for row in caught.value.rows:
        assert row.file == str(path)
        assert str(row) in str(caught.value)
    return caught.value.rows


def test_amounts_are_exact_and_read_by_their_currency(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(statement_of(ENTRY))
    (tmp_path / "o.csv").write_bytes(b"\xef\xbb\xbf" + orders_of(ORDER))
    [entry], [order] = load_statement(tmp_path / "s.csv"), load_orders(tmp_path / "o.csv")
    assert entry.amount == order.amount == Decimal("1234.50")
    assert entry.value_date == date(2026, 11, 1)


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ("1,234.50", "EUR"), ("1.234,50", "USD"), ("1.234", "USD"), ("1,234", "EUR"), ("12,34.50", "USD"), ("1,2345.00", "USD"),
        ("0.5", "USD"), ("1 234.50", "USD"), ("+5.00", "USD"), ("5.00-", "USD"), ("1e3", "USD"), ("NaN", "USD"), ("", "USD"),
        ("１２", "USD"), ("12.00", "JPY"), ("1234567890123456", "USD"),
    ],
)  # fmt: skip
def test_an_amount_in_another_notation_is_refused_and_not_guessed(text: str, currency: str) -> None:
    with pytest.raises(ValueError, match=f"not an amount in {currency}"):
        parse_amount(text, currency)


@pytest.mark.parametrize("currency", NOTATIONS)
def test_every_written_amount_is_read_back(currency: str) -> None:
    for cents in (0, 1, -5, 99, 100, 123_456, -99_999_999_999):
        amount = Decimal(cents).scaleb(-NOTATIONS[currency].decimals)
        assert parse_amount(write_amount(amount, currency), currency) == amount
        assert parse_amount(write_amount(amount, currency, grouped=False), currency) == amount


@pytest.mark.parametrize(
    ("column", "old", "new", "says"),
    [
        ("amount", '"1,234.50"', '"1.234,50"', "'1.234,50' is not an amount in USD"),
        ("amount", '"1,234.50"', "-5.00", "a payment cannot be negative"),
        ("currency", "USD", "BTC", "'BTC' is none of"),
        ("value_date", "2026-11-01,payment", "2026-02-30,payment", "'2026-02-30' is not a day"),
        ("booked_on", "2026-11-01,2026", "01.11.2026,2026", "'01.11.2026' is not a day"),
        ("type", "payment", "cash", "'cash' is none of"),
        ("counterparty", "张伟", " ", "is empty"),
        ("fee", ",,SO", ",x,SO", "'x' is not an amount in USD"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_column(tmp_path: Path, column: str, old: str, new: str, says: str) -> None:
    good = ENTRY.replace("ST-1,BR00000001", "ST-2,BR00000002")
    bad = ENTRY.replace(old, new, 1)
    assert bad != ENTRY
    [fault] = faults_of(tmp_path, statement_of(good, "", bad))
    assert (fault.line, fault.column) == (4, column)
    assert says in fault.problem


def test_lines_are_those_of_the_file_also_after_quoted_line_breaks(tmp_path: Path) -> None:
    broken_note = ORDER + '"two\r\nlines"'
    bad = 'SO-2,order,2026-10-20,2026-11-03,"Lee\r\n& Sons",EUR,oops,open,,"x\ny"'
    worse = "SO-3,order,2026-10-20,never,A,EUR,1,open,,"
    faults = faults_of(tmp_path, orders_of(broken_note, bad, worse), load_orders)
    # header 1, first record 2-3, second 4-6 with its amount on 5, third 7
    assert [(fault.line, fault.column) for fault in faults] == [(5, "amount"), (7, "due_on")]


def test_all_bad_rows_of_both_files_are_listed_in_one_error(tmp_path: Path) -> None:
    statement, orders = tmp_path / "s.csv", tmp_path / "o.csv"
    statement.write_bytes(statement_of(ENTRY.replace("USD", "XXX"), ENTRY, ENTRY + ",more"))
    orders.write_bytes(orders_of(ORDER.replace("open", "shut"), ORDER))
    with pytest.raises(BadInput) as caught:
        check(statement, orders)
    places = [(Path(row.file).name, row.line, row.column) for row in caught.value.rows]
    assert places == [
        ("s.csv", 2, "currency"), ("s.csv", 3, "entry_id"), ("s.csv", 4, ""), ("o.csv", 2, "status"), ("o.csv", 3, "document_id"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"", 0, "is empty"),
        (b"\xef\xbb\xbf\r\n", 0, "is empty"),
        (statement_of(), 1, "has a header but no rows"),
        (statement_of(ENTRY, header="a,b"), 1, "lacks 'entry_id'"),
        (statement_of(ENTRY, header=",".join(sorted(STATEMENT_COLUMNS))), 1, "has its columns in another order"),
        (statement_of(ENTRY, header=";".join(STATEMENT_COLUMNS)), 1, "does not know 'entry_id;bank_ref"),
        (statement_of(ENTRY).decode().encode("utf-16"), 1, "is UTF-16"),
        (statement_of(ENTRY).decode().encode("gb18030"), 2, "is not UTF-8"),
        (statement_of(ENTRY, "ST-2\0"), 3, "NUL"),
        (statement_of(ENTRY + ",one more"), 2, "has 11 fields; 10 are expected"),
        (statement_of(ENTRY, 'ST-2,"never closed', ENTRY), 3, "a quoted field is broken"),
    ],
)
def test_a_file_that_is_no_such_file_is_refused(tmp_path: Path, data: bytes, line: int, says: str) -> None:
    faults = faults_of(tmp_path, data)
    assert faults[-1].line == line
    assert says in faults[-1].problem


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.csv: cannot be read: No such file"):
        load_statement(tmp_path / "nowhere.csv")


# ---------------------------------------------------------------- the server: what was really done


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    with Outside(tmp_path / "office.db") as started:
        yield started


def sheet(outside: Outside, reference: str = "key-1", **more: Any) -> client.Sheet:
    return client.create_sheet(outside.url, difference=DIFFERENCE, run="2026-11-28", reference=reference, **more)


def test_the_erp_never_compares_and_is_found_by_reference(outside: Outside) -> None:
    first, second = sheet(outside), sheet(outside)
    assert first["id"] != second["id"]
    assert [found["id"] for found in client.find_sheet(outside.url, reference="key-1")] == [first["id"], second["id"]]
    assert client.find_sheet(outside.url, reference="key-2") == []
    counts = outside.counts()
    assert counts["effects"]["sheet"] == {"count": 2, "by_reference": {"key-1": 2}, "by_subject": {DIFFERENCE["id"]: 2}}
    assert counts["requests"] == {"count": 4, "by_route": {"GET /adjustments": 2, "POST /adjustments": 2}}


@pytest.mark.parametrize(
    ("fault", "raised", "effects"),
    [
        ("lose_reply", RemoteDisconnected, 1),
        ("drop_before", RemoteDisconnected, 0),
        ("503_before", 503, 0),
        ("refuse_422", 422, 0),
        ("500_after", 500, 1),
        ("303_after", 303, 1),
    ],
)
def test_each_fault_has_its_effect_or_none_and_meets_one_request(
    outside: Outside, fault: str, raised: type[Exception] | int, effects: int
) -> None:
    outside.fault("/adjustments", fault)
    with pytest.raises(HTTPError if isinstance(raised, int) else raised) as caught:
        sheet(outside)
    if isinstance(caught.value, HTTPError):
        assert caught.value.code == raised
        caught.value.close()
    assert outside.effects("sheet") == effects
    assert outside.counts()["requests"] == {"count": 1, "by_route": {"POST /adjustments": 1}}
    assert len(client.find_sheet(outside.url, reference="key-1")) == effects
    assert sheet(outside)["status"] == "open"  # the fault was for one request


def test_a_delayed_answer_times_out_although_the_write_landed(outside: Outside) -> None:
    outside.fault("/adjustments", "delay", delay_s=3600)
    with pytest.raises(TimeoutError):
        sheet(outside, timeout=0.2)
    assert outside.wait_for("sheet")
    assert outside.effects("sheet") == 1


def test_a_delayed_request_lands_after_the_client_gave_up(outside: Outside) -> None:
    outside.fault("/adjustments", "delay_before", delay_s=3600)
    with pytest.raises(TimeoutError):
        sheet(outside, timeout=0.2)
    while not outside.requests("POST /adjustments"):  # the client has gone, and what it sent may be read only now
        pass
    assert outside.effects("sheet") == 0
    outside.advance(3600)
    assert outside.wait_for("sheet")
    assert outside.effects("sheet") == 1


def test_a_lost_reply_can_be_held_back_until_the_clock_is_turned(outside: Outside) -> None:
    outside.fault("/adjustments", "lose_reply", delay_s=3600)
    program = (
        "import sys; from examples.reconciliation import client\n"
        "client.create_sheet(sys.argv[1], difference={'id': 'D'}, run='r', reference='k', timeout=60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, outside.url], env=environment(), stderr=subprocess.PIPE) as caller:
        try:
            assert outside.wait_for("sheet")
            assert caller.poll() is None  # it waits for the reply, and could be killed in this very moment
            outside.advance(3600)
            _, errors = caller.communicate(timeout=20)
        finally:
            caller.kill()
    assert caller.returncode == 1
    assert b"RemoteDisconnected" in errors


def test_the_search_lags_by_the_servers_clock(outside: Outside) -> None:
    outside.lag("/adjustments", 30)
    sheet(outside)
    assert client.find_sheet(outside.url, reference="key-1") == []
    outside.advance(29)
    assert client.find_sheet(outside.url, reference="key-1") == []
    outside.advance(1)
    assert len(client.find_sheet(outside.url, reference="key-1")) == 1


def test_a_flapping_search_hides_what_is_there(outside: Outside) -> None:
    sheet(outside)
    outside.fault("/adjustments", "hide")
    found = [len(client.find_sheet(outside.url, reference="key-1")) for _ in range(2)]
    assert found == [0, 1]


def test_a_fault_waits_for_its_request_and_passes_reads_by(outside: Outside) -> None:
    outside.fault("/adjustments", "503_before", after=2, count=2)
    answers = []
    for number in range(5):
        client.find_sheet(outside.url, reference=f"key-{number}")
        try:
            answers.append(sheet(outside, f"key-{number}")["reference"])
        except HTTPError as error:
            answers.append(str(error.code))
            error.close()
    assert answers == ["key-0", "key-1", "503", "503", "key-4"]
    outside.fault("/adjustments", "500_after", method="GET")
    with pytest.raises(HTTPError) as caught:
        client.find_sheet(outside.url, reference="key-0")
    caught.value.close()


def test_an_unknown_fault_is_refused(outside: Outside) -> None:
    for body in ({"fault": "lose_replies"}, {"fault": "delay", "seconds": 3}):
        with pytest.raises(HTTPError, match="400") as caught:
            outside.fault("/adjustments", **body)
        caught.value.close()


def test_a_processed_approval_can_no_longer_be_withdrawn(outside: Outside) -> None:
    ids = [sheet(outside)["id"]]
    processed = client.submit_approval(outside.url, run="r", sheets=ids, reference="k1")["id"]
    other = client.submit_approval(outside.url, run="r", sheets=ids, reference="k2")["id"]
    outside.process(processed)
    with pytest.raises(HTTPError, match="409") as caught:
        client.withdraw_approval(outside.url, processed)
    assert json.load(caught.value) == {"error": "already processed"}
    assert client.withdraw_approval(outside.url, other)["status"] == "withdrawn"
    assert client.withdraw_approval(outside.url, other)["status"] == "withdrawn"
    assert [found["status"] for found in client.find_approval(outside.url, reference="k1")] == ["processed"]
    assert (outside.effects("approval_withdrawal"), outside.effects("approval_processing")) == (1, 1)


def test_a_withdrawal_counts_once_and_an_approval_needs_open_sheets(outside: Outside) -> None:
    made = sheet(outside)["id"]
    for _ in range(2):
        assert client.withdraw_sheet(outside.url, made)["status"] == "withdrawn"
    assert outside.effects("sheet_withdrawal") == 1
    with pytest.raises(HTTPError, match="422") as caught:
        client.submit_approval(outside.url, run="r", sheets=[made])
    caught.value.close()
    assert outside.effects("approval") == 0


def test_a_sheet_cannot_be_withdrawn_from_under_its_approval(outside: Outside) -> None:
    made = sheet(outside)["id"]
    approval = client.submit_approval(outside.url, run="r", sheets=[made], reference="k")["id"]
    outside.process(approval)
    with pytest.raises(HTTPError, match="409") as caught:
        client.withdraw_sheet(outside.url, made)
    assert json.load(caught.value) == {"error": f"sheet {made} is in approval {approval}, which is processed"}
    assert outside.effects("sheet_withdrawal") == 0
    outside.reverse(approval)
    client.withdraw_sheet(outside.url, made)
    assert [kind for kind, _ in outside.counts()["order"]][-2:] == ["approval_reversal", "sheet_withdrawal"]


def test_the_chat_takes_messages_and_answers_no_program(outside: Outside) -> None:
    client.send_chat(outside.url, run="r", text="ready")
    with pytest.raises(HTTPError, match="403") as caught:
        client.call(outside.url, "GET", "/chat/messages", None, timeout=5)
    caught.value.close()
    assert outside.counts()["effects"]["message"]["by_subject"] == {"r": 1}


def test_a_closing_is_remembered_by_its_key_until_the_window_is_over(outside: Outside) -> None:
    outside.key_window(60)
    first = client.close_run(outside.url, run="r", approval="P-1", key="k")
    assert client.close_run(outside.url, run="r", approval="P-1", key="k") == first
    with pytest.raises(HTTPError, match="422") as caught:
        client.close_run(outside.url, run="r", approval="P-2", key="k")
    caught.value.close()
    assert outside.effects("closing") == 1
    outside.advance(60)
    assert client.close_run(outside.url, run="r", approval="P-1", key="k") != first
    assert outside.effects("closing") == 2


def test_requests_that_mean_nothing_are_refused_without_effect(outside: Outside) -> None:
    refused: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", "/adjustments", {"run": "r"}),
        ("POST", "/adjustments", None),
        ("GET", "/adjustments", None),
        ("POST", "/adjustments/A-9/withdraw", {}),
        ("POST", "/adjustments/x/withdraw", {}),
        ("PUT", "/runs/r/close", {}),
        ("PUT", "/nowhere", {}),
    ]
    for method, path, body in refused:
        with pytest.raises(HTTPError) as caught:
            client.call(outside.url, method, path, body, timeout=5)
        assert caught.value.code in (400, 404)
        caught.value.close()
    assert outside.counts()["effects"] == {}


def test_counts_survive_the_servers_death(tmp_path: Path) -> None:
    with Outside(tmp_path / "office.db") as outside:
        sheet(outside)
        outside.kill()
        with pytest.raises(URLError):
            sheet(outside)
    with Outside(tmp_path / "office.db") as again:
        assert again.effects("sheet") == 1
        assert len(client.find_sheet(again.url, reference="key-1")) == 1


@pytest.mark.parametrize("how", ["SIGTERM", "its input closes"])
def test_the_server_leaves_with_whoever_started_it(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-m", "examples.reconciliation.server", "--db", str(tmp_path / "office.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        # A request that waits on the server's clock does not hold the server back.
        client.call(url, "POST", "/_control", {"path": "/chat/messages", "fault": "delay", "delay_s": 3600}, timeout=5)
        with pytest.raises(TimeoutError):
            client.send_chat(url, run="r", text="t", timeout=0.2)
        if how == "SIGTERM":
            server.send_signal(signal.SIGTERM)
        else:
            server.stdin.close()
        assert server.wait(timeout=10) == 0


def test_a_plain_retry_loop_makes_two_of_it(tmp_path: Path, outside: Outside) -> None:
    made = generate.write(tmp_path, 1)
    outside.fault("/adjustments", "lose_reply")
    outside.fault("/approvals", "lose_reply")
    naive.reconcile(outside.url, "r", made.day, tmp_path / "statement.csv", tmp_path / "orders.csv")
    assert outside.most_per_subject("sheet") == 2
    assert outside.effects("sheet") == len(made.truth) + 1
    assert outside.effects("approval") == 2
    assert (outside.effects("message"), outside.effects("closing")) == (1, 1)
