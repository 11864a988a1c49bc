"""An Arrow IPC stream in pieces, for a request that is not worth copying.

What is large of a stream, the values of its columns, lies in memory already. Written to
one buffer it would be there twice, and into memory that is fresh each time; handed over
piece by piece it goes from where it lies to the socket. What is small, metadata,
padding, validity and offsets, is joined, so that no piece is too small to be sent on its own.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from rocketq.protocol.arrow.stream_reader import write_batches
from rocketq.protocol.pieces import Pieces

#: A buffer of this size is a piece of its own; smaller ones are joined.
PIECE_BYTES_MIN: Final = 64 * 1024


def stream_pieces(batches: list[pa.RecordBatch], codec: str | None = None) -> Pieces:
    """Serialise batches of schema message/1 as one IPC stream (codec: None, lz4 or zstd), without a copy."""
    sink = _Gathering()
    write_batches(sink, batches, codec)
    return sink.pieces()


class _Gathering:
    """What Arrow's writer takes for a file: it is handed buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._small: list[bytes | pa.Buffer] = []

    def write(self, data: bytes | pa.Buffer) -> int:
        size = len(data)
        if size < PIECE_BYTES_MIN:
            self._small.append(data)
        else:
            self._join()
            self._parts.append(memoryview(data))
        return size

    def flush(self) -> None:
        """There is nothing behind it to be flushed to."""

    def pieces(self) -> Pieces:
        self._join()
        return Pieces(tuple(self._parts))

    def _join(self) -> None:
        if self._small:
            self._parts.append(memoryview(b"".join(self._small)))
            self._small.clear()
