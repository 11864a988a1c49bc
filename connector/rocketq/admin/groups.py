"""The progress of consumer groups over the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import NotFound, TopicNotFound


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in one queue. `committed` is the next offset that the group reads.

    `max` and `lag` (in messages) are None if the topic was deleted after the commit: the lag is then not
    known, which is not 0.
    """

    topic: str
    broker: str
    queue: int
    committed: int
    max: int | None
    lag: int | None


class GroupAdmin:
    """Asks every live master for the progress of groups. Thread-safe."""

    def __init__(self, masters: LiveMasters) -> None:
        self._masters = masters

    def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return the progress in every queue that the group ever committed, by topic, broker and queue.

        Raises NotFound if it committed none, BrokerUnreachable, NameServersUnreachable.
        """
        found: list[QueueProgress] = []
        for master in self._masters.apis():
            for one in master.group_offsets(group, topic).offsets:
                try:
                    queues = master.offsets(one.topic).queues
                except TopicNotFound:
                    queues = ()
                end = queues[one.queue].max if one.queue < len(queues) else None
                lag = None if end is None else end - one.offset
                found.append(QueueProgress(one.topic, master.broker, one.queue, one.offset, end, lag))
        if not found:
            raise NotFound("group", group)
        return sorted(found, key=lambda each: (each.topic, each.broker, each.queue))
