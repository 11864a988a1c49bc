"""What a message's tag and properties may be, asked of one message and of whole batches."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidFilter
from rocketq.errors.message_errors import InvalidMessage
from rocketq.model import TAG_BYTES_MAX, Message
from rocketq.protocol.filters.tags import NOT_IN_A_TAG, parse_tags, why_no_tag
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE, from_messages
from rocketq.protocol.rules.message_rules import check_batch, check_message
from rocketq.protocol.rules.system_properties import REFUSED, REFUSED_PREFIXES
from tests.support.examples import examples

TAGS = st.none() | st.sampled_from(
    ["paid", "größer", "A B", "A|B", "*", "**", "", " A", "A\u2003", "支付", "a*b"]
)
NAMES = st.sampled_from(
    [
        *(
            "",
            "region",
            "KEYS",
            "DELAY",
            "TRAN_MSG",
            "delay",
            "DELAYED",
            "TIMER_DELAY_SEC",
            "TIMER_",
            "TIMER",
            "Title",
        ),
        *("WAIT", "TAGS", "größe", "TRACE_CONTEXT", "__RMQ.TRANSIENT.X", "__x", "1ST_POP_TIME", "1st"),
    ]
)
MESSAGES = st.builds(
    Message,
    st.just(b""),
    tag=TAGS | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    properties=st.none()
    | st.dictionaries(NAMES | st.text("DELAYTIMR_", max_size=6), st.just("v"), max_size=4),
)


def first_fault(messages: list[Message], first_row: int) -> dict[str, object] | None:
    """The facts of the error for the first wrong tag, else for the first refused property."""
    for with_tag in (True, False):
        for row, message in enumerate(messages):
            try:
                check_message(
                    message.tag if with_tag else None,
                    () if with_tag else message.properties or (),
                    first_row + row,
                )
            except InvalidMessage as error:
                return error.facts
    return None


@settings(max_examples=examples(300))
@given(st.lists(MESSAGES, max_size=12), st.integers(0, 3), st.integers(0, 9))
def test_a_batch_is_judged_as_its_messages_one_by_one(
    messages: list[Message], skipped: int, first_row: int
) -> None:
    """Also slices, whose columns share the memory of the whole."""
    expected = first_fault(messages[skipped:], first_row)
    batch = from_messages(messages).slice(skipped)
    if expected is None:
        check_batch(batch, first_row)
    else:
        with pytest.raises(InvalidMessage) as raised:
            check_batch(batch, first_row)
        assert raised.value.facts == expected


def test_entries_behind_a_null_map_are_nobody_s() -> None:
    column = pa.array([[("TRAN_MSG", "3")], [("a", "b")]], PROPERTIES_TYPE)
    entries = pa.StructArray.from_arrays(
        [column.keys, column.items], fields=[PROPERTIES_TYPE.key_field, PROPERTIES_TYPE.item_field]
    )
    for validity, is_refused in (([False, True], False), ([True, False], True)):
        hidden = pa.Array.from_buffers(
            PROPERTIES_TYPE, 2, [pa.array(validity).buffers()[1], column.buffers()[1]], children=[entries]
        )
        batch = from_messages([Message(b""), Message(b"")])
        batch = batch.set_column(3, MESSAGE_SCHEMA.field("properties"), hidden)
        if is_refused:
            with pytest.raises(InvalidMessage, match="property 'TRAN_MSG' in row 0"):
                check_batch(batch)
        else:
            check_batch(batch)


@pytest.mark.parametrize("name", [*REFUSED, *(prefix + "X" for prefix in REFUSED_PREFIXES)])
def test_each_refused_property_is_named_with_a_reason_and_a_way_on(name: str) -> None:
    with pytest.raises(InvalidMessage) as raised:
        check_batch(from_messages([Message(b""), Message(b"", properties={"a": "b", name: "1"})]))
    error = raised.value
    assert (error.facts["field"], error.facts["value"], error.facts["row"]) == ("property", name, 1)
    assert f"the property {name!r} in row 1" in error.message
    assert error.facts["why"] in error.message
    assert error.hint


@pytest.mark.parametrize("tag", ["A B", "A|B", "A||B", "*", "", " A", "A ", "\tA", "A\x85", "A\u3000B", "|"])
def test_a_tag_that_no_expression_can_name_is_refused(tag: str) -> None:
    with pytest.raises(InvalidMessage) as raised:
        check_batch(from_messages([Message(b"", tag="paid"), Message(b"", tag=tag)]))
    assert (raised.value.facts["field"], raised.value.facts["value"]) == ("tag", tag)
    assert raised.value.facts["row"] == 1
    assert "without white space" in raised.value.hint


@given(st.text(max_size=5) | st.text("A| *\u2028é", max_size=5))
def test_a_tag_is_what_an_expression_can_name(tag: str) -> None:
    try:
        named = parse_tags(f"{tag} || other") == tuple(dict.fromkeys([tag, "other"]))
    except InvalidFilter:
        named = False
    is_text = tag.isprintable() or not any("\ud800" <= char <= "\udfff" for char in tag)
    assert named == (is_text and why_no_tag(tag) is None)


def test_white_space_is_what_python_says() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert re.findall(NOT_IN_A_TAG, every) == [char for char in every if char.isspace() or char == "|"]


def test_the_longest_tag_passes() -> None:
    check_batch(from_messages([Message(b"", tag="t" * TAG_BYTES_MAX)]))


def test_empty_batches_and_columns_of_nulls_pass() -> None:
    check_batch(from_messages([]))
    check_batch(from_messages([Message(b"")] * 3))
    check_batch(from_messages([Message(b"", tag=None, properties={})] * 3))


def test_the_page_on_the_protocol_lists_every_refused_property() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    names = [*REFUSED, *(f"{prefix}…" for prefix in REFUSED_PREFIXES)]
    assert [name for name in names if f"`{name}`" not in page] == []
