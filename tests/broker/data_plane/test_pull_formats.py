"""Frames decoded for those who do not read frames."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from rocketq.model import Message, MessageQueue
from rocketq.protocol import frame
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.frame import FrameKind
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.data_plane.reads import pull_formats as forms

QUEUE = MessageQueue("orders", "broker-a", 3)


def stored(messages: list[Message], offset: int, codec: str | None = None) -> bytes:
    """One frame as it lies in the log."""
    parts = frame.encode(
        kind=FrameKind.MESSAGES,
        topic=b"orders",
        body=encapsulate(from_messages(messages), codec),
        queue=3,
        queue_offset=offset,
        count=len(messages),
        log_offset=0,
        stored_at_us=1_700_000_000_000_000 + offset,
        durable_end=0,
    )
    return b"".join(bytes(part) for part in parts)


def bodies(*numbers: int) -> list[Message]:
    return [Message(b"m%d" % number) for number in numbers]


def read_json(decoded: forms.Decoded) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        b"".join(forms.json_document(decoded, QUEUE, {"status": "FOUND"})[0])
    )
    return document


def test_both_forms_are_cut_to_the_asked_range() -> None:
    chunks = [stored(bodies(10, 11, 12), 10) + stored(bodies(13), 13), stored(bodies(14, 15), 14)]
    decoded = forms.open_chunks(chunks, 11, 15)
    assert decoded.next_offset == 15
    table = pa.ipc.open_stream(forms.arrow_stream(decoded)).read_all()
    assert table.schema == forms.PULLED_SCHEMA
    assert table["offset"].to_pylist() == [11, 12, 13, 14]
    assert table["body"].to_pylist() == [b"m11", b"m12", b"m13", b"m14"]
    assert table["queue"].to_pylist() == [3] * 4
    assert [each["offset"] for each in read_json(decoded)["messages"]] == [11, 12, 13, 14]


def test_no_messages_are_an_empty_stream_and_an_empty_list() -> None:
    decoded = forms.open_chunks([], 7, None)
    assert decoded.next_offset == 7
    assert pa.ipc.open_stream(forms.arrow_stream(decoded)).read_all().num_rows == 0
    assert read_json(decoded) == {"status": "FOUND", "next_offset": 7, "messages": []}


def test_json_has_every_field_and_base64_for_what_is_not_text() -> None:
    messages = [
        Message(b"text", b"k", "paid", {"a": "b"}, 1_600_000_000_000_001),
        Message(b"\xff\x00", b"\xfe"),
    ]
    decoded = forms.open_chunks([stored(messages, 0)], 0, None)
    assert read_json(decoded)["messages"] == [
        {
            "message_id": "broker-a:orders:3:0",
            "queue": 3,
            "offset": 0,
            "stored_at_us": 1_700_000_000_000_000,
            "born_at_us": 1_600_000_000_000_001,
            "key": "k",
            "tag": "paid",
            "properties": {"a": "b"},
            "body": "text",
        },
        {
            "message_id": "broker-a:orders:3:1",
            "queue": 3,
            "offset": 1,
            "stored_at_us": 1_700_000_000_000_000,
            "key_base64": "/g==",
            "body_base64": "/wA=",
        },
    ]


def test_decoding_stops_where_the_inflated_bytes_would_exceed_the_budget() -> None:
    big = [Message(bytes(1_000_000))]
    chunks = [stored(big, 0, "zstd") + stored(big, 1, "zstd"), stored(big, 2, "zstd")]
    decoded = forms.open_chunks(chunks, 0, None, inflated_bytes_max=2_100_000)
    assert [piece.offset for piece in decoded.slices] == [0, 1]
    assert decoded.next_offset == 2
    assert forms.open_chunks(chunks, 2, None, inflated_bytes_max=10).next_offset == 3
