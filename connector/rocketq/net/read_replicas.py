"""Which replica of its broker group a reader pulls each queue from (RocketMQ: pullFromWhichNodeTable).

It is the master, until an answer suggests a slave: a master sends readers that lag far to its slaves, and a
slave sends those that have caught up back. What a slave says counts only as far as it has messages. That
there are none, or an error, is asked again of the master, and the slave is left for that time (`leave`). One
that fails is not asked again for a while, whatever the master suggests (`failed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketq.clock import Clock, SystemClock
from rocketq.model import MessageQueue
from rocketq.net.broker_api import BrokerApi
from rocketq.net.pulled import Pulled
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import MASTER_ID, TopicRoute

#: How long a slave that has failed is not asked.
AVOID_MS: Final = 10_000


class ReadReplicas:
    """What was suggested to one reader, or to all readers of a process. Thread-safe."""

    def __init__(self, transport: Transport, clock: Clock | None = None) -> None:
        self._transport = transport
        self._clock = clock or SystemClock()
        self._suggested: dict[MessageQueue, int] = {}
        self._avoided_until_ms: dict[str, int] = {}

    def slave(self, queue: MessageQueue, route: Callable[[], TopicRoute]) -> BrokerApi | None:
        """Return the slave to pull a queue from; None if the master is to be asked. Raises as `route`."""
        number = self._suggested.get(queue, MASTER_ID)
        if number == MASTER_ID:
            return None
        data = route().broker(queue.broker)
        # A slave that has become master is in the route under the master's id.
        address = data.addresses.get(number) if data is not None else None
        if address is None or self._clock.monotonic_ms() < self._avoided_until_ms.get(address, 0):
            return None
        return BrokerApi(self._transport, queue.broker, address)

    def heard(self, queue: MessageQueue, pulled: Pulled) -> None:
        """Take what an answer suggests."""
        if pulled.suggested == MASTER_ID:
            self.leave(queue)
        else:
            self._suggested[queue] = pulled.suggested

    def leave(self, queue: MessageQueue) -> None:
        """Ask the master next."""
        self._suggested.pop(queue, None)

    def failed(self, queue: MessageQueue, slave: BrokerApi) -> None:
        """Ask the master next, and this slave for no queue for a while."""
        self.leave(queue)
        self._avoided_until_ms[slave.address] = self._clock.monotonic_ms() + AVOID_MS
