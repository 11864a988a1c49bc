"""The answer to a pull. Its frames are opened with Arrow, which calls that pull nothing do not load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketq.model import PullStatus
from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq.protocol.sizes import INFLATED_BYTES_MAX

if TYPE_CHECKING:
    from rocketq.protocol.frame_slices import FrameSlice


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to one pull: whole frames as they lie in the log, and where the queue stands.

    `offset` is what was asked for, `next_offset` where to go on; `suggested` is the id of the replica to ask.
    """

    status: PullStatus
    offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: str
    body: bytes | memoryview = field(repr=False)
    suggested: int = MASTER_ID

    def slices(self, end: int | None = None) -> list[FrameSlice]:
        """Open the frames, cut to [offset, end); raise CorruptFrame."""
        from rocketq.protocol.frame_slices import open_frames

        return open_frames(self.body, self.offset, end)

    def bounded_slices(self, inflated_bytes_max: int = INFLATED_BYTES_MAX) -> tuple[list[FrameSlice], int]:
        """Open frames within a budget of inflated bytes; return them and the offset to go on at.

        See `open_within_budget`. Raises CorruptFrame if the first one is damaged.
        """
        from rocketq.protocol.frame_slices import iter_frames, open_within_budget

        found, stopped_at = open_within_budget(iter_frames(self.body, self.offset), inflated_bytes_max)
        return found, self.next_offset if stopped_at is None else stopped_at
