"""Hypothesis strategies for what crosses the wire: messages, batches, frames, documents."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from rocketq.model import Message
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.frame import DURABLE_LAG_MAX, FrameKind, encode
from rocketq.protocol.message_schema import from_messages

INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**62)
CODECS = st.sampled_from([None, "lz4", "zstd"])
#: UTF-8 cannot hold a lone surrogate, and Arrow says so.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAMES = st.from_regex(r"[A-Za-z0-9_%|-]{1,127}", fullmatch=True)

MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=60),
    key=st.none() | st.binary(max_size=40),
    tag=st.none() | TEXT,
    properties=st.none() | st.dictionaries(TEXT, TEXT, max_size=4),
    born_at_us=st.none() | INT64,
)


@st.composite
def batches(draw: st.DrawFn, max_size: int = 20) -> pa.RecordBatch:
    """A batch of message/1, or a slice of one: its columns then start anywhere in their buffers."""
    batch = from_messages(draw(st.lists(MESSAGES, min_size=1, max_size=max_size)))
    if draw(st.booleans()):
        first = draw(st.integers(0, batch.num_rows - 1))
        batch = batch.slice(first, draw(st.integers(1, batch.num_rows - first)))
    return batch


@st.composite
def frame_bytes(draw: st.DrawFn) -> tuple[dict[str, object], bytes]:
    """The arguments of a frame, and the frame."""
    log_offset = 8 * draw(st.integers(0, 2**59))
    # A lag that does not fit its field is capped, which is not what a round trip is about.
    lag = 8 * draw(st.integers(0, min(log_offset // 8, DURABLE_LAG_MAX - 1)))
    arguments: dict[str, object] = {
        "kind": draw(st.sampled_from(list(FrameKind))),
        "topic": draw(st.just("") | NAMES).encode(),
        "body": draw(st.binary(max_size=300)),
        "queue": draw(st.integers(0, 2**32 - 1)),
        "queue_offset": draw(OFFSETS),
        "count": draw(st.integers(0, 2**32 - 1)),
        "log_offset": log_offset,
        "stored_at_us": draw(INT64),
        "durable_end": log_offset - lag,
        "epoch": draw(st.integers(0, 2**32 - 1)),
        "schema_id": draw(st.integers(0, 2**16 - 1)),
        "has_keys": draw(st.booleans()),
        "published": draw(st.booleans()),
        "unfinished": draw(st.booleans()),
    }
    return arguments, b"".join(bytes(part) for part in encode(**arguments))  # type: ignore[arg-type]


def messages_frame(
    batch: pa.RecordBatch,
    queue_offset: int,
    *,
    queue: int = 0,
    topic: str = "orders",
    codec: str | None = None,
    count: int | None = None,
    stored_at_us: int = 1_700_000_000_000_000,
) -> bytes:
    """One messages frame that holds `batch`."""
    parts = encode(
        kind=FrameKind.MESSAGES,
        topic=topic.encode(),
        body=encapsulate(batch, codec),
        queue=queue,
        queue_offset=queue_offset,
        count=batch.num_rows if count is None else count,
        log_offset=0,
        stored_at_us=stored_at_us,
        durable_end=0,
    )
    return b"".join(bytes(part) for part in parts)
