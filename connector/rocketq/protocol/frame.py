"""The log frame: the one form in which messages lie on disk and cross the wire.

All integers are little-endian, as in Arrow's own format.

     0  u32  size            whole frame, a multiple of 8, this header included
     4  u32  magic           "RQF" and the version, 1
     8  u32  crc             CRC-32C of bytes [12, size)
    12  u32  epoch           of the master that wrote it
    16  u8   kind            see FrameKind
    17  u8   flags           bit 0: some message has a key, for the index; bit 1: published,
                             these messages were staged before; bit 2: unfinished, the
                             append goes on in the next frame; the rest 0
    18  u16  schema id       0: message/1
    20  u32  queue id
    24  u64  queue offset    of the first message
    32  u64  log offset      of this frame, so that bytes in the wrong place are seen
    40  i64  store time      microseconds since 1970, UTC
    48  u32  count           messages in the frame
    52  u32  body length     the IPC message, without padding
    56  u16  topic length
    58  u16  0
    60  u32  durable lag     (log offset - durable end when written) / 8, capped
    64  topic, padded to 8; body, padded to 8

The durable lag is evidence for recovery: a later frame that says "everything
below D was on disk when I was written" turns a damaged frame below D from a
torn tail into rot (`docs/storage-format.md`).

`scan` is for hostile bytes: it checks every length before it uses it, and it
neither allocates nor copies more than the frames themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import google_crc32c
import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.sizes import FRAME_BYTES_MAX

MAGIC: Final = int.from_bytes(b"RQF\x01", "little")
HEADER_BYTES: Final = 64
HAS_KEYS: Final = 1
PUBLISHED: Final = 2
UNFINISHED: Final = 4
DURABLE_LAG_MAX: Final = 0xFFFF_FFFF

_HEADER: Final = struct.Struct("<IIIIBBHIQQqIIHHI")
_CRC_START: Final = 12
#: Where a header has the frame's own log offset.
_LOG_OFFSET_AT: Final = 32
#: Offsets are 63 bits everywhere else: in Arrow, in Spark and in JSON documents.
_OFFSET_MAX: Final = 2**63 - 1
_PADDING: Final = tuple(bytes(n) for n in range(8))


class FrameKind(IntEnum):
    """What the body of a frame is."""

    MESSAGES = 1
    STATE = 2
    CHANGE = 3
    LOST = 4
    STAGED = 5
    DELAYED = 6
    HALF = 7
    FILTERED = 16


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The decoded header of one frame."""

    size: int
    epoch: int
    kind: int
    schema_id: int
    queue: int
    queue_offset: int
    log_offset: int
    stored_at_us: int
    count: int
    body_bytes: int
    topic_bytes: int
    durable_lag: int
    has_keys: bool = False
    published: bool = False
    unfinished: bool = False

    @property
    def next_queue_offset(self) -> int:
        return self.queue_offset + self.count

    @property
    def body_start(self) -> int:
        return HEADER_BYTES + padded(self.topic_bytes)

    @property
    def durable_end(self) -> int:
        """The log offset below which all was on disk when this was written; 0 where that is not known."""
        if self.durable_lag == DURABLE_LAG_MAX:
            return 0  # capped: the true end is lower, and to claim more would turn a torn tail into rot
        return max(0, self.log_offset - 8 * self.durable_lag)


@dataclass(frozen=True, slots=True)
class Frame:
    """A verified frame: its header, its topic and, without a copy, its body."""

    header: FrameHeader
    topic: str
    body: pa.Buffer


def padded(size: int) -> int:
    """Round up to the frame's alignment of 8 bytes."""
    return (size + 7) & ~7


def frame_size(topic: bytes, body_bytes: int) -> int:
    """Return the size of the frame that holds this topic and body."""
    return HEADER_BYTES + padded(len(topic)) + padded(body_bytes)


def encode(
    *,
    kind: FrameKind,
    topic: bytes,
    body: bytes | pa.Buffer,
    queue: int = 0,
    queue_offset: int = 0,
    count: int = 0,
    log_offset: int,
    stored_at_us: int,
    durable_end: int,
    epoch: int = 0,
    schema_id: int = 0,
    has_keys: bool = False,
    published: bool = False,
    unfinished: bool = False,
) -> list[bytes | pa.Buffer]:
    """Return the parts of one frame, in order, for a gathering write; the body is not copied."""
    body_bytes = len(body)
    tail = _PADDING[padded(body_bytes) - body_bytes]
    head = bytearray(HEADER_BYTES + padded(len(topic)))
    lag = min((log_offset - durable_end) // 8, DURABLE_LAG_MAX)
    _HEADER.pack_into(
        head, 0, len(head) + body_bytes + len(tail), MAGIC, 0, epoch, kind,
        HAS_KEYS * has_keys | PUBLISHED * published | UNFINISHED * unfinished, schema_id, queue,
        queue_offset, log_offset, stored_at_us, count, body_bytes, len(topic), 0, lag,
    )  # fmt: skip
    head[HEADER_BYTES : HEADER_BYTES + len(topic)] = topic
    crc = google_crc32c.value(bytes(head[_CRC_START:]))
    crc = google_crc32c.extend(crc, body)
    if tail:
        crc = google_crc32c.extend(crc, tail)
    head[8:12] = crc.to_bytes(4, "little")
    parts: list[bytes | pa.Buffer] = [bytes(head), body]
    if tail:
        parts.append(tail)
    return parts


def peek(data: bytes | memoryview | pa.Buffer, at: int = 0) -> FrameHeader:
    """Decode and sanity-check the header at byte `at`, without looking at the rest of the frame."""
    return _header(data, at)[0]


def _header(data: bytes | memoryview | pa.Buffer, at: int) -> tuple[FrameHeader, int]:
    """Return the checked header at byte `at` and the checksum it claims."""
    if len(data) - at < HEADER_BYTES:
        raise CorruptFrame(at, f"a header needs {HEADER_BYTES} bytes, {len(data) - at} are left")
    (
        size, magic, crc, epoch, kind, flags, schema_id, queue, queue_offset, log_offset,
        stored_at_us, count, body_bytes, topic_bytes, reserved, durable_lag,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    if magic != MAGIC:
        raise CorruptFrame(at, f"the magic number is {magic:#010x}, not {MAGIC:#010x}")
    if size != HEADER_BYTES + padded(topic_bytes) + padded(body_bytes) or size > FRAME_BYTES_MAX:
        raise CorruptFrame(at, f"size {size} does not fit topic {topic_bytes} and body {body_bytes}")
    if flags & ~(HAS_KEYS | PUBLISHED | UNFINISHED) or reserved:
        raise CorruptFrame(at, "reserved bits are set: written by a newer version, or damaged")
    if queue_offset + count > _OFFSET_MAX or log_offset > _OFFSET_MAX:
        raise CorruptFrame(at, f"offset {queue_offset} or log offset {log_offset} is out of range")
    header = FrameHeader(
        size, epoch, kind, schema_id, queue, queue_offset, log_offset,
        stored_at_us, count, body_bytes, topic_bytes, durable_lag,
        bool(flags & HAS_KEYS), bool(flags & PUBLISHED), bool(flags & UNFINISHED),
    )  # fmt: skip
    return header, crc


def claimed_log_offset(data: bytes | pa.Buffer) -> int:
    """Return the log offset that the header at the begin of `data` claims, whatever else of it holds."""
    return int.from_bytes(bytes(memoryview(data)[_LOG_OFFSET_AT : _LOG_OFFSET_AT + 8]), "little")


def verify(data: pa.Buffer, at: int = 0) -> Frame:
    """Decode the frame at byte `at` and check all of it; raise CorruptFrame."""
    header, claimed = _header(data, at)
    if data.size - at < header.size:
        raise CorruptFrame(at, f"the frame has {header.size} bytes, {data.size - at} are left")
    actual = google_crc32c.value(data.slice(at + _CRC_START, header.size - _CRC_START))
    if claimed != actual:
        raise CorruptFrame(at, f"the checksum is {actual:#010x}, the header says {claimed:#010x}")
    raw_topic = data.slice(at + HEADER_BYTES, header.topic_bytes).to_pybytes()
    try:
        topic = raw_topic.decode("ascii")
    except UnicodeDecodeError:
        raise CorruptFrame(at, "the topic is not ASCII") from None
    return Frame(header, topic, data.slice(at + header.body_start, header.body_bytes))


def scan(data: bytes | memoryview | pa.Buffer) -> Iterator[Frame]:
    """Yield every frame of `data`, verified; raise CorruptFrame where the bytes break the format."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    at = 0
    while at < buffer.size:
        frame = verify(buffer, at)
        yield frame
        at += frame.header.size
