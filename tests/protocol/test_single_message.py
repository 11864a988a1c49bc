"""The quick way to read one message takes nothing that the thorough way would refuse or read otherwise."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.protocol.arrow.message_run import encapsulate_run
from rocketq.protocol.arrow.single_message import Single, encapsulated, read_single, to_batch
from rocketq.protocol.arrow.stream_reader import (
    CANONICAL_SCHEMA,
    END_OF_STREAM,
    read_batch,
    read_stream,
    write_stream,
)
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages
from tests.protocol.hostile import damaged
from tests.protocol.strategies import CODECS, MESSAGES, batches

SPECIMENS = (
    Message(b"plain"),
    Message(b"", key=b"", tag="", properties={}),
    Message(b"b" * 100, key=b"order-17", tag="größer", properties={"region": "eu", "ü": ""}, born_at_us=1),
    Message(b"\xff", born_at_us=-1),
)


def stream_of(message: Message) -> bytes:
    stream: bytes = write_stream([from_messages([message])]).to_pybytes()
    return stream


def check_agreement(data: bytes, single: Single) -> None:
    """What was taken must be exactly what the thorough reader takes."""
    [read] = read_stream(data)
    assert to_batch([single]) == read.batch
    assert encapsulated(data).equals(read.encapsulated)


@given(MESSAGES)
def test_a_message_that_pyarrow_wrote_is_read_as_it_was_sent(message: Message) -> None:
    data = stream_of(message)
    single = read_single(data)
    assert single is not None
    properties = None if message.properties is None else list(message.properties.items())
    assert single[:5] == (message.key, message.tag, message.body, properties, message.born_at_us)
    assert single.properties_bytes == sum(len((n + v).encode()) for n, v in properties or ())
    check_agreement(data, single)


@given(st.lists(batches(max_size=2), max_size=1), CODECS)
def test_whatever_is_taken_is_what_the_thorough_reader_takes(
    made: list[pa.RecordBatch], codec: str | None
) -> None:
    data = write_stream(made, codec).to_pybytes()
    single = read_single(data)
    if single is not None:
        check_agreement(data, single)


@pytest.mark.parametrize("message", SPECIMENS, ids=["plain", "empty", "full", "born"])
def test_no_flipped_bit_is_taken_unless_it_is_one_of_a_value(message: Message) -> None:
    data = bytearray(stream_of(message))
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            single = read_single(bytes(data))
            if single is not None:
                check_agreement(bytes(data), single)
            data[at] ^= 1 << bit


def test_the_fast_reader_accepts_no_damage_that_the_full_reader_refuses() -> None:
    rng = random.Random(7)
    streams = [stream_of(message) for message in SPECIMENS]
    taken = 0
    for _ in range(20_000):
        data = damaged(rng, rng.choice(streams), streams)
        single = read_single(data)
        if single is not None:
            check_agreement(data, single)
            taken += 1
    assert taken


def test_single_messages_make_the_same_batch_as_together() -> None:
    singles = [read_single(stream_of(message)) for message in SPECIMENS]
    batch = to_batch([single for single in singles if single is not None])
    batch.validate(full=True)
    assert batch == from_messages(SPECIMENS)
    assert batch.schema == MESSAGE_SCHEMA


@given(st.lists(MESSAGES, min_size=1, max_size=20))
def test_a_run_of_messages_is_the_batch_that_arrow_makes_of_them(messages: list[Message]) -> None:
    singles = [read_single(stream_of(message)) for message in messages]
    taken = [single for single in singles if single is not None]
    made = encapsulate_run(taken)
    batch = read_batch(pa.py_buffer(made))
    assert batch == to_batch(taken) == from_messages(messages)
    stream = pa.ipc.open_stream(b"".join((CANONICAL_SCHEMA, made, END_OF_STREAM)))
    assert stream.read_all().to_batches() == [batch]
