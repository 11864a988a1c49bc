"""Frames as they lie on disk, by log offset: what a master ships and a follower appends.

A shipment begins and ends where appends do, so a follower never holds a part of an append. It also says
where segments begin in it: then the files of two members are equal, not only their logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import HEADER_BYTES, Frame, peek, verify
from rocketq_broker.store.disk.files import Data
from rocketq_broker.store.errors import ShipmentMisplaced
from rocketq_broker.store.log.commit_log import CommitLog, Extent


@dataclass(frozen=True, slots=True)
class RawFrames:
    """The bytes of the log from `at` on; no frame lies in two parts."""

    at: int
    parts: Sequence[Data]
    #: The first log offsets of the segments that begin within.
    segments: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def end(self) -> int:
        return self.at + self.size


def read_frames(log: CommitLog, at: int, bytes_max: int, end: int) -> RawFrames:
    """Read whole appends from `at` on, which is where one begins, up to `end`, where one ends.

    At least one append, if there is any; more only while they fit `bytes_max`. Raises SegmentGone, and
    CorruptFrame at damage before the first append's end.
    """
    parts: list[memoryview] = []
    segments: list[int] = []
    position = whole = at
    while position < end and (whole == at or position - at < bytes_max):
        start = log.segment_of(position)
        stop = min(end, start + log.size_of(start))
        if position == start:
            segments.append(start)
        room = max(bytes_max - (position - at), HEADER_BYTES)
        data = memoryview(log.read(position, min(room, stop - position)))
        size, finished = _whole_frames(data, position)
        if size == 0:
            # The first frame is larger than the room for it.
            data = memoryview(log.read(position, _checked_size(data, position)))
            size, finished = _whole_frames(data, position)
        if size == 0:
            raise CorruptFrame(position, "the log ends within it")
        parts.append(data[:size])
        whole = finished if finished > 0 else whole
        position += size
    return RawFrames(at, _cut(parts, whole - at), tuple(each for each in segments if each < whole))


def _whole_frames(data: memoryview, at: int) -> tuple[int, int]:
    """Return the size of the whole frames in `data`, and the log offset where the last append ends, or 0."""
    within = finished = 0
    while within + HEADER_BYTES <= len(data):
        header = peek(data, within)
        if header.log_offset != at + within:
            raise CorruptFrame(at + within, f"it belongs to log offset {header.log_offset}")
        if within + header.size > len(data):
            break
        within += header.size
        if not header.unfinished:
            finished = at + within
    return within, finished


def _checked_size(data: memoryview, at: int) -> int:
    try:
        return peek(data).size
    except CorruptFrame as error:
        raise CorruptFrame(at, str(error.facts["why"])) from None


def _cut(parts: list[memoryview], size: int) -> list[memoryview]:
    """Return the first `size` bytes of parts."""
    kept = []
    for part in parts:
        if size <= 0:
            break
        kept.append(part[:size])
        size -= len(part)
    return kept


def verified(raw: RawFrames) -> list[Frame]:
    """Return the frames of a shipment; raise CorruptFrame, or ShipmentMisplaced where no append ends."""
    frames: list[Frame] = []
    at = raw.at
    for part in raw.parts:
        buffer = pa.py_buffer(part)
        within = 0
        while within < buffer.size:
            try:
                frame = verify(buffer, within)
            except CorruptFrame as error:
                raise CorruptFrame(at, str(error.facts["why"])) from None
            if frame.header.log_offset != at:
                raise CorruptFrame(at, f"it belongs to log offset {frame.header.log_offset}")
            frames.append(frame)
            within += frame.header.size
            at += frame.header.size
    begins = {frame.header.log_offset for frame in frames}
    if not begins.issuperset(raw.segments):
        raise ShipmentMisplaced(raw.at, raw.at, "a segment is said to begin within a frame")
    if frames and frames[-1].header.unfinished:
        raise ShipmentMisplaced(raw.at, raw.at, "it ends within an append")
    return frames


def extents_of(raw: RawFrames, segment: int | None) -> list[Extent]:
    """Return what to append to which segment; `segment` is the one that the log ends in, if it has any.

    Raises ShipmentMisplaced for frames that begin in the midst of a segment which is not there.
    """
    extents: list[Extent] = []
    if raw.at not in raw.segments:
        if segment is None:
            raise ShipmentMisplaced(
                raw.at, raw.at, "an empty log takes frames from the begin of a segment only"
            )
        extents.append(Extent(segment, raw.at))
    at, borders = raw.at, list(raw.segments)
    for part in raw.parts:
        buffer = pa.py_buffer(part)
        within = 0
        while within < buffer.size:
            if borders and borders[0] == at + within:
                extents.append(Extent(borders[0], borders.pop(0)))
            stop = min(buffer.size, borders[0] - at) if borders else buffer.size
            extents[-1].add(stop - within, [buffer.slice(within, stop - within)])
            within = stop
        at += buffer.size
    return extents
