"""Messages that members send back: a copy of each goes to the group's retry topic or dead letter topic.

A call names messages by their places. The copies are made of what the log has, on the broker that has the
messages: their group's topics lie there as well, so nothing crosses the network twice (RocketMQ:
CONSUMER_SEND_MSG_BACK, which looks the message up by its log offset). All copies of a call for one topic are
one append. The log decides whether the member owns the queues at that moment; so a message that another
member has taken over meanwhile is not copied. The copies of retries are delayed messages.

The caller acknowledges a message when it has the answer. If the answer is lost, it makes the same call again,
with the same number. The appends of a call are numbered sends (`store.machines.slot_table`), so a repetition
finds the copies that are stored, also if the member has lost the queues meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from rocketq.clock import Clock
from rocketq.errors import InvalidRequest, RocketqError
from rocketq.model import MessageQueue
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.send_backs import (
    SEND_BACK_MESSAGES_MAX,
    SendBackAnswer,
    SendBackOutcome,
    SendBackRequest,
    letters_number,
)
from rocketq.protocol.rules.delivery_time import Times
from rocketq.protocol.rules.reserved_names import check_user_group, dead_letter_topic, retry_topic
from rocketq.protocol.send_number import SendNumber, number_from
from rocketq_broker.config import MIB, BrokerConfig
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.retries.copies import Failed, RetryRules, copies_of
from rocketq_broker.retries.queue_rows import rows_at
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.commit.delayed_batches import delayed_batches
from rocketq_broker.store.state.group_decisions import RETRIES_MAX_MAX
from rocketq_broker.store.store import MessageStore, QueueBatch

#: A call that has read so much copies no more messages, and says so.
COPIED_BYTES_MAX: Final = 8 * MIB

log = structlog.get_logger("rocketq.broker.retries")


@dataclass(slots=True)
class _Read:
    """What a call has read: the copies for each topic, and the places of their messages in the request."""

    outcomes: list[SendBackOutcome]
    retried: list[tuple[pa.RecordBatch, Times]] = field(default_factory=list)
    dead: list[pa.RecordBatch] = field(default_factory=list)
    retried_at: list[int] = field(default_factory=list)
    dead_at: list[int] = field(default_factory=list)


class SendBack:
    """Takes the calls that send messages back, on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        completions: Completions,
        readers: Executor,
        measurements: Measurements,
        on_new_topic: Callable[[str], None],
    ) -> None:
        """`on_new_topic` is told the group that has got its retry topic."""
        self._config, self._store, self._clock = config, store, clock
        self._completions, self._readers, self._measurements = completions, readers, measurements
        self._on_new_topic = on_new_topic

    async def take(self, group: str, request: SendBackRequest) -> SendBackAnswer:
        """Copy the messages of a call.

        Raises Invalid…, GroupNotFound, GroupDisabled, ClaimLost, NoPermission, and what the write of the
        copies raises if no copy was stored.
        """
        check_user_group(group)
        _check_request(request)
        groups = self._store.consumer_groups
        settings = groups.entry(group).settings
        groups.check_enabled(group)
        number = _number(request)
        retries_max = settings.retries_max if request.retries_max is None else request.retries_max
        rules = RetryRules(retries_max, self._clock.now_us() // 1000, self._config.delay_ms_max)
        if not self._was_stored(number):
            # Before anything is read for a member that lost its queues. The log looks at it again.
            for each in {(one.topic, one.queue, one.epoch) for one in request.messages}:
                groups.check_owner(group, request.client_id, *each)
        loop = asyncio.get_running_loop()
        read = await loop.run_in_executor(self._readers, self._read, group, request, rules)
        errors = [
            error
            for error in await asyncio.gather(
                self._store_retried(group, request, read, number),
                self._store_dead(group, request, read, number),
            )
            if error is not None
        ]
        stored = any(each in (SendBackOutcome.RETRY, SendBackOutcome.DEAD_LETTER) for each in read.outcomes)
        if errors and not stored:
            raise errors[0]
        why = errors[0].message if errors else ""
        return SendBackAnswer(self._config.name, group, tuple(read.outcomes), why)

    # --- reading, on a thread --------------------------------------------------------------

    def _read(self, group: str, request: SendBackRequest, rules: RetryRules) -> _Read:
        read = _Read([SendBackOutcome.NOT_YET] * len(request.messages))
        size = 0
        for topic, queue in dict.fromkeys((each.topic, each.queue) for each in request.messages):
            mine = [at for at, m in enumerate(request.messages) if (m.topic, m.queue) == (topic, queue)]
            missing = set(mine)
            for found in rows_at(self._store, topic, queue, [request.messages[at].offset for at in mine]):
                places = [mine[place] for place in found.places]
                said = [request.messages[at] for at in places]
                place = MessageQueue(topic, self._config.name, queue)
                failed = Failed(place, found.batch, [one.offset for one in said], said)
                self._copy(failed, places, topic == retry_topic(group), rules, read)
                missing.difference_update(places)
                size += found.batch.nbytes
                if size > COPIED_BYTES_MAX:
                    return read
            for at in missing:
                read.outcomes[at] = SendBackOutcome.UNREADABLE
        return read

    def _copy(
        self, failed: Failed, places: Sequence[int], is_copy: bool, rules: RetryRules, read: _Read
    ) -> None:
        copies = copies_of(failed, is_copy, rules)
        dead = copies.is_dead.tolist()
        if not all(dead):
            read.retried.append(copies.retried())
            read.retried_at += [at for at, is_dead in zip(places, dead, strict=True) if not is_dead]
        if any(dead):
            read.dead.append(copies.dead())
            read.dead_at += [at for at, is_dead in zip(places, dead, strict=True) if is_dead]

    # --- writing ---------------------------------------------------------------------------

    def _was_stored(self, number: SendNumber | None) -> bool:
        """Whether copies of this call, or a part of them, are stored already: it comes again."""
        if number is None:
            return False
        found = (self._store.slots.find(slot) for slot in (number.slot, letters_number(number).slot))
        return any(each is not None and each.sequence == number.sequence for each in found)

    async def _store_retried(
        self, group: str, request: SendBackRequest, read: _Read, number: SendNumber | None
    ) -> RocketqError | None:
        if not read.retried:
            return None
        batch = pa.concat_batches([part for part, _ in read.retried])
        times = np.concatenate([times for _, times in read.retried])
        copies = delayed_batches(0, batch, times)
        topic = retry_topic(group)
        error = await self._stored(group, request, topic, copies, read.retried_at, number)
        _note(read, read.retried_at, SendBackOutcome.RETRY, error)
        return error

    async def _store_dead(
        self, group: str, request: SendBackRequest, read: _Read, number: SendNumber | None
    ) -> RocketqError | None:
        if not read.dead:
            return None
        batch = pa.concat_batches(read.dead)
        letters = [QueueBatch(0, encapsulate(batch), batch)]
        is_new = not self._was_stored(number)
        number = None if number is None else letters_number(number)
        topic = dead_letter_topic(group)
        error = await self._stored(group, request, topic, letters, read.dead_at, number)
        _note(read, read.dead_at, SendBackOutcome.DEAD_LETTER, error)
        if error is None and is_new:
            topics = Counter(request.messages[at].topic for at in read.dead_at)
            self._measurements.dead_letters_stored(group, topics.total())
            log.warning("dead_letters", group=group, messages=topics.total(), topics=sorted(topics))
        return error

    async def _stored(
        self,
        group: str,
        request: SendBackRequest,
        topic: str,
        batches: Sequence[QueueBatch],
        places: Sequence[int],
        number: SendNumber | None,
    ) -> RocketqError | None:
        """Append copies to a topic of the group, which is made on first use; return why it failed."""
        messages = (request.messages[at] for at in places)
        queues = list(dict.fromkeys((each.topic, each.queue, each.epoch) for each in messages))
        check = self._store.consumer_groups.owner_check(group, request.client_id, queues)
        try:
            if not self._store.has_topic(topic):
                created = CreateTopicRequest(1, 1, if_absent=True, automatic=True)
                await self._completions.outcome(partial(self._store.create_topic, topic, created))
                if topic == retry_topic(group):
                    self._on_new_topic(group)
            append = partial(self._store.append, topic, batches, check=check, number=number)
            await self._completions.outcome(append)
        except RocketqError as error:
            return error
        return None


def _note(read: _Read, places: Sequence[int], outcome: SendBackOutcome, error: RocketqError | None) -> None:
    for at in places:
        read.outcomes[at] = outcome if error is None else SendBackOutcome.FAILED


def _number(request: SendBackRequest) -> SendNumber | None:
    """Return the number of a call, None if it has none; raise InvalidRequest."""
    if request.number is None:
        return None
    number = number_from(request.number)
    if number is None:
        why = f"{request.number[:50]!r} is no number of a send"
        raise InvalidRequest("number", why, hint="Give slot and sequence, as in 5840092817465112034-17.")
    return number


def _check_request(request: SendBackRequest) -> None:
    """Raise InvalidRequest for a call that nobody can mean."""
    count = len(request.messages)
    if not 1 <= count <= SEND_BACK_MESSAGES_MAX:
        raise InvalidRequest("messages", f"there are {count}, not from 1 to {SEND_BACK_MESSAGES_MAX}")
    if len({(each.topic, each.queue, each.offset) for each in request.messages}) < count:
        raise InvalidRequest("messages", "a message is named twice", hint="Give each message back once.")
    for name, least in (("offset", 0), ("attempt", 1), ("delay_ms", 0)):
        values = (getattr(each, name) for each in request.messages)
        wrong = [value for value in values if value is not None and value < least]
        if wrong:
            raise InvalidRequest(name, f"{wrong[0]} is below {least}")
    if request.retries_max is not None and not 0 <= request.retries_max <= RETRIES_MAX_MAX:
        raise InvalidRequest("retries_max", f"{request.retries_max} is not from 0 to {RETRIES_MAX_MAX}")
