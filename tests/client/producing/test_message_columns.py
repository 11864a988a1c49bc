"""Columns that grow by a message at a time hold what the messages said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.producing.accumulation.message_columns import MessageColumns
from rocketq.protocol.message_schema import from_messages

MESSAGES = st.builds(
    Message,
    st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.none() | st.text(max_size=5),
    st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3),
    st.integers(-(2**40), 2**60),
)


@given(st.lists(MESSAGES, min_size=1, max_size=20))
def test_columns_and_messages_make_the_same_batch(messages: list[Message]) -> None:
    columns = MessageColumns()
    for row, each in enumerate(messages):
        assert row == columns.add(each.body, each.born_at_us or 0, each.key, each.tag, each.properties)
    batch = columns.to_batch()
    batch.validate(full=True)
    assert batch.equals(from_messages(messages))
