"""Outgoing rows: by destination, in order, every row once, in Arrow all the way."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketq.write.rows_to_messages import Destination, addressed
from rocketq.errors import InvalidBatch
from rocketq.model import MessageQueue
from rocketq.protocol.message_schema import normalise


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_a_topic_option_sends_every_row_there_without_touching_values() -> None:
    values = pa.array([b"a", b"b"])
    topics = pa.array(["x", None])
    ((destination, messages),) = addressed(batch(value=values, topic=topics), "orders")
    assert destination == Destination("orders")
    assert messages.schema.names == ["body"]
    assert messages.column("body").buffers()[2].address == values.buffers()[2].address


def test_text_becomes_bytes_without_a_copy() -> None:
    values = pa.array(["a", "b"])
    ((_, messages),) = addressed(batch(value=values), "orders")
    assert messages.column("body").type == pa.binary()
    assert messages.column("body").buffers()[2].address == values.buffers()[2].address


rows = st.lists(
    st.tuples(
        st.sampled_from("xyz"), st.sampled_from([None, ("broker-a", 0), ("broker-a", 1), ("b", 16_383)])
    ),
    min_size=1,
    max_size=40,
)


@given(rows)
def test_rows_are_divided_by_destination_and_keep_their_order(rows: list) -> None:
    topics = [topic for topic, _ in rows]
    places = [place or (None, None) for _, place in rows]
    given = batch(
        value=pa.array([str(i).encode() for i in range(len(rows))]),
        topic=pa.array(topics),
        broker=pa.array([broker for broker, _ in places], pa.string()),
        queue=pa.array([queue for _, queue in places], pa.int32()),
    )
    found: dict[Destination, list[int]] = {}
    for destination, messages in addressed(given, None):
        assert destination not in found
        found[destination] = [int(body) for body in messages.column("body").to_pylist()]
    expected: dict[Destination, list[int]] = {}
    for i, (topic, place) in enumerate(rows):
        queue = MessageQueue(topic, *place) if place else None
        expected.setdefault(Destination(topic, queue), []).append(i)
    assert found == expected


def test_large_layouts_become_plain_ones() -> None:
    large = batch(
        value=pa.array(["v"], pa.large_string()),
        key=pa.array([b"k"], pa.large_binary()),
        tag=pa.array(["t"], pa.large_string()),
        properties=pa.array([[("a", "b")]], pa.map_(pa.large_string(), pa.large_string())),
        topic=pa.array(["orders"], pa.large_string()),
        broker=pa.array(["b"], pa.large_string()),
        queue=pa.array([3], pa.int16()),
    )
    ((destination, messages),) = addressed(large, None)
    assert destination == Destination("orders", MessageQueue("orders", "b", 3))
    (whole,) = normalise(messages)
    assert whole.to_pylist() == [
        {"key": b"k", "tag": "t", "body": b"v", "properties": [("a", "b")], "born_at": None}
    ]


@pytest.mark.parametrize(
    ("given", "topic", "said"),
    [
        (batch(value=pa.array([b"a", None])), "t", "'value' is null in 1 of 2 rows"),
        (batch(value=pa.array([b"a"]), topic=pa.array([None], pa.string())), None, "'topic' is null"),
        (
            batch(value=pa.array([b"a"]), broker=pa.array(["b"]), queue=pa.array([None], pa.int32())),
            "t",
            "only one of broker and queue",
        ),
        (
            batch(value=pa.array([b"a"]), broker=pa.array(["b"]), queue=pa.array([-1])),
            "t",
            "no queue number",
        ),
    ],
)
def test_rows_that_are_no_messages_are_refused_before_any_is_sent(
    given: pa.RecordBatch, topic: str | None, said: str
) -> None:
    with pytest.raises(InvalidBatch, match=said):
        addressed(given, topic)
