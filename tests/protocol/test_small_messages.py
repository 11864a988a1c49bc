"""A few messages that are written as a batch without Arrow are what Arrow would have made of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.protocol.arrow.small_messages import FEW_MESSAGES, encapsulate_messages
from rocketq.protocol.arrow.stream_reader import read_batch, read_stored
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.message_schema import from_messages

MESSAGES = st.lists(
    st.builds(
        Message,
        st.binary(max_size=20),
        st.none() | st.binary(max_size=9),
        st.none() | st.text(max_size=5),
        st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3),
        st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=FEW_MESSAGES,
)


@given(MESSAGES)
def test_a_batch_that_is_written_without_arrow_is_sound_and_says_the_same(messages: list[Message]) -> None:
    made = pa.py_buffer(encapsulate_messages(messages))
    expected = from_messages(messages)
    assert read_batch(made).equals(expected)
    assert read_stored(made).equals(expected)


@pytest.mark.parametrize("count", [1, 2, 8, 9, FEW_MESSAGES])
def test_it_is_byte_for_byte_what_arrow_writes(count: int) -> None:
    full = Message(b"body", b"key", "größe", {"a": "b", "c": ""}, 17)
    bare = Message(b"")
    for messages in ([full] * count, [bare] * count, [full, *[bare] * (count - 1)]):
        assert encapsulate_messages(messages) == encapsulate(from_messages(messages)).to_pybytes()
