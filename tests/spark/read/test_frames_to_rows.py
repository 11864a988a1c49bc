"""Rows: frames become exactly the batches Spark expects, and values pass without a copy."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pyspark_rocketq.read.frames_to_rows import BATCH_ROWS_MAX, BATCH_ROWS_MIN, RowBuilder
from pyspark_rocketq.read.row_schema import COLUMNS, source_schema
from rocketq.model import Message, MessageQueue
from rocketq.protocol import frame
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.frame import FrameKind
from rocketq.protocol.frame_slices import open_frames
from rocketq.protocol.message_schema import from_messages

QUEUE = MessageQueue("orders", "broker-a", 3)
EVERYTHING = StructType([StructField(column.name, column.type) for column in COLUMNS])


def frames(counts: list[int], first: int = 0) -> bytes:
    """Frames of so many messages each, one after the other; message i says i."""
    parts: list[bytes | pa.Buffer] = []
    offset = first
    for number, count in enumerate(counts):
        messages = [Message(str(offset + i).encode(), key=b"k", tag="t") for i in range(count)]
        parts += frame.encode(
            kind=FrameKind.MESSAGES, topic=b"orders", body=encapsulate(from_messages(messages)), queue=3,
            queue_offset=offset, count=count, log_offset=0, stored_at_us=1000 + number, durable_end=0,
        )  # fmt: skip
        offset += count
    return b"".join(bytes(part) for part in parts)


def built(data: bytes, begin: int, end: int, schema: StructType = EVERYTHING) -> list[pa.RecordBatch]:
    builder = RowBuilder(QUEUE, to_arrow_schema(schema, timezone="UTC"))
    return list(builder.batches(open_frames(data, begin, end)))


def test_every_column_has_what_it_should() -> None:
    (batch,) = built(frames([2], first=7), 7, 9)
    assert batch.schema.equals(to_arrow_schema(EVERYTHING, timezone="UTC"))
    first = batch.to_pylist()[0]
    stamp = first.pop("timestamp")
    assert stamp.timestamp() == pytest.approx(0.001)
    assert first == {
        "key": b"k", "value": b"7", "tag": "t", "topic": "orders", "broker": "broker-a", "queue": 3,
        "offset": 7,
        "properties": None, "born_timestamp": None, "message_id": "broker-a:orders:3:7",
    }  # fmt: skip


def test_the_default_row_equals_what_spark_expects() -> None:
    (batch,) = built(frames([2]), 0, 2, source_schema(True))
    assert batch.schema.equals(to_arrow_schema(source_schema(True), timezone="UTC"))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.data())
def test_any_range_of_any_frames_gives_each_row_once_in_order(counts: list[int], data: st.DataObject) -> None:
    total = sum(counts)
    begin = data.draw(st.integers(0, total))
    end = data.draw(st.integers(begin, total))
    batches = built(frames(counts), begin, end)
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == list(range(begin, end))
    assert [int(row["value"]) for row in found] == list(range(begin, end))
    stored = [1000 + number for number, count in enumerate(counts) for _ in range(count)]
    assert [round(row["timestamp"].timestamp() * 1e6) for row in found] == stored[begin:end]


def test_small_frames_are_joined() -> None:
    batches = built(frames([10] * 100), 0, 1000)
    assert [batch.num_rows for batch in batches] == [1000]


def test_a_large_frame_passes_without_a_copy() -> None:
    data = pa.py_buffer(frames([BATCH_ROWS_MIN + 1]))
    builder = RowBuilder(QUEUE, to_arrow_schema(source_schema(False), timezone="UTC"))
    (batch,) = builder.batches(open_frames(data, 0))
    address = batch.column("value").buffers()[2].address
    assert data.address <= address < data.address + data.size


def test_no_batch_has_more_rows_than_the_limit() -> None:
    batches = built(frames([BATCH_ROWS_MAX + 5]), 0, BATCH_ROWS_MAX + 5)
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS_MAX, 5]


def test_a_projection_has_its_columns_only_and_in_its_order() -> None:
    schema = StructType([field for field in EVERYTHING.fields if field.name in ("offset", "value")][::-1])
    (batch,) = built(frames([3]), 1, 3, schema)
    assert batch.to_pylist() == [{"offset": 1, "value": b"1"}, {"offset": 2, "value": b"2"}]
