"""What a scan is asked to do and what it found: values that can cross to another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq_broker.store.pieces import Piece


class MessageFilter(Protocol):
    """What a selection needs of a filter; one with hashes can be pickled."""

    @property
    def hashes(self) -> npt.NDArray[np.uint64] | None:
        """The tag hashes that can match, or None if tags do not decide."""
        ...

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each message whether it matches."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """Pieces to look at, in order, and what of them is wanted; `stop` is the queue offset behind the last.

    `segments` are the first log offsets of the log's segments.
    """

    topic: str
    queue: int
    chosen: MessageFilter
    pieces: Sequence[Piece]
    stop: int
    max_bytes: int
    wanted: int
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scanned:
    """The filtered frames of a job, how many messages and bytes they have, and where it stopped."""

    chunks: list[bytes]
    found: int
    bytes: int
    next_offset: int


class Share(Protocol):
    """A job under way elsewhere."""

    def result(self) -> Scanned | None:
        """Wait for it, and return what it found; None if it came to nothing. Must be called, once."""
        ...
