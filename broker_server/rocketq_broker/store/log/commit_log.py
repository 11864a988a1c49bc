"""The commit log: all frames of the broker, one after the other, in segments.

A segment is a file named by the 20-digit log offset of its first byte. The next
one begins where it ends, so log offsets have no gaps and a position is found by
bisection over the names. Every segment opens with a state frame
(`state.Picture`), which makes the log, whatever retention took from its front,
enough to rebuild the broker from.

`LogCursor` is the arithmetic of appending, without a file: where the next frame
goes and when a segment is full. `CommitLog` holds the files. A segment is synced
before the next one is begun, so only the last one can have a torn tail.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.protocol.frame import HEADER_BYTES, Frame, FrameHeader, FrameKind, peek, verify
from rocketq_broker.store.disk.files import Data, File, Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.errors import LogFailed, MissingSegment, SegmentGone

DIRECTORY: Final = "commitlog"
NAME_DIGITS: Final = 20
#: Frames are read in windows of this size when they are followed one by one.
_WINDOW_BYTES: Final = 8 << 20


def segment_name(start: int) -> str:
    """Return the name of the segment whose first byte has log offset `start`."""
    return f"{start:0{NAME_DIGITS}d}"


@dataclass(slots=True)
class LogCursor:
    """Where the next frame goes; `start` is the segment's first offset."""

    start: int
    position: int
    segment_bytes: int

    @property
    def is_at_head(self) -> bool:
        """Whether the next frame is the first of its segment."""
        return self.position == self.start

    def is_full_for(self, size: int) -> bool:
        """Whether a frame of `size` opens a new segment instead; an empty segment takes any frame."""
        return not self.is_at_head and self.position + size > self.start + self.segment_bytes

    def roll(self) -> None:
        self.start = self.position

    def place(self, size: int) -> int:
        """Return the frame's log offset and move past it."""
        at = self.position
        self.position += size
        return at


@dataclass(slots=True)
class Extent:
    """Bytes to append to one segment: `parts` go to log offset `at`."""

    segment: int
    at: int
    size: int = 0
    parts: list[bytes | pa.Buffer] = field(default_factory=list)

    def add(self, size: int, parts: Sequence[bytes | pa.Buffer]) -> None:
        self.size += size
        self.parts.extend(parts)


class CommitLog:
    """The segments on disk. One thread writes and syncs; any thread reads."""

    def __init__(self, files: Files, handles: Handles) -> None:
        self._files = files
        self._handles = handles
        files.make_directory(DIRECTORY)
        self._starts: list[int] = [
            int(name) for name in files.list(DIRECTORY) if len(name) == NAME_DIGITS and name.isdigit()
        ]
        # The last segment stays open, whatever else the handle cache gives up.
        self._last: File | None = None
        self._sync_lock = threading.Lock()
        self._sync_failed = ""
        self.end = self._starts[-1] + self.size_of(self._starts[-1]) if self._starts else 0

    # --- where things are ---------------------------------------------------------

    @property
    def starts(self) -> tuple[int, ...]:
        """The first log offset of every segment, ascending."""
        return tuple(self._starts)

    @property
    def begin(self) -> int:
        return self._starts[0] if self._starts else 0

    @staticmethod
    def path(start: int) -> str:
        return f"{DIRECTORY}/{segment_name(start)}"

    def size_of(self, start: int) -> int:
        """Return the size of a segment in bytes; raise SegmentGone if retention has just removed it."""
        try:
            return self._handles.get(self.path(start)).size()
        except FileNotFoundError:
            raise SegmentGone(start, self.begin) from None

    def segment_of(self, at: int) -> int:
        """Return the first offset of the segment that holds log offset `at`."""
        return self._starts[max(0, bisect.bisect_right(self._starts, at) - 1)]

    def check_no_hole(self) -> None:
        """Raise MissingSegment unless each segment begins where the one before it ends."""
        for start, following in pairwise(self._starts):
            expected = start + self.size_of(start)
            if following != expected:
                raise MissingSegment(expected, self.path(following))

    # --- reading ------------------------------------------------------------------

    def read(self, at: int, size: int) -> Data:
        """Read `size` bytes of one segment; fewer if it ends before. Raise SegmentGone below `begin`."""
        start = self.segment_of(at)
        try:
            if at < start:
                raise FileNotFoundError
            return self._handles.read(self.path(start), size, at - start)
        except FileNotFoundError:
            raise SegmentGone(at, self.begin) from None

    def header(self, at: int) -> FrameHeader:
        """Decode the frame header at `at`; raise CorruptFrame with that log offset."""
        try:
            return peek(self.read(at, HEADER_BYTES))
        except CorruptFrame as error:
            raise CorruptFrame(at, error.facts["why"]) from None

    def frame(self, at: int, size: int) -> Frame:
        """Read and check the frame of `size` bytes at `at`; raise CorruptFrame with that log offset."""
        try:
            return verify(pa.py_buffer(self.read(at, size)))
        except CorruptFrame as error:
            raise CorruptFrame(at, error.facts["why"]) from None

    def is_lost(self, log_offset: int) -> bool:
        """Whether a lost frame covers this place: one may stand for several frames in a row."""
        at = self.segment_of(log_offset)
        while True:
            header = self.header(at)
            if at + header.size > log_offset:
                return header.kind == FrameKind.LOST
            at += header.size

    def frames(self, begin: int, end: int | None = None) -> Iterator[Frame]:
        """Yield the verified frames in [begin, end); raise CorruptFrame, with its log offset, at damage."""
        for start in self.starts:
            stop = start + self.size_of(start)
            stop = stop if end is None else min(stop, end)
            at = max(begin, start)
            while at < stop:
                data = pa.py_buffer(self.read(at, min(_WINDOW_BYTES, stop - at)))
                try:
                    if (size := peek(data).size) > data.size:
                        data = pa.py_buffer(self.read(at, size))
                    within = 0
                    while within < data.size:
                        cut_off = at + data.size < stop
                        if cut_off and data.size - within < HEADER_BYTES:
                            break
                        header = peek(data, within)
                        if cut_off and header.size > data.size - within:
                            break
                        frame = verify(data, within)
                        if header.log_offset != at + within:
                            raise CorruptFrame(within, f"it belongs to log offset {header.log_offset}")
                        yield frame
                        within += header.size
                except CorruptFrame as error:
                    raise CorruptFrame(at + error.offset, error.facts["why"]) from None
                at += within

    def keyed_frames(self, begin: int, end: int) -> Iterator[tuple[FrameHeader, Frame | None]]:
        """Yield every header in [begin, end), and the verified frame where a message has a key or it is lost.

        Of all other frames only the header is read, so that following a log without keys
        costs next to nothing. Raises CorruptFrame at the first frame that cannot be read.
        """
        at = begin
        while at < end:
            header = self.header(at)
            if header.log_offset != at:
                raise CorruptFrame(at, f"it belongs to log offset {header.log_offset}")
            is_read = header.has_keys or header.kind == FrameKind.LOST
            frame = self.frame(at, header.size) if is_read else None
            yield header, frame
            at += header.size

    # --- writing ------------------------------------------------------------------

    def cursor(self, segment_bytes: int) -> LogCursor:
        start = self._starts[-1] if self._starts else self.end
        return LogCursor(start, self.end, segment_bytes)

    def append(self, extents: Sequence[Extent]) -> None:
        """Write extents in order; on an OSError nothing of them counts as written. Raise LogFailed."""
        for extent in extents:
            if not self._starts or extent.segment != self._starts[-1]:
                self._open_segment(extent.segment)
            self._current().write(extent.parts, extent.at - extent.segment)
            self.end = extent.at + extent.size

    def _open_segment(self, start: int) -> None:
        if self._starts:
            self.sync()
        self._last = self._handles.get(self.path(start), create=True)
        # It counts from here on, so that `truncate` takes it back if its name cannot be made durable.
        self._starts.append(start)
        self._files.sync_directory(DIRECTORY)

    def _current(self) -> File:
        if self._last is None:
            self._last = self._handles.get(self.path(self._starts[-1]))
        return self._last

    def sync(self) -> None:
        """Put everything written on disk; raise LogFailed, then and ever after, if that fails.

        The kernel tells of a failed write-back once, to whichever thread asks first, and
        then calls the pages clean. So no later success may count: syncs take turns, and
        one that failed is the last.
        """
        with self._sync_lock:
            if self._sync_failed:
                raise LogFailed("be synced", f"an earlier sync failed: {self._sync_failed}")
            try:
                if self._starts:
                    self._current().sync()
            except OSError as error:
                self._sync_failed = str(error)
                raise LogFailed("be synced", str(error)) from error

    def write_again(self, begin: int) -> None:
        """Write what the last segment holds from `begin` on once more, byte for byte.

        If the process before this one died of a failed sync, the page cache still shows
        what never reached the disk, and calls it clean: a sync would pass it over.
        """
        start = self._starts[-1] if self._starts else self.end
        at = max(begin, start)
        while at < self.end:
            data = self.read(at, min(_WINDOW_BYTES, self.end - at))
            self._current().write([data], at - start)
            at += len(data)

    def truncate(self, end: int) -> None:
        """Cut everything from log offset `end` on, and make the cut durable."""
        self._last = None
        while self._starts and self._starts[-1] >= end:
            self._remove(self._starts.pop())
            # Were its name to come back after a power cut, there would be a hole before it.
            self._files.sync_directory(DIRECTORY)
        if self._starts:
            file = self._handles.get(self.path(self._starts[-1]))
            file.truncate(end - self._starts[-1])
            file.sync()
        self.end = end

    def begin_anew(self, begin: int) -> None:
        """Drop all segments, and begin an empty one at log offset `begin`; durable on return."""
        self.truncate(0)
        self.end = begin
        self._open_segment(begin)

    def remove_oldest(self, count: int) -> None:
        """Remove the first `count` segments; the last one always stays."""
        for _ in range(min(count, len(self._starts) - 1)):
            # Readers look positions up by this list, so a segment leaves it before its file goes.
            self._remove(self._starts.pop(0))
            # One by one: were an older name to come back after a power cut, there would be a hole behind it.
            self._files.sync_directory(DIRECTORY)

    def _remove(self, start: int) -> None:
        self._handles.forget(self.path(start))
        self._files.remove(self.path(start))
