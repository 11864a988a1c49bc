"""A broker's log in memory: frames of a few bytes, what is on disk of them, and what a crash leaves."""

from __future__ import annotations

import random
from typing import NamedTuple

from rocketq.model import FlushMode
from rocketq_broker.epoch_lineage import EpochLineage, LogView


class SimFrame(NamedTuple):
    """A frame ends at `end`; `value` stands for its message."""

    end: int
    size: int
    epoch: int
    value: int

    @property
    def start(self) -> int:
        return self.end - self.size


class SimLog:
    """Frames from `lineage.begin` on; `durable` says how far a power cut leaves them."""

    def __init__(self, flush: FlushMode) -> None:
        self.flush = flush
        self.frames: list[SimFrame] = []
        self.by_end: dict[int, SimFrame] = {}
        self.lineage = EpochLineage()
        self.durable = 0

    @property
    def end(self) -> int:
        return self.frames[-1].end if self.frames else self.lineage.begin

    @property
    def held(self) -> int:
        return self.durable if self.flush is FlushMode.SYNC else self.end

    @property
    def view(self) -> LogView:
        return LogView(self.lineage, self.end, self.held)

    def append(self, frame: SimFrame) -> None:
        assert frame.start == self.end, f"frame at {frame.start} behind {self.end}"
        if frame.epoch != self.lineage.newest:
            self.lineage = self.lineage.with_epoch(frame.epoch, frame.start)
        self.frames.append(frame)
        self.by_end[frame.end] = frame

    def sync(self) -> None:
        self.durable = self.end

    def cut(self, end: int) -> None:
        """Cut at the end of a frame; the cut is durable."""
        while self.frames and self.frames[-1].end > end:
            del self.by_end[self.frames.pop().end]
        assert self.end == end, f"no frame ends at {end}"
        self.lineage = self.lineage.truncated(end)
        self.durable = min(self.durable, end)

    def begin_at(self, begin: int, before: int) -> None:
        """Begin anew, empty."""
        self.frames, self.by_end = [], {}
        self.lineage, self.durable = EpochLineage(begin, before), begin

    def remove_below(self, offset: int) -> None:
        """Retention: drop the frames that end at or below an offset."""
        kept = [frame for frame in self.frames if frame.end > offset]
        begin = kept[0].start if kept else self.end
        self.lineage = self.lineage.begun_at(begin)
        self.frames = kept
        self.by_end = {frame.end: frame for frame in kept}
        self.durable = max(self.durable, begin)

    def frames_from(self, offset: int, count: int) -> list[SimFrame]:
        """Return some frames, the first of which starts at an offset."""
        if offset == self.end:
            return []
        first = next(i for i, frame in enumerate(self.frames) if frame.start == offset)
        return self.frames[first : first + count]

    def power_cut(self, rng: random.Random) -> bool:
        """Lose a part of what is not durable; whole frames, for a torn one is cut off at the start."""
        ends = [frame.end for frame in self.frames if frame.end > self.durable]
        end = rng.choice([self.durable, *ends]) if ends else self.end
        lost = end < self.end
        self.cut(end)
        self.durable = end
        return lost
