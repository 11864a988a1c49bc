"""Send: from a request's body to an append, all of it or nothing.

    headers  ->  topic, permission, content type, room in memory   (before the body is read)
    body     ->  Arrow stream, JSON or one plain message, bounded  (stream_reader, send_json, send_plain)
    batches  ->  limits of single messages, queues                 (admission)
    append   ->  the log writer answers, the loop is woken, SendAnswer

Whatever is refused is refused before the append, so nothing of a bad body is
stored; a topic is created on a producer's behalf only after its batch has passed.

A small uncompressed body is opened and checked on the loop: handing it to a thread costs as much. A larger
one, a compressed one and a stream of very many batches are opened on a thread of a small pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from rocketq.errors import (
    InvalidBatch,
    InvalidRequest,
    NoPermission,
    QueueNotFound,
    RocketqError,
    TooLarge,
    TopicNotFound,
)
from rocketq.http_server.byte_budget import ByteBudget, Claim
from rocketq.http_server.connection.small_call import SMALL_CALL_BYTES_MAX
from rocketq.http_server.error_answers import content_length, read_body, read_body_into
from rocketq.model import (
    NO_OFFSET,
    QUEUE_COUNT_MAX,
    Appended,
    Message,
    Perm,
    TopicConfig,
)
from rocketq.protocol.arrow.stream_reader import CutStream, cut_stream, open_stream
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.documents.broker import (
    ARROW_STREAM,
    OCTET_STREAM,
    CreateTopicRequest,
    SendAnswer,
    encode,
)
from rocketq.protocol.documents.sinks import StageName
from rocketq.protocol.documents.transactions import HalfName
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.plain_message import PROPERTY_PREFIX
from rocketq.protocol.rules.delivery_time import Horizon, delivery_time
from rocketq.protocol.rules.reserved_names import check_user_topic
from rocketq.protocol.send_number import SendNumber
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.data_call import Answer, DataRequest, json_answer
from rocketq_broker.data_plane.decoding_memory import DecodingRoom
from rocketq_broker.data_plane.query_parameters import number, parse
from rocketq_broker.data_plane.sends.message_limits import admit, admit_one
from rocketq_broker.data_plane.sends.send_delayed import held_batches, horizon, send_answer
from rocketq_broker.data_plane.sends.send_half import HALF_PARAMETERS, check_half, half_answer, half_of
from rocketq_broker.data_plane.sends.send_json import read_document
from rocketq_broker.data_plane.sends.send_numbers import NUMBER_PARAMETERS, number_of
from rocketq_broker.data_plane.sends.send_plain import PLAIN_PARAMETERS, read_message
from rocketq_broker.data_plane.sends.send_staged import STAGE_PARAMETERS, stage_of, staged_answer
from rocketq_broker.metrics.broker_metrics import BodySizes, Measurements
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.store import AppendOutcome, MessageStore, QueueBatch, StagedOutcome

_PARAMETERS: Final = STAGE_PARAMETERS | HALF_PARAMETERS | NUMBER_PARAMETERS | {"queue"}
_PLAIN_PARAMETERS: Final = _PARAMETERS | PLAIN_PARAMETERS
_ARROW: Final = ARROW_STREAM.encode()
_PLAIN: Final = OCTET_STREAM.encode()
#: Bodies above this size are opened and checked outside of the loop.
_INLINE_BYTES: Final = 64 * 1024
#: Streams of more batches are opened outside of the loop.
_INLINE_BATCHES: Final = 64
_RETRY_AFTER_MS: Final = 100

Done = Callable[[AppendOutcome | StagedOutcome | RocketqError], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A body that may be appended: its batches, and how its answer is made from theirs.

    `places[i]` is where the i-th message of a JSON body went: a batch and a row
    of it. None for an Arrow body, whose answer speaks of batches.
    """

    batches: list[QueueBatch]
    sizes: list[BodySizes]
    places: list[tuple[int, int]] | None = None
    #: In how many pieces each batch of the body is appended; empty: in one each.
    pieces: tuple[int, ...] = ()


class SendProcessor:
    """Handles `POST /v1/topics/{topic}/messages`; everything here runs on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        completions: Completions,
        measurements: Measurements,
        executor: Executor,
        decoding: DecodingRoom,
    ) -> None:
        self._config = config
        self._store = store
        self._completions = completions
        self._measurements = measurements
        self._executor = executor
        self._decoding = decoding
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, int] = {}
        self.bodies = ByteBudget("sends' bodies", config.in_flight_bytes_max, _RETRY_AFTER_MS)
        self._waking = False

    async def handle(self, request: DataRequest) -> Answer:
        """Append the body's batches and answer where they went."""
        started = time.perf_counter()
        config = self._config
        topic, exists = self._topic(request.name)
        if not topic.perm & Perm.WRITE:
            raise NoPermission("Writing", f"topic {topic.name!r}")
        media_type = _media_type(request.headers)
        is_arrow = media_type == _ARROW
        parameters = _parameters(request.query_string, media_type)
        named = _named_queues(parameters.get("queue"), topic)
        stage, half = stage_of(parameters, is_arrow), half_of(parameters)
        if stage is not None and half is not None:
            raise InvalidRequest("the query", "names a sink and a transaction", hint="Give one of the two.")
        number = number_of(
            parameters, is_arrow or media_type == _PLAIN, stage is not None or half is not None
        )
        announced = content_length(request.scope["headers"])
        if announced is not None and announced > config.request_bytes_max:
            raise TooLarge("the request body", announced, config.request_bytes_max)
        with ExitStack() as held:
            claim = held.enter_context(Claim(self.bodies, body_mark(config, announced)))
            data = await self._receive(request, announced, claim, is_arrow)
            if is_arrow:
                prepared = await self._prepare_stream(topic, data, named, held, stage is not None)
            elif media_type == _PLAIN:
                prepared = await self._prepare_single(topic, read_message(parameters, data), named)
            else:
                prepared = await self._prepare_document(topic, data, named)
            if half is not None:
                check_half(prepared.batches)
            if not exists:
                await self._create(topic)
            appending = time.perf_counter()
            outcome: AppendOutcome | StagedOutcome = await self._completions.outcome(
                partial(self._append, topic.name, prepared, half or stage, number)
            )
        now = time.perf_counter()
        self._measurements.append_seconds.observe(now - appending)
        self._measurements.send_seconds.observe(now - started)
        self._measurements.sent(topic.name, prepared.sizes)
        if half is not None:
            messages = sum(each.rows for each in prepared.batches)
            return half_answer(outcome.status, config.name, topic.name, half, messages)
        if isinstance(outcome, StagedOutcome):
            return staged_answer(outcome, config.name, topic.name)
        answer = send_answer(config.name, topic.name, outcome)
        if prepared.places is not None:
            answer = _by_message(answer, prepared.places)
        return json_answer(encode(answer))

    def _append(
        self,
        topic: str,
        prepared: Prepared,
        stage: StageName | HalfName | None,
        number: SendNumber | None,
        done: Done,
    ) -> None:
        """Hand batches to the log writer."""
        self._store.append(
            topic, prepared.batches, done, stage=stage, number=number, pieces=prepared.pieces, wake=False
        )
        self.wake_soon()

    def wake_soon(self) -> None:
        """Wake the log writer when every request of this turn of the loop has handed over what it has.

        Woken by the first it would compete with the others for the interpreter, and make
        groups of one.
        """
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        self._store.wake_writer()

    def forget_topic(self, topic: str) -> None:
        self._turns.pop(topic, None)

    # --- the topic ----------------------------------------------------------------------

    def _topic(self, name: str) -> tuple[TopicConfig, bool]:
        """Return the topic, or the one that would be created.

        Raises TopicNotFound, InvalidName, or ReservedName, even if there is a topic of a reserved name.
        """
        check_user_topic(name)
        try:
            return self._store.topic(name), True
        except TopicNotFound:
            if not self._config.auto_create_topics:
                raise
        queues = self._config.default_queues
        return TopicConfig(name, read_queues=queues, write_queues=queues), False

    async def _create(self, topic: TopicConfig) -> None:
        request = CreateTopicRequest(topic.read_queues, topic.write_queues, if_absent=True, automatic=True)
        await self._completions.outcome(partial(self._store.create_topic, topic.name, request))

    # --- the body -----------------------------------------------------------------------

    async def _receive(
        self, request: DataRequest, announced: int | None, claim: Claim, is_arrow: bool
    ) -> bytes | pa.Buffer:
        """Return the body, claimed before it is held: as announced, or piece by piece as it comes."""
        if announced is not None:
            claim.grow(announced)
            if is_arrow:
                return await _receive_stream(request, announced)
        growing = claim if announced is None else None
        pieces = await read_body(request.scope, request.receive, self._config.request_bytes_max, growing)
        return b"".join(pieces)

    async def _prepare_stream(
        self,
        topic: TopicConfig,
        data: bytes | pa.Buffer,
        named: Sequence[int],
        held: ExitStack,
        is_staged: bool,
    ) -> Prepared:
        """Open an Arrow body; what it inflates to is claimed until `held` ends."""
        config = self._config
        stream = cut_stream(data, config.inflated_bytes_max, config.send_batches_max)
        if not stream.messages:
            raise InvalidBatch("the stream holds no batch", hint="Send at least one message.")
        queues = self._queues(topic, named, len(stream.messages), "batches")
        limit, now = topic.message_bytes_max or config.message_bytes_max, horizon(config, self._store)
        if stream.compressed:
            inflating = await self._decoding.claim(stream.inflated_bytes)
            held.callback(inflating.release)
        if stream.compressed or len(data) > _INLINE_BYTES or len(stream.messages) > _INLINE_BATCHES:
            return await self._loop.run_in_executor(
                self._executor, _admitted, stream, queues, limit, now, is_staged
            )
        return _admitted(stream, queues, limit, now, is_staged)

    async def _prepare_document(self, topic: TopicConfig, body: bytes, named: Sequence[int]) -> Prepared:
        if len(body) > _INLINE_BYTES:
            entries = await self._loop.run_in_executor(self._executor, read_document, body)
        else:
            entries = read_document(body)
        if not 0 < len(entries) <= BATCH_MESSAGES_MAX:
            raise InvalidBatch(
                f"the body has {len(entries)} messages", hint=f"Send 1 to {BATCH_MESSAGES_MAX} at once."
            )
        queues = self._message_queues(topic, entries, named)
        used = len(set(queues))
        if used > self._config.send_batches_max:
            raise InvalidBatch(
                f"the messages go to {used} queues",
                hint=f"Send to at most {self._config.send_batches_max} queues at once.",
            )
        limit = topic.message_bytes_max or self._config.message_bytes_max
        messages, now = [message for message, _ in entries], horizon(self._config, self._store)
        if len(body) > _INLINE_BYTES or used > _INLINE_BATCHES:
            return await self._loop.run_in_executor(self._executor, _by_queue, messages, queues, limit, now)
        return _by_queue(messages, queues, limit, now)

    async def _prepare_single(self, topic: TopicConfig, message: Message, named: Sequence[int]) -> Prepared:
        limit = topic.message_bytes_max or self._config.message_bytes_max
        admit_one(message, limit)
        queues, now = self._queues(topic, named, 1, "messages"), horizon(self._config, self._store)
        if len(message.body) > _INLINE_BYTES:
            return await self._loop.run_in_executor(self._executor, _by_queue, [message], queues, limit, now)
        return _by_queue([message], queues, limit, now)

    def _message_queues(
        self, topic: TopicConfig, entries: list[tuple[Message, int | None]], named: Sequence[int]
    ) -> list[int]:
        own = [queue for _, queue in entries if queue is not None]
        if not own:
            return self._queues(topic, named, len(entries), "messages")
        if named:
            raise InvalidRequest("queue", "is given in the query and in a message", hint="Give it once.")
        for queue in own:
            _check_queue(topic, queue)
        turns = iter(self._queues(topic, (), len(entries) - len(own), "messages"))
        return [next(turns) if queue is None else queue for _, queue in entries]

    def _queues(self, topic: TopicConfig, named: Sequence[int], count: int, what: str) -> list[int]:
        """Return a queue for each of `count` batches: as named, or the next ones in turn."""
        if named:
            if len(named) not in (1, count):
                raise InvalidRequest(
                    "parameter queue", f"names {len(named)} queues for {count} {what}",
                    hint=f"Name one queue for all {what}, or one for each.",
                )  # fmt: skip
            return list(named) * (count if len(named) == 1 else 1)
        turn = self._turns.get(topic.name, 0)
        self._turns[topic.name] = (turn + count) % topic.write_queues
        return [(turn + at) % topic.write_queues for at in range(count)]


def _admitted(
    stream: CutStream, queues: list[int], message_bytes_max: int, allowed: Horizon, is_staged: bool
) -> Prepared:
    opened = open_stream(stream)
    counts = [each.batch.num_rows for each in opened]
    first_rows = list(accumulate(counts[:-1], initial=0))
    sizes = [admit(each.batch, message_bytes_max, row) for each, row in zip(opened, first_rows, strict=True)]
    parts: list[list[QueueBatch]] = []
    for queue, each, row in zip(queues, opened, first_rows, strict=True):
        held: Sequence[QueueBatch] = held_batches(queue, each.batch, allowed, row, is_staged)
        parts.append([*held] or [QueueBatch(queue, each.encapsulated, each.batch)])
    return Prepared([one for part in parts for one in part], sizes, pieces=_pieces(parts))


def _by_queue(
    messages: list[Message], queues: list[int], message_bytes_max: int, allowed: Horizon
) -> Prepared:
    """Make one batch for each queue, delayed messages apart, and remember where each message went."""
    rows: dict[tuple[int, bool], list[Message]] = {}
    numbers: dict[tuple[int, bool], int] = {}
    places = []
    for at, (message, queue) in enumerate(zip(messages, queues, strict=True)):
        key = (queue, delivery_time(message.properties, allowed, at) is not None)
        row = rows.setdefault(key, [])
        places.append((numbers.setdefault(key, len(numbers)), len(row)))
        row.append(message)
    made = [(queue, from_messages(row)) for (queue, _), row in rows.items()]
    sizes = [admit(batch, message_bytes_max) for _, batch in made]
    parts: list[list[QueueBatch]] = []
    for queue, batch in made:
        held: Sequence[QueueBatch] = held_batches(queue, batch, allowed)
        parts.append([*held] or [QueueBatch(queue, encapsulate(batch), batch)])
    return Prepared([one for part in parts for one in part], sizes, places, _pieces(parts))


def _pieces(parts: Sequence[Sequence[QueueBatch]]) -> tuple[int, ...]:
    """Return in how many pieces each batch of a body is appended; empty if each is in one."""
    counts = tuple(map(len, parts))
    return counts if any(count > 1 for count in counts) else ()


def _by_message(answer: SendAnswer, places: Sequence[tuple[int, int]]) -> SendAnswer:
    """Return the answer to a JSON body, which speaks of messages; `places` are their batches and rows."""
    appended = []
    for batch, row in places:
        found = answer.appended[batch]
        offset = found.offset if found.offset == NO_OFFSET else found.offset + row
        appended.append(Appended(found.queue, offset, 1))
    timers = answer.timers
    if isinstance(timers, tuple):
        timers = tuple(timers[batch] for batch, _ in places)
    return replace(answer, appended=tuple(appended), timers=timers)


# --- what a request says before its body ------------------------------------------------


def _named_queues(text: str | None, topic: TopicConfig) -> list[int]:
    """Return the queue ids of the parameter `queue`; none if the broker is to choose."""
    if text is None:
        return []
    named = [number(part, "parameter queue", 0, QUEUE_COUNT_MAX) for part in text.split(",")]
    for queue in set(named):
        _check_queue(topic, queue)
    return named


def _check_queue(topic: TopicConfig, queue: int) -> None:
    if not 0 <= queue < topic.write_queues:
        raise QueueNotFound(topic.name, queue, topic.write_queues)


def _media_type(headers: dict[bytes, bytes]) -> bytes:
    """Return the media type of the body, without its parameters; only those of `SEND` are admitted."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _parameters(query_string: bytes, media_type: bytes) -> dict[str, str]:
    """Return the query's parameters; raise InvalidRequest for one that a body of this media type has not."""
    if media_type == _PLAIN:
        return parse(query_string, _PLAIN_PARAMETERS, PROPERTY_PREFIX)
    return parse(query_string, _PARAMETERS)


async def _receive_stream(request: DataRequest, size: int) -> pa.Buffer:
    """Return a body of announced length as one buffer; raise Disconnected, or InvalidRequest if less comes.

    Each piece is copied once, into memory that Arrow's pool hands out again and again. Joining the pieces
    afterwards costs several times as much, mostly in page faults.
    """
    buffer = pa.allocate_buffer(size)
    await read_body_into(memoryview(buffer).cast("B"), request.receive)
    return buffer


def body_mark(config: BrokerConfig, announced: int | None) -> int | None:
    """Return how full the budget of bodies may be for one of this announced length to find room; None: quite.

    A body without a length may take half of the budget, and a large one leaves an eighth to small ones. So
    clients that send slowly what they never announced, or large bodies, cannot keep the others out.
    """
    whole = config.in_flight_bytes_max
    if announced is None:
        return whole // 2
    if announced > SMALL_CALL_BYTES_MAX:
        return max(whole - whole // 8, config.request_bytes_max)
    return None
