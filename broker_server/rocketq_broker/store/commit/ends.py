"""The ends of the log: how far it is written, how far it is on disk, and how far readers see.

    log:   |--------------------|-----------------|-----------|
                            confirmed          durable     written
                       (durable and confirmed may stand in either order)

The log writer plans each commit from its *tail*: the state, the queue ends and the log position that
the commits before it leave behind, whether anyone may see them yet or not. A written commit waits until
a rule moves the *confirmed* end behind it; only then do readers see its messages and do senders get
their answers (RocketMQ: the confirm offset). So the next commit is planned and written while an earlier
one waits. The rules: under asynchronous flush what is written is confirmed, under synchronous flush
what is durable is. Replication is a third rule: what the in-sync replicas hold, as the store is told
(`ReplicaRule`).

Invariants:
  * confirmed <= written and durable <= written; none falls, but by a cut at a follower (`LogEnds.cuts`);
  * `state` is the fold of exactly the frames below `confirmed`;
  * no reader gets a message at or behind `confirmed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketq.errors import RocketqError
from rocketq.model import FlushMode
from rocketq_broker.epoch_lineage import EpochLineage
from rocketq_broker.store.state.state import State


@dataclass(slots=True)
class LogEnds:
    """The three ends, as log offsets, and what goes with the confirmed one; changed under `lock`."""

    state: State
    stored_at_us: int
    epoch: int
    written: int
    durable: int
    confirmed: int
    #: Which epochs wrote the log up to `written`.
    lineage: EpochLineage = field(default_factory=EpochLineage)
    #: How often the log was cut. Who waits for a sync compares it: what is there then may be other bytes.
    cuts: int = 0
    #: Why nothing can be read at this moment; None: everything confirmed can be.
    unreadable: RocketqError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


#: Says up to which log offset readers may see, from the ends as they are.
ConfirmRule = Callable[[LogEnds], int]


def written_is_confirmed(ends: LogEnds) -> int:
    """The rule of asynchronous flush: a crash of the machine may take back what was confirmed."""
    return ends.written


def durable_is_confirmed(ends: LogEnds) -> int:
    """The rule of synchronous flush: what was confirmed survives a crash of the machine."""
    return ends.durable


def rule_of(flush: FlushMode) -> ConfirmRule:
    """Return the rule that a flush mode means where there is no replica."""
    return durable_is_confirmed if flush is FlushMode.SYNC else written_is_confirmed


class ReplicaRule:
    """The rule of a replica: the confirmed end is where the group's decisions say, never beyond the local
    rule's.

    A master that does not wait for its slaves (asynchronous replication) has the local rule alone.
    """

    def __init__(self, local: ConfirmRule) -> None:
        self._local = local
        #: Whether a master waits for its slaves.
        self.waits = True
        #: Whether this store has the writer on.
        self.in_office = False
        self._told = 0

    def __call__(self, ends: LogEnds) -> int:
        end = self._local(ends)
        return end if self.in_office and not self.waits else min(end, self._told)

    def tell(self, end: int) -> None:
        """Let the confirmed end move up to `end`; it does not go back by this."""
        self._told = max(self._told, end)

    def cut(self, end: int) -> None:
        """Take back what was told beyond `end`, which is cut off."""
        self._told = min(self._told, end)


@dataclass(slots=True)
class LogTail:
    """What the next commit is planned from; only the log writer's thread has it.

    `epoch` is that of the frames to come and never falls; `stored_at_us` is the last store time.
    The queues' ends at the tail are in `ConsumeQueue.written_block`, the log's is `CommitLog.end`.
    """

    state: State
    stored_at_us: int
    epoch: int
    lineage: EpochLineage = field(default_factory=EpochLineage)
