"""What the writer, the readers and the upkeep of one store share."""

from __future__ import annotations

from dataclasses import dataclass

from rocketq.clock import Clock
from rocketq_broker.store.commit.ends import LogEnds
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.disk.open_files import Handles
from rocketq_broker.store.log.commit_log import CommitLog
from rocketq_broker.store.log.consume_queues import Queues
from rocketq_broker.store.timers.timer_index import TimerIndex


@dataclass(frozen=True, slots=True)
class StoreParts:
    """A recovered log with its ConsumeQueues and its ends, and what they were opened with."""

    config: StoreConfig
    files: Files
    handles: Handles
    clock: Clock
    log: CommitLog
    queues: Queues
    timers: TimerIndex
    ends: LogEnds
