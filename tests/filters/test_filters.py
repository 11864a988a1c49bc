from __future__ import annotations

import subprocess
import sys
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidFilter, InvalidRequest
from rocketq.model import Message
from rocketq.protocol.hashing import hash_column, hash_value
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.filters.columns import utf8_or_null
from rocketq_broker.filters.numerics import parse_numbers
from rocketq_broker.filters.pull_filter import parse_filter
from rocketq_broker.filters.sql import SqlFilter
from rocketq_broker.filters.tags import TagFilter
from tests.filters.interpreter import number_of
from tests.filters.strategies import TEXTS, batches
from tests.support.examples import examples

TAGS = st.lists(TEXTS, min_size=1, max_size=5)


@given(TAGS, batches())
def test_a_tag_filter_wants_exactly_the_messages_with_one_of_its_tags(
    tags: list[str], batch: pa.RecordBatch
) -> None:
    chosen = TagFilter(tags)
    mask = chosen.mask(batch)
    assert mask.dtype == np.bool_
    assert list(mask) == [tag in tags for tag in batch.column("tag").to_pylist()]
    candidates = np.isin(hash_column(batch.column("tag")), chosen.hashes)
    assert not np.any(mask & ~candidates)


def test_a_message_of_another_tag_with_the_same_hash_is_left_out() -> None:
    chosen = TagFilter(["paid"])
    chosen.hashes = np.array([hash_value("other")], dtype=np.uint64)
    assert list(chosen.mask(from_messages([Message(b"", tag="other"), Message(b"", tag="paid")]))) == [
        False,
        True,
    ]


def test_the_hashes_of_a_filter_are_those_of_the_stored_units() -> None:
    chosen = parse_filter("paid || new", None)
    assert chosen is not None
    assert chosen.hashes is not None
    assert list(chosen.hashes) == sorted(hash_column(pa.array(["new", "paid"])).tolist())
    with pytest.raises(ValueError, match="read-only"):
        chosen.hashes[0] = 0


@pytest.mark.parametrize(("tag", "sql"), [(None, None), ("", None), ("*", None), (" ", None)])
def test_no_filter_wants_everything(tag: str | None, sql: str | None) -> None:
    assert parse_filter(tag, sql) is None


def test_a_pull_has_one_filter() -> None:
    with pytest.raises(InvalidRequest, match="only one filter") as raised:
        parse_filter("paid", "a = 1")
    assert "TAGS IN" in raised.value.hint


def test_an_empty_sql_expression_is_an_error_and_not_everything() -> None:
    with pytest.raises(InvalidFilter):
        parse_filter(None, "")


def test_a_filter_is_compiled_once_for_a_text() -> None:
    assert isinstance(parse_filter(None, "a = 1"), SqlFilter)
    assert parse_filter(None, "a = 1") is parse_filter(None, "a = 1")
    assert parse_filter("A || B", None) is parse_filter("A || B", None)


def test_one_filter_serves_many_threads() -> None:
    chosen = parse_filter(None, "a > 5 AND b <> 'x' OR KEYS = 'k'")
    assert chosen is not None
    batch = from_messages(
        [Message(b"", key=b"k%d" % n, properties={"a": str(n), "b": "y"}) for n in range(2000)]
    )
    expected = chosen.mask(batch)
    assert expected.sum() == 1994
    equal: list[bool] = []

    def work() -> None:
        equal.extend(bool((chosen.mask(batch) == expected).all()) for _ in range(20))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [True] * 80


def test_many_messages_are_masked_as_few() -> None:
    """Far more rows than a bitmap's word, of every kind of layout, sliced off its boundaries."""
    rows = 10_007
    messages = [
        Message(
            b"",
            tag=["paid", "new", None][n % 3],
            properties={"n": str(n), "zone": ["eu", "us"][n % 2]} if n % 7 else None,
        )
        for n in range(rows)
    ]
    batch = from_messages(messages).slice(13)
    chosen = parse_filter(None, "n >= 5000 AND zone = 'eu' AND TAGS IS NOT NULL")
    assert chosen is not None
    expected = [n % 7 != 0 and n >= 5000 and n % 2 == 0 and n % 3 != 2 for n in range(13, rows)]
    assert list(chosen.mask(batch)) == expected


@settings(max_examples=examples(500))
@given(st.lists(st.none() | st.binary(max_size=8) | TEXTS.map(str.encode), max_size=10), st.integers(0, 5))
def test_binary_becomes_text_exactly_where_it_is_utf8(values: list[bytes | None], first: int) -> None:
    def decoded(value: bytes | None) -> str | None:
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            return None

    column = pa.array(values, pa.binary()).slice(first)
    assert utf8_or_null(column).to_pylist() == [decoded(value) for value in values[first:]]


@pytest.mark.parametrize("lead", range(0xC0, 0x100))
def test_every_two_byte_beginning_of_a_sequence_is_judged_as_by_python(lead: int) -> None:
    values = [bytes([lead, second]) + rest for second in range(256) for rest in (b"", b"\x80", b"\x80\x80")]
    expected: list[str | None] = []
    for value in values:
        try:
            expected.append(value.decode())
        except UnicodeDecodeError:
            expected.append(None)
    assert utf8_or_null(pa.array(values)).to_pylist() == expected


NUMERIC = (
    st.text("0123456789+-.eE", max_size=24) | st.integers(-(2**66), 2**66).map(str) | st.floats().map(repr)
)


@settings(max_examples=examples(500))
@given(st.lists(st.none() | NUMERIC | TEXTS, max_size=8), st.integers(0, 3))
def test_numbers_are_read_as_the_documentation_says(values: list[str | None], first: int) -> None:
    numbers = parse_numbers(pa.array(values, pa.string()).slice(first))
    expected = [number_of(value) for value in values[first:]]
    assert numbers.doubles.to_pylist() == [None if n is None else float(n) for n in expected]
    if numbers.integers is None:
        assert all(n is None or abs(n) < 2**53 for n in expected)
    else:
        assert numbers.integers.to_pylist() == [n if isinstance(n, int) else None for n in expected]


@pytest.mark.parametrize(
    "edge", [2**53, 10**18 - 1, 10**18, 9_199_999_999_999_999_999, 2**63 - 1, 2**63, 2**63 + 1, 10**19]
)
def test_the_ends_of_the_integers_are_found(edge: int) -> None:
    values = [
        form.format(sign, n)
        for n in range(edge - 2, edge + 3)
        for sign in ("", "-", "+")
        for form in ("{}{}", "{}00{}")
    ]
    numbers = parse_numbers(pa.array(values))
    expected = [int(value) if -(2**63) <= int(value) < 2**63 else None for value in values]
    assert numbers.integers is not None
    assert numbers.integers.to_pylist() == expected


def test_the_parsers_need_neither_a_server_nor_a_web_framework() -> None:
    """A client refuses a wrong expression itself, with what it has installed."""
    code = (
        "import sys; from rocketq.protocol.filters.sql_parser import parse_sql; parse_sql('a = 1');"
        "servers = {'rocketq_broker', 'fastapi', 'uvicorn', 'pydantic'};"
        "print(sorted(servers & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
