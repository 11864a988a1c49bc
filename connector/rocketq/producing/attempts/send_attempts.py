"""Getting one request to a broker: attempts, and where the next one goes.

What follows from a failed attempt is decided in `attempt_rules`; here it is done. After every failed
attempt the route is asked for again. A parcel without an order moves to another broker. A parcel whose
order matters stays in its queue while the route has that queue's broker; when the broker has left the
route, the selector chooses among the queues that are there, as it does for every later message of the
same key. An explicit queue has no other place, so its parcel waits for its broker.

How a parcel is put to a broker and what is made of the answer is a `Post` (`posts`). A parcel that is
appended has a number (`send_slots`), the same in all attempts, by which a broker stores it once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np

from rocketq.admin.topics import TopicAdmin
from rocketq.clock import Clock
from rocketq.config import ProducerConfig
from rocketq.errors import (
    BrokerUnreachable,
    InternalError,
    NoPermission,
    OutcomeUnknown,
    QueueNotFound,
    RocketqError,
    RouteNotFound,
    SendFailed,
    SystemBusy,
    TopicNotFound,
)
from rocketq.model import Message, MessageQueue, SendResult
from rocketq.net.broker_api import BrokerApi, master_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.send_slot import SendSlot
from rocketq.net.small_call_connection import SHORT_BODY_BYTES_MAX
from rocketq.net.transport import Transport
from rocketq.producing.attempts.attempt_rules import (
    ATTEMPT_REPLICAS_MS_MAX,
    ENDS,
    Trip,
    Verdict,
    attempt_ms,
    counts_as_attempt,
    staying,
    verdict,
)
from rocketq.producing.attempts.parcels import Content, Parcel, shared_anew
from rocketq.producing.attempts.posts import (
    APPEND,
    Append,
    AppendOne,
    Post,
    append_one,
    may_be_duplicate,
    unique_id_of,
)
from rocketq.producing.attempts.send_hooks import SendAttempt, SendHook, observed
from rocketq.producing.attempts.send_slots import SendSlots
from rocketq.producing.attempts.send_trace import SendTrace, is_traced, traced, traced_one
from rocketq.producing.selection.broker_probe import PROBE_TIMEOUT_MS, BrokerProbe
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.producing.selection.queue_selectors import QueueSelector, QueueSlice, Selection
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.nameserver import TopicRoute
from rocketq.protocol.hashing import hash_value
from rocketq.protocol.message_schema import from_messages

R = TypeVar("R")
T = TypeVar("T")

#: The pause before the same broker is asked again, when it did not name one.
BACKOFF_MS: Final = 100
#: Bytes that a healthy broker takes in 1 ms at least: what a large request may cost without
#: counting as a slow answer. The latency tables were made for small messages.
HEALTHY_BYTES_PER_MS: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class _Known:
    """A route, its write queues, and by broker its master and whether the route has queues on others."""

    route: TopicRoute
    queues: list[MessageQueue]
    masters: dict[str, tuple[BrokerApi, bool]]


class SendAttempts:
    """Sends parcels. Thread-safe: it holds nothing but what is shared."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        topics: TopicAdmin,
        config: ProducerConfig,
        clock: Clock,
        fault: FaultTolerance,
    ) -> None:
        self._transport, self._routes, self._topics = transport, routes, topics
        self._config, self._clock, self._fault = config, clock, fault
        #: Set when the producer has closed: nobody waits before another attempt any more.
        self._closing = threading.Event()
        self._probe = BrokerProbe(fault, self._answers)
        self._slots = SendSlots()
        #: What sees each attempt.
        self.hooks: tuple[SendHook, ...] = ()
        #: What records the way of some messages.
        self.trace: SendTrace | None = None
        #: What was made of the last route seen of each topic: many sends share a route.
        self._known: dict[str, _Known] = {}

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def close(self) -> None:
        """Let no attempt wait for another one, and ask no broker any more."""
        self._closing.set()
        self._probe.close()

    def _answers(self, broker: str, address: str) -> bool | None:
        """Whether a broker answers; None if no route names it any more."""
        if not any(known.route.broker(broker) for known in list(self._known.values())):
            return None
        try:
            BrokerApi(self._transport, broker, address, timeout_ms=PROBE_TIMEOUT_MS).version()
        except RocketqError:
            return False
        return True

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues to choose among; a missing topic is created where that is allowed.

        Raises RouteNotFound, NoPermission when nothing is writable, NameServersUnreachable.
        """
        return self._writable(self._route(topic))

    def _queues_of(self, route: TopicRoute) -> list[MessageQueue]:
        return self._known_of(route).queues

    def _known_of(self, route: TopicRoute) -> _Known:
        known = self._known.get(route.topic)
        if known is None or known.route is not route:
            known = self._known[route.topic] = _Known(route, route.write_queues(), {})
        return known

    def _master(self, known: _Known, broker: str) -> tuple[BrokerApi, bool]:
        """Return the master of a broker, and whether the route has queues on others.

        Raises BrokerUnreachable if the route names no master.
        """
        found = known.masters.get(broker)
        if found is None:
            others = any(queue.broker != broker for queue in known.queues)
            master = master_of(known.route, broker, self._transport, self._routes.invalidate)
            found = known.masters[broker] = (master, others)
        return found

    def send(
        self,
        parcel: Parcel,
        selector: QueueSelector,
        compression: str | None,
        post: Post[R],
        *,
        timeout_ms: int,
        retries: int,
    ) -> Iterator[tuple[QueueSlice, R]]:
        """Send one parcel, by all the attempts it may have; yield each slice that is stored, with its result.

        The slices are the parcel's own, in order, or others with the same messages if a broker left the
        route. What raises after some were yielded says nothing about those.
        """
        trip = Trip(self.now_ms(), timeout_ms, retries)
        slot = self._slot(retries)
        try:
            yield from self._delivered(parcel, selector, compression, post, trip, slot)
        finally:
            self._slots.release(slot)

    def _slot(self, retries: int) -> SendSlot | None:
        """Take a slot for one send; None if it is not to be numbered."""
        return self._slots.take() if self._config.idempotent and retries else None

    def send_one(
        self,
        queue: MessageQueue,
        message: Message,
        ordering_key: bytes | None,
        selector: QueueSelector,
        *,
        timeout_ms: int,
        retries: int,
    ) -> SendResult:
        """Send one message, by all the attempts it may have, and return where it is.

        The first attempt is made with as few steps as it can have. Only what follows a failed attempt, or a
        message without a plain form, needs a batch.
        """
        trip, slot = Trip(self.now_ms(), timeout_ms, retries), self._slot(retries)
        try:
            return self._sent_one(queue, message, ordering_key, selector, trip, slot)
        finally:
            self._slots.release(slot)

    def _sent_one(
        self,
        queue: MessageQueue,
        message: Message,
        ordering_key: bytes | None,
        selector: QueueSelector,
        trip: Trip,
        slot: SendSlot | None,
    ) -> SendResult:
        compression = self._config.compression
        plain = append_one(message, slot) if compression is None else None
        failure: RocketqError | None = None
        if plain is not None:
            ask: Callable[..., SendResult] = partial(plain.to_queue, queue=queue)
            if self.trace is not None and is_traced(message):
                ask = traced_one(self.trace, queue, message, ask, self.now_ms)
            try:
                size = len(message.body)
                is_last = selector.ordered and slot is None
                is_cheap = slot is not None and size <= SHORT_BODY_BYTES_MAX
                return self._asked(queue.topic, queue.broker, 1, size, is_last, trip, ask, is_cheap)
            except RocketqError as error:
                failure = error
        hashes = None if ordering_key is None else np.array([hash_value(ordering_key)], np.uint64)
        piece = QueueSlice(queue, from_messages([message]), 0, hashes=hashes)
        post: Post[SendResult] = plain or APPEND
        places = [Parcel(queue.topic, (piece,))]
        if failure is not None:
            trip, places = self._after_failure(failure, places[0], selector, post, trip)
        ((_, result),) = self._delivered(places[0], selector, compression, post, trip, slot)
        return replace(result, unique_id=unique_id_of(message))

    def _delivered(
        self,
        parcel: Parcel,
        selector: QueueSelector,
        compression: str | None,
        way: Post[R],
        trip: Trip,
        slot: SendSlot | None,
    ) -> Iterator[tuple[QueueSlice, R]]:
        post = way if slot is None else way.numbered(slot)
        content = post.content(parcel, compression)
        while True:
            try:
                results = self._attempt(parcel, content, post, selector.ordered, trip)
                break
            except RocketqError as error:
                trip, moved = self._after_failure(error, parcel, selector, post, trip)
            if len(moved) != 1 or not _is_same_content(moved[0], parcel):
                for part in moved:
                    yield from self._delivered(part, selector, compression, way, trip, slot)
                return
            parcel = moved[0]
        elsewhere = trip.unanswered - {parcel.broker} if post.is_numbered else trip.unanswered
        if elsewhere:
            results = [may_be_duplicate(result) for result in results]
        yield from zip(parcel.slices, results, strict=True)

    def _after_failure(
        self, error: RocketqError, parcel: Parcel, selector: QueueSelector, post: Post[R], trip: Trip
    ) -> tuple[Trip, list[Parcel]]:
        """Return the trip with its failed attempt, and where the next one goes, after the pause before it.

        Raises what the send raises if there is no next attempt.
        """
        counts = counts_as_attempt(
            error,
            has_replicas=self._has_replicas(parcel.topic, parcel.broker),
            others=self._has_others(parcel),
            numbered=post.is_numbered,
        )
        trip = trip.after(parcel.broker, error, counts=counts)
        decision = verdict(error, selector.ordered, post.repeatable, post.is_numbered)
        if post.is_numbered:
            must_stay = selector.ordered or not self._config.move_unanswered
            others = self._has_others(parcel)
            decision = staying(decision, trip, parcel.broker, must_stay=must_stay, others=others)
        pause_ms = self._pause_ms(error, parcel, decision, trip.failed)
        if decision is not Verdict.RAISE:
            self._note(error, parcel)
        left_ms = trip.left_ms(self.now_ms())
        if decision in ENDS or not trip.attempts_left or pause_ms >= left_ms:
            raise self._failure(parcel.topic, trip, error, decision, post) from error
        self._closing.wait(pause_ms / 1000)
        try:
            return trip, self._readdressed(parcel, selector, decision, trip.failed)
        except RocketqError as refused:
            raise self._failure(parcel.topic, trip, refused, Verdict.RAISE, post) from refused

    # --- one attempt -------------------------------------------------------------

    def _attempt(self, parcel: Parcel, content: Content, post: Post[R], ordered: bool, trip: Trip) -> list[R]:
        may_come_again = post.repeatable or post.is_numbered or not ordered
        # A repetition finds what is under way here, so a small request need not be waited for to the end.
        is_cheap = post.is_numbered and content.nbytes <= SHORT_BODY_BYTES_MAX

        def ask(broker: BrokerApi, *, timeout_ms: int) -> list[R]:
            return post(broker, parcel, content, timeout_ms)

        if self.trace is not None and isinstance(post, Append | AppendOne):
            ask = traced(self.trace, parcel, len(trip.attempts) + 1, ask, self.now_ms)
        count = sum(piece.batch.num_rows for piece in parcel.slices)
        return self._asked(
            parcel.topic, parcel.broker, count, content.nbytes, not may_come_again, trip, ask, is_cheap
        )

    def _asked(
        self,
        topic: str,
        broker: str,
        count: int,
        size: int,
        is_last: bool,
        trip: Trip,
        ask: Callable[..., T],
        is_cheap: bool,
    ) -> T:
        """Make one attempt at a broker by `ask(broker_api, timeout_ms=...)`, and note how long it took.

        `count` and `size` are the messages and their bytes. `is_last` is whether an attempt without an answer
        is the last one, which may take all the time left; `is_cheap` whether it may be short even where no
        other broker has the topic.
        """
        api, others = self._master(self._known_of(self._route(topic)), broker)
        begun_ms = self.now_ms()
        allowed_ms = max(1, trip.left_ms(begun_ms))
        if not is_last:
            allowed_ms = attempt_ms(
                allowed_ms,
                trip.timeout_ms,
                trip.attempts_left,
                others or is_cheap,
                broker in trip.unanswered,
            )
            if self._has_replicas(topic, broker):
                allowed_ms = min(allowed_ms, ATTEMPT_REPLICAS_MS_MAX)
        if self.hooks:
            attempt = SendAttempt(topic, broker, count, len(trip.attempts) + 1)
            answer = observed(self.hooks, attempt, self.now_ms, partial(ask, api, timeout_ms=allowed_ms))
        else:
            answer = ask(api, timeout_ms=allowed_ms)
        now_ms = self.now_ms()
        self._fault.record(broker, max(0, now_ms - begun_ms - size // HEALTHY_BYTES_PER_MS), now_ms)
        return answer

    def _has_others(self, parcel: Parcel) -> bool:
        route = self._routes.cached(parcel.topic)
        return route is not None and any(q.broker != parcel.broker for q in self._queues_of(route))

    def _has_replicas(self, topic: str, broker: str) -> bool:
        route = self._routes.cached(topic)
        group = None if route is None else route.broker(broker)
        return group is not None and len(group.addresses) > 1

    def _note(self, error: RocketqError, parcel: Parcel) -> None:
        """Remember what the failure says about the broker; the next attempt asks for the route again."""
        if isinstance(error, TopicNotFound):
            self._routes.forget(parcel.topic)
        else:
            self._routes.invalidate(parcel.topic)
        if not isinstance(error, TopicNotFound | QueueNotFound | NoPermission):
            self._fault.record(parcel.broker, 0, self.now_ms(), isolation=True)
            known = self._known.get(parcel.topic)
            master = None if known is None else known.masters.get(parcel.broker)
            if master is not None:
                self._probe.watch(parcel.broker, master[0].address)

    def _pause_ms(
        self, error: RocketqError, parcel: Parcel, decision: Verdict, failed: frozenset[str]
    ) -> int:
        """Return how long to wait before the next attempt: not at all if it goes to a fresh broker."""
        if decision is Verdict.NEW_ROUTE:
            return 0
        route = self._routes.cached(parcel.topic)
        fresh = route is not None and any(q.broker not in failed for q in self._queues_of(route))
        if decision is Verdict.ELSEWHERE and fresh:
            return 0
        return max(BACKOFF_MS, error.retry_after_ms) if isinstance(error, SystemBusy) else BACKOFF_MS

    def _failure(
        self, topic: str, trip: Trip, error: RocketqError, decision: Verdict, post: Post[R]
    ) -> RocketqError:
        """Return what to raise: a refusal itself where it says everything, else the story of all attempts."""
        may_be_stored = trip.may_be_stored and not post.repeatable
        alone = len(trip.attempts) == 1 and not isinstance(
            error, BrokerUnreachable | InternalError | OutcomeUnknown
        )
        refused = isinstance(error, TopicNotFound | QueueNotFound | NoPermission)
        if not may_be_stored and (alone or refused or decision is Verdict.RAISE):
            return error
        elapsed_ms = self.now_ms() - trip.begun_ms
        failed = SendFailed(topic, list(trip.attempts), elapsed_ms, may_be_stored)
        if post.repeatable:
            failed.hint = "Nothing of it is visible, and sending again duplicates nothing."
        return failed

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
            raise NoPermission(
                "Sending",
                f"topic {route.topic}, which has no writable queue at present",
                "Its masters may be away (rocketq broker list) or drained (rocketq broker resume), or the "
                "topic's perm forbids writing (rocketq topic describe).",
            )
        return queues

    def _readdressed(
        self, parcel: Parcel, selector: QueueSelector, decision: Verdict, failed: frozenset[str]
    ) -> list[Parcel]:
        """Choose where the next attempt goes, by a route that is asked for again.

        Without an order all slices move to one broker. With an order each message gets the place that the
        selector gives it now, if the broker of its place has left the route or denies that it has the queue.
        """
        if decision is Verdict.HERE:
            return [parcel]
        route = self._route(parcel.topic)
        queues = self._queues_of(route)
        stays = decision is Verdict.AGAIN and any(q.broker == parcel.broker for q in queues)
        if stays or (not queues and decision is not Verdict.NEW_ROUTE):
            # With no broker in the route there is nothing to choose: the next attempt may find one.
            return [parcel]
        queues = self._writable(route)
        if not selector.ordered:
            return [self._moved(parcel, selector, queues, failed)]
        try:
            return shared_anew(parcel, selector, queues, self.now_ms(), self._config.request_bytes)
        except QueueNotFound:
            if decision is Verdict.NEW_ROUTE:
                raise
            return [parcel]

    def _moved(
        self, parcel: Parcel, selector: QueueSelector, queues: list[MessageQueue], failed: frozenset[str]
    ) -> Parcel:
        if all(queue.broker in failed for queue in queues):
            # Each broker failed once; the one that failed last is the least likely to have recovered.
            failed = frozenset({parcel.broker})
        selection = Selection(failed=failed, now_ms=self.now_ms())
        first = selector.select(queues, selection)
        near = [q for q in queues if q.broker == first.broker]
        chosen = [first, *(selector.select(near, selection) for _ in parcel.slices[1:])]
        slices = [replace(piece, queue=queue) for queue, piece in zip(chosen, parcel.slices, strict=True)]
        return Parcel(parcel.topic, tuple(slices))


def _is_same_content(moved: Parcel, parcel: Parcel) -> bool:
    """Whether both are made of the same batches, so that one content serves for both."""
    return len(moved.slices) == len(parcel.slices) and all(
        new.batch is old.batch for new, old in zip(moved.slices, parcel.slices, strict=True)
    )
