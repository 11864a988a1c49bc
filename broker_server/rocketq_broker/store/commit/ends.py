"""The ends of the log: how far it is written, how far it is on disk, and how far readers see.

    log:   |--------------------|-----------------|-----------|
                            confirmed          durable     written
                       (durable and confirmed may stand in either order)

The log writer plans each commit from its *tail*: the state, the queue ends and the log position that
the commits before it leave behind, whether anyone may see them yet or not. A written commit waits until
a rule moves the *confirmed* end behind it; only then do readers see its messages and do senders get
their answers (RocketMQ: the confirm offset). So the next commit is planned and written while an earlier
one waits. The rules: under asynchronous flush what is written is confirmed, under synchronous flush
what is durable is. Replication is a third rule: what the in-sync replicas hold.

Invariants:
  * confirmed <= written and durable <= written; none of the three ever falls;
  * `state` is the fold of exactly the frames below `confirmed`;
  * no reader gets a message at or behind `confirmed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketq.model import FlushMode
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


@dataclass(slots=True)
class LogTail:
    """What the next commit is planned from; only the log writer's thread has it.

    `epoch` is that of the frames to come and never falls; `stored_at_us` is the last store time.
    The queues' ends at the tail are in `ConsumeQueue.written_block`, the log's is `CommitLog.end`.
    """

    state: State
    stored_at_us: int
    epoch: int
