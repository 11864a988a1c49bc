"""What a member of a group tells of itself: the same for consumers and listeners, with threads or asyncio."""

from __future__ import annotations

from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.handling_watch import Overdue
from rocketq.consuming.receive_hooks import ReceiveHook
from rocketq.errors import RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol.documents.groups import Difference


class MemberView:
    """A member, as far as it can be looked at; nothing here makes a call."""

    def __init__(self, reader: GroupReader) -> None:
        self._reader = reader
        self.group, self.topics, self.client_id = reader.group, reader.topics, reader.client_id

    def owned(self) -> dict[MessageQueue, int]:
        """Return the queues that this member owns now, each with the offset that a commit would store."""
        return {queue: offset for queue, (offset, _) in self._reader.states().items()}

    def lag(self) -> dict[MessageQueue, int]:
        """Return for each owned queue how many messages are not acknowledged yet, as far as is known."""
        return {queue: behind for queue, (_, behind) in self._reader.states().items()}

    def stopped(self) -> dict[MessageQueue, RocketqError]:
        """Return the owned queues that stand still until a `seek`, each with the error that stopped it.

        The others go on: a listener's at once, those of a loop or poll while the stopped ones are paused.
        """
        return self._reader.stopped()

    @property
    def differences(self) -> tuple[Difference, ...]:
        """In what this member differs from its group; with a difference in its filter it gets no queue."""
        return self._reader.differences

    def add_hook(self, hook: ReceiveHook) -> None:
        """Have a hook see messages, and what becomes of them (`rocketq.consuming.receive_hooks`)."""
        self._reader.add_hook(hook)

    @property
    def is_closed(self) -> bool:
        return self._reader.is_closed


class ListenerView(MemberView):
    """The same of a listener, which has nobody to raise an error to."""

    def __init__(self, reader: GroupReader) -> None:
        super().__init__(reader)
        self._handling = reader.watch_handling()

    @property
    def in_hand(self) -> tuple[str, ...]:
        """The ids of the messages on which functions work now."""
        return self._handling.in_hand()

    @property
    def ready_messages(self) -> int:
        """How many messages are fetched, and wait for a worker."""
        return self._reader.ready_messages()

    @property
    def overdue(self) -> tuple[Overdue, ...]:
        """The messages whose functions have run longer than `consume_timeout_ms`, and have not returned."""
        return self._handling.overdue()

    @property
    def error(self) -> Exception | None:
        """What keeps the listener, or one of its queues, from going on; it is also logged when it begins."""
        return self._reader.error()
