"""Room for what the broker inflates: the decoded answers of pulls and finds, and compressed sends.

A stored frame or a sent body of a few kilobytes may inflate to 64 MiB, and its JSON is longer still. So who
inflates claims what that may take before, from one budget of the whole broker (`decoded_bytes_max`). Without
room a call waits, in the order of arrival and not for long (`decoded_wait_ms_max`), then it is refused with
SYSTEM_BUSY. What would take more than the whole budget takes all of it, and so runs alone.

An answer keeps its claim, cut to the answer's own size, until the client has taken it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from rocketq.errors import CorruptFrame
from rocketq.http_server.byte_budget import ByteBudget
from rocketq.protocol.arrow.stream_reader import stored_extent
from rocketq.protocol.frame import FrameKind, scan
from rocketq.protocol.sizes import INFLATED_BYTES_MAX
from rocketq_broker.store.disk.files import Data

#: Of one message as an object of Python and as JSON, besides its bytes.
MESSAGE_BYTES: Final = 512
#: Of one byte: in the inflated batch, as an object, as text, and as JSON, where a byte 0 is \\u0000.
JSON_FACTOR: Final = 9
#: Of one byte: in the inflated batch, in the stream, and in the stream as bytes.
ARROW_FACTOR: Final = 3
_RETRY_AFTER_MS: Final = 500


class DecodingRoom:
    """The budget and those who wait for it; everything here runs on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int, wait_ms_max: int) -> None:
        self.budget = ByteBudget("decoded messages", bytes_max, _RETRY_AFTER_MS)
        self._loop = loop
        self._wait_s = wait_ms_max / 1000
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def claim(self, size: int) -> DecodingClaim:
        """Return a claim of `size` bytes, or of the whole budget if that is less; raise SystemBusy."""
        size = min(size, self.budget.bytes_max)
        if self._waiting or not self.budget.has_room(size):
            await self._wait(size)
        else:
            self.budget.take(size)
        return DecodingClaim(self, size)

    async def _wait(self, size: int) -> None:
        granted: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((size, granted))
        timer = self._loop.call_later(self._wait_s, _refuse, granted, self.budget)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.release(size)
            raise
        finally:
            timer.cancel()
            self._let_in()

    def release(self, size: int) -> None:
        """Hold less, and let in who now has room."""
        self.budget.release(size)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            size, granted = self._waiting[0]
            if not granted.done():
                if not self.budget.has_room(size):
                    return
                self.budget.take(size)
                granted.set_result(None)
            self._waiting.popleft()


class DecodingClaim:
    """What one call holds of the room, until `release`."""

    __slots__ = ("_room", "size")

    def __init__(self, room: DecodingRoom, size: int) -> None:
        self._room = room
        self.size = size

    def shrink(self, size: int) -> None:
        """Keep at most `size` bytes."""
        if size < self.size:
            released, self.size = self.size - size, size
            self._room.release(released)

    def release(self) -> None:
        """Give everything back; once more does nothing."""
        self.shrink(0)


def found_bytes(bytes_max: int, messages_max: int, frames: int) -> int:
    """Return what a search may take: so many inflated frames, and its messages as JSON."""
    return frames * INFLATED_BYTES_MAX + JSON_FACTOR * bytes_max + MESSAGE_BYTES * messages_max


def _refuse(granted: asyncio.Future[None], budget: ByteBudget) -> None:
    if not granted.done():
        granted.set_exception(budget.busy())


def decoded_bytes(chunks: Sequence[Data], factor: int, begin: int, end: int | None) -> int:
    """Return what the decoded form of frames takes, from their metadata; nothing is inflated.

    `begin` and `end` bound the queue offsets that are wanted. As `forms.open_chunks`, it counts the
    frames up to the one that would exceed what an answer may inflate to, at least one.
    """
    inflated = rows = 0
    for count, size in _extents(chunks, begin, end):
        if rows and inflated + size > INFLATED_BYTES_MAX:
            break
        inflated += size
        rows += count
    return factor * inflated + MESSAGE_BYTES * rows


def _extents(chunks: Sequence[Data], begin: int, end: int | None) -> Iterator[tuple[int, int]]:
    """Yield the messages and inflated bytes of each frame before the first damaged one."""
    for chunk in chunks:
        try:
            for frame in scan(chunk):
                header = frame.header
                if header.next_queue_offset > begin and (end is None or header.queue_offset < end):
                    yield _extent(frame.body, header.kind, header.count)
        except CorruptFrame:
            # Whoever opens the frames meets it too, and tells the caller where it is.
            return


def _extent(body: pa.Buffer, kind: int, count: int) -> tuple[int, int]:
    """Return the messages of a frame and what they inflate to; a filtered frame is not compressed."""
    if kind == FrameKind.FILTERED:
        return count, body.size
    return stored_extent(body)
