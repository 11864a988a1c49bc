"""What an asynchronous client has besides messages: groups, dead letters, delayed messages, lookups, sinks.

Each method is the coroutine function of the same method of the client for threads, with its parameters and
its documentation. What gives an iterator there gives one for `async for` here.
"""

from __future__ import annotations

from rocketq.admin.groups import GroupAdmin
from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.dead_letters import DeadLetters
from rocketq.message_query import Query
from rocketq.sinks.sink import Sink
from rocketq.timers import Timers


class AsyncGroupAdmin:
    """Consumer groups on all brokers: the twin of `GroupAdmin`."""

    def __init__(self, core: GroupAdmin, calls: BlockingCalls) -> None:
        self.overviews = calls.twin(core.overviews)
        self.describe = calls.twin(core.describe)
        self.progress = calls.twin(core.progress)
        self.members = calls.twin(core.members)
        self.producers = calls.twin(core.producers)
        self.set = calls.twin(core.set)
        self.delete = calls.twin(core.delete)
        self.reset = calls.twin(core.reset)
        self.clone = calls.twin(core.clone)


class AsyncQuery:
    """Looks messages up: the twin of `Query`."""

    def __init__(self, core: Query, calls: BlockingCalls) -> None:
        self.by_id = calls.twin(core.by_id)
        self.by_key = calls.twin(core.by_key)
        self.by_unique_id = calls.twin(core.by_unique_id)
        self.by_time = calls.twin_iterator(core.by_time)


class AsyncTimers:
    """Delayed messages that are not delivered yet: the twin of `Timers`."""

    def __init__(self, core: Timers, calls: BlockingCalls) -> None:
        self.list = calls.twin_iterator(core.list)
        self.show = calls.twin(core.show)
        self.cancel = calls.twin(core.cancel)


class AsyncDeadLetters:
    """Messages of a group that had their last attempt: the twin of `DeadLetters`."""

    def __init__(self, core: DeadLetters, calls: BlockingCalls) -> None:
        self.group = core.group
        self.count = calls.twin(core.count)
        self.list = calls.twin_iterator(core.list)
        self.show = calls.twin(core.show)
        self.resend = calls.twin(core.resend)


class AsyncSink:
    """An exactly-once sink, from the writer's side: the twin of `Sink`."""

    def __init__(self, core: Sink, calls: BlockingCalls) -> None:
        self.name = core.name
        self.coordinator = calls.twin(core.coordinator)
        self.begin = calls.twin(core.begin)
        self.commit = calls.twin(core.commit)
        self.abort = calls.twin(core.abort)
        self.describe = calls.twin(core.describe)
        self.delete = calls.twin(core.delete)
        #: Makes no call.
        self.stage = core.stage
