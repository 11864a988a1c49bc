from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidBatch, TooLarge
from rocketq.model import Message
from rocketq.protocol.arrow.stream_reader import METADATA_BYTES_MAX, read_batch, read_stream
from rocketq.protocol.arrow.stream_writer import encapsulate, write_stream
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE, from_messages
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX
from tests.protocol.strategies import CODECS, batches

END_MARK = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def some(count: int, body: bytes = b"hello") -> pa.RecordBatch:
    return from_messages([Message(body, key=b"k", tag="t", properties={"a": "b"}) for _ in range(count)])


@given(st.lists(batches(), max_size=4), CODECS)
def test_a_stream_reads_back_as_the_batches_it_was_written_from(
    written: list[pa.RecordBatch], codec: str | None
) -> None:
    read = read_stream(write_stream(written, codec))
    assert [m.batch for m in read] == written


@given(batches(), CODECS)
def test_an_encapsulated_batch_reads_back(batch: pa.RecordBatch, codec: str | None) -> None:
    assert read_batch(encapsulate(batch, codec)) == batch


@given(st.lists(batches(), min_size=1, max_size=3), CODECS)
def test_a_stream_keeps_each_batch_message_as_it_was_sent(
    written: list[pa.RecordBatch], codec: str | None
) -> None:
    stream = write_stream(written, codec)
    joined = b"".join(m.encapsulated.to_pybytes() for m in read_stream(stream))
    assert stream.to_pybytes().endswith(joined + END_MARK)


@given(batches(), CODECS)
def test_a_stream_and_an_encapsulated_batch_hold_the_same_bytes(
    batch: pa.RecordBatch, codec: str | None
) -> None:
    [sent] = read_stream(write_stream([batch], codec))
    assert sent.encapsulated.equals(encapsulate(batch, codec))


@settings(max_examples=30)
@given(batches(max_size=8), st.integers(0, 5000), CODECS)
def test_a_slice_of_a_large_batch_is_written_without_the_rest(
    batch: pa.RecordBatch, first: int, codec: str | None
) -> None:
    whole = pa.Table.from_batches([some(5000), batch, some(5000)]).combine_chunks().to_batches()[0]
    part = whole.slice(5000, batch.num_rows)
    rebuilt = part.take(list(range(part.num_rows)))
    assert encapsulate(part, codec).size <= encapsulate(rebuilt, codec).size + 256
    few = whole.slice(first, 3)
    assert encapsulate(few, codec).size < 2048
    assert read_batch(encapsulate(few, codec)) == few


def test_columns_are_read_without_copying_them() -> None:
    stream = write_stream([some(100)])
    [message] = read_stream(stream)
    body = message.batch.column("body").buffers()[2]
    assert stream.address <= body.address < stream.address + stream.size


def test_a_stream_may_end_without_its_end_mark() -> None:
    data = write_stream([some(2)]).to_pybytes()
    assert len(read_stream(data[: -len(END_MARK)])) == 1


@pytest.mark.parametrize("tail", [b"x", b"\0" * 8, END_MARK, write_stream([some(1)]).to_pybytes()])
def test_bytes_after_the_end_of_the_stream_are_refused_not_ignored(tail: bytes) -> None:
    with pytest.raises(InvalidBatch, match="follow the end"):
        read_stream(write_stream([some(1)]).to_pybytes() + tail)


def test_a_schema_with_metadata_and_nullable_bodies_is_the_same_schema() -> None:
    fields = [pa.field(f.name, f.type) for f in MESSAGE_SCHEMA]
    schema = pa.schema(fields, metadata={"pandas": "{}"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(some(3).columns, schema=schema))
    [message] = read_stream(sink.getvalue())
    assert message.batch.schema == MESSAGE_SCHEMA
    assert message.batch.columns == some(3).columns


def stream_of(schema: pa.Schema, *batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for each in batch:
            writer.write_batch(each)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (pa.schema([]), "'body' is missing"),
        (pa.schema(list(MESSAGE_SCHEMA)[:-1]), f"{MESSAGE_SCHEMA.names[-1]!r} is missing (send nulls)"),
        (pa.schema([*MESSAGE_SCHEMA, pa.field("more", pa.int8())]), "'more' is no column of it"),
        (pa.schema(list(reversed(list(MESSAGE_SCHEMA)))), "its columns come as"),
        (MESSAGE_SCHEMA.set(0, pa.field("key", pa.string())), "'key' is string, not binary"),
        (
            MESSAGE_SCHEMA.set(1, pa.field("tag", pa.dictionary(pa.int32(), pa.string()))),
            "'tag' is dictionary",
        ),
        (MESSAGE_SCHEMA.set(2, pa.field("body", pa.large_binary())), "'body' is large_binary, not binary"),
        (MESSAGE_SCHEMA.set(2, pa.field("body", pa.binary_view())), "'body' is binary_view, not binary"),
        (
            MESSAGE_SCHEMA.set(3, pa.field("properties", pa.map_(pa.string(), PROPERTIES_TYPE))),
            "'properties' is",
        ),
        (
            MESSAGE_SCHEMA.set(4, pa.field("born_at", pa.timestamp("ns", tz="UTC"))),
            "'born_at' is timestamp[ns",
        ),
    ],
)
def test_another_schema_is_refused_and_the_error_says_what_differs(schema: pa.Schema, told: str) -> None:
    with pytest.raises(InvalidBatch, match="the schema is not message/1") as raised:
        read_stream(stream_of(schema))
    assert told in str(raised.value)
    assert "body: binary" in raised.value.hint


def test_a_batch_with_a_dictionary_is_refused() -> None:
    schema = MESSAGE_SCHEMA.set(1, pa.field("tag", pa.dictionary(pa.int32(), pa.string())))
    columns = some(2).columns
    columns[1] = columns[1].dictionary_encode()
    sent = stream_of(schema, pa.RecordBatch.from_arrays(columns, schema=schema))
    foreign = schema.serialize().size
    with pytest.raises(InvalidBatch, match="dictionary"):
        read_stream(MESSAGE_SCHEMA.serialize().to_pybytes() + sent[foreign:])


def test_a_null_body_is_refused() -> None:
    columns = some(2).columns
    columns[2] = pa.array([b"x", None], pa.binary())
    schema = pa.schema([pa.field(f.name, f.type) for f in MESSAGE_SCHEMA])
    with pytest.raises(InvalidBatch, match="'body' has nulls"):
        read_stream(stream_of(schema, pa.RecordBatch.from_arrays(columns, schema=schema)))


@pytest.mark.parametrize("count", [0, BATCH_MESSAGES_MAX + 1])
def test_a_batch_of_no_messages_or_too_many_is_refused(count: int) -> None:
    columns = [pa.nulls(count, f.type) for f in MESSAGE_SCHEMA]
    columns[2] = pa.array([b""] * count, pa.binary())
    batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
    with pytest.raises(InvalidBatch, match=f"a batch has {count} messages"):
        read_stream(write_stream([batch]))


def test_text_that_is_not_utf8_is_refused() -> None:
    columns = some(1).columns
    columns[1] = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xc3\x28")]
    )
    batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
    with pytest.raises(InvalidBatch, match="UTF"):
        read_stream(write_stream([batch]))


@pytest.mark.parametrize("data", [b"", b"\0", b"ARROW1\0\0", END_MARK, b"\xff" * 64, b"{}", b"x" * 100_000])
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidBatch):
        read_stream(data)


def test_an_arrow_file_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, MESSAGE_SCHEMA) as writer:
        writer.write_batch(some(1))
    with pytest.raises(InvalidBatch):
        read_stream(sink.getvalue())


def test_the_limit_on_inflated_bytes_is_for_the_whole_stream() -> None:
    one = some(1000, body=b"0" * 1000)
    stream = write_stream([one, one], "zstd")
    [first, _] = read_stream(stream, inflated_bytes_max=2_200_000)
    with pytest.raises(TooLarge) as raised:
        read_stream(stream, inflated_bytes_max=2_000_000)
    assert raised.value.facts["limit"] == 2_000_000
    assert raised.value.facts["size"] > 2_000_000
    assert read_batch(first.encapsulated, inflated_bytes_max=1_100_000).num_rows == 1000
    with pytest.raises(TooLarge):
        read_batch(first.encapsulated, inflated_bytes_max=1_000_000)


def test_metadata_past_its_limit_is_refused() -> None:
    schema = MESSAGE_SCHEMA.with_metadata({"k": "v" * METADATA_BYTES_MAX})
    with pytest.raises(InvalidBatch, match="bytes of metadata"):
        read_stream(stream_of(schema))


@given(batches(max_size=5))
def test_two_messages_are_not_one_batch(batch: pa.RecordBatch) -> None:
    message = encapsulate(batch).to_pybytes()
    for wrong in (message + message, message + END_MARK, message + b"\0", message[:-8]):
        with pytest.raises(InvalidBatch):
            read_batch(pa.py_buffer(wrong))
