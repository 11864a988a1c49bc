"""Columns made and read by their buffers are what Arrow's own conversions make and read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.errors import InvalidBatch
from rocketq.model import Message
from rocketq.protocol.column_values import (
    byte_strings,
    flags,
    int64s_of,
    mask_of,
    number,
    numbers,
    offsets_of,
    optional_bytes,
    optional_int64s,
    optional_numbers,
    repeated,
    text,
    texts,
)
from rocketq.protocol.message_schema import PROPERTIES_TYPE, from_messages, properties_column

INT64S = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_TIME = pa.timestamp("us", tz="UTC")


def is_same(ours: pa.Array, arrows: pa.Array) -> bool:
    ours.validate(full=True)
    return ours.type == arrows.type and ours.equals(arrows) and ours.null_count == arrows.null_count


@given(st.lists(INT64S), st.integers(1, 3))
def test_numbers_go_to_arrow_and_back(values: list[int], step: int) -> None:
    given_numbers = np.array(values, np.int64)[::step]
    column = numbers(given_numbers)
    assert is_same(column, pa.array(given_numbers))
    assert int64s_of(column.slice(1)).tolist() == given_numbers[1:].tolist()


@given(st.lists(st.booleans()), st.integers(0, 20))
def test_a_mask_goes_to_arrow_and_back(values: list[bool], begin: int) -> None:
    column = flags(np.array(values, np.bool_))
    assert is_same(column, pa.array(values, pa.bool_()))
    assert mask_of(column.slice(begin)).tolist() == values[begin:]


@given(st.lists(st.none() | st.booleans()), st.integers(0, 20))
def test_a_null_is_not_true(values: list[bool | None], begin: int) -> None:
    column = pa.array(values, pa.bool_()).slice(begin)
    assert mask_of(column).tolist() == [bool(value) for value in values[begin:]]


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_bytes_and_text_become_columns(values: list[bytes | None]) -> None:
    assert is_same(optional_bytes(values, pa.binary()), pa.array(values, pa.binary()))
    present = [value for value in values if value is not None]
    assert is_same(byte_strings(present), pa.array(present, pa.binary()))


@given(st.lists(TEXT), TEXT, st.integers(0, 9))
def test_text_becomes_a_column_or_a_value(values: list[str], value: str, count: int) -> None:
    assert is_same(texts(values), pa.array(values, pa.string()))
    assert is_same(repeated(value, count), pa.array([value] * count, pa.string()))
    assert text(value) == pa.scalar(value)


@given(st.lists(st.none() | INT64S))
def test_numbers_may_be_missing(values: list[int | None]) -> None:
    assert is_same(optional_int64s(values, pa.int64()), pa.array(values, pa.int64()))
    assert is_same(optional_int64s(values, _TIME), pa.array(values, pa.int64()).view(_TIME))
    is_there = np.array([value is not None for value in values], np.bool_)
    filled = np.array([value or 0 for value in values], np.int64)
    assert is_same(optional_numbers(filled, is_there), pa.array(values, pa.int64()))


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), _TIME])
def test_one_number_has_the_type_asked_for(kind: pa.DataType) -> None:
    assert number(-7, kind) == pa.scalar(-7, kind)


@given(st.lists(st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=4)), st.integers(0, 5))
def test_properties_become_a_column_without_those_that_are_none(
    values: list[dict[str, Any] | None], begin: int
) -> None:
    kept = [None if v is None else [(a, b) for a, b in v.items() if b is not None] for v in values]
    column = properties_column(values)
    assert is_same(column, pa.array(kept, PROPERTIES_TYPE))
    part = column.slice(begin)
    assert offsets_of(part).tolist() == part.offsets.to_pylist()


@pytest.mark.parametrize(
    "message",
    [
        Message(1),  # type: ignore[arg-type]
        Message(b"x", key=1.5),  # type: ignore[arg-type]
        Message(b"x", tag=b"t"),  # type: ignore[arg-type]
        Message(b"x", properties={"a": 1}),  # type: ignore[dict-item]
        Message(b"x", properties=[("a", "1")]),  # type: ignore[arg-type]
        Message(b"x", born_at_us=1.5),  # type: ignore[arg-type]
        Message(b"x", born_at_us=2**63),
        Message(b"x", tag="\ud800"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_and_none_is_changed(message: Message) -> None:
    with pytest.raises(InvalidBatch, match="wrong type"):
        from_messages([Message(b"good"), message])


@pytest.mark.parametrize(
    ("message", "named", "hint"),
    [
        (Message({"a": 1}), "body is {'a': 1}, of type dict", "json.dumps"),  # type: ignore[arg-type]
        (Message(b"x", key=5), "key is 5, of type int", "str(value)"),  # type: ignore[arg-type]
        (Message(b"x", tag=b"t"), "tag is b't', of type bytes", "Give a str"),  # type: ignore[arg-type]
        (Message(b"x", properties={"n": 1}), "the property 'n' is 1, of type int", "{'region': 'eu'"),  # type: ignore[dict-item]
        (Message(b"x", born_at_us=1.5), "born_at_us is 1.5, of type float", "microseconds"),  # type: ignore[arg-type]
    ],
)
def test_the_error_names_the_field_its_value_and_what_to_do(message: Message, named: str, hint: str) -> None:
    with pytest.raises(InvalidBatch) as refused:
        from_messages([Message(b"good"), message])
    assert named in str(refused.value)
    assert hint in refused.value.hint


def test_text_is_taken_as_utf_8_where_bytes_are_wanted() -> None:
    batch = from_messages([Message("hällo", key="ü")])  # type: ignore[arg-type]
    assert batch.to_pylist() == from_messages([Message("hällo".encode(), key="ü".encode())]).to_pylist()
