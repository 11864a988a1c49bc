"""Receive: leases messages of a topic to a caller, from any of the topic's queues (RocketMQ: POP).

A receive goes round the queues, each time from the next one on, so that all are read alike. It has a queue
for itself from its look until its leases are in the log; another receive meanwhile takes the other queues
(RocketMQ: QueueLockManager). What it looked at becomes one change, whatever number of queues and messages it
names.

An ordered receive gets nothing of a queue of which messages are leased (RocketMQ: POP of an orderly group).
So one receiver at a time has messages of a queue. What ran out comes again in the order of the queue, before
anything that is new.

A receive that finds nothing is held until messages arrive, a lease runs out, or a queue is free again.

Messages that had their last attempt are stored as dead letters by the receive that finds them. If that fails,
they are handed out once more: none is lost, and none keeps others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from rocketq.clock import Clock
from rocketq.errors import CorruptFrame, InvalidRequest, RocketqError, TopicNotFound
from rocketq.errors.lease_errors import TooManyLeases
from rocketq.http_server.error_answers import Disconnected
from rocketq.http_server.longpoll.long_poll import LongPoll, Receive, Woken
from rocketq.model import MessageQueue, StartFrom, TimeBoundary
from rocketq.protocol.documents.broker import CreateTopicRequest, GroupOffset
from rocketq.protocol.documents.groups import StartRule
from rocketq.protocol.documents.leases import ReceiptHandle, ReceiveRequest
from rocketq.protocol.frame_slices import FrameSlice
from rocketq.protocol.rules.reserved_names import dead_letter_topic
from rocketq_broker.data_plane.reads import pull_formats as forms
from rocketq_broker.data_plane.reads.leased_reads import RECEIVE_BYTES_MAX, Look, QueueCall, look
from rocketq_broker.filters.pull_filter import Filter, parse_filter
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.runtime import wait_keys
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.lease_operations import Standing
from rocketq_broker.store.leases import decisions
from rocketq_broker.store.leases.dead_letters import dead_letters
from rocketq_broker.store.leases.decisions import OutRun
from rocketq_broker.store.machines.lease_changes import LeasesTaken
from rocketq_broker.store.machines.queue_leases import offsets_of
from rocketq_broker.store.store import MessageStore

#: Looks that find messages and lease none, of a receive that is not held: dead letters, or a long scan.
_ROUNDS_MAX: Final = 8
#: A receive waits so long for a queue that another one looks at, also if it is not to be held.
_FREE_WAIT_MS: Final = 1_000
_TIMER_MS_MIN: Final = 20
#: Groups and topics of which it is remembered where the next receive begins.
_TURNS_MAX: Final = 10_000

log = structlog.get_logger("rocketq.broker.leases")


class _Outlook(Enum):
    """What a receive that found nothing can expect at this moment."""

    READY = "a queue has something, and nobody looks at it"
    BUSY = "what there is, is being looked at by another receive"
    FULL = "queues have messages, and the limit of leased ones"
    NOTHING = "no queue has anything"


@dataclass(frozen=True, slots=True)
class _Call:
    """A receive with its filter, read."""

    group: str
    wanted: ReceiveRequest
    chosen: Filter | None
    filter_text: str
    ordered: bool

    @property
    def topic(self) -> str:
        return self.wanted.topic


class ReceiveProcessor:
    """Handles receives; everything here but reading runs on the loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        held: LongPoll[wait_keys.Key],
        completions: Completions,
        readers: Executor,
        measurements: Measurements,
    ) -> None:
        self._store = store
        self._clock = clock
        self._held = held
        self._completions = completions
        self._readers = readers
        self._measurements = measurements
        self._loop = asyncio.get_running_loop()
        #: The queues that a receive looks at now, by group.
        self._busy: set[tuple[str, str, int]] = set()
        #: Where the next receive of a topic begins, and how many receives are held, by group and topic.
        self._turns: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], int] = {}
        #: When receives that are held are woken because a lease runs out.
        self._timers: dict[tuple[str, str], tuple[int, asyncio.TimerHandle]] = {}

    async def receive(self, group: str, wanted: ReceiveRequest, receive: Receive) -> bytes:
        """Return the ReceiveAnswer as JSON. The group exists; `wanted` is within its bounds.

        Raises TopicNotFound, NoPermission, GroupDisabled, QueuesOwned, ReceiveFilterDiffers, InvalidFilter,
        TooManyLeases, CorruptFrame, Disconnected.
        """
        chosen = parse_filter(wanted.tag, wanted.sql)
        text = _text_of(wanted) if chosen is not None else ""
        call = _Call(group, wanted, chosen, text, self._is_ordered(group, wanted))
        deadline_ms = self._held.deadline_ms(wanted.wait_ms)
        rounds = 0
        while True:
            await self._check(call)
            taken, looks = await self._try(call)
            if taken is not None and any(each.leases for each in taken.queues):
                self._note_next_out(group, call.topic)
                messages = sum(count for e in taken.queues for lease in e.leases for _, count in lease.ranges)
                self._measurements.pulled(call.topic, group, messages, sum(each.size for each in looks))
                make = partial(self._document, call, taken, looks)
                return await self._loop.run_in_executor(self._readers, make)
            outlook, rounds = self._outlook(call), rounds + 1
            is_over = self._clock.monotonic_ms() >= deadline_ms
            if outlook is _Outlook.READY and not (is_over and rounds >= _ROUNDS_MAX):
                continue
            if outlook is _Outlook.FULL:
                raise TooManyLeases(group, call.topic, self._store.broker, self._store.leases.leases_max)
            if is_over and (outlook is not _Outlook.BUSY or rounds >= _ROUNDS_MAX):
                return self._document(call, None, [])
            if not await self._wait(call, outlook, deadline_ms, receive):
                return self._document(call, None, [])

    def leases_changed(self, group: str, taken: LeasesTaken) -> None:
        """Wake held receives in time: the times of leases were changed."""
        for topic in {each.topic for each in taken.queues}:
            self._note_next_out(group, topic)

    def settled(self, group: str, topics: Collection[str]) -> None:
        """Wake held receives: messages were acknowledged, so queues may give others to ordered receives."""
        for topic in topics:
            if (group, topic) in self._waiting:
                self._held.changed(wait_keys.freed(group, topic))

    # --- before a look ------------------------------------------------------------------

    async def _check(self, call: _Call) -> None:
        """Raise what refuses a receive; give the group its offsets if it has none."""
        groups, leases = self._store.consumer_groups, self._store.leases
        self._store.topic(call.topic)
        groups.check_enabled(call.group)
        leases.check_unowned(call.group, call.topic)
        if not call.wanted.new_filter:
            leases.check_filter(call.group, call.topic, call.filter_text)
        if not leases.has_begun(call.group, call.topic):
            number = leases.topic_number(call.topic)
            offsets = await self._loop.run_in_executor(self._readers, self._start_offsets, call)
            # Of several first receives at the same time, one decides.
            await self._completions.outcome(partial(leases.begin, call.group, number, offsets))

    def _is_ordered(self, group: str, wanted: ReceiveRequest) -> bool:
        """Whether a receive is ordered: as the group's settings say, else as it says itself."""
        said = self._store.consumer_groups.entry(group).settings.ordered
        if said is False and wanted.ordered:
            raise InvalidRequest(
                "ordered", f"the settings of group {group} say that it does not consume in order",
                hint=f"Leave it out, or change the group: rocketq group set {group} --ordered.",
            )  # fmt: skip
        return wanted.ordered if said is None else said

    def _start_offsets(self, call: _Call) -> tuple[GroupOffset, ...]:
        """Return where the group begins in queues without an offset. Reads the disk.

        A queue that is new in a topic that the group reads already begins at its first message.
        """
        store, topic = self._store, call.topic
        settings = store.consumer_groups.entry(call.group).settings
        rule = settings.start or call.wanted.start
        known = {each.queue for each in store.group_offsets(call.group, topic).offsets}
        if known:
            rule = StartRule()
        ranges = store.offsets(topic).queues
        match rule.where:
            case StartFrom.LAST:
                begins = [each.max for each in ranges]
            case StartFrom.TIME:
                begins = list(store.offsets_at(topic, rule.at_us or 0, TimeBoundary.LOWER).offsets)
            case _:
                begins = [each.min for each in ranges]
        queues = range(store.topic(topic).read_queues)
        return tuple(GroupOffset(topic, queue, begins[queue]) for queue in queues if queue not in known)

    # --- a look at the queues -----------------------------------------------------------

    async def _try(self, call: _Call) -> tuple[LeasesTaken | None, list[Look]]:
        """Look at queues that are free until there is enough, and lease what was found."""
        looked: list[tuple[str, str, int]] = []
        looks: list[Look] = []
        damage: CorruptFrame | None = None
        messages, size = call.wanted.max_messages, RECEIVE_BYTES_MAX
        try:
            for queue in self._round(call):
                place = call.topic, queue
                standing = self._standing(call, queue, call.wanted.max_messages)
                if standing is None or not (standing.out or (standing.has_new and standing.room > 0)):
                    continue
                key = (call.group, *place)
                if key in self._busy:
                    continue
                self._busy.add(key)
                looked.append(key)
                asked = self._queue_call(call, queue, messages, size)
                try:
                    found = await self._loop.run_in_executor(
                        self._readers, look, self._store, asked, standing
                    )
                except CorruptFrame as error:
                    # The other queues go on; who finds nothing in them is told of the damage.
                    damage = damage or error
                    continue
                await self._give_up(call, found)
                looks.append(found)
                messages, size = messages - found.messages, size - found.size
                if messages <= 0 or size <= 0:
                    break
            if damage is not None and not any(each.messages for each in looks):
                raise damage
            if not looks:
                return None, []
            return await self._take(call, looks), looks
        finally:
            self._busy.difference_update(looked)
            if looked and self._waiting:
                self._held.changed(wait_keys.freed(call.group, call.topic))

    def _round(self, call: _Call) -> Iterator[int]:
        """Yield the queues of the topic, beginning behind where the receive before began."""
        queues = self._store.topic(call.topic).read_queues
        key = call.group, call.topic
        first = self._turns.get(key, -1) + 1
        if len(self._turns) > _TURNS_MAX:
            self._turns.clear()
        self._turns[key] = first % queues
        return ((first + each) % queues for each in range(queues))

    def _standing(self, call: _Call, queue: int, runs_max: int) -> Standing | None:
        place = call.topic, queue
        return self._store.leases.standing(call.group, place, runs_max, ordered=call.ordered)

    def _queue_call(self, call: _Call, queue: int, messages: int, size: int) -> QueueCall:
        attempts_max = 1 + self._store.consumer_groups.entry(call.group).settings.retries_max
        return QueueCall(call.topic, queue, call.chosen, messages, size, attempts_max)

    async def _take(self, call: _Call, looks: list[Look]) -> LeasesTaken | None:
        table = self._store.leases.table
        filters = (
            {}
            if table.filter_of(call.group, call.topic) == call.filter_text
            else {call.topic: call.filter_text}
        )
        receive = decisions.Receive(
            call.group, call.wanted.invisible_ms, self._store.leases.leases_max,
            tuple(each.wish for each in looks), filters, call.ordered,
        )  # fmt: skip
        taken: LeasesTaken | None = await self._completions.outcome(partial(self._store.leases.take, receive))
        return taken

    # --- messages that are given up -----------------------------------------------------

    async def _give_up(self, call: _Call, found: Look) -> None:
        """Settle what is not stored any more, and store what had its last attempt as dead letters."""
        leases, place = self._store.leases, found.wish.place
        if found.lost:
            await self._completions.outcome(partial(leases.drop, call.group, place, found.lost))
            lost = sum(count for run in found.lost for _, count in run.ranges)
            log.warning("leased_messages_gone", group=call.group, topic=call.topic, messages=lost)
        for run, slices in found.dead:
            try:
                await self._bury(call, place, run, slices)
            except RocketqError as error:
                log.warning("dead_letters_failed", group=call.group, topic=call.topic, why=str(error))
                found.slices += slices
                found.wish = replace(found.wish, again=(*found.wish.again, run))

    async def _bury(self, call: _Call, place: tuple[str, int], run: OutRun, slices: list[FrameSlice]) -> None:
        queue = MessageQueue(call.topic, self._store.broker, place[1])
        topic = dead_letter_topic(call.group)
        letters = await self._loop.run_in_executor(
            self._readers, partial(dead_letters, queue, slices, run.attempt)
        )
        bury = partial(self._store.leases.bury, call.group, place, run, letters)
        try:
            await self._completions.outcome(bury)
        except TopicNotFound:
            request = CreateTopicRequest(1, 1, if_absent=True, automatic=True)
            await self._completions.outcome(partial(self._store.create_topic, topic, request))
            await self._completions.outcome(bury)
        log.info(
            "dead_letters", group=call.group, topic=call.topic, messages=letters.rows, attempts=run.attempt
        )

    # --- waiting ------------------------------------------------------------------------

    def _outlook(self, call: _Call) -> _Outlook:
        """Return what can be expected; no message can come between this look and the hold that follows."""
        found = _Outlook.NOTHING
        for queue in range(self._store.topic(call.topic).read_queues):
            standing = self._standing(call, queue, 1)
            if standing is None or not (standing.out or standing.has_new):
                continue
            if not standing.out and standing.room <= 0:
                found = _Outlook.FULL if found is _Outlook.NOTHING else found
            elif (call.group, call.topic, queue) in self._busy:
                found = _Outlook.BUSY
            else:
                return _Outlook.READY
        return found

    async def _wait(self, call: _Call, outlook: _Outlook, deadline_ms: int, receive: Receive) -> bool:
        """Hold a receive; return False if its time is over, or the broker stops."""
        is_busy = outlook is _Outlook.BUSY
        if is_busy:
            deadline_ms = max(deadline_ms, self._held.deadline_ms(_FREE_WAIT_MS))
        key = call.group, call.topic
        self._waiting[key] = self._waiting.get(key, 0) + 1
        self._note_next_out(*key)
        try:
            keys = wait_keys.of_receive(*key, for_a_queue=is_busy or call.ordered)
            woken = await self._held.wait(keys, deadline_ms, receive)
        finally:
            left = self._waiting.pop(key) - 1
            if left:
                self._waiting[key] = left
        if woken is Woken.GONE:
            raise Disconnected
        return woken is Woken.LOOK_AGAIN

    def _note_next_out(self, group: str, topic: str) -> None:
        """Have the receives that are held woken when the next lease runs out."""
        key = group, topic
        if key not in self._waiting:
            return
        next_ms = self._store.leases.next_out_ms(group, topic)
        if next_ms is None:
            return
        before = self._timers.get(key)
        if before is not None:
            if before[0] <= next_ms:
                return
            before[1].cancel()
        left_ms = max(_TIMER_MS_MIN, next_ms - self._store.leases.now_ms() + 1)
        self._timers[key] = next_ms, self._loop.call_later(left_ms / 1000, self._ran_out, key)

    def _ran_out(self, key: tuple[str, str]) -> None:
        del self._timers[key]
        self._held.changed(wait_keys.ran_out(*key))
        self._note_next_out(*key)

    # --- the answer ---------------------------------------------------------------------

    def _document(self, call: _Call, taken: LeasesTaken | None, looks: list[Look]) -> bytes:
        """Return the answer; on a thread, if there are messages."""
        broker = self._store.broker
        given = _handles(broker, taken)
        found: list[dict[str, Any]] = []
        for each in looks:
            queue = MessageQueue(call.topic, broker, each.wish.place[1])
            for message in forms.messages(forms.Decoded(tuple(each.slices), 0), queue):
                lease = given.get((queue.queue, message["offset"]))
                if lease is not None:
                    handle, attempt = lease
                    found.append({"receipt_handle": handle, "attempt": attempt, **message})
        head = {"broker": broker, "group": call.group, "topic": call.topic}
        return msgspec.json.encode({**head, "invisible_ms": call.wanted.invisible_ms, "messages": found})


def _handles(broker: str, taken: LeasesTaken | None) -> dict[tuple[int, int], tuple[str, int]]:
    """Return receipt handle and attempt of each leased message, by queue and offset."""
    return {
        (each.queue, offset): (
            str(ReceiptHandle(broker, each.topic, each.queue, offset, lease.number)),
            lease.attempt,
        )
        for each in (() if taken is None else taken.queues)
        for lease in each.leases
        for offset in offsets_of(lease.ranges)
    }


def _text_of(wanted: ReceiveRequest) -> str:
    """Return the filter of a receive as a group remembers it."""
    return f"tag {wanted.tag}" if wanted.tag is not None else f"sql {wanted.sql}"
