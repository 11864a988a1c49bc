"""The slave's view: it fetches behind its own end, and decides what an answer of the master means for its
log.

An answer is obeyed only if it is one to the log as it is now (`FetchPlace`). A slave never cuts below its
own confirmed end: what is confirmed lies on every in-sync replica, so a master that lacks it is no master
of this log, and the slave halts. The one exception is an epoch that began with an unclean election, where
an operator has accepted the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.replication.errors import ConfirmedDiverged
from rocketq_broker.replication.fetching import (
    BeginsLater,
    Diverged,
    FetchAnswer,
    FetchPlace,
    Shipment,
)
from rocketq_broker.replication.group_record import ReplicaId


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The confirmed end that a replica knows, and the epoch that told it so; both are checkpointed."""

    end: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """Append the frames of the shipment at `at`, none beyond `end`."""

    at: int
    end: int


@dataclass(frozen=True, slots=True)
class CutTo:
    """Cut the log to `end`, durably; `confirmed_lost` is more than 0 only after an unclean election."""

    end: int
    confirmed_lost: int


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Drop the log and begin an empty one at `begin`, behind a frame of epoch `before`."""

    begin: int
    before: int
    confirmed_lost: int


@dataclass(frozen=True, slots=True)
class Ignore:
    """The answer is late, or a second one: the log has moved on since its fetch."""


Step = Append | CutTo | BeginAt | Ignore


@dataclass(frozen=True, slots=True)
class SlaveRole:
    """One epoch of following. `offered` is the highest confirmed end that the master has named in it."""

    epoch: int
    master: ReplicaId
    #: The last epoch that began with an unclean election, as the record has it.
    unclean_epoch: int
    offered: int = 0

    def place(self, log: LogView) -> FetchPlace:
        """Return where to fetch."""
        return FetchPlace(self.epoch, log.end, log.lineage.epoch_before(log.end))

    def is_current(self, answer: FetchAnswer, log: LogView) -> bool:
        """Whether an answer is one to the log as it is now."""
        return answer.place == self.place(log)

    def step(self, answer: FetchAnswer, log: LogView, confirmed: Confirmed) -> Step:
        """Decide what an answer means; raise ConfirmedDiverged."""
        if not self.is_current(answer, log):
            return Ignore()
        match answer:
            case Shipment():
                return Append(log.end, answer.end)
            case Diverged():
                return self._cut(answer, log, confirmed)
            case BeginsLater():
                return self._begin_again(answer, confirmed)

    def _cut(self, answer: Diverged, log: LogView, confirmed: Confirmed) -> Step:
        """Cut to where the logs may agree: behind nothing that is of a later epoch than the master's there.

        Only in an epoch that both logs have is the master's place the end of a frame here too. Otherwise this
        log is cut at the end of an epoch of its own, and the next fetch goes further back.
        """
        end = log.lineage.end_of(answer.keep_epoch, log.end)
        if log.lineage.epoch_before(end) == answer.keep_epoch:
            end = min(end, answer.keep)
        if end < log.begin or end == log.end:
            return self._begin_again(answer, confirmed)
        return CutTo(end, self._confirmed_lost(end, confirmed))

    def _begin_again(self, answer: Diverged | BeginsLater, confirmed: Confirmed) -> BeginAt:
        return BeginAt(answer.begin, answer.before, self._confirmed_lost(answer.begin, confirmed))

    def _confirmed_lost(self, end: int, confirmed: Confirmed) -> int:
        if end >= confirmed.end:
            return 0
        if self.unclean_epoch <= confirmed.epoch:
            raise ConfirmedDiverged(self.epoch, end, confirmed.end)
        return confirmed.end - end
