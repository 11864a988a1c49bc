"""The limits of single messages, on batches as they come over the wire."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.model import KEY_BYTES_MAX, TAG_BYTES_MAX, Message
from rocketq.protocol.arrow.stream_reader import read_stream
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages
from rocketq_broker.data_plane.sends.message_limits import PROPERTIES_BYTES_MAX, admit

LIMIT = 1000


def sent(*messages: Message) -> pa.RecordBatch:
    """The batch as a broker opens it."""
    (only,) = read_stream(write_stream([from_messages(messages)]))
    return only.batch


def test_an_admitted_batch_is_measured() -> None:
    sizes = admit(sent(Message(b"abc"), Message(b""), Message(b"abcdef")), LIMIT)
    assert (sizes.count, sizes.total, sizes.smallest, sizes.largest) == (3, 9, 0, 6)
    assert sizes.each.tolist() == [3, 0, 6]


def test_a_slice_of_a_batch_is_measured_by_its_own_rows() -> None:
    batch = from_messages([Message(b"x" * 5000), Message(b"ab", properties={"a": "b"}), Message(b"c")])
    sizes = admit(batch.slice(1), LIMIT)
    assert (sizes.count, sizes.total) == (2, 3)


def test_a_body_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    admit(sent(Message(b"x" * LIMIT), Message(b"y" * LIMIT)), LIMIT)
    with pytest.raises(TooLarge) as raised:
        admit(sent(Message(b"y"), Message(b"x" * (LIMIT + 1))), LIMIT)
    assert raised.value.facts == {"what": "a message's body", "size": LIMIT + 1, "limit": LIMIT}


@pytest.mark.parametrize(
    ("at_limit", "above"),
    [
        (Message(b"", key=b"k" * KEY_BYTES_MAX), Message(b"", key=b"k" * (KEY_BYTES_MAX + 1))),
        (Message(b"", tag="t" * TAG_BYTES_MAX), Message(b"", tag="t" * (TAG_BYTES_MAX + 1))),
        (Message(b"", tag="ü" * 127), Message(b"", tag="ü" * 128)),
        (
            Message(b"", properties={"n" * 767: "v" * (PROPERTIES_BYTES_MAX - 767)}),
            Message(b"", properties={"n" * 767: "v" * (PROPERTIES_BYTES_MAX - 767), "m": ""}),
        ),
    ],
    ids=["key", "tag", "tag counted in bytes", "properties"],
)
def test_fields_are_limited_message_by_message(at_limit: Message, above: Message) -> None:
    small = Message(b"x", key=b"k", tag="t", properties={"a": "b"})
    admit(sent(small, at_limit, at_limit, at_limit, small), LIMIT)
    with pytest.raises(TooLarge):
        admit(sent(small, at_limit, above, small), LIMIT)


def test_a_property_without_a_value_is_refused() -> None:
    properties = pa.array([[("a", None)]], MESSAGE_SCHEMA.field("properties").type)
    batch = sent(Message(b"x")).set_column(3, MESSAGE_SCHEMA.field("properties"), properties)
    with pytest.raises(InvalidBatch, match="no value"):
        admit(batch, LIMIT)
