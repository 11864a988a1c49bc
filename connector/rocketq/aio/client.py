"""The front door for asyncio: the twin of `rocketq.client`.

    async with AsyncClient("http://127.0.0.1:9876") as mq:
        await mq.create_topic("orders", queues=4)
        async with mq.producer() as producer:
            await producer.send("orders", b"hi", key="o-1")

Both clients stand on one core: the threads that fetch, send batches and keep memberships are the same. On the
loop run what needs no wait, and what the threads tell it.

A client belongs to the event loop in which it is first used. What it made is closed with it. If it is dropped
without `close`, ResourceWarning says so, and a thread closes it.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from rocketq.aio.administration import (
    AsyncDeadLetters,
    AsyncGroupAdmin,
    AsyncQuery,
    AsyncSink,
    AsyncTimers,
)
from rocketq.aio.blocking_calls import BlockingCalls
from rocketq.aio.consuming.group_consumer import AsyncConsumer
from rocketq.aio.consuming.listener import (
    AsyncFunction,
    AsyncListener,
    ListenerOpening,
    checked_coroutine_function,
)
from rocketq.aio.consuming.pull_consumer import AsyncPullConsumer
from rocketq.aio.consuming.simple_consumer import AsyncSimpleConsumer
from rocketq.aio.home_loop import HomeLoop
from rocketq.aio.opening import Opening
from rocketq.aio.producing.loop_producer import LoopProducer
from rocketq.aio.producing.producer import AsyncProducer
from rocketq.aio.producing.transactions import AsyncTransactionProducer
from rocketq.client import Client
from rocketq.clock import Clock
from rocketq.config import (
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    SimpleConsumerConfig,
    TraceConfig,
    TransportConfig,
)
from rocketq.consuming.allocation.view import AllocationStrategy
from rocketq.consuming.fetching.subscriptions import MessageFilter, Sql, Tag, Topics, filters_of
from rocketq.consuming.group_consumer import checked_loop_config
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.listener import checked_workers
from rocketq.errors import Closed, InvalidConfiguration
from rocketq.model import MessageQueue
from rocketq.producing.transactions.transaction_checks import Check
from rocketq.setting_names import LISTENER_ARGUMENTS, check_names
from rocketq.settings_types import (
    ConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    SimpleConsumerSettings,
)
from rocketq.sinks.sink import TIMEOUT_MS as SINK_TIMEOUT_MS

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger("rocketq.aio.client")


class LoopCore(Client):
    """A client for threads that also makes what asynchronous producers and members stand on."""

    def loop_producer(
        self, config: ProducerConfig, group: str | None, on_room: Callable[[], object]
    ) -> LoopProducer:
        made = LoopProducer(
            self._transport, self._routes, config=config, clock=self._clock, fault=self._fault,
            on_room=on_room, group=group, **self._recording(),
        )  # fmt: skip
        return self._kept(made)

    def member(
        self,
        group: str,
        filters: Mapping[str, MessageFilter],
        allocation: str | AllocationStrategy | None,
        config: ConsumerConfig,
    ) -> GroupReader:
        return self._kept(self._reader(group, filters, allocation, config))

    def check_open(self) -> None:
        self._check_open()


class _Closable(Protocol):
    @property
    def is_closed(self) -> bool: ...

    @property
    def close(self) -> Callable[[], Any]: ...


Made = TypeVar("Made", bound=_Closable)


class AsyncClient:
    """Access to one cluster by its NameServers, from one event loop. Arguments and names are `Client`'s.

    >>> async def greet() -> str:
    ...     async with AsyncClient(nameservers) as client, client.producer() as producer:
    ...         return (await producer.send("orders", "hello")).status.value
    >>> asyncio.run(greet())
    'SEND_OK'
    """

    def __init__(
        self,
        nameservers: str | Sequence[str] | None = None,
        *,
        transport: TransportConfig | None = None,
        clock: Clock | None = None,
        trace: bool | float | TraceConfig = False,
        opentelemetry: TracerProvider | bool = False,
    ) -> None:
        self._is_closed = True
        core = self._core = LoopCore(
            nameservers, transport=transport, clock=clock, trace=trace, opentelemetry=opentelemetry
        )
        self.tracing, self.spans = core.tracing, core.spans
        self.nameservers = core.nameservers
        self._home = HomeLoop(repr(self))
        calls = self._calls = BlockingCalls(self._home)
        self._open: list[_Closable] = []
        self._is_closed = False
        #: Lists, describes, sets, resets, clones and deletes consumer groups.
        self.groups = AsyncGroupAdmin(core.groups, calls)
        #: Looks messages up by id, key and time.
        self.query = AsyncQuery(core.query, calls)
        #: Delayed messages that are not delivered yet.
        self.timers = AsyncTimers(core.timers, calls)
        self.create_topic = calls.twin(core.create_topic)
        self.alter_topic = calls.twin(core.alter_topic)
        self.remove_topic_broker = calls.twin(core.remove_topic_broker)
        self.delete_topic = calls.twin(core.delete_topic)
        self.describe_topic = calls.twin(core.describe_topic)
        self.topics = calls.twin(core.topics)
        self.route = calls.twin(core.route)
        self.cluster = calls.twin(core.cluster)
        self.offsets_at = calls.twin(core.offsets_at)
        self.trace = calls.twin(core.trace)
        #: Makes no call.
        self.invalidate_route = core.invalidate_route

    def __repr__(self) -> str:
        return f"AsyncClient({', '.join(self.nameservers)})"

    # --- producers and consumers ---------------------------------------------------

    def producer(self, *, group: str | None = None, **settings: Unpack[ProducerSettings]) -> AsyncProducer:
        """Return a producer; `settings` are fields of ProducerConfig. The client closes it if you do not."""
        self._home.check()
        make = partial(self._core.loop_producer, ProducerConfig(**settings), group)
        return self._kept(AsyncProducer(make, self._home, self._calls))

    def transactions(
        self,
        group: str,
        check: Check | None = None,
        *,
        config: ProducerConfig | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> AsyncTransactionProducer:
        """Return the transactions of a producer group, as `Client.transactions` does.

        A coroutine function as `check` is awaited on the event loop. Another one is called on a thread.
        """
        self._home.check()
        made = self._core.transactions(group, check, config=config, **settings)
        return self._kept(AsyncTransactionProducer(made, self._calls))

    def consumer(
        self,
        group: str,
        topics: Topics,
        *,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Opening[AsyncConsumer]:
        """Return a member of a consumer group as `Client.consumer`; `async with` or `await` joins it."""
        config = checked_loop_config(ConsumerConfig(**settings))
        join = self._joining(group, filters_of(topics), allocation, config)

        async def begin() -> AsyncConsumer:
            return self._kept(AsyncConsumer(await join(), self._home, self._calls))

        return Opening(f"The consumer of group {group}", begin)

    @overload
    def listener(
        self,
        topics: Topics,
        function: AsyncFunction,
        *,
        group: str,
        filter: Tag | Sql | None = None,
        workers: int = 4,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> ListenerOpening: ...

    @overload
    def listener(
        self,
        topics: Topics,
        function: None = None,
        *,
        group: str,
        filter: Tag | Sql | None = None,
        workers: int = 4,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Callable[[AsyncFunction], ListenerOpening]: ...

    def listener(
        self,
        topics: Topics,
        function: AsyncFunction | None = None,
        *,
        group: str,
        filter: Tag | Sql | None = None,
        workers: int = 4,
        allocation: str | AllocationStrategy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> ListenerOpening | Callable[[AsyncFunction], ListenerOpening]:
        """Await a coroutine function for each message, in `workers` tasks; as `Client.listener`.

        It runs from when it is opened, by `async with` or `await`. Without `function`, it is a decorator.
        """
        filters = filters_of(topics, filter)
        check_names(ConsumerConfig, settings, also=LISTENER_ARGUMENTS)
        config = ConsumerConfig(**settings)
        if config.ack != "auto":
            why = "a listener acknowledges a message when the function returns"
            raise InvalidConfiguration("ack", config.ack, why, hint="Leave it out, or use a consumer.")
        checked_workers(workers)

        def made(chosen: AsyncFunction) -> ListenerOpening:
            checked = checked_coroutine_function(chosen)
            join = self._joining(group, filters, allocation, config)

            async def begin() -> AsyncListener:
                reader = await join()
                return self._kept(AsyncListener(reader, checked, workers, self._home, self._calls))

            return ListenerOpening(f"The listener of group {group}", checked, begin)

        return made if function is None else made(function)

    def pull_consumer(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        queues: Collection[MessageQueue] | None = None,
        **settings: Unpack[PullConsumerSettings],
    ) -> Opening[AsyncPullConsumer]:
        """Return a consumer that reads all queues of the topics, or these; `async with` or `await` opens it.

        Otherwise as `Client.pull_consumer`.
        """
        PullConsumerConfig(**settings)

        async def begin() -> AsyncPullConsumer:
            make = partial(self._core.pull_consumer, topics, group=group, queues=queues, **settings)
            core = await self._calls.run(make, undo=lambda made: made.close())
            return self._kept(AsyncPullConsumer(core, self._home, self._calls))

        return Opening("The pull consumer", begin)

    def sink(self, name: str, *, timeout_ms: int = SINK_TIMEOUT_MS) -> AsyncSink:
        """Return the exactly-once sink of this name; calls nobody yet."""
        return AsyncSink(self._core.sink(name, timeout_ms=timeout_ms), self._calls)

    def simple_consumer(
        self, group: str, topics: Topics, **settings: Unpack[SimpleConsumerSettings]
    ) -> Opening[AsyncSimpleConsumer]:
        """Return a consumer that leases messages, as `Client.simple_consumer`; `async with` opens it."""
        SimpleConsumerConfig(**settings)

        async def begin() -> AsyncSimpleConsumer:
            make = partial(self._core.simple_consumer, group, topics, **settings)
            core = await self._calls.run(make, undo=lambda made: made.close())
            return self._kept(AsyncSimpleConsumer(core, self._calls))

        return Opening(f"The consumer of group {group}", begin)

    def dead_letters(self, group: str) -> AsyncDeadLetters:
        """Return the messages of a group that have had their last attempt; calls nobody yet."""
        return AsyncDeadLetters(self._core.dead_letters(group), self._calls)

    # --- life ----------------------------------------------------------------------

    async def close(self) -> None:
        """Close what was made here, producers flushing first, then all connections. Twice is no error.

        If the task is cancelled meanwhile, what is left is closed by a thread.
        """
        self._home.check()
        self._is_closed = True
        still_open, self._open = self._open, []
        try:
            for made in reversed(still_open):
                await made.close()
        finally:
            if self._calls.is_open:
                await self._calls.run(self._core.close)
                await self._calls.close()

    async def __aenter__(self) -> AsyncClient:
        self._home.check()
        self._core.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._is_closed or self._home.loop is None:
            return
        warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
        self._calls.abandon()
        try:
            threading.Thread(target=self._core.close, name="rocketq-aio-close", daemon=True).start()
        except RuntimeError:
            # The interpreter ends: brokers notice that the connections break.
            log.debug("%r cannot be closed any more", self)

    # --- inside --------------------------------------------------------------------

    def _joining(
        self,
        group: str,
        filters: Mapping[str, MessageFilter],
        allocation: str | AllocationStrategy | None,
        config: ConsumerConfig,
    ) -> Callable[[], Any]:
        join = partial(self._core.member, group, filters, allocation, config)
        return partial(self._calls.run, join, undo=GroupReader.close)

    def _kept(self, made: Made) -> Made:
        if self._is_closed:
            # What it stands on was closed with the core.
            raise Closed("The client")
        self._open = [other for other in self._open if not other.is_closed]
        self._open.append(made)
        return made
