"""Whatever text or value comes: it is read, or refused with what to write instead; never anything else."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any
from uuid import UUID

import fuzz_values as values
import pytest
from fuzzing import examples, replay
from hypothesis import assume, example, given
from hypothesis import strategies as st

from doubtless import DoubtlessError, Secret
from doubtless.blobs import parse_ref, show_ref
from doubtless.canonical import decode, encode, parse
from doubtless.durations import BadDuration, parse_duration, show_duration
from doubtless.errors import NotCanonical, StoreDamaged, UsageError
from doubtless.face.run import check_task_id
from doubtless.once import LONGEST, spelled
from doubtless.once import parse as parse_template
from doubtless.schemas import describe, misfit
from doubtless.secrets import MASK, Vault


def refused_well(error: DoubtlessError) -> None:
    """A refusal says something, shows no traceback and fits a screen."""
    assert error.message
    assert "Traceback" not in error.message
    assert len(error.message) < 2000


# ---------------------------------------------------------------- canonical form


@examples(150)
@given(values.trees)
def test_what_was_written_in_canonical_form_comes_back_and_is_written_the_same(value: Any) -> None:
    text = encode(value)
    back = decode(text)
    assert encode(back) == text
    assert values.plain(back) == values.plain(value)


@examples(150)
@given(values.trees, values.trees, st.randoms(use_true_random=False))
def test_equal_values_and_only_those_have_equal_bytes(one: Any, other: Any, chance: Any) -> None:
    assert encode(one) == encode(values.respelled(one, chance))
    assert (encode(one) == encode(other)) == (values.plain(one) == values.plain(other))


@examples(100)
@given(values.anything)
def test_a_value_has_a_canonical_form_or_is_refused_as_not_canonical(value: Any) -> None:
    try:
        text = encode(value)
    except NotCanonical as error:
        refused_well(error)
    else:
        again = encode(decode(text))  # the same, but for an enum's member, which is read as its value, and a dataclass, as a dict
        assert encode(decode(again)) == again
        assert again == text or '{"$enum":' in text or '{"$object":' in text


def reads_or_refuses(text: str) -> None:
    """Decode gives a value that has a form of its own and keeps it, or refuses; nothing else."""
    try:
        value = decode(text)
    except NotCanonical as error:
        assert error.message
        return
    try:
        again = encode(value)
    except NotCanonical:
        return  # a number beyond floats, a surrogate: this text was never written, and nothing is made of it
    assert encode(decode(again)) == again


@examples(200)
@given(values.trees, values.mutations)
def test_damaged_canonical_text_is_refused_or_reads_as_a_value_with_a_form_of_its_own(value: Any, mutation: Any) -> None:
    mutated = values.mutated(encode(value).encode(), mutation)
    reads_or_refuses(mutated.decode("utf-8", "replace"))


@examples(80)
@given(st.text(alphabet='{}[]":,$0123456789.-+eEtrufalsn\\ abdimpqo', max_size=60))
def test_any_text_is_refused_or_reads_as_a_value_with_a_form_of_its_own(text: str) -> None:
    reads_or_refuses(text)


@replay("canonical")
def test_kept_texts_are_refused_or_read(kept: dict[str, Any]) -> None:
    text = kept["text"] * kept.get("times", 1)
    reads_or_refuses(text)
    try:
        parse(text)
    except UsageError as error:
        refused_well(error)


@examples(100)
@given(st.one_of(values.json_texts, st.text(max_size=60)))
def test_json_that_a_person_typed_is_read_as_json_reads_it_or_refused_with_line_and_column(text: str) -> None:
    try:
        value = parse(text)
    except UsageError as error:
        refused_well(error)
        assert "line" in error.message or "nested" in error.message
    else:
        assert value == json.loads(text)


# ---------------------------------------------------------------- refs


@examples(100)
@given(st.one_of(st.text(max_size=90), values.refs))
def test_any_text_is_a_ref_that_is_shown_as_it_was_read_or_is_refused(text: str) -> None:
    try:
        ref = parse_ref(text)
    except StoreDamaged as error:
        refused_well(error)
        assert error.hint
    else:
        assert isinstance(ref, str) or len(ref) == 32
        assert show_ref(ref) == text


@replay("refs")
def test_kept_refs_are_read_or_refused(kept: dict[str, Any]) -> None:
    try:
        assert show_ref(parse_ref(kept["text"])) == kept["text"]
    except StoreDamaged as error:
        assert kept["refused"], error


# ---------------------------------------------------------------- durations


@examples(150)
@example(1.8e302)
@example(-1.8e302)
@given(st.one_of(st.text(max_size=40), values.durations, st.integers(), st.floats(), st.timedeltas(), st.none(), st.booleans()))
def test_a_duration_is_a_positive_number_of_microseconds_or_refused_with_what_to_say(value: Any) -> None:
    try:
        us = parse_duration(value)
    except BadDuration as error:
        refused_well(error)
        assert error.hint
    else:
        assert 0 < us <= 365_000 * 86_400_000_000
        assert re.fullmatch(r"[0-9.]+ (d|h|min|s|ms|µs)( [0-9.]+ (h|min|s))*", show_duration(us)), show_duration(us)
        assert parse_duration(f"PT{us // 1_000_000}.{us % 1_000_000:06}S") == us


@replay("durations")
def test_kept_durations_are_read_or_refused(kept: dict[str, Any]) -> None:
    text = kept["text"] * kept.get("times", 1)
    try:
        assert parse_duration(text) == kept["us"]
    except BadDuration as error:
        refused_well(error)
        assert kept["us"] is None


# ---------------------------------------------------------------- secrets


@examples(60)
@given(st.one_of(st.text(max_size=20), st.none(), st.integers(), st.from_regex(r"[a-z]{0,3}:[a-zA-Z/]{0,8}", fullmatch=True)))
def test_a_secret_names_a_resolver_or_is_refused(ref: Any) -> None:
    try:
        secret = Secret(ref)
    except UsageError as error:
        refused_well(error)
        assert error.hint
    else:
        assert secret.stored() == {"$secret": ref}
        assert secret == Secret(ref)


@examples(100)
@given(st.text(min_size=4, max_size=24), st.text(max_size=20), st.text(max_size=20), st.sampled_from(values.ECHOES))
def test_a_known_secret_is_masked_however_it_is_echoed(value: str, before: str, after: str, echo: Any) -> None:
    try:
        written = echo(value)
    except UnicodeError:
        assume(False)
    assume(value not in MASK)
    vault = Vault({})
    vault.remember(value)
    masked = vault.mask(f"{before}{written}{after}")
    assert written not in masked or written in MASK or MASK in written, masked
    with pytest.raises(UsageError):
        vault.refuse_known(f"{before}{written}{after}", "pay")


# ---------------------------------------------------------------- task ids, templates


@examples(100)
@given(st.one_of(st.text(max_size=30), st.none(), st.integers(), st.text(alphabet="a/$\n\u200b é", min_size=1, max_size=210)))
def test_a_task_id_is_printable_and_its_own_or_refused(task_id: Any) -> None:
    try:
        check_task_id(task_id)
    except UsageError as error:
        refused_well(error)
        assert error.hint
    else:
        assert task_id.isprintable() and 0 < len(task_id) <= 200 and "/" not in task_id and task_id[0] != "$"


@examples(150)
@given(st.one_of(st.text(alphabet="{}:!.[]a0_ -rs\x00é", max_size=24), st.text(max_size=16)), values.anything)
def test_a_template_has_faults_in_words_or_makes_one_key_for_one_value(text: str, value: Any) -> None:
    template, faults = parse_template(text)
    assert all(isinstance(fault, str) and fault for fault in faults)
    if faults:
        return
    params = dict.fromkeys(template.fields, value)
    try:
        key = template.key(params, "pay")
    except UsageError as error:
        refused_well(error)
        assert "nothing was written" in error.message
    else:
        assert len(key) <= LONGEST
        assert key == template.key(params, "pay")
        if template.fields:
            other = spelled(value, "pay", "x")
            assert other in key


# ---------------------------------------------------------------- schemas


@examples(150)
@given(values.annotations, values.trees)
def test_what_a_schema_takes_has_its_shape_and_what_it_refuses_is_said_in_words(annotated: Any, value: Any) -> None:
    annotation, fits = annotated
    schema = describe(annotation)
    assert json.loads(json.dumps(schema)) == schema
    seen = decode(encode(value))
    fault = misfit(schema, seen)
    assert fault is None or (isinstance(fault, str) and fault)
    if fits is not None:
        assert (fault is None) == fits(seen), (annotation, seen, fault)


@examples(100)
@given(values.wild_schemas, values.trees)
@example(schema={"$ref": "#/$defs/A", "items": {}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, value=None)
@example(schema={"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]}}}, value=1)
def test_a_stored_schema_of_any_shape_takes_or_refuses_a_value_and_does_not_crash(schema: Any, value: Any) -> None:
    fault = misfit(schema, decode(encode(value)))
    assert fault is None or isinstance(fault, str)


def test_the_types_that_have_a_form_of_their_own_are_among_the_values() -> None:
    kept = {dt.date(2026, 1, 1), Decimal("1.0"), UUID(int=1), b"x"}
    assert all(encode(decode(encode(value))) == encode(value) for value in kept)
