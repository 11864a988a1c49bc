"""The messages of one queue that are fetched and not handed out, with their sizes.

The size of an Arrow batch costs more to ask for than a small part of it costs to hand out. So it is asked for
once, when a slice arrives, and a part counts for its share of the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rocketq.protocol.frame_slices import FrameSlice


class SliceBuffer:
    """Slices of frames in the order of their offsets. True if there are any."""

    __slots__ = ("_slices", "nbytes", "rows")

    def __init__(self) -> None:
        self._slices: deque[tuple[FrameSlice, int]] = deque()
        self.rows = 0
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._slices)

    def extend(self, slices: Iterable[FrameSlice]) -> None:
        """Append slices."""
        for piece in slices:
            size = int(piece.batch.nbytes)
            self._slices.append((piece, size))
            self._count(piece.rows, size)

    def put_back(self, piece: FrameSlice, size: int) -> None:
        """Put what was taken last back to the front."""
        self._slices.appendleft((piece, size))
        self._count(piece.rows, size)

    def take(self, rows: int) -> tuple[FrameSlice, int] | None:
        """Take the next at most `rows` messages of one frame, and their size in bytes; None if empty."""
        if not self._slices:
            return None
        piece, size = self._slices.popleft()
        self._count(-piece.rows, -size)
        if piece.rows > rows:
            part = size * rows // piece.rows
            self.put_back(piece.part(rows, piece.rows - rows), size - part)
            piece, size = piece.part(0, rows), part
        return piece, size

    def clear(self) -> None:
        self._slices.clear()
        self.rows = self.nbytes = 0

    def _count(self, rows: int, size: int) -> None:
        self.rows += rows
        self.nbytes += size
