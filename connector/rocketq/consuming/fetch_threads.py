"""The threads of a consumer, and the lock they share.

    puller    one for each broker: makes the next pull that has something to
              give and fits the buffer, never a held one
    watcher   one for each topic on each broker: when all that is known is
              fetched, asks to be told of more and is held by the broker
    router    one for each topic: waits for its route to change, and begins with
              new queues and brokers

A seek therefore never waits for a held call. All end at once when the transport
is closed: that cuts what they wait for. A call that fails is repeated after a pause; only what
repeating cannot mend (a corrupt frame twice, an offset that must not be skipped,
a topic that is gone, a missing permission) stops a queue and comes out of poll.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from rocketq.clock import Clock
from rocketq.config import ConsumerConfig
from rocketq.consuming.damage_diagnosis import diagnosed
from rocketq.consuming.fetch_buffer import Fetch, Prefetch
from rocketq.consuming.start_offsets import begin_offsets, resume_offset
from rocketq.errors import (
    BrokerUnreachable,
    ClientError,
    Closed,
    Conflict,
    CorruptFrame,
    OffsetOutOfRange,
    QueueNotFound,
    RocketqError,
    TopicNotFound,
)
from rocketq.model import MessageQueue
from rocketq.net.broker_api import BrokerApi, Pulled, replica_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.nameserver_documents import TopicRoute

log = logging.getLogger("rocketq.consuming.pull_consumer")


class Fetching:
    """Keeps a Prefetch filled. `changed` guards it and tells of every change."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        topics: Sequence[str],
        group: str | None,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        self._transport, self._routes, self._topics = transport, routes, topics
        self._group, self._config, self._clock = group, config, clock
        self.changed = threading.Condition()
        self.prefetch = Prefetch(config.prefetch_bytes)
        self._stopping = threading.Event()
        self._threads: dict[tuple[str, ...], threading.Thread] = {}
        self._troubled: set[tuple[str, ...]] = set()
        #: What a thread died of, if one did; poll raises it.
        self.defect: Exception | None = None
        #: Queues of the first routes. `start` speaks of them; later ones are read from their first message.
        self._initial: frozenset[MessageQueue] = frozenset()

    def start(self) -> None:
        """Find where to begin and start the threads; raise if no queue can be begun with."""
        routes = {topic: self._routes.route(topic) for topic in self._topics}
        self._initial = frozenset(q for route in routes.values() for q in route.read_queues())
        failed = [error for route in routes.values() for error in self._begin_queues(route)]
        if failed and not any(True for _ in self.prefetch.states()):
            raise failed[0]
        for topic in self._topics:
            self._start_thread(("router", topic), lambda topic=topic: self._follow_route(topic))  # type: ignore[misc]

    def stop(self) -> None:
        """End all threads; the caller closes the transport first, which cuts their calls."""
        self._stopping.set()
        with self.changed:
            self.changed.notify_all()
        while self._threads:
            _, thread = self._threads.popitem()
            thread.join()

    # --- routers -----------------------------------------------------------------

    def _follow_route(self, topic: str) -> None:
        route = self._routes.route(topic)
        while not self._stopping.is_set():
            missing = [q for q in route.read_queues() if q not in self.prefetch]
            if missing and self._begin_queues(route):
                self._stopping.wait(self._config.retry_ms / 1000)
            hold_ms = self._config.retry_ms if missing else self._config.hold_ms
            route = self._routes.wait_for_change(topic, route, hold_ms)
            self._troubled.discard(("router", topic))

    def _begin_queues(self, route: TopicRoute) -> list[RocketqError]:
        """Begin with the queues of a route that are new here; return what stood in the way."""
        failed: list[RocketqError] = []
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in route.read_queues():
            if queue not in self.prefetch:
                by_broker.setdefault(queue.broker, []).append(queue)
        for broker, queues in by_broker.items():
            try:
                self._begin_on_broker(route, broker, queues)
            except (Closed, OffsetOutOfRange):
                raise
            except RocketqError as error:
                log.warning("Cannot begin with %s on %s yet: %s", route.topic, broker, error)
                failed.append(error)
        return failed

    def _begin_on_broker(self, route: TopicRoute, broker: str, queues: Sequence[MessageQueue]) -> None:
        api = replica_of(route, broker, self._transport)
        for is_new in (False, True):
            chosen = [q for q in queues if (q not in self._initial) is is_new]
            if not chosen:
                continue
            found = begin_offsets(api, route.topic, chosen, self._config, self._group, is_new=is_new)
            with self.changed:
                for queue, begin in found.items():
                    self.prefetch.add(queue, begin.offset, begin.max_offset, begin.incarnation)
                self.changed.notify_all()
        self._start_thread(("puller", broker), lambda: self._pull_all(broker))
        self._start_thread(("watcher", broker, route.topic), lambda: self._watch(broker, route.topic))

    # --- watchers ----------------------------------------------------------------

    def _watch(self, broker: str, topic: str) -> None:
        total: int | None = None
        while not self._stopping.is_set():
            with self.changed:
                self.changed.wait_for(
                    lambda: self._stopping.is_set() or self.prefetch.is_caught_up(topic, broker)
                )
            if self._stopping.is_set():
                return
            api = replica_of(self._routes.route(topic), broker, self._transport)
            hold_ms = 0 if total is None else self._config.hold_ms
            try:
                offsets = api.offsets(topic, after_total=total, wait_ms=hold_ms)
            except TopicNotFound as error:
                with self.changed:
                    self.prefetch.fail_topic(topic, broker, error)
                    self.changed.notify_all()
                raise
            total = offsets.total
            self._troubled.discard(("watcher", broker, topic))
            with self.changed:
                maxima = [extent.max for extent in offsets.queues]
                self.prefetch.note_max(topic, broker, maxima, offsets.incarnation)
                self.changed.notify_all()

    # --- pullers -----------------------------------------------------------------

    def _pull_all(self, broker: str) -> None:
        while not self._stopping.is_set():
            fetch = self._next_fetch(broker)
            if fetch is None:
                return
            try:
                self._pull(fetch)
            finally:
                with self.changed:
                    self.prefetch.release(self._config.pull_bytes)
                    self.changed.notify_all()

    def _next_fetch(self, broker: str) -> Fetch | None:
        """Wait until there is a pull to make; None when it is time to stop."""
        with self.changed:
            while not self._stopping.is_set():
                now_ms = self._clock.monotonic_ms()
                fetch = self.prefetch.next_fetch(broker, self._config.pull_bytes, now_ms)
                if fetch is not None:
                    return fetch
                paused = any(s.paused_until_ms > now_ms for s in self.prefetch.states())
                self.changed.wait(self._config.retry_ms / 1000 if paused else None)
        return None

    def _pull(self, fetch: Fetch) -> None:
        queue = fetch.queue
        try:
            api = replica_of(self._routes.route(queue.topic), queue.broker, self._transport)
            try:
                self._pull_from(api, fetch)
            except CorruptFrame as error:
                self._fail_if_corrupt_again(api, fetch, error)
            self._troubled.discard(("puller", queue.broker))
        except Closed:
            raise
        except RocketqError as error:
            self._pause_or_fail(fetch, error)

    def _pull_from(self, api: BrokerApi, fetch: Fetch) -> None:
        queue = fetch.queue
        try:
            pulled = api.pull(
                queue.topic,
                queue.queue,
                fetch.offset,
                max_bytes=self._config.pull_bytes,
                tag=self._config.tags,
                sql=self._config.sql,
                group=self._group,
            )
        except OffsetOutOfRange as error:
            self._resume(api, fetch, error)
        else:
            self._store_pulled(fetch, pulled)

    def _store_pulled(self, fetch: Fetch, pulled: Pulled) -> None:
        if pulled.incarnation != self._incarnation(fetch.queue):
            self._recreated(fetch, pulled.incarnation, pulled.min_offset, pulled.max_offset)
            return
        slices, next_offset = pulled.bounded_slices()
        if slices and slices[0].filtered_offsets is None and slices[0].offset > fetch.offset:
            log.warning(
                "%s has a gap: offsets [%d, %d) are not stored", fetch.queue, fetch.offset, slices[0].offset
            )
        with self.changed:
            self.prefetch.store(fetch, slices, next_offset, pulled.max_offset)

    def _resume(self, api: BrokerApi, fetch: Fetch, error: OffsetOutOfRange) -> None:
        incarnation = self._incarnation(fetch.queue)
        if fetch.offset > error.max_offset:
            # A queue cut short, or the queue of a new topic of the same name?
            now = api.offsets(fetch.queue.topic)
            if now.incarnation != incarnation:
                extent = now.queues[fetch.queue.queue]
                self._recreated(fetch, now.incarnation, extent.min, extent.max)
                return
        offset = resume_offset(error, self._config)
        with self.changed:
            if offset is None:
                self.prefetch.fail(fetch, error)
                return
            if not self.prefetch.resume_at(fetch, offset, error.max_offset, incarnation):
                return
        if fetch.offset < error.min_offset:
            log.warning(
                "Messages [%d, %d) of %s are gone; going on at %d",
                fetch.offset, error.min_offset, fetch.queue, offset,
            )  # fmt: skip
        else:
            log.warning(
                "%s ends at %d, below the wanted offset %d: what lay between is lost; going on at %d",
                fetch.queue, error.max_offset, fetch.offset, offset,
            )  # fmt: skip

    def _incarnation(self, queue: MessageQueue) -> str:
        with self.changed:
            state = self.prefetch.state(queue)
            return state.incarnation if state is not None else ""

    def _recreated(self, fetch: Fetch, incarnation: str, min_offset: int, max_offset: int) -> None:
        """The topic was deleted and created anew: its offsets mean other messages now."""
        if self._config.offset_reset == "error":
            why = "it was deleted and created anew; the offsets read so far mean nothing in it"
            error = Conflict(f"topic {fetch.queue.topic}", why, hint="Seek to where reading should go on.")
            with self.changed:
                self.prefetch.fail(fetch, error)
                state = self.prefetch.state(fetch.queue)
                if state is not None:
                    state.incarnation = incarnation
            return
        offset = max_offset if self._config.offset_reset == "latest" else min_offset
        log.warning("Topic %s was created anew; going on in %s at %d", fetch.queue.topic, fetch.queue, offset)
        with self.changed:
            self.prefetch.resume_at(fetch, offset, max_offset, incarnation)

    def _fail_if_corrupt_again(self, api: BrokerApi, fetch: Fetch, error: CorruptFrame) -> None:
        """A corrupt frame may be the wire's fault: it counts when it comes again."""
        with self.changed:
            state = self.prefetch.state(fetch.queue)
            if state is None or state.generation != fetch.generation:
                return
            state.corrupt_seen += 1
            if state.corrupt_seen == 1:
                return
            state.corrupt_seen = 0
        error = diagnosed(api, fetch.queue, fetch.offset, error)
        with self.changed:
            self.prefetch.fail(fetch, error)

    def _pause_or_fail(self, fetch: Fetch, error: RocketqError) -> None:
        queue = fetch.queue
        passing = isinstance(error, ClientError | QueueNotFound) or error.retryable
        with self.changed:
            if not passing:
                self.prefetch.fail(fetch, error)
                return
            until_ms = self._clock.monotonic_ms() + self._config.retry_ms
            broken = isinstance(error, BrokerUnreachable)
            alike = [s.queue for s in self.prefetch.states() if broken and s.queue.broker == queue.broker]
            self.prefetch.pause([queue, *alike], until_ms)
        self._routes.invalidate(queue.topic)
        self._log_once(("puller", queue.broker), error)

    # --- threads -----------------------------------------------------------------

    def _start_thread(self, name: tuple[str, ...], work: Callable[[], None]) -> None:
        """Run `work` in a thread of this name until it returns, unless there is one already."""
        with self.changed:
            if name in self._threads or self._stopping.is_set():
                return
            thread = threading.Thread(
                target=self._repeated, args=(name, work), name=f"rocketq-{'-'.join(name)}", daemon=True
            )
            self._threads[name] = thread
            thread.start()

    def _repeated(self, name: tuple[str, ...], work: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                work()
            except Closed:
                return
            except OffsetOutOfRange as error:
                # Where to begin was not to be guessed, and is not known: only poll can say so.
                self._end_with_defect(error)
                return
            except RocketqError as error:
                self._log_once(name, error)
                if isinstance(error, BrokerUnreachable):
                    self._routes.invalidate(name[-1])
                self._stopping.wait(self._config.retry_ms / 1000)
            except Exception as error:
                # A defect. A thread that just ended would look like a topic without news.
                log.exception("The thread %s failed in an unforeseen way", " ".join(name))
                self._end_with_defect(error)
                return

    def _end_with_defect(self, error: Exception) -> None:
        with self.changed:
            self.defect = error
            self.changed.notify_all()

    def _log_once(self, name: tuple[str, ...], error: RocketqError) -> None:
        """Log trouble when it begins, not at each new try."""
        level = logging.DEBUG if name in self._troubled else logging.WARNING
        self._troubled.add(name)
        log.log(level, "%s: trying every %d ms: %s", " ".join(name), self._config.retry_ms, error)
