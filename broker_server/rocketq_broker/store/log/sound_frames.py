"""Finds sound frames behind damage, and what they say about the part of the log before them.

A frame is sound only if its header, its checksum and its own log offset are right, so message bytes that look
like a frame never pass for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.damage import MessageRange, damaged_in_log
from rocketq.protocol.frame import HEADER_BYTES, MAGIC, FrameHeader, verify
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queue import ConsumeQueue

_WINDOW_BYTES: Final = 8 << 20
_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")
#: Where the magic number stands in a header.
_MAGIC_AT: Final = 4
#: And where its own log offset does.
_LOG_OFFSET_AT: Final = 32


def located(
    log: CommitLog, broker: str, topic: str, queues: Sequence[ConsumeQueue], damage: CorruptFrame
) -> CorruptFrame:
    """Return the error of the frame at log offset `damage.offset`, which a reader of `topic` met.

    It names the frame's place, and the messages of the topic's `queues` that it has. The frame is not
    read: its own header may be what is damaged. Raises CorruptQueue.
    """
    at = damage.offset
    ranges = [MessageRange(queue.id, queue.first_at(at), queue.first_at(at + 1)) for queue in queues]
    held = next((each for each in ranges if each.first < each.end), None)
    segment = log.path(log.segment_of(at))
    return damaged_in_log(damage, broker=broker, topic=topic, segment=segment, log_offset=at, held=held)


def sound_frames_behind(log: CommitLog, at: int) -> Iterator[FrameHeader]:
    """Yield the headers of sound frames behind log offset `at`, wherever they begin, in order."""
    first = log.segment_of(at)
    for start in [each for each in log.starts if each >= first]:
        place, stop = max(start, at + 8), start + log.size_of(start)
        for candidate in _candidates(log, place, stop):
            if candidate < place:
                # It lies within a sound frame: bytes of a message.
                continue
            header = sound_header(log, candidate)
            if header is not None:
                yield header
                place = candidate + header.size


def evidence_against_tear(log: CommitLog, at: int) -> FrameHeader | None:
    """Return a sound frame behind `at` that says all up to beyond `at` was on disk, if there is one."""
    return next((header for header in sound_frames_behind(log, at) if header.durable_end > at), None)


def next_sound_frame(log: CommitLog, at: int, end: int) -> FrameHeader | None:
    """Return the first sound frame behind `at` that ends by log offset `end`, if there is one."""
    header = next(sound_frames_behind(log, at), None)
    return header if header is not None and header.log_offset + header.size <= end else None


def sound_header(log: CommitLog, at: int) -> FrameHeader | None:
    """Return the header of the frame at `at` if all of the frame is sound."""
    try:
        header = log.header(at)
        if header.log_offset != at:
            return None
        return verify(pa.py_buffer(log.read(at, header.size))).header
    except CorruptFrame:
        return None


def _candidates(log: CommitLog, place: int, stop: int) -> Iterator[int]:
    """Yield the offsets from `place` on, aligned to 8, where a header says that it begins.

    Each window is read once, however many places in it look like a header: a message may
    consist of nothing else.
    """
    while place + HEADER_BYTES <= stop:
        data = bytes(log.read(place, min(_WINDOW_BYTES, stop - place)))
        at = data.find(_MAGIC_BYTES, _MAGIC_AT) - _MAGIC_AT
        while 0 <= at <= len(data) - HEADER_BYTES:
            if int.from_bytes(data[at + _LOG_OFFSET_AT : at + _LOG_OFFSET_AT + 8], "little") == place + at:
                yield place + at
            at = data.find(_MAGIC_BYTES, at + _MAGIC_AT + 1) - _MAGIC_AT
        # Let the windows overlap by less than a header, and end.
        place += max(8, (len(data) - HEADER_BYTES + 8) & ~7)
