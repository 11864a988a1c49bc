"""Small sends of one plain message to one queue, taken straight from the connection.

A small message pays for every step by itself, so this is the shortest way that keeps each promise of `send`:
the body is the message's, the query says the rest (`rocketq.protocol.plain_message`). The message is held
against the same limits and rules, appended by the same log writer, counted by the same measurements, and
answered with the same bytes.

This module only accepts. It does not take any other form, a large body, a send that names no queue, a topic
that is to be created or may not be sent to, a limit or rule that is broken, a broker that is not running or
has no room, and whatever `Admission.admit` refuses. The usual way decides these cases, and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rocketq.errors import RocketqError
from rocketq.http_server.admission import Admission, Head
from rocketq.http_server.connection.small_call import SmallCall
from rocketq.http_server.error_answers import error_answer
from rocketq.http_server.permissions import NamedResource, Resource, Rule
from rocketq.model import QUEUE_COUNT_MAX, Appended, Perm, SendStatus
from rocketq.protocol.documents.broker import OCTET_STREAM, SendAnswer, encode
from rocketq.protocol.plain_message import PROPERTY_PREFIX
from rocketq.protocol.rules.delivery_time import delivery_time
from rocketq.protocol.rules.reserved_names import is_reserved_topic
from rocketq.protocol.send_number import SendNumber
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.data_call import JSON_TYPE
from rocketq_broker.data_plane.query_parameters import number, parse
from rocketq_broker.data_plane.sends.message_limits import admit_one
from rocketq_broker.data_plane.sends.send import SendProcessor
from rocketq_broker.data_plane.sends.send_delayed import horizon, send_answer
from rocketq_broker.data_plane.sends.send_numbers import NUMBER_PARAMETERS, number_of
from rocketq_broker.data_plane.sends.send_plain import PLAIN_PARAMETERS, read_message
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.commit.delayed_batches import delayed_message
from rocketq_broker.store.commit.small_batches import DelayedMessage, QueueMessage
from rocketq_broker.store.store import AppendOutcome, MessageStore

_PLAIN_TYPE: Final = (b"content-type", OCTET_STREAM.encode())
#: Headers of bodies that are not plain; a content type here is another one, or a second.
_ENCODINGS: Final = frozenset({b"content-encoding", b"transfer-encoding", b"content-type"})
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %%d\r\n" % JSON_TYPE[1]
_PATH_PARTS: Final = (b"v1", b"topics", b"messages")
_PARAMETERS: Final = PLAIN_PARAMETERS | NUMBER_PARAMETERS | {"queue"}
#: A plain int: an operator of a flag costs a microsecond.
_WRITE: Final = int(Perm.WRITE)
#: Paths and places whose parts are remembered, of the few that clients use.
_REMEMBERED_MAX: Final = 1_024
#: Stands where the offset goes while an answer's form is made.
_ANY_OFFSET: Final = 7_777_777_777_777_777_777


class _Place(NamedTuple):
    """Where a message goes."""

    topic: str
    queue: int


class SmallSends:
    """The broker's hook for small calls; everything but `_Sending.done` runs on the loop's thread."""

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
        self._topics: dict[bytes, str] = {}
        self._answers: dict[tuple[SendStatus, _Place], tuple[bytes, bytes]] = {}

    def take(self, call: SmallCall) -> bool:
        """Take a call and append what it brings; False leaves it, untouched, to the usual way."""
        path, _, query = call.target.partition(b"?")
        name = self._topics.get(path) or self._topic(path)
        if name is None or not _is_plain(call):
            return False
        started = time.perf_counter()
        try:
            resource = NamedResource(Resource.TOPIC, name)
            self._admission.admit(Head(call.headers, call.local), self._rule, resource)
            given = parse(query, _PARAMETERS, PROPERTY_PREFIX)
            queue = number(given.get("queue", ""), "parameter queue", 0, QUEUE_COUNT_MAX)
            topic = self._store.topic(name)
            if not topic.perm & _WRITE or queue >= topic.write_queues:
                return False
            message = read_message(given, call.body)
            admit_one(message, topic.message_bytes_max or self._config.message_bytes_max)
            sent: QueueMessage | DelayedMessage = QueueMessage(queue, message)
            if message.properties is not None:
                at_ms = delivery_time(message.properties, horizon(self._config, self._store))
                if at_ms is not None:
                    sent = delayed_message(queue, message, at_ms)
            return self._append(_Sending(self, call, _Place(name, queue), started), sent, number_of(given))
        except RocketqError:
            return False

    def _append(
        self, sending: _Sending, message: QueueMessage | DelayedMessage, sent_as: SendNumber | None
    ) -> bool:
        """Hand it to the log writer; raise RocketqError if that, or the broker, does not take it."""
        send, size = self._send, len(sending.call.body)
        if not send.bodies.has_room(size) or size > self._config.request_bytes_max:
            return False
        self._enter()
        place = sending.place
        try:
            self._store.append(place.topic, (message,), sending.done, number=sent_as, wake=False)
        except BaseException:
            self._leave()
            raise
        send.bodies.take(size)
        send.wake_soon()
        return True

    def _topic(self, path: bytes) -> str | None:
        """Read a path that was not met before; None if no user may send to it, or it is no send's."""
        topic = _topic_of(path)
        if len(self._topics) >= _REMEMBERED_MAX:
            self._topics.clear()
        if topic is not None:
            self._topics[path] = topic
        return topic

    def answer(self, sending: _Sending, outcome: AppendOutcome | RocketqError) -> None:
        """Answer what was appended, or could not be."""
        call = sending.call
        self._send.bodies.release(len(call.body))
        self._leave()
        if isinstance(outcome, RocketqError):
            self._measurements.refused(outcome.code)
            call.answer(*error_answer(outcome))
            return
        self._measurements.append_seconds.observe((now := time.perf_counter()) - sending.appending)
        self._measurements.send_seconds.observe(now - sending.started)
        self._measurements.sent_one(sending.place.topic, len(call.body))
        if outcome.timers:
            whole = encode(send_answer(self._config.name, sending.place.topic, outcome))
            call.answer_head(_HEAD % len(whole), whole)
            return
        (appended,) = outcome.appended
        place = sending.place
        if appended.queue != place.queue:
            # A repetition: its message went to another queue the first time.
            place = _Place(place.topic, appended.queue)
        before, behind = self._form(outcome.status, place)
        body = b"%b%d%b" % (before, appended.offset, behind)
        call.answer_head(_HEAD % len(body), body)

    def _form(self, status: SendStatus, place: _Place) -> tuple[bytes, bytes]:
        """Return what stands before and behind the offset in the answer to one message."""
        form = self._answers.get((status, place))
        if form is None:
            appended = (Appended(place.queue, _ANY_OFFSET, 1),)
            whole = encode(SendAnswer(status, self._config.name, place.topic, appended))
            before, _, behind = whole.rpartition(b"%d" % _ANY_OFFSET)
            if len(self._answers) >= _REMEMBERED_MAX:
                self._answers.clear()
            form = self._answers[status, place] = (before, behind)
        return form


class _Sending:
    """A message on its way to the log and back."""

    __slots__ = ("appending", "call", "place", "sends", "started")

    def __init__(self, sends: SmallSends, call: SmallCall, place: _Place, started: float) -> None:
        self.sends = sends
        self.call = call
        self.place = place
        self.started = started
        self.appending = time.perf_counter()

    def done(self, outcome: AppendOutcome | RocketqError) -> None:
        """Called by the log writer, on its thread."""
        self.sends.completions.post(self._answer, outcome)

    def _answer(self, outcome: AppendOutcome | RocketqError) -> None:
        self.sends.answer(self, outcome)


def _is_plain(call: SmallCall) -> bool:
    """Whether the headers announce a plain message as it is."""
    is_plain = False
    for header in call.headers:
        if header == _PLAIN_TYPE:
            is_plain = True
        elif header[0] in _ENCODINGS:
            return False
    return is_plain


def _topic_of(path: bytes) -> str | None:
    parts = path.split(b"/")
    if b"%" in path or len(parts) != 5 or (parts[1], parts[2], parts[4]) != _PATH_PARTS:
        return None
    topic = parts[3].decode("latin-1")
    return None if is_reserved_topic(topic) else topic
