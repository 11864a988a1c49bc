"""Pull: the frames of a queue from an offset on, exactly as they lie in the log.

A call that finds nothing is held until its queue gets a message (`rocketq.http_server.longpoll`), and
then looks again. The stored frames go to the socket as the store read them;
the Arrow and JSON forms are made on a thread (`forms`).

The loop reads small answers itself, but only from the page cache. Whatever would wait for the disk is read
on a thread (`_look`), so a consumer of old messages keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from rocketq.errors import (
    CorruptFrame,
    InvalidRequest,
    NoPermission,
    NotFound,
    OffsetOutOfRange,
)
from rocketq.http_server.longpoll.long_poll import LongPoll, Woken
from rocketq.model import (
    PULL_BYTES_MAX,
    QUEUE_COUNT_MAX,
    MessageQueue,
    PullStatus,
)
from rocketq.protocol.documents.broker import (
    ARROW_STREAM,
    FRAMES,
    INCARNATION_HEADER,
    JSON,
    MAX_OFFSET_HEADER,
    MIN_OFFSET_HEADER,
    NEXT_OFFSET_HEADER,
    STATUS_HEADER,
    SUGGESTED_BROKER_HEADER,
    WAIT_MS_MAX,
)
from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq.protocol.frame import peek
from rocketq.protocol.rules.reserved_names import check_name, is_retry_topic, retry_topic
from rocketq_broker.config import MIB, BrokerConfig
from rocketq_broker.data_plane.data_call import Answer, DataRequest, Headers, Outgoing
from rocketq_broker.data_plane.decoding_memory import (
    ARROW_FACTOR,
    JSON_FACTOR,
    DecodingClaim,
    DecodingRoom,
    decoded_bytes,
)
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, is_set, number, parse, whole_number
from rocketq_broker.data_plane.reads import pull_formats as forms
from rocketq_broker.filters.pull_filter import Filter, parse_filter
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.replication_service.read_advice import ReadAdvice
from rocketq_broker.runtime import wait_keys as arrivals
from rocketq_broker.store.store import MessageStore, PullResult

T = TypeVar("T")

DEFAULT_PULL_BYTES: Final = 4 * MIB

_PARAMETERS: Final = frozenset(
    {
        "offset", "end", "max_bytes", "max_messages", "wait_ms", "group", "client_id", "epoch", "tag", "sql",
        "master_only",
    }
)  # fmt: skip
_FORMS: Final = {
    FRAMES: FRAMES,
    ARROW_STREAM: ARROW_STREAM,
    JSON: JSON,
    "*/*": FRAMES,
    "application/*": FRAMES,
}


@dataclass(frozen=True, slots=True)
class PullCall:
    """What one pull asks for. `end` bounds what a filter looks at; without one it is in `max_messages`.

    `claim` is the client id and the epoch of a member that pulls a queue of its own. `master_only` is for
    whoever must not take a slave's word that there is no such message.
    """

    topic: str
    queue: int
    offset: int
    end: int | None
    max_bytes: int
    max_messages: int | None
    wait_ms: int
    group: str
    claim: tuple[str, int] | None
    form: str
    chosen: Filter | None
    master_only: bool = False


class PullProcessor:
    """Handles `GET /v1/topics/{topic}/queues/{queue}/messages`, on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        held: LongPoll[arrivals.Key],
        outgoing: Outgoing,
        measurements: Measurements,
        executor: Executor,
        readers: Executor,
        decoding: DecodingRoom,
        check_office: Callable[[], None],
        advice: ReadAdvice,
    ) -> None:
        """`readers` are threads that may wait for the disk; those of `executor` compute.

        `check_office` raises unless this broker is by itself, or serves as master. `advice` says where a
        reader should go on.
        """
        self._config = config
        self._check_office = check_office
        self._store = store
        self._held = held
        self._outgoing = outgoing
        self._measurements = measurements
        self._executor = executor
        self._readers = readers
        self._decoding = decoding
        self._advice = advice
        self._loop = asyncio.get_running_loop()

    async def handle(self, request: DataRequest) -> Answer | None:
        """Answer with what is there, or with what comes within `wait_ms`; None if the client left."""
        call = _read_call(request)
        self._check_call(call)
        pull = self._pull if call.chosen is None else self._pull_chosen
        result = await pull(call, request)
        if result is None:
            return None
        # The call may have been held for long.
        self._check_call(call)
        size = sum(map(len, result.chunks))
        self._measurements.pulled(call.topic, call.group, _count(call, result), size)
        if self._advice.is_slave:
            self._measurements.slave_read_bytes += size
        if call.form == FRAMES:
            headers = self._place_of(call, result, result.next_offset)
            return Answer(200, [_FRAMES_TYPE, *headers], result.chunks)
        return await self._decoded(call, result)

    def _check_call(self, call: PullCall) -> None:
        """Raise what stands against the call.

        NotMaster if only a master is to answer; GroupDisabled; ClaimLost for a member that does not own the
        queue; NoPermission for one who is not of the group that a retry topic belongs to.
        """
        if call.master_only:
            self._check_office()
        if is_retry_topic(call.topic) and call.topic != retry_topic(call.group):
            hint = "It is for the members of its group. To look at messages use rocketq query."
            raise NoPermission("Reading", f"retry topic {call.topic}", hint)
        if not call.group:
            return
        groups = self._store.consumer_groups
        groups.check_enabled(call.group)
        if call.claim is not None:
            client_id, epoch = call.claim
            groups.check_owner(call.group, client_id, call.topic, call.queue, epoch)

    async def _pull(self, call: PullCall, request: DataRequest) -> PullResult | None:
        look = partial(
            self._look, call.topic, call.queue, call.offset,
            max_bytes=call.max_bytes, max_messages=call.max_messages,
        )  # fmt: skip
        self._outgoing.check()
        result = await look()
        if result.status is not PullStatus.NO_NEW_MSG or not call.wait_ms:
            return result
        keys, deadline_ms = arrivals.of_queue(call.topic, call.queue), self._held.deadline_ms(call.wait_ms)
        while result.status is PullStatus.NO_NEW_MSG:
            woken = await self._held.wait(keys, deadline_ms, request.receive)
            if woken is Woken.GONE:
                return None
            if woken is Woken.TIME_IS_UP:
                break
            self._outgoing.check()
            result = await look()
        return result

    async def _look(
        self, topic: str, queue: int, offset: int, *, max_bytes: int, max_messages: int | None = None
    ) -> PullResult:
        """Pull from the page cache here; what would wait for the disk, or is much, on a thread that may.

        That there is nothing is only ever seen on the loop's thread, so that a call that is then held
        cannot miss the message that comes.
        """
        pull = partial(self._store.pull, topic, queue, offset, max_bytes=max_bytes, max_messages=max_messages)
        cached = partial(
            self._store.pull_cached, topic, queue, offset, max_bytes=max_bytes, max_messages=max_messages
        )
        while True:
            result = cached()
            if result is not None:
                return result
            result = await self._read(pull)
            if result.status is not PullStatus.NO_NEW_MSG:
                return result

    async def _read(self, pull: Callable[[], PullResult]) -> PullResult:
        """Pull on a thread, unless what was answered while the call waited for one has taken the room."""

        def read() -> PullResult:
            self._outgoing.check()
            return pull()

        return await self._loop.run_in_executor(self._readers, read)

    async def _pull_chosen(self, call: PullCall, request: DataRequest) -> PullResult | None:
        """Pull through a filter: scans run on a thread, and messages that do not match keep the call held."""
        keys, deadline_ms = arrivals.of_queue(call.topic, call.queue), self._held.deadline_ms(call.wait_ms)
        offset = call.offset
        while True:
            look = partial(
                self._store.pull, call.topic, call.queue, offset,
                max_bytes=call.max_bytes, max_messages=call.max_messages, chosen=call.chosen, end=call.end,
            )  # fmt: skip
            result = await self._read(look)
            offset = result.next_offset
            if result.chunks or offset < result.max_offset or not call.wait_ms or offset == call.end:
                return result
            # The scan ran on another thread; only what is seen on this one cannot be missed by the hold.
            while (await self._look(call.topic, call.queue, offset, max_bytes=1)).next_offset == offset:
                woken = await self._held.wait(keys, deadline_ms, request.receive)
                if woken is Woken.GONE:
                    return None
                if woken is Woken.TIME_IS_UP:
                    return result

    def _place_of(self, call: PullCall, result: PullResult, next_offset: int) -> Headers:
        """Return the headers that say where the queue stands, and whom to ask next."""
        suggested = self._advice.broker_id(call.queue, result.behind)
        return _place(
            result.status, next_offset, result.min_offset, result.max_offset, result.incarnation, suggested
        )

    def place_of_error(self, error: OffsetOutOfRange) -> Headers:
        """Return the same headers for a refused offset: they say where to go on."""
        incarnation = self._store.topic(error.queue.topic).incarnation
        return _place(
            PullStatus.OFFSET_ILLEGAL, error.corrected, error.min_offset, error.max_offset, incarnation,
            MASTER_ID,
        )  # fmt: skip

    async def _decoded(self, call: PullCall, result: PullResult) -> Answer:
        """Make the Arrow or JSON form, on a thread."""
        # A filtered answer is cut already, and its messages are not consecutive.
        cut = call.max_messages is not None and call.chosen is None
        end = call.offset + (call.max_messages or 0) if cut else None
        scanned_to = None if call.chosen is None else result.next_offset
        queue = MessageQueue(call.topic, self._config.name, call.queue)

        def make() -> tuple[Sequence[bytes], int]:
            try:
                decoded = forms.open_chunks(result.chunks, call.offset, end, scanned_to=scanned_to)
            except CorruptFrame as error:
                raise self._store.located(call.topic, error) from error
            if call.form == ARROW_STREAM:
                return (forms.arrow_stream(decoded),), decoded.next_offset
            head = {
                "status": result.status,
                "min_offset": result.min_offset,
                "max_offset": result.max_offset,
            }
            return forms.json_document(decoded, queue, head)

        factor = ARROW_FACTOR if call.form == ARROW_STREAM else JSON_FACTOR
        measure = partial(decoded_bytes, result.chunks, factor, call.offset, end)
        (chunks, next_offset), claim = await self._made(measure, make)
        headers = self._place_of(call, result, next_offset)
        claim.shrink(sum(map(len, chunks)))
        return Answer(200, [(b"content-type", call.form.encode()), *headers], chunks, claim.release)

    async def _made(self, measure: Callable[[], int], make: Callable[[], T]) -> tuple[T, DecodingClaim]:
        """Measure what is to be inflated, wait for room, and inflate it: both on a thread."""
        size = await self._loop.run_in_executor(self._executor, measure)
        claim = await self._decoding.claim(size)
        try:
            return await self._loop.run_in_executor(self._executor, make), claim
        except BaseException:
            claim.release()
            raise

    async def message(self, identity: str) -> bytes:
        """Return one message by its id as JSON; raise NotFound."""
        topic, queue, offset = _read_message_id(identity, self._config.name)
        try:
            result = await self._look(topic, queue, offset, max_bytes=1, max_messages=1)
        except OffsetOutOfRange:
            raise NotFound("message", identity) from None
        if result.status is not PullStatus.FOUND:
            raise NotFound("message", identity)
        place = MessageQueue(topic, self._config.name, queue)

        def make() -> bytes:
            try:
                decoded = forms.open_chunks(result.chunks, offset, offset + 1)
            except CorruptFrame as error:
                raise self._store.located(topic, error) from error
            return forms.single_message(decoded, place)

        measure = partial(decoded_bytes, result.chunks, ARROW_FACTOR, offset, offset + 1)
        document, claim = await self._made(measure, make)
        claim.release()
        return document


def _place(status: PullStatus, next_: int, low: int, high: int, incarnation: str, suggested: int) -> Headers:
    return [
        (_STATUS, status.encode()),
        (_NEXT, b"%d" % next_),
        (_MIN, b"%d" % low),
        (_MAX, b"%d" % high),
        (_INCARNATION, incarnation.encode()),
        (_SUGGESTED, b"%d" % suggested),
    ]


def _read_call(request: DataRequest) -> PullCall:
    given = parse(request.query_string, _PARAMETERS)
    group = given.get("group", "")
    if group:
        check_name("group", group)
    chosen = parse_filter(given.get("tag"), given.get("sql"))
    offset = whole_number(given, "offset", -NUMBER_MAX, NUMBER_MAX)
    end = whole_number(given, "end", offset + 1, NUMBER_MAX) if "end" in given else None
    max_messages = whole_number(given, "max_messages", 1, NUMBER_MAX) if "max_messages" in given else None
    if end is not None and chosen is None:
        max_messages = min(max_messages or NUMBER_MAX, end - offset)
    return PullCall(
        topic=request.name,
        queue=number(request.part, "the queue", 0, QUEUE_COUNT_MAX),
        offset=offset,
        end=end,
        max_bytes=whole_number(given, "max_bytes", 1, PULL_BYTES_MAX, DEFAULT_PULL_BYTES),
        max_messages=max_messages,
        wait_ms=whole_number(given, "wait_ms", 0, WAIT_MS_MAX, 0),
        group=group,
        claim=_claim(given),
        form=_form(request.headers.get(b"accept")),
        chosen=chosen,
        master_only=is_set(given, "master_only"),
    )


def _claim(given: Mapping[str, str]) -> tuple[str, int] | None:
    if "client_id" not in given and "epoch" not in given:
        return None
    for name in ("group", "client_id", "epoch"):
        if not given.get(name):
            raise InvalidRequest(f"parameter {name}", "a member's pull has all of group, client_id and epoch")
    return given["client_id"], whole_number(given, "epoch", 0, NUMBER_MAX)


def _count(call: PullCall, result: PullResult) -> int:
    """Return how many messages an answer carries; a filtered one has a frame in each chunk."""
    if call.chosen is None:
        return result.next_offset - call.offset
    return sum(peek(chunk).count for chunk in result.chunks)


def _form(accept: bytes | None) -> str:
    """Return the first form of an Accept header that the broker speaks; frames if there is none."""
    if accept is None or accept == _FRAMES_ACCEPT:
        return FRAMES
    for part in accept.decode("latin-1").split(","):
        form = _FORMS.get(part.partition(";")[0].strip().lower())
        if form is not None:
            return form
    raise InvalidRequest(
        "accept", f"none of {accept.decode('latin-1')[:100]!r} can be given",
        hint=f"Accept {FRAMES}, {ARROW_STREAM} or {JSON}.",
    )  # fmt: skip


def _read_message_id(identity: str, broker: str) -> tuple[str, int, int]:
    parts = identity.split(":")
    if len(parts) != 4:
        raise InvalidRequest("the message id", f"{identity[:200]!r} is not broker:topic:queue:offset")
    if parts[0] != broker:
        raise NotFound("message", identity)
    queue = number(parts[2], "the queue of the message id", 0, QUEUE_COUNT_MAX)
    return parts[1], queue, number(parts[3], "the offset of the message id", 0, NUMBER_MAX)


_FRAMES_ACCEPT: Final = FRAMES.encode()
_FRAMES_TYPE: Final = (b"content-type", _FRAMES_ACCEPT)
_STATUS, _NEXT, _MIN, _MAX, _INCARNATION, _SUGGESTED = (
    name.encode()
    for name in (
        STATUS_HEADER, NEXT_OFFSET_HEADER, MIN_OFFSET_HEADER, MAX_OFFSET_HEADER, INCARNATION_HEADER,
        SUGGESTED_BROKER_HEADER,
    )
)  # fmt: skip
