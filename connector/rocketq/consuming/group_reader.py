"""A member of a group and the messages of its queues: what consumers and listeners stand on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final

from rocketq.clock import Clock
from rocketq.config import ConsumerConfig
from rocketq.consuming.allocation.strategies import strategy_of
from rocketq.consuming.allocation.view import AllocationStrategy
from rocketq.consuming.consumed_message import Delivery
from rocketq.consuming.fetching.changes import Changes
from rocketq.consuming.fetching.fetch_buffer import ConsumerLimits, Prefetch
from rocketq.consuming.fetching.fetch_threads import Fetching, FetchSettings
from rocketq.consuming.fetching.process_queue import FlowLimits, ProcessQueue
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.consuming.handling_watch import CONSUME_TIMEOUT_MS, HandlingWatch
from rocketq.consuming.members.broadcast_member import BroadcastMember
from rocketq.consuming.members.local_offsets import OffsetsFile
from rocketq.consuming.members.member import Member
from rocketq.consuming.members.member_sessions import Sessions
from rocketq.consuming.members.sharing_member import SharingMember
from rocketq.consuming.receive_hooks import ReceiveHook, Watch, not_handled, watched
from rocketq.consuming.retries import (
    NOT_TAKEN_MS,
    SUSPEND_MS,
    Failure,
    GiveBack,
    GiveUp,
    Keeping,
    RetryPolicy,
    after_failure,
)
from rocketq.consuming.send_backs import Given, SendBacks
from rocketq.errors import Closed, InvalidConfiguration, RetriesExhausted, RocketqError
from rocketq.model import MessageModel, MessageQueue, StartFrom, message_id
from rocketq.net.client_id import new_client_id
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.groups import Difference, Heartbeat, StartRule, Subscription
from rocketq.protocol.documents.send_backs import FailedMessage
from rocketq.protocol.rules.reserved_names import check_user_group
from rocketq.protocol.rules.retry_properties import REASON_CHARACTERS_MAX

log = logging.getLogger("rocketq.consuming.members.member")

#: The word of the settings for each start rule of the protocol.
STARTS: Final = {"earliest": StartFrom.FIRST, "latest": StartFrom.LAST, "time": StartFrom.TIME}


class GroupReader:
    """A member of a group, and the messages of the queues that it owns. Thread-safe.

    It owns its transport, whose closing cuts the calls that brokers hold for it.
    """

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        group: str,
        filters: Mapping[str, MessageFilter],
        allocation: str | AllocationStrategy | None,
        config: ConsumerConfig,
        clock: Clock,
    ) -> None:
        check_user_group(group)
        check_allocation(allocation, config)
        self.group, self.topics, self.client_id = group, tuple(filters), new_client_id()
        self.config, self._clock, self._transport = config, clock, transport
        self._retries = retry_policy(config)
        self._closing, self._is_closed, self._is_recalled = threading.Lock(), False, False
        self._fetching = Fetching(
            transport,
            routes,
            filters,
            group,
            FetchSettings(config.pull_bytes, config.hold_ms, config.retry_ms, config.offset_reset),
            Prefetch(config.buffer_bytes, limits_of(config)),
            clock,
            self.client_id,
        )
        #: What sees messages that are handed out, and what becomes of them.
        self._hooks: tuple[ReceiveHook, ...] = ()
        #: The errors that keep the member or a queue from going on, and are logged already.
        self._logged: tuple[Exception, ...] = ()
        beat = heartbeat_of(filters, config, clock)
        self._sessions = Sessions(
            transport, routes, group, self.client_id, beat, config, clock, self._fetching, self._wake
        )
        self._fetching.on_claim_lost = self._sessions.look_again
        self._send_backs = SendBacks(
            self._sessions, self._fetching, group, self.client_id, self._retries.retries_max, config.retry_ms
        )
        self._member: Member
        common = (routes, self._sessions, self._fetching, group, self.client_id, filters)
        if config.offsets_file is not None:
            file = OffsetsFile(config.offsets_file, group)
            self._member = BroadcastMember(*common, beat.start, file, config, clock)
        else:
            self._member = SharingMember(*common, strategy_of(allocation or "sticky"), config, clock)
        try:
            self._member.start()
        except BaseException:
            self.close()
            raise

    # --- handing out -------------------------------------------------------------

    @property
    def changes(self) -> Changes:
        """What tells of messages that arrive, and of everything else that may end a wait."""
        return self._fetching.changed

    def next_due_s(self) -> float | None:
        """Return in how many seconds a message that failed is due next; None if none waits."""
        with self._fetching.changed:
            now_ms = self._clock.monotonic_ms()
            return _seconds(now_ms, self._fetching.prefetch.next_due_ms(now_ms))

    def hand_out(self, rows: int, timeout_ms: int | None, *, raising: bool = True) -> Delivery | None:
        """Hand out at most `rows` messages of one queue, as soon as there are any; None after `timeout_ms`.

        Raises Closed, and with `raising` what stopped the member or one of its queues (see `Consumer.poll`).
        """
        until_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        changed = self._fetching.changed
        with changed:
            while True:
                self._check_open()
                if self._is_recalled:
                    raise Closed("The consumer")
                self._meet_error(raising)
                now_ms = self._clock.monotonic_ms()
                delivery = self._fetching.prefetch.hand_out(
                    rows, now_ms, self._failed, ordered=self.config.ordered
                )
                if delivery is not None:
                    if self._hooks:
                        watched(delivery, self._hooks, self.group, self.client_id, self._clock.monotonic_ms)
                    # There is room now, and perhaps a watcher's turn.
                    changed.notify_all()
                    return delivery
                if until_ms is not None and now_ms >= until_ms:
                    return None
                changed.wait(_seconds(now_ms, until_ms, self._fetching.prefetch.next_due_ms(now_ms)))

    def _meet_error(self, raising: bool) -> None:
        """Raise what keeps the member or one of its queues from going on, or log each of it once."""
        error = self.error()
        if error is None:
            self._logged = ()
            return
        if raising:
            raise error
        of_queues = dict(self._fetching.prefetch.stopped())
        found = tuple(dict.fromkeys([error, *of_queues.values()]))
        for one in found:
            if not any(one is logged for logged in self._logged):
                queues = [str(queue) for queue, stopped_by in of_queues.items() if stopped_by is one]
                log.error("Group %s: %s stands still: %s", self.group, ", ".join(queues) or "a member", one)
        self._logged = found

    def error(self) -> Exception | None:
        """Return what keeps the member, or one of its queues, from going on."""
        return self._fetching.defect or self._sessions.refusal or self._fetching.prefetch.error()

    def stopped(self) -> dict[MessageQueue, RocketqError]:
        """Return the queues that do not go on before a seek, each with the error that stopped it."""
        with self._fetching.changed:
            return dict(self._fetching.prefetch.stopped())

    def take_back(self, delivery: Delivery, row: int) -> None:
        """Take back the messages of a delivery from `row` on, on which nobody has begun to work."""
        with self._fetching.changed:
            state = self._of(delivery)
            # What is handled already was acknowledged, or put back when a message before it failed.
            if state is None or row >= delivery.rows or delivery.handled[row]:
                return
            not_handled(delivery, row)
            if state.is_leaving:
                state.take_back(delivery, row)
            elif not state.is_last(delivery):
                state.hand_on(delivery, row, self._clock.monotonic_ms())
            else:
                state.put_back(delivery, row, 0)
                state.next_attempt = delivery.attempt
            self._fetching.changed.notify_all()

    def recall(self) -> None:
        """Hand out nothing more, and ask for what is out and not begun: the member is about to close."""
        with self._fetching.changed:
            self._is_recalled = True
            for state in self._fetching.prefetch.states():
                state.leave()
            self._fetching.changed.notify_all()

    def wait_until_idle(self, timeout_ms: int) -> None:
        """Wait until nobody works on a message, at most `timeout_ms`."""
        with self._fetching.changed:
            states = self._fetching.prefetch.states
            self._fetching.changed.wait_for(lambda: all(s.is_idle for s in states()), timeout_ms / 1000)

    def settled(self) -> None:
        """Say that messages were acknowledged: there may be room to fetch, or a queue may go on."""
        with self._fetching.changed:
            self._fetching.changed.notify_all()

    def ready_messages(self) -> int:
        """Return how many messages are fetched and not handed out."""
        with self._fetching.changed:
            return sum(state.slices.rows for state in self._fetching.prefetch.states())

    def acknowledge_up_to(self, queue: MessageQueue, offset: int) -> None:
        """Acknowledge everything of a queue that was handed out up to and including an offset."""
        with self._fetching.changed:
            state = self._fetching.prefetch.state(queue)
            if state is not None:
                for delivery in state.out():
                    delivery.acknowledge_up_to(offset)

    def acknowledge_all(self) -> None:
        """Acknowledge everything that was handed out."""
        with self._fetching.changed:
            for state in self._fetching.prefetch.states():
                for delivery in state.out():
                    delivery.acknowledge()

    def _failed(self, delivery: Delivery, row: int, failure: Failure) -> None:
        with self._fetching.changed:
            state = self._of(delivery)
            if state is None:
                return
            if isinstance(delivery.handled, Watch):
                delivery.handled.fail(row, self.config.ordered)
            decision = after_failure(delivery.attempt_of(row), self._retries, failure.delay_ms)
            now_ms = self._clock.monotonic_ms()
            if isinstance(decision, GiveBack):
                self._send_back(state, delivery, row, failure)
            elif isinstance(decision, GiveUp):
                failed = message_id(delivery.queue, delivery.offsets[row])
                state.retry_later(delivery, row, None)
                state.stop(RetriesExhausted(failed, decision.attempts))
            elif self.config.ordered and not state.is_leaving:
                state.put_back(delivery, row, now_ms + decision.delay_ms)
            else:
                state.retry_later(delivery, row, now_ms + decision.delay_ms)
            self._fetching.changed.notify_all()

    def _send_back(self, state: ProcessQueue, delivery: Delivery, row: int, failure: Failure) -> None:
        """Give a message back to its broker; where order counts, nothing behind it is handed out before."""
        queue, generation = state.queue, state.generation
        assert state.epoch is not None, "only a member that claims its queues sends messages back"
        message = FailedMessage(
            queue.topic, queue.queue, state.epoch, delivery.offsets[row], delivery.attempt_of(row),
            failure.delay_ms, failure.reason[:REASON_CHARACTERS_MAX],
        )  # fmt: skip
        if self.config.ordered and not state.is_leaving:
            state.put_back(delivery, row, 0)
            state.is_returning = True

            def done(is_taken: bool) -> None:
                # After a seek another message is the first.
                if state.generation == generation:
                    state.returned(is_taken, self._clock.monotonic_ms() + self._retries.suspend_ms)

        else:
            retry = state.retry_later(delivery, row, None)
            retry.is_returning = True

            def done(is_taken: bool) -> None:
                retry.returned(is_taken, self._clock.monotonic_ms() + NOT_TAKEN_MS)

        self._send_backs.add(queue.broker, Given(message, done))

    def _of(self, delivery: Delivery) -> ProcessQueue | None:
        """Return the queue that a delivery is of, None if the member lost it or sought elsewhere."""
        state = self._fetching.prefetch.state(delivery.queue)
        return state if state is not None and any(delivery is one for one in state.out()) else None

    def add_hook(self, hook: ReceiveHook) -> None:
        """Have a hook see what is handed out from now on (`rocketq.consuming.receive_hooks`)."""
        with self._fetching.changed:
            self._hooks = (*self._hooks, hook)

    def watch_handling(self) -> HandlingWatch:
        """Return what looks whether the functions of a listener return in time, from now on."""
        timeout_ms = self.config.consume_timeout_ms or CONSUME_TIMEOUT_MS
        made = HandlingWatch(self._fetching, self._clock, timeout_ms, self.config.ordered, self.group)
        made.start()
        return made

    # --- positions ---------------------------------------------------------------

    def states(self) -> dict[MessageQueue, tuple[int, int]]:
        """Return for each queue the offset that may be committed, and how many messages are behind it."""
        with self._fetching.changed:
            found = ((s.queue, s.committable(), s.known_max) for s in self._fetching.prefetch.states())
            return {queue: (offset, max(0, end - offset)) for queue, offset, end in found}

    def change(self, queue: MessageQueue, change: Callable[[ProcessQueue], object]) -> None:
        """Change something of a queue; raise InvalidConfiguration if the member does not own it."""
        with self._fetching.changed:
            self._check_open()
            state = self._fetching.prefetch.state(queue)
            if state is None or state.is_leaving:
                raise InvalidConfiguration(
                    "queue", str(queue), "this member does not own it now", hint="See owned()."
                )
            change(state)
            self._fetching.changed.notify_all()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on in a queue at `offset`: what was handed out of it and not acknowledged is forgotten."""
        if offset < 0:
            raise InvalidConfiguration("offset", offset, "offsets begin at 0")
        self.change(queue, lambda _: self._fetching.prefetch.seek(queue, offset))

    def commit(self) -> None:
        """Store the progress of all queues now."""
        self._check_open()
        self._member.commit()

    @property
    def differences(self) -> tuple[Difference, ...]:
        """In what this member differs from its group, as its brokers said last."""
        return self._member.differences

    # --- life --------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is acknowledged, release the queues, say goodbye, and end all calls."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self.recall()
            self._send_backs.flush(self.config.hand_over_ms)
            try:
                self._member.close()
            finally:
                self._transport.close()
                self._fetching.stop()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("The consumer")

    def _wake(self) -> None:
        self._member.wake()


def check_allocation(allocation: str | AllocationStrategy | None, config: ConsumerConfig) -> None:
    """Raise InvalidConfiguration for an unknown strategy, and for one where there is nothing to share out."""
    if allocation is not None:
        strategy_of(allocation)
        if config.broadcasting:
            raise InvalidConfiguration(
                "allocation", allocation, "a broadcasting member reads all queues", hint="Leave it out."
            )


def retry_policy(config: ConsumerConfig) -> RetryPolicy:
    """Return what a configuration says of messages that fail."""
    keeping = Keeping.ORDERED if config.ordered else Keeping.SHARED
    return RetryPolicy(
        Keeping.BROADCAST if config.broadcasting else keeping,
        config.max_attempts,
        config.suspend_ms or SUSPEND_MS,
    )


def limits_of(config: ConsumerConfig) -> ConsumerLimits:
    """Return the limits of a configuration; an ordered consumer has no span, since it works in order."""
    span = None if config.ordered else config.queue_span
    return ConsumerLimits(FlowLimits(config.queue_messages, config.queue_bytes, span), config.buffer_messages)


def heartbeat_of(filters: Mapping[str, MessageFilter], config: ConsumerConfig, clock: Clock) -> Heartbeat:
    """Return what a member says of itself."""
    return Heartbeat(
        clock.now_us(),
        tuple(Subscription(topic, one.tag, one.sql) for topic, one in sorted(filters.items())),
        MessageModel.BROADCASTING if config.broadcasting else MessageModel.CLUSTERING,
        StartRule(STARTS[config.start], config.start_timestamp_us),
        config.ordered,
        config.session_timeout_ms,
        "python",
        version("rocketq"),
    )


def _seconds(now_ms: int, *times_ms: int | None) -> float | None:
    """Return how long to wait for the first of some times, None if there is none."""
    given = [time_ms for time_ms in times_ms if time_ms is not None]
    return max(0, min(given) - now_ms) / 1000 if given else None
