"""The lineage of a log: which epoch wrote which part of it (RocketMQ: EpochFileCache).

    log:      |  epoch 2  |      epoch 3      | epoch 7 |
              ^begin      ^                   ^         ^end

One master writes in an epoch, it appends only, and it begins where its own log ends. So if two logs have the
same epoch at the same place, they are equal up to there. Two logs are therefore compared by one place and one
epoch, and where they differ they are cut back epoch by epoch.

What lies before the begin of the log was removed by retention; its epoch is kept, so that an empty log which
begins there can be compared too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


class EpochStart(NamedTuple):
    """An epoch, and the log offset of the first frame that it may have written."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class EpochLineage:
    """The epochs of one log, oldest first: epochs and starts rise, and each epoch is above `before`."""

    begin: int = 0
    #: The epoch of the frame that ended at `begin`; 0 if there was none.
    before: int = 0
    starts: tuple[EpochStart, ...] = ()

    @property
    def newest(self) -> int:
        """The newest epoch that wrote, or may write, in this log."""
        return self.starts[-1].epoch if self.starts else self.before

    def with_epoch(self, epoch: int, start: int) -> EpochLineage:
        """Note that frames from `start` on are of this epoch. An epoch without a frame leaves no trace."""
        if epoch == self.newest:
            return self
        if epoch < self.newest:
            raise ValueError(f"epoch {epoch} cannot follow {self.newest}")
        kept = tuple(each for each in self.starts if each.start < start)
        return replace(self, starts=(*kept, EpochStart(epoch, start)))

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the frame that ends at an offset, which is not below `begin`."""
        for each in reversed(self.starts):
            if each.start < offset:
                return each.epoch
        return self.before

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return where the largest epoch that is not above this one ends; `begin` if there is none."""
        if epoch < self.before:
            return self.begin
        for each in self.starts:
            if each.epoch > epoch:
                return each.start
        return log_end

    def matches(self, offset: int, epoch: int, log_end: int) -> bool:
        """Whether a log whose frame of `epoch` ends at `offset` is equal to this one up to there."""
        return self.begin <= offset <= log_end and self.epoch_before(offset) == epoch

    def truncated(self, end: int) -> EpochLineage:
        """Return the lineage of the log cut at `end`."""
        return replace(self, starts=tuple(each for each in self.starts if each.start < end))

    def begun_at(self, begin: int) -> EpochLineage:
        """Return the lineage of the log without what lies before `begin`."""
        if begin <= self.begin:
            return self
        rest = tuple(each for each in self.starts if each.start >= begin)
        return EpochLineage(begin, self.epoch_before(begin), rest)


@dataclass(frozen=True, slots=True)
class LogView:
    """A log as a decision needs it: its lineage, its end, and how far it is kept through a crash.

    Under sync flush `held` is the durable end. Under async flush it is the written end; whoever then loses
    what was written comes back in a new incarnation.
    """

    lineage: EpochLineage
    end: int
    held: int

    @property
    def begin(self) -> int:
        return self.lineage.begin
