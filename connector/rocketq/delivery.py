"""Getting one request to a broker: attempts, and where the next one goes.

A *parcel* is what one POST carries: slices of one topic, each for a queue of the
same broker. What an error means for it is decided by `verdict`, a pure
function over RocketMQ's rules (DefaultMQProducerImpl, 5.x):

    error                                stored?    in any order      in its queue
    -------------------------------------------------------------------------------
    refused for what it says             no         raise             raise
      (InvalidBatch, TooLarge, ...)
    the connection never came about      no         elsewhere         again
    busy, unavailable, full, too slow    no         elsewhere         again
    no topic, no queue, no permission    no         new route         new route
    no answer, or an internal error      unknown    elsewhere         raise

A parcel whose order matters is never moved to another queue and is repeated only when
it is certain that nothing was stored. All attempts share one timeout; while
another broker could take the parcel, one that hangs gets only half of what is left.

How a parcel is put to a broker and what is made of the answer is a `Post`: `APPEND` here
makes messages, the one of `rocketq.staging` stages them. A staged parcel may be stored twice
and published once, so an unknown outcome is never a reason to give up: it is sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias, TypeVar

from rocketq.broker_api import BrokerApi, master_of
from rocketq.clock import Clock
from rocketq.config import ProducerConfig
from rocketq.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    InternalError,
    NoPermission,
    QueueNotFound,
    RocketqError,
    RouteNotFound,
    SendFailed,
    StoreFull,
    SystemBusy,
    TooManyConnections,
    TooSlow,
    TopicNotFound,
)
from rocketq.fault import FaultTolerance
from rocketq.protocol.calls import CreateTopicRequest, SendAnswer
from rocketq.protocol.ipc import write_stream
from rocketq.protocol.model import MessageQueue, SendResult
from rocketq.protocol.pieces import PIECE_BYTES_MIN, Pieces, stream_pieces
from rocketq.protocol.route import TopicRoute
from rocketq.routes import RouteCache
from rocketq.selector import QueueSelector, QueueSlice, Selection, batch_bytes
from rocketq.topics import TopicAdmin
from rocketq.transport import Body, Transport

R = TypeVar("R")
Stream: TypeAlias = memoryview | Pieces

#: The pause before the same broker is asked again, when it did not name one.
BACKOFF_MS: Final = 100
#: Bytes that a healthy broker takes in 1 ms at least: what a large request may cost without
#: counting as a slow answer. The latency tables were made for small messages.
HEALTHY_BYTES_PER_MS: Final = 32 * 1024


class Verdict(Enum):
    """What to do after a failed attempt."""

    RAISE = "raise"
    GIVE_UP = "give up"
    ELSEWHERE = "elsewhere"
    AGAIN = "again"
    NEW_ROUTE = "new route"


def verdict(error: RocketqError, ordered: bool, repeatable: bool = False) -> Verdict:
    """Decide what follows from an error, as the table above draws it.

    `repeatable` is whether storing the parcel twice does no harm.
    """
    if isinstance(error, TopicNotFound | QueueNotFound | NoPermission):
        return Verdict.NEW_ROUTE
    if isinstance(error, SystemBusy | BrokerUnavailable | StoreFull | TooSlow | TooManyConnections):
        return Verdict.AGAIN if ordered else Verdict.ELSEWHERE
    if isinstance(error, BrokerUnreachable) and not error.sent:
        return Verdict.AGAIN if ordered else Verdict.ELSEWHERE
    if isinstance(error, BrokerUnreachable | InternalError):
        if ordered:
            return Verdict.AGAIN if repeatable else Verdict.GIVE_UP
        return Verdict.ELSEWHERE
    return Verdict.RAISE


@dataclass(frozen=True, slots=True)
class Parcel:
    """Slices for one broker, sent in one request; `ordering_key` is the one of its only message, if any."""

    topic: str
    slices: tuple[QueueSlice, ...]
    ordering_key: bytes | None = None

    @property
    def broker(self) -> str:
        return self.slices[0].queue.broker


class Post(Protocol[R]):
    """One request to one broker: how a parcel is put to it, and what its answer means."""

    @property
    def repeatable(self) -> bool:
        """Whether a request that the broker may have carried out can be made again without a trace."""
        ...

    def __call__(self, broker: BrokerApi, parcel: Parcel, stream: Body, timeout_ms: int) -> list[R]:
        """Make the request; return one result for each slice, in order."""
        ...


class Append:
    """The plain send: messages that are there when it is answered."""

    repeatable = False

    def __call__(self, broker: BrokerApi, parcel: Parcel, stream: Body, timeout_ms: int) -> list[SendResult]:
        queues = [s.queue.queue for s in parcel.slices]
        return _results(broker.send(parcel.topic, queues, stream, timeout_ms=timeout_ms), parcel)


APPEND: Final = Append()


class Delivery:
    """Sends parcels. Thread-safe: it holds nothing but what is shared."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        topics: TopicAdmin,
        config: ProducerConfig,
        clock: Clock,
        fault: FaultTolerance,
        closing: threading.Event,
    ) -> None:
        self._transport, self._routes, self._topics = transport, routes, topics
        self._config, self._clock, self._fault = config, clock, fault
        self._closing = closing
        #: The write queues of the last route seen of each topic: many sends share a route.
        self._queues: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues to choose among; a missing topic is created where that is allowed.

        Raises RouteNotFound, NoPermission when nothing is writable, NameServersUnreachable.
        """
        return self._writable(self._route(topic))

    def _queues_of(self, route: TopicRoute) -> list[MessageQueue]:
        known = self._queues.get(route.topic)
        if known is None or known[0] is not route:
            known = self._queues[route.topic] = (route, route.write_queues())
        return known[1]

    def send(
        self,
        parcel: Parcel,
        selector: QueueSelector,
        compression: str | None,
        post: Post[R],
        *,
        timeout_ms: int,
        retries: int,
    ) -> list[R]:
        """Send one parcel, by all the attempts it may have; return one result for each slice, in order."""
        begun_ms = self.now_ms()
        stream = _stream(parcel, compression)
        failed: set[str] = set()
        attempts: list[str] = []
        while True:
            left_ms = timeout_ms - (self.now_ms() - begun_ms)
            last = len(attempts) == retries
            try:
                route = self._route(parcel.topic)
                return self._attempt(parcel, route, stream, post, left_ms, selector.ordered or last)
            except RocketqError as error:
                decision = verdict(error, selector.ordered, post.repeatable)
                if decision is Verdict.RAISE:
                    raise
                attempts.append(f"{parcel.broker}: {error.message.rstrip('.')}")
                self._note(error, parcel, decision)
                failed.add(parcel.broker)
                pause_ms = self._pause_ms(error, parcel, decision, failed)
                elapsed_ms = self.now_ms() - begun_ms
                if last or decision is Verdict.GIVE_UP or elapsed_ms + pause_ms >= timeout_ms:
                    raise _failure(parcel, attempts, elapsed_ms, error, post.repeatable) from error
                self._closing.wait(pause_ms / 1000)
                parcel = self._readdressed(parcel, selector, decision, frozenset(failed))

    # --- one attempt -------------------------------------------------------------

    def _attempt(
        self, parcel: Parcel, route: TopicRoute, stream: Stream, post: Post[R], left_ms: int, final: bool
    ) -> list[R]:
        others = any(queue.broker != parcel.broker for queue in self._queues_of(route))
        broker = master_of(route, parcel.broker, self._transport)
        begun_ms = self.now_ms()
        allowed_ms = max(1, left_ms if final or not others else left_ms // 2)
        results = post(broker, parcel, stream, allowed_ms)
        healthy_ms = stream.nbytes // HEALTHY_BYTES_PER_MS
        now_ms = self.now_ms()
        self._fault.record(parcel.broker, max(0, now_ms - begun_ms - healthy_ms), now_ms)
        return results

    def _note(self, error: RocketqError, parcel: Parcel, decision: Verdict) -> None:
        """Remember what the failure says about the broker and about the route."""
        if isinstance(error, TopicNotFound):
            self._routes.forget(parcel.topic)
        elif decision is Verdict.NEW_ROUTE or isinstance(error, BrokerUnreachable):
            self._routes.invalidate(parcel.topic)
        if not isinstance(error, TopicNotFound | QueueNotFound | NoPermission | RouteNotFound):
            self._fault.record(parcel.broker, 0, self.now_ms(), isolation=True)

    def _pause_ms(self, error: RocketqError, parcel: Parcel, decision: Verdict, failed: set[str]) -> int:
        """Return how long to wait before the next attempt: not at all if it goes to a fresh broker."""
        if decision is Verdict.NEW_ROUTE:
            return 0
        route = self._routes.cached(parcel.topic)
        fresh = route is not None and any(q.broker not in failed for q in self._queues_of(route))
        if decision is Verdict.ELSEWHERE and fresh:
            return 0
        return max(BACKOFF_MS, error.retry_after_ms) if isinstance(error, SystemBusy) else BACKOFF_MS

    # --- addressing --------------------------------------------------------------

    def _route(self, topic: str) -> TopicRoute:
        try:
            return self._routes.route(topic)
        except RouteNotFound:
            if not self._config.auto_create_topics:
                raise
        count = self._config.auto_create_queues
        request = CreateTopicRequest(read_queues=count, write_queues=count, if_absent=True, automatic=True)
        self._topics.create(topic, request, wait_ms=self._config.timeout_ms)
        return self._routes.route(topic)

    def _writable(self, route: TopicRoute) -> list[MessageQueue]:
        queues = self._queues_of(route)
        if not queues:
            self._routes.invalidate(route.topic)
            raise NoPermission("sending", f"topic {route.topic}: it has no writable queue on a live master")
        return queues

    def _readdressed(
        self, parcel: Parcel, selector: QueueSelector, decision: Verdict, failed: frozenset[str]
    ) -> Parcel:
        """Choose where the next attempt goes; all slices stay together on one broker."""
        if decision is Verdict.AGAIN:
            return parcel
        queues = self._writable(self._route(parcel.topic))
        if selector.ordered and len(parcel.slices) > 1:
            # Each slice was made for its queue; they are all still there, or the next attempt says so.
            return parcel
        selection = Selection(parcel.ordering_key, failed, self.now_ms())
        first = selector.select(queues, selection)
        near = [q for q in queues if q.broker == first.broker]
        chosen = [first, *(selector.select(near, selection) for _ in parcel.slices[1:])]
        moved = [
            QueueSlice(queue, s.batch, s.first_row) for queue, s in zip(chosen, parcel.slices, strict=True)
        ]
        return Parcel(parcel.topic, tuple(moved), parcel.ordering_key)


def _stream(parcel: Parcel, compression: str | None) -> Stream:
    """Return a parcel's messages as one Arrow stream; what is large of them is not copied."""
    batches = [piece.batch for piece in parcel.slices]
    if sum(map(batch_bytes, batches)) >= PIECE_BYTES_MIN:
        return stream_pieces(batches, compression)
    return memoryview(write_stream(batches, compression))


def _results(answer: SendAnswer, parcel: Parcel) -> list[SendResult]:
    return [
        SendResult(
            answer.status,
            MessageQueue(parcel.topic, answer.broker, appended.queue),
            appended.offset,
            appended.count,
        )
        for appended in answer.appended
    ]


def _failure(
    parcel: Parcel, attempts: Sequence[str], elapsed_ms: int, error: RocketqError, repeatable: bool
) -> RocketqError:
    """Return what to raise: a refusal itself where it says everything, else the story of all attempts."""
    alone = len(attempts) == 1 and not isinstance(error, BrokerUnreachable | InternalError)
    if alone or isinstance(error, TopicNotFound | QueueNotFound | NoPermission):
        return error
    failed = SendFailed(parcel.topic, list(attempts), elapsed_ms)
    if repeatable:
        failed.hint = "Nothing of it is visible, and sending again duplicates nothing."
    return failed
