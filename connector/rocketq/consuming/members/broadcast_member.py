"""A broadcasting member of a group: it reads all queues and keeps its offsets in a file of its own.

There is nothing to claim and nothing to release. Brokers are told of the member, so that operators see it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from rocketq.clock import Clock
from rocketq.config import ConsumerConfig
from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.consuming.fetching.start_offsets import Beginning, group_offsets
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.consuming.members.local_offsets import OffsetsFile
from rocketq.consuming.members.member import Member
from rocketq.consuming.members.member_sessions import Sessions
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.net.route_cache import RouteCache
from rocketq.protocol.documents.groups import HeartbeatAnswer, StartRule


class BroadcastMember(Member):
    """Keeps the consumer on all queues of its topics."""

    def __init__(
        self,
        routes: RouteCache,
        sessions: Sessions,
        fetching: Fetching,
        group: str,
        client_id: str,
        filters: Mapping[str, MessageFilter],
        start: StartRule,
        file: OffsetsFile,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        super().__init__(routes, sessions, fetching, group, client_id, filters, config, clock)
        self._start, self._file = start, file
        self._writing = threading.Lock()
        #: What is in the file: queues whose brokers are away now keep their offsets.
        self._stored = dict(file.offsets)

    def commit(self) -> None:
        """Write the file if anything changed; raise InvalidConfiguration if that fails."""
        with self._writing:
            with self._fetching.changed:
                now = {s.queue: (s.committable(), s.incarnation) for s in self._fetching.prefetch.states()}
            if now.items() - self._stored.items():
                self._stored |= now
                self._file.write(self._stored)

    def _balance(self, queues: Mapping[str, list[MessageQueue]]) -> None:
        failed = False
        for topic, of_topic in queues.items():
            for broker in sorted({queue.broker for queue in of_topic}):
                here = (queue for queue in of_topic if queue.broker == broker)
                wanted = [queue.queue for queue in here if queue not in self._fetching.prefetch]
                if wanted:
                    failed |= not self._begin(topic, broker, wanted)
        if failed:
            self._round_due_ms = self._clock.monotonic_ms() + self._config.retry_ms

    def _begin(self, topic: str, broker: str, numbers: list[int]) -> bool:
        """Begin with queues of one broker; return whether it answered."""
        places = {number: self._stored.get(MessageQueue(topic, broker, number)) for number in numbers}
        stored = {number: None if place is None else place[0] for number, place in places.items()}
        try:
            api = self._sessions.api(broker)
            found = group_offsets(api, topic, stored, self._start, self._initial, {})
        except RocketqError as error:
            self._fetching.log_once(("begin", broker, topic), error)
            return False
        self._fetching.is_well(("begin", broker, topic))
        remembered = {
            queue: Beginning(begin.offset, begin.max_offset, place[1])
            for queue, begin in found.items()
            if (place := places[queue.queue]) is not None
        }
        # With the incarnation of then, the first pull finds out whether the topic is still the same.
        self._fetching.begin(found | remembered)
        return True

    def _compare(self, answer: HeartbeatAnswer) -> None:
        """Do nothing: a broadcasting member owns no queue."""

    def _upkeep(self) -> None:
        """Do nothing: no queue is released."""

    def _due_ms(self) -> int | None:
        return None

    def _finish(self) -> None:
        try:
            self.commit()
        finally:
            self._file.close()
