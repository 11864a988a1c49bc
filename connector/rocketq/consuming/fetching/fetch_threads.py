"""The threads that fetch for a consumer, and the lock they share.

    puller    one for each broker: makes the next pull that has something to
              give and fits the buffer, never a held one
    watcher   one for each topic on each broker: when all that is known is
              fetched, asks to be told of more and is held by the broker

Which queues there are is said from outside, with `begin` and `end`: all of a route
(`rocketq.consuming.fetching.route_threads`), or those that a member of a group owns
(`rocketq.consuming.members.member`). Both run threads of their own with `start_thread`.

A seek never waits for a held call. All threads end at once when the transport
is closed: that cuts what they wait for. A call that fails is repeated after a pause; only what
repeating cannot mend (a frame that stays corrupt, an offset that must not be skipped,
a topic that is gone, a missing permission) stops a queue and comes out of poll.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rocketq.clock import Clock
from rocketq.config import Reset
from rocketq.consuming.fetching.changes import Changes
from rocketq.consuming.fetching.damage_diagnosis import CORRUPT_MAX, diagnosed, is_in_log
from rocketq.consuming.fetching.fetch_buffer import Fetch, Prefetch
from rocketq.consuming.fetching.start_offsets import Beginning, resume_offset
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.errors import (
    BrokerUnreachable,
    ClaimLost,
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
from rocketq.net.broker_api import BrokerApi, replica_of
from rocketq.net.pulled import Pulled
from rocketq.net.read_replicas import ReadReplicas
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import TopicRoute

log = logging.getLogger("rocketq.consuming.pull_consumer")

#: How often a puller looks whether acknowledgements have made room (RocketMQ: 50 ms under flow control).
FLOW_CONTROL_MS: Final = 50


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a consumer fetches; the fields are those of its configuration."""

    pull_bytes: int
    hold_ms: int
    retry_ms: int
    offset_reset: Reset


class Fetching:
    """Keeps a Prefetch filled. `changed` guards it and tells of every change."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        filters: Mapping[str, MessageFilter],
        group: str | None,
        settings: FetchSettings,
        prefetch: Prefetch,
        clock: Clock,
        client_id: str | None = None,
    ) -> None:
        """`client_id` is that of a member, which names its claims when it pulls."""
        self._client_id = client_id
        #: For each broker a topic that it has: topics that nobody subscribed to have no route here.
        self.stand_ins: Mapping[str, str] = {}
        #: Told the broker that says a queue of it is not the member's any more.
        self.on_claim_lost: Callable[[str], None] = lambda broker: None
        self._transport, self._routes, self._filters = transport, routes, filters
        self._group, self._settings, self._clock = group, settings, clock
        self._replicas = ReadReplicas(transport, clock)
        self.changed = Changes()
        self.prefetch = prefetch
        self._stopping = threading.Event()
        self._threads: dict[tuple[str, ...], threading.Thread] = {}
        self._troubled: set[tuple[str, ...]] = set()
        #: What a thread died of, if one did; poll raises it.
        self.defect: Exception | None = None

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def begin(self, found: Mapping[MessageQueue, Beginning]) -> None:
        """Begin to fetch queues."""
        with self.changed:
            for queue, begin in found.items():
                self.prefetch.add(queue, begin.offset, begin.max_offset, begin.incarnation, begin.epoch)
            self.changed.notify_all()
        for broker, topic in {(queue.broker, queue.topic) for queue in found}:
            self.start_thread(("puller", broker), partial(self._pull_all, broker))
            self.start_thread(("watcher", broker, topic), partial(self._watch, broker, topic))

    def wait(self, ms: int) -> None:
        """Wait for a time, or until the consumer stops."""
        self._stopping.wait(ms / 1000)

    def wait_for_stop(self) -> None:
        """Wait until the consumer stops."""
        self._stopping.wait()

    def stop(self) -> None:
        """End all threads; the caller closes the transport first, which cuts their calls."""
        self._stopping.set()
        with self.changed:
            self.changed.notify_all()
        while self._threads:
            _, thread = self._threads.popitem()
            thread.join()

    # --- watchers ----------------------------------------------------------------

    def _watch(self, broker: str, topic: str) -> None:
        total: int | None = None

        def is_caught_up() -> bool:
            return self.prefetch.is_caught_up(topic, broker, self._settings.pull_bytes)

        while not self._stopping.is_set():
            with self.changed:
                self.changed.wait_for(lambda: self._stopping.is_set() or is_caught_up())
            if self._stopping.is_set():
                return
            api = self._api(topic, broker)
            hold_ms = 0 if total is None else self._settings.hold_ms
            try:
                offsets = api.offsets(topic, after_total=total, wait_ms=hold_ms)
            except TopicNotFound as error:
                if topic not in self._filters:
                    raise
                with self.changed:
                    self.prefetch.fail_topic(topic, broker, error)
                    self.changed.notify_all()
                raise
            total = offsets.total
            self.is_well(("watcher", broker, topic))
            with self.changed:
                maxima = [extent.max for extent in offsets.queues]
                self.prefetch.note_max(topic, broker, maxima, offsets.incarnation)
                self.changed.notify_all()
                is_held_up = is_caught_up() and self.prefetch.has_unfetched(topic, broker)
            if is_held_up:
                # Of a queue that is paused or full: its senders must not set the pace of calls.
                self.wait(FLOW_CONTROL_MS)

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
                    self.prefetch.release(fetch)
                    self.changed.notify_all()

    def _next_fetch(self, broker: str) -> Fetch | None:
        """Wait until there is a pull to make; None when it is time to stop."""
        with self.changed:
            while not self._stopping.is_set():
                now_ms = self._clock.monotonic_ms()
                fetch = self.prefetch.next_fetch(broker, self._settings.pull_bytes, now_ms)
                if fetch is not None:
                    return fetch
                self.changed.wait(self._pause_s(broker, now_ms))
        return None

    def _pause_s(self, broker: str, now_ms: int) -> float | None:
        """Return how long a puller sleeps at most, None if something will wake it."""
        if self.prefetch.is_held_back(broker, now_ms):
            return FLOW_CONTROL_MS / 1000
        paused = any(state.paused_until_ms > now_ms for state in self.prefetch.states())
        return self._settings.retry_ms / 1000 if paused else None

    def _pull(self, fetch: Fetch) -> None:
        queue = fetch.queue
        try:
            if self._is_pulled_from_slave(fetch):
                return
            api = self._api(queue.topic, queue.broker)
            try:
                self._pull_from(api, fetch)
            except CorruptFrame as error:
                self._fail_if_corrupt_again(api, fetch, error)
            self.is_well(("puller", queue.broker))
        except Closed:
            raise
        except RocketqError as error:
            self._pause_or_fail(fetch, error)

    def _api(self, topic: str, broker: str) -> BrokerApi:
        """Return the calls to a broker of a topic."""
        return replica_of(self._route(topic, broker), broker, self._transport)

    def _route(self, topic: str, broker: str) -> TopicRoute:
        return self._routes.route(topic if topic in self._filters else self.stand_ins.get(broker, topic))

    def _is_pulled_from_slave(self, fetch: Fetch) -> bool:
        """Pull from the slave that was suggested, if one was; return whether it brought the reader on.

        A slave may know less than its master: of messages, of a topic, of who owns a queue. So whatever else
        it answers is asked again of the master, at once.
        """
        queue = fetch.queue
        slave = self._replicas.slave(queue, partial(self._route, queue.topic, queue.broker))
        if slave is None:
            return False
        try:
            pulled = self._pulled(slave, fetch)
            brings_on = pulled.next_offset > fetch.offset and self._incarnation(fetch) == pulled.incarnation
            if brings_on:
                self._store_pulled(fetch, pulled, is_slave=True)
                return True
        except Closed:
            raise
        except (ClaimLost, QueueNotFound, TopicNotFound):
            # Perhaps too new for the slave, and it knows at the next pull.
            self._replicas.leave(queue)
        except RocketqError as error:
            log.info("Going back to the master of %s: slave %s: %s", queue, slave.address, error.message)
            self._replicas.failed(queue, slave)
        else:
            self._replicas.leave(queue)
        return False

    def _pull_from(self, api: BrokerApi, fetch: Fetch) -> None:
        try:
            pulled = self._pulled(api, fetch)
        except OffsetOutOfRange as error:
            self._resume(api, fetch, error)
        else:
            self._store_pulled(fetch, pulled)

    def _pulled(self, api: BrokerApi, fetch: Fetch) -> Pulled:
        """Make a pull, and take the replica that its answer suggests."""
        queue = fetch.queue
        wanted = self._filters.get(queue.topic, MessageFilter())
        with self.changed:
            state = self.prefetch.current(fetch)
            epoch = None if state is None else state.epoch
        pulled = api.pull(
            queue.topic,
            queue.queue,
            fetch.offset,
            max_bytes=fetch.bytes_max,
            tag=wanted.tag,
            sql=wanted.sql,
            group=self._group,
            client_id=None if epoch is None else self._client_id,
            epoch=epoch,
        )
        self._replicas.heard(queue, pulled)
        return pulled

    def _store_pulled(self, fetch: Fetch, pulled: Pulled, *, is_slave: bool = False) -> None:
        incarnation = self._incarnation(fetch)
        if incarnation is None:
            return
        if pulled.incarnation != incarnation:
            self._recreated(fetch, pulled.incarnation, pulled.min_offset, pulled.max_offset)
            return
        slices, next_offset = pulled.bounded_slices()
        if slices and slices[0].filtered_offsets is None and slices[0].offset > fetch.offset:
            log.warning(
                "%s has a gap: offsets [%d, %d) are not stored", fetch.queue, fetch.offset, slices[0].offset
            )
        with self.changed:
            state = self.prefetch.current(fetch)
            known = state.known_max if state is not None and is_slave else 0
            self.prefetch.store(fetch, slices, next_offset, max(known, pulled.max_offset))

    def _resume(self, api: BrokerApi, fetch: Fetch, error: OffsetOutOfRange) -> None:
        incarnation = self._incarnation(fetch)
        if incarnation is None:
            return
        if fetch.offset > error.max_offset:
            # A queue cut short, or the queue of a new topic of the same name?
            now = api.offsets(fetch.queue.topic)
            if now.incarnation != incarnation:
                extent = now.queues[fetch.queue.queue]
                self._recreated(fetch, now.incarnation, extent.min, extent.max)
                return
        offset = resume_offset(error, self._settings.offset_reset)
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

    def _incarnation(self, fetch: Fetch) -> str | None:
        """Return which topic of its name a pull is of; None if a seek or the queue's loss made it stale."""
        with self.changed:
            state = self.prefetch.current(fetch)
            return None if state is None else state.incarnation

    def _recreated(self, fetch: Fetch, incarnation: str, min_offset: int, max_offset: int) -> None:
        """The topic was deleted and created anew: its offsets mean other messages now."""
        if self._settings.offset_reset == "error":
            why = "it was deleted and created anew; the offsets read so far mean nothing in it"
            error = Conflict(f"topic {fetch.queue.topic}", why, hint="Seek to where reading should go on.")
            with self.changed:
                self.prefetch.fail(fetch, error)
                state = self.prefetch.state(fetch.queue)
                if state is not None:
                    state.incarnation = incarnation
            return
        offset = max_offset if self._settings.offset_reset == "latest" else min_offset
        log.warning("Topic %s was created anew; going on in %s at %d", fetch.queue.topic, fetch.queue, offset)
        with self.changed:
            self.prefetch.resume_at(fetch, offset, max_offset, incarnation)

    def _fail_if_corrupt_again(self, api: BrokerApi, fetch: Fetch, error: CorruptFrame) -> None:
        """A corrupt frame may be the wire's fault, so it counts when it comes again.

        A broker that finds no damage then may just have healed its log: it is asked once more.
        """
        with self.changed:
            state = self.prefetch.current(fetch)
            if state is None:
                return
            state.corrupt_seen += 1
            seen = state.corrupt_seen
        if seen == 1:
            return
        error = diagnosed(api, fetch.queue, fetch.offset, error)
        with self.changed:
            if seen == CORRUPT_MAX or is_in_log(error):
                state.corrupt_seen = 0
                self.prefetch.fail(fetch, error)

    def _pause_or_fail(self, fetch: Fetch, error: RocketqError) -> None:
        queue = fetch.queue
        passing = isinstance(error, ClientError | QueueNotFound | ClaimLost) or error.retryable
        # A retry topic goes with its group: what the member owns of it is over then.
        passing |= isinstance(error, TopicNotFound) and queue.topic not in self._filters
        with self.changed:
            if self.prefetch.current(fetch) is None:
                return
            if not passing:
                self.prefetch.fail(fetch, error)
                return
            until_ms = self._clock.monotonic_ms() + self._settings.retry_ms
            broken = isinstance(error, BrokerUnreachable)
            alike = [s.queue for s in self.prefetch.states() if broken and s.queue.broker == queue.broker]
            self.prefetch.pause([queue, *alike], until_ms)
        if isinstance(error, ClaimLost):
            self.on_claim_lost(queue.broker)
            return
        self._routes.invalidate(queue.topic)
        self.log_once(("puller", queue.broker), error)

    # --- threads -----------------------------------------------------------------

    def start_thread(self, name: tuple[str, ...], work: Callable[[], None]) -> None:
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
                self.log_once(name, error)
                if isinstance(error, BrokerUnreachable):
                    self._routes.invalidate(name[-1])
                self._stopping.wait(self._settings.retry_ms / 1000)
            except Exception as error:
                # A defect. A thread that just ended would look like a topic without news.
                log.exception("The thread %s failed in an unforeseen way", " ".join(name))
                self._end_with_defect(error)
                return

    def _end_with_defect(self, error: Exception) -> None:
        with self.changed:
            self.defect = error
            self.changed.notify_all()

    def is_well(self, name: tuple[str, ...]) -> None:
        """Say that a thread's calls are answered again: its next trouble is logged as new."""
        self._troubled.discard(name)

    def log_once(self, name: tuple[str, ...], error: RocketqError) -> None:
        """Log trouble when it begins, not at each new try."""
        level = logging.DEBUG if name in self._troubled else logging.WARNING
        self._troubled.add(name)
        log.log(level, "%s: trying every %d ms: %s", " ".join(name), self._settings.retry_ms, error)
