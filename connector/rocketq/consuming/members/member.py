"""What a member of a consumer group does all the time, whether it shares the queues or reads all of them.

A thread (`member`) sends heartbeats, makes a *round* at once when a broker tells of a change or a route
changes, and every `rebalance_ms` all the same, and stores the progress every `commit_ms`. One thread for
each topic (`router TOPIC`) waits for its route to change.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial

from rocketq.clock import Clock
from rocketq.config import ConsumerConfig
from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.consuming.members.member_sessions import Sessions
from rocketq.errors import (
    BrokerUnreachable,
    ClaimLost,
    Closed,
    MemberUnknown,
    NameServersUnreachable,
    OffsetOutOfRange,
    RocketqError,
    RouteNotFound,
)
from rocketq.model import MessageQueue
from rocketq.net.route_cache import RouteCache
from rocketq.protocol.documents.groups import Difference, HeartbeatAnswer

log = logging.getLogger("rocketq.consuming.members.member")


class Member(ABC):
    """One member. `start` once, then `close` once, also if `start` failed."""

    def __init__(
        self,
        routes: RouteCache,
        sessions: Sessions,
        fetching: Fetching,
        group: str,
        client_id: str,
        filters: Mapping[str, MessageFilter],
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        self._routes, self._sessions, self._fetching = routes, sessions, fetching
        self._group, self._client_id, self._filters = group, client_id, filters
        self._config, self._clock = config, clock
        self._wake = threading.Event()
        self._is_changed = threading.Event()
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._is_started = False
        self._round_due_ms = 0
        self._commit_due_ms = clock.monotonic_ms() + config.commit_ms
        #: Queues of the first routes; later ones are read from their first message.
        self._initial: frozenset[MessageQueue] = frozenset()
        self._answers: dict[str, HeartbeatAnswer] = {}

    def start(self) -> None:
        """Join the group and make the first round; raise if no broker takes the member."""
        routes = [self._routes.route(topic) for topic in self._filters]
        self._initial = frozenset(queue for route in routes for queue in route.read_queues())
        self._round()
        if self._sessions.failure is not None and not any(session.is_joined for session in self._sessions):
            raise self._sessions.failure
        self._is_started = True
        self._fetching.start_thread(("member",), self._run)
        for route in routes:
            self._fetching.start_thread(("router", route.topic), partial(self._follow, route.topic))

    def wake(self) -> None:
        """Have the next round made at once."""
        self._is_changed.set()
        self._wake.set()

    @property
    def differences(self) -> tuple[Difference, ...]:
        """In what this member differs from its group, as its brokers said last."""
        found = (one for answer in list(self._answers.values()) for one in answer.differences)
        return tuple({one: None for one in found if one.client_id == self._client_id})

    @abstractmethod
    def commit(self) -> None:
        """Store the progress of all queues now; raise the first error, after all others were stored."""

    def close(self) -> None:
        """Store the progress, release the queues and leave the group; failures are logged."""
        self._ending.set()
        self._wake.set()
        if self._is_started:
            self._ended.wait()
        try:
            self._finish()
        finally:
            self._sessions.leave()

    # --- what kinds of members differ in -----------------------------------------

    @abstractmethod
    def _balance(self, queues: Mapping[str, list[MessageQueue]]) -> None:
        """Decide which of the queues of each topic are the member's, and begin to bring it about."""

    @abstractmethod
    def _compare(self, answer: HeartbeatAnswer) -> None:
        """Compare what a broker says the member owns with what it consumes."""

    @abstractmethod
    def _upkeep(self) -> None:
        """Do what is due besides."""

    @abstractmethod
    def _due_ms(self) -> int | None:
        """Return when something is due besides rounds, heartbeats and commits."""

    @abstractmethod
    def _finish(self) -> None:
        """Store what is handled and release what is owned."""

    # --- the thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._ending.is_set() or self._fetching.is_stopping):
                self._wake.wait(self._pause_ms() / 1000)
                self._wake.clear()
                if not self._ending.is_set():
                    self._step()
        except RocketqError as error:
            if not isinstance(error, Closed):
                # It is logged, and this is called again after a pause.
                raise
        except BaseException:
            self._ended.set()
            raise
        self._ended.set()
        self._fetching.wait_for_stop()

    def _pause_ms(self) -> int:
        times = [self._round_due_ms, self._commit_due_ms, self._sessions.next_beat_ms()]
        besides = self._due_ms()
        due_ms = min(times if besides is None else [*times, besides])
        return max(0, due_ms - self._clock.monotonic_ms())

    def _step(self) -> None:
        self._take_answers(self._sessions.beat())
        self._upkeep()
        if self._is_changed.is_set() or self._clock.monotonic_ms() >= self._round_due_ms:
            self._round()
        if self._clock.monotonic_ms() >= self._commit_due_ms:
            self._commit_due_ms = self._clock.monotonic_ms() + self._config.commit_ms
            self._commit_regularly()
        self._fetching.is_well(("member",))

    def _commit_regularly(self) -> None:
        try:
            self.commit()
            self._fetching.is_well(("commit",))
        except (BrokerUnreachable, MemberUnknown, ClaimLost, OffsetOutOfRange) as error:
            # The next commit stores what this one did not; what was lost is dropped.
            self._fetching.log_once(("commit",), error)

    def _follow(self, topic: str) -> None:
        """Wake the member when the route of a topic changes; runs in a thread of its own."""
        route = self._routes.route(topic)
        while not self._fetching.is_stopping:
            now = self._routes.wait_for_change(topic, route, self._config.hold_ms)
            if now is not route and now.read_queues() != route.read_queues():
                self.wake()
            route = now
            self._fetching.is_well(("router", topic))

    # --- rounds ------------------------------------------------------------------

    def _round(self) -> None:
        self._is_changed.clear()
        self._round_due_ms = self._clock.monotonic_ms() + self._config.rebalance_ms
        queues = self._queues()
        self._sessions.keep({q.broker: q.topic for of_topic in queues.values() for q in of_topic})
        self._take_answers(self._sessions.beat())
        self._balance(queues)

    def _queues(self) -> dict[str, list[MessageQueue]]:
        """Return the queues of each topic whose route is known."""
        found = {}
        for topic in self._filters:
            try:
                found[topic] = self._routes.route(topic).read_queues()
                self._fetching.is_well(("route", topic))
            except (RouteNotFound, NameServersUnreachable) as error:
                self._fetching.log_once(("route", topic), error)
        return found

    def _owned(self) -> list[MessageQueue]:
        """Return the queues that the member consumes."""
        with self._fetching.changed:
            return [state.queue for state in self._fetching.prefetch.states()]

    def _take_answers(self, answers: Iterable[HeartbeatAnswer]) -> None:
        for answer in answers:
            before = self.differences
            self._answers[answer.broker] = answer
            for one in set(self.differences) - set(before):
                log.warning(
                    "This member of group %s differs in its %s %s: it says %s, and %s counts%s", self._group,
                    one.kind, one.topic, one.value, one.counts, f" ({one.theirs})" if one.theirs else "",
                )  # fmt: skip
            self._compare(answer)
            if answer.is_new:
                self.wake()
