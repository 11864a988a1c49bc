from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.protocol.filters.sql_ast import Condition
from rocketq.protocol.filters.sql_parser import parse_sql
from rocketq.protocol.hashing import hash_column
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.filters.sql import SqlFilter
from tests.filters.interpreter import evaluate
from tests.filters.strategies import CONDITIONS, batches
from tests.support.examples import examples


def wanted(expression: str, *messages: dict[str, str], **fields: Any) -> list[bool]:
    """Whether messages with these properties are wanted."""
    batch = from_messages([Message(b"body", properties=properties, **fields) for properties in messages])
    return list(SqlFilter(parse_sql(expression)).mask(batch))


@settings(max_examples=examples(250))
@given(CONDITIONS, batches())
def test_a_batch_is_evaluated_as_its_messages_would_be_one_by_one(
    condition: Condition, batch: pa.RecordBatch
) -> None:
    mask = SqlFilter(condition).mask(batch)
    assert mask.dtype == np.bool_
    assert list(mask) == [evaluate(message, condition) is True for message in batch.to_pylist()]


@settings(max_examples=examples(150))
@given(CONDITIONS, batches())
def test_a_wanted_message_has_one_of_the_tags_that_the_filter_names(
    condition: Condition, batch: pa.RecordBatch
) -> None:
    chosen = SqlFilter(condition)
    if chosen.hashes is not None:
        candidates = np.isin(hash_column(batch.column("tag")), chosen.hashes)
        assert not np.any(chosen.mask(batch) & ~candidates)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TAGS = 'paid'", ["paid"]),
        ("'paid' = TAGS AND amount > 5", ["paid"]),
        ("TAGS IN ('paid', 'new') AND a IS NULL", ["paid", "new"]),
        ("TAGS IN ('paid', 'new') AND TAGS IN ('new', 'old')", ["new"]),
        ("TAGS = 'paid' OR TAGS = 'new' AND a = 1", ["paid", "new"]),
        ("FALSE", []),
        ("TAGS = 'paid' OR a = 1", None),
        ("TAGS <> 'paid'", None),
        ("NOT TAGS = 'paid'", None),
        ("TAGS NOT IN ('paid')", None),
        ("tags = 'paid'", None),
        ("TRUE", None),
    ],
)
def test_an_expression_that_needs_a_tag_lets_units_be_passed_over(
    expression: str, tags: list[str] | None
) -> None:
    hashes = SqlFilter(parse_sql(expression)).hashes
    expected = None if tags is None else np.sort(hash_column(pa.array(tags, pa.string())))
    assert (hashes is None) == (expected is None)
    if expected is not None and hashes is not None:
        assert list(hashes) == list(expected)


@pytest.mark.parametrize(
    "expression",
    [
        *("a = 'x'", "a <> 'x'", "a = 1", "a <> 1", "a > 1", "a <= 1", "a = TRUE", "a <> TRUE"),
        *("a BETWEEN 1 AND 2", "a NOT BETWEEN 1 AND 2", "a IN ('x')", "a NOT IN ('x')"),
        *("a CONTAINS 'x'", "a NOT CONTAINS 'x'", "a STARTSWITH 'x'", "a NOT STARTSWITH 'x'"),
        *("a ENDSWITH 'x'", "a NOT ENDSWITH 'x'", "a = b", "a <> b", "a > b", "1 BETWEEN a AND b"),
    ],
)
def test_what_is_missing_is_unknown_and_so_is_its_negation(expression: str) -> None:
    assert wanted(expression, {}, {"b": "x"}) == [False, False]
    assert wanted(f"NOT ({expression})", {}, {"b": "x"}) == [False, False]


@pytest.mark.parametrize("value", ["abc", "", " 5", "5 ", "NaN", "Infinity", "0x5", "5d", "1_000", "٥"])
def test_what_is_no_number_is_unknown_to_a_comparison_with_one(value: str) -> None:
    message = {"a": value, "ok": "yes"}
    for expression in ("a > 1", "a <= 1", "a = 1", "a <> 1", "a > b"):
        assert wanted(f"{expression} OR NOT ({expression})", message) == [False]
    assert wanted("a > 1 OR ok = 'yes'", message) == [True]


def test_one_wrong_value_hides_no_other_message() -> None:
    messages = [{"a": "7"}, {"a": "seven"}, {"a": "+7"}, {"a": "7.0"}, {"a": "007"}, {"a": "7e0"}, {}]
    assert wanted("a = 7", *messages) == [True, False, True, True, True, True, False]


def test_integers_past_the_range_of_doubles_compare_exactly() -> None:
    near = ["9007199254740992", "9007199254740993", "9007199254740994", "+9007199254740993"]
    assert wanted("a = 9007199254740993", *({"a": v} for v in near)) == [False, True, False, True]
    ends = ["9223372036854775807", "9223372036854775806", "-9223372036854775808"]
    assert wanted("a >= 9223372036854775807", *({"a": v} for v in ends)) == [True, False, False]
    assert wanted("a > b", {"a": near[1], "b": near[0]}, {"a": near[0], "b": near[1]}) == [True, False]


def test_a_number_and_its_text_are_different_things() -> None:
    messages = [{"a": "1"}, {"a": "1.0"}, {"a": "01"}]
    assert wanted("a = 1", *messages) == [True, True, True]
    assert wanted("a = '1'", *messages) == [True, False, False]


def test_true_and_false_are_read_in_any_case_and_nothing_else_is_either() -> None:
    messages = [{"a": "true"}, {"a": "TRUE"}, {"a": "False"}, {"a": "yes"}, {"a": "1"}, {"a": ""}]
    assert wanted("a = TRUE", *messages) == [True, True, False, False, False, False]
    assert wanted("a = FALSE", *messages) == [False, False, True, False, False, False]
    assert wanted("a <> TRUE", *messages) == [False, False, True, False, False, False]


def test_names_are_told_apart_by_case() -> None:
    assert wanted("Region = 'eu'", {"Region": "eu"}, {"region": "eu"}) == [True, False]


def test_the_tag_and_the_keys_can_be_asked_for() -> None:
    assert wanted("TAGS = 'paid'", {}, tag="paid") == [True]
    assert wanted("TAGS IS NULL", {"TAGS": "paid"}) == [True]
    assert wanted("KEYS = 'k-1'", {}, key=b"k-1") == [True]
    assert wanted("KEYS = 'k-1 k-2 k-3'", {"KEYS": "k-2 k-3"}, key=b"k-1") == [True]
    assert wanted("KEYS = 'k-2'", {"KEYS": "k-2"}) == [True]
    assert wanted("KEYS IS NULL", {}, {"KEYS": "k"}) == [True, False]
    assert wanted("KEYS IS NULL", {}, key=b"\xff\x00") == [True]


def test_of_a_name_that_stands_twice_the_last_value_counts() -> None:
    batch = from_messages([Message(b"", properties={"a": "1"})])
    twice = pa.array([[("a", "1"), ("b", "9"), ("a", "2")]], batch.schema.field("properties").type)
    batch = batch.set_column(3, batch.schema.field("properties"), twice)
    assert SqlFilter(parse_sql("a = 2")).mask(batch).all()
    assert not SqlFilter(parse_sql("a = 1")).mask(batch).any()


def test_a_constant_is_the_same_for_every_message() -> None:
    messages = [{"a": "1"}, {}]
    assert wanted("TRUE", *messages) == [True, True]
    assert wanted("FALSE OR 1 > 2 OR 'a' <> 'a'", *messages) == [False, False]
    assert wanted("1 = 1 AND 'a' = 'a' AND TRUE = TRUE", *messages) == [True, True]


@given(st.sampled_from(["TRUE", "a = 1", "KEYS = 'x' OR TAGS = 'y'", "NOT (a > b)"]))
def test_an_empty_batch_has_an_empty_mask(expression: str) -> None:
    batch = from_messages([Message(b"")]).slice(1)
    mask = SqlFilter(parse_sql(expression)).mask(batch)
    assert mask.shape == (0,)
    assert mask.dtype == np.bool_
