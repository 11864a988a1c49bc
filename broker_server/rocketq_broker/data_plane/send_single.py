"""Small sends to one queue, taken straight from the connection.

What is small pays for every step by itself, so this is the shortest way that keeps each
promise of `send`: a message that comes alone is read by `rocketq.protocol.arrow.single_message`, a batch as
ever; both are held against the same limits, appended by the same log writer, counted by
the same measurements, answered with the same bytes.

It knows only how to say yes. Whatever is not plain (another form, several batches, compression, no queue
named, a topic that is to be created or may not be sent to, a limit or rule that is broken, a broker that is
not running, no room) and whatever `Admission.admit` refuses is not taken. The usual way decides that, and
says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rocketq.errors import RocketqError
from rocketq.http_server.admission import Admission, Head
from rocketq.http_server.connection.short_call import ShortCall
from rocketq.http_server.error_answers import error_answer
from rocketq.http_server.permissions import NamedResource, Resource, Rule
from rocketq.model import (
    KEY_BYTES_MAX,
    QUEUE_COUNT_MAX,
    TAG_BYTES_MAX,
    Appended,
    Perm,
    SendStatus,
)
from rocketq.protocol.arrow.single_message import Single, read_single
from rocketq.protocol.arrow.stream_reader import cut_stream, open_stream
from rocketq.protocol.broker_documents import ARROW_STREAM, SendAnswer, encode
from rocketq.protocol.rules.message_rules import is_within_rules
from rocketq.protocol.rules.reserved_names import is_reserved_topic
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.data_call import JSON_TYPE
from rocketq_broker.data_plane.message_limits import PROPERTIES_BYTES_MAX, admit
from rocketq_broker.data_plane.query_parameters import number, parse
from rocketq_broker.data_plane.send import SendProcessor
from rocketq_broker.metrics.broker_metrics import BodySizes, Measurements
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.commit.small_batches import Addressed, QueueBatch, QueueMessage
from rocketq_broker.store.store import AppendOutcome, MessageStore

_ARROW_TYPE: Final = (b"content-type", ARROW_STREAM.encode())
#: Headers of bodies that are not plain; a content type here is another one, or a second.
_ENCODINGS: Final = frozenset({b"content-encoding", b"transfer-encoding", b"content-type"})
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %%d\r\n" % JSON_TYPE[1]
_PATH_PARTS: Final = (b"v1", b"topics", b"messages")
_PARAMETERS: Final = frozenset({"queue"})
#: A plain int: an operator of a flag costs a microsecond.
_WRITE: Final = int(Perm.WRITE)
#: Targets remembered, of the few that clients use.
_TARGETS_MAX: Final = 1_024
#: Stands where the offset goes while an answer's form is made.
_ANY_OFFSET: Final = 7_777_777_777_777_777_777


class _Target(NamedTuple):
    """What the request line says."""

    topic: str
    queue: int


class QuickSends:
    """The broker's hook for short calls; everything but `_Sending.done` runs on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        completions: Completions,
        measurements: Measurements,
        send: SendProcessor,
        rule: Rule,
        admission: Admission,
        enter: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._measurements = measurements
        self._send = send
        self._rule = rule
        self._admission = admission
        self._enter = enter
        self._leave = leave
        self.completions = completions
        self._targets: dict[bytes, _Target] = {}
        self._answers: dict[tuple[SendStatus, _Target], tuple[bytes, bytes]] = {}

    def take(self, call: ShortCall) -> bool:
        """Take a call and append what it brings; False leaves it, untouched, to the usual way."""
        target = self._targets.get(call.target) or self._target(call.target)
        if target is None or not _is_plain(call):
            return False
        started = time.perf_counter()
        try:
            resource = NamedResource(Resource.TOPIC, target.topic)
            self._admission.admit(Head(call.headers, call.local), self._rule, resource)
            topic = self._store.topic(target.topic)
            if not topic.perm & _WRITE or target.queue >= topic.write_queues:
                return False
            limit = topic.message_bytes_max or self._config.message_bytes_max
            read = self._read(call.body, target.queue, limit)
            return read is not None and self._append(_Sending(self, call, target, read[1], started), read[0])
        except RocketqError:
            return False

    def _read(self, body: bytes, queue: int, limit: int) -> tuple[Addressed, int | BodySizes] | None:
        """Return what may be appended, and the size of the message or those of the batch; or None."""
        single = read_single(body)
        if single is not None:
            if not _is_within_limits(single, limit) or not is_within_rules(single.tag, single.properties):
                return None
            return QueueMessage(queue, body, single), len(single.body)
        stream = cut_stream(body, self._config.inflated_bytes_max, 1)
        if stream.compressed or not stream.messages:
            return None
        [opened] = open_stream(stream)
        sizes = admit(opened.batch, limit)
        return QueueBatch(queue, opened.encapsulated, opened.batch), sizes

    def _append(self, sending: _Sending, addressed: Addressed) -> bool:
        """Hand it to the log writer; raise RocketqError if that, or the broker, does not take it."""
        send, body = self._send, sending.call.body
        size = len(body)
        if not send.bodies.has_room(size) or size > self._config.request_bytes_max:
            return False
        self._enter()
        target = sending.target
        try:
            self._store.append(target.topic, (addressed,), sending.done, wake=False)
        except BaseException:
            self._leave()
            raise
        send.bodies.take(size)
        send.wake_soon()
        return True

    def _target(self, raw: bytes) -> _Target | None:
        """Read a target that was not met before; None if it is no plain send to one queue."""
        target = _read_target(raw)
        if len(self._targets) >= _TARGETS_MAX:
            self._targets.clear()
        if target is not None:
            self._targets[raw] = target
        return target

    def answer(self, sending: _Sending, outcome: AppendOutcome | RocketqError) -> None:
        """Answer what was appended, or could not be."""
        call = sending.call
        self._send.bodies.give_back(len(call.body))
        self._leave()
        if isinstance(outcome, RocketqError):
            self._measurements.refused(outcome.code)
            call.answer(*error_answer(outcome))
            return
        self._measurements.append_seconds.observe((now := time.perf_counter()) - sending.appending)
        self._measurements.send_seconds.observe(now - sending.started)
        size, topic = sending.size, sending.target.topic
        if isinstance(size, int):
            self._measurements.sent_one(topic, size)
            before, behind = self._form(outcome.status, sending.target)
            body = b"%b%d%b" % (before, outcome.appended[0].offset, behind)
        else:
            self._measurements.sent(topic, [size])
            body = encode(SendAnswer(outcome.status, self._config.name, topic, outcome.appended))
        call.answer_head(_HEAD % len(body), body)

    def _form(self, status: SendStatus, target: _Target) -> tuple[bytes, bytes]:
        """Return what stands before and behind the offset in the answer to one message."""
        form = self._answers.get((status, target))
        if form is None:
            places = (Appended(target.queue, _ANY_OFFSET, 1),)
            whole = encode(SendAnswer(status, self._config.name, target.topic, places))
            before, _, behind = whole.rpartition(b"%d" % _ANY_OFFSET)
            if len(self._answers) >= _TARGETS_MAX:
                self._answers.clear()
            form = self._answers[status, target] = (before, behind)
        return form


class _Sending:
    """A message or a batch on its way to the log and back."""

    __slots__ = ("appending", "call", "sends", "size", "started", "target")

    def __init__(
        self, sends: QuickSends, call: ShortCall, target: _Target, size: int | BodySizes, started: float
    ) -> None:
        self.sends = sends
        self.call = call
        self.target = target
        self.size = size
        self.started = started
        self.appending = time.perf_counter()

    def done(self, outcome: AppendOutcome | RocketqError) -> None:
        """Called by the log writer, on its thread."""
        self.sends.completions.post(self._answer, outcome)

    def _answer(self, outcome: AppendOutcome | RocketqError) -> None:
        self.sends.answer(self, outcome)


def _is_within_limits(single: Single, message_bytes_max: int) -> bool:
    """The limits of `admission`, for one message."""
    return (
        len(single.body) <= message_bytes_max
        and (single.key is None or len(single.key) <= KEY_BYTES_MAX)
        and (single.tag is None or _tag_bytes(single.tag) <= TAG_BYTES_MAX)
        and single.properties_bytes <= PROPERTIES_BYTES_MAX
    )


def _tag_bytes(tag: str) -> int:
    return len(tag) if tag.isascii() else len(tag.encode())


def _is_plain(call: ShortCall) -> bool:
    """Whether the headers announce an Arrow stream as it is."""
    is_arrow = False
    for header in call.headers:
        if header == _ARROW_TYPE:
            is_arrow = True
        elif header[0] in _ENCODINGS:
            return False
    return is_arrow


def _read_target(raw: bytes) -> _Target | None:
    path, _, query = raw.partition(b"?")
    parts = path.split(b"/")
    if b"%" in path or len(parts) != 5 or (parts[1], parts[2], parts[4]) != _PATH_PARTS:
        return None
    try:
        text = parse(query, _PARAMETERS).get("queue", "")
        target = _Target(parts[3].decode("latin-1"), number(text, "parameter queue", 0, QUEUE_COUNT_MAX))
    except RocketqError:
        return None
    return None if is_reserved_topic(target.topic) else target
