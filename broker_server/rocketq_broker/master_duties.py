"""What a broker does as the master of its group, and not as a slave: members of groups, sinks, checks.

All of it begins from the state that the log has, and ends without a trace but what is in the log. So each
office has duties of its own: they are made anew, begun once, and ended once.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final

from rocketq.clock import Clock
from rocketq_broker.config import BrokerConfig
from rocketq_broker.groups.membership import Membership
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.sinks.publication_wait import CommitWaits
from rocketq_broker.sinks.publisher import SinkPublisher
from rocketq_broker.store.store import MessageStore
from rocketq_broker.transactions.check_watch import CheckWatch


class Duties:
    """The duties of one office; made, begun and ended on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        completions: Completions,
        readers: Executor,
        measurements: Measurements,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._completions = completions
        #: The members of consumer groups.
        self.members: Final = Membership(config, clock, store.consumer_groups, completions)
        self.publisher: Final = SinkPublisher(config, store, clock, self._batch_published)
        #: Hands out the checks of undecided transactions, and parks what stays undecided.
        self.check_watch: Final = CheckWatch(config, store, clock, completions, readers, measurements)
        self.commit_waits: Final = CommitWaits(loop, self.publisher.unsettled)

    def begin(self) -> None:
        """Take up the duties, from what the log has."""
        self.members.recover()
        self.publisher.start()
        self.check_watch.start()

    def release(self) -> None:
        """Let every call that waits answer as things stand, and end no session any more."""
        self.commit_waits.release_all()
        self.check_watch.release_all()
        self.members.stop()

    async def end(self, executor: Executor) -> None:
        """Lay the duties down; the store is still open."""
        self.release()
        await asyncio.get_running_loop().run_in_executor(executor, self.publisher.stop)
        await self.check_watch.stop()

    def _batch_published(self, sink: str, batch: int) -> None:
        self._completions.post(self.commit_waits.published, (sink, batch))
