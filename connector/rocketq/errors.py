"""Every error of rocketq, as one tree.

    RocketqError                       code                      HTTP
    ├── ClientError                    (raised on this side)
    │   ├── NameServersUnreachable     NAMESERVERS_UNREACHABLE
    │   ├── BrokerUnreachable          BROKER_UNREACHABLE
    │   ├── RouteNotFound              ROUTE_NOT_FOUND
    │   ├── SendFailed                 SEND_FAILED
    │   ├── InvalidConfiguration       INVALID_CONFIGURATION
    │   └── Closed                     CLOSED
    ├── RemoteError                    (a server's answer)
    │   ├── InvalidRequest             INVALID_REQUEST           400
    │   ├── InvalidName                INVALID_NAME              400
    │   ├── InvalidBatch               INVALID_BATCH             400
    │   ├── (of messages' contents and reserved names: `rocketq.message_errors`)
    │   ├── InvalidFilter              INVALID_FILTER            400
    │   ├── NoPermission               NO_PERMISSION             403
    │   ├── NotFound                   NOT_FOUND                 404
    │   ├── TopicNotFound              TOPIC_NOT_FOUND           404
    │   ├── QueueNotFound              QUEUE_NOT_FOUND           404
    │   ├── MethodNotAllowed           METHOD_NOT_ALLOWED        405
    │   ├── TooSlow                    TOO_SLOW                  408
    │   ├── Conflict                   CONFLICT                  409
    │   ├── (of sinks: `rocketq.sink_errors`; of topics: `rocketq.topic_errors`; of brokers that
    │   │    register: `rocketq.registration_errors`; of calls that a server does not admit or
    │   │    finish: `rocketq.server_errors`)
    │   ├── TooLarge                   TOO_LARGE                 413
    │   ├── OffsetOutOfRange           OFFSET_OUT_OF_RANGE       416
    │   ├── SystemBusy                 SYSTEM_BUSY               429
    │   ├── InternalError              INTERNAL_ERROR            500
    │   ├── BrokerUnavailable          BROKER_UNAVAILABLE        503
    │   ├── TooManyConnections         TOO_MANY_CONNECTIONS      503
    │   └── StoreFull                  STORE_FULL                507
    ├── CorruptFrame                   CORRUPT_FRAME             422   (bytes that break the format)
    └── StoreError                     (of the broker's disk; `rocketq_broker.store.errors`)

An error carries facts, not only a sentence: `facts` are the arguments it was
made of, `message` says what is wrong and why, `hint` says what to do next.
Over the wire an error is the JSON document `{"code", "message", "hint",
"facts"}` with the HTTP status of its class; `error_documents` rebuilds the same
class on the other side. The codes are words for RocketMQ's numeric response
codes (`ResponseCode`, `SendStatus`), because HTTP carries words well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rocketq.protocol.filters.pointing import pointed
from rocketq.protocol.model import MessageQueue

JsonFacts = Mapping[str, Any]


class RocketqError(Exception):
    """Base of all errors; `code` is stable, `message` is for people."""

    code: ClassVar[str] = "ERROR"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", facts: JsonFacts | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[Any, ...]:
        from rocketq.error_documents import rebuild

        return (rebuild, (type(self), self.message, self.hint, self.facts))

    def document(self) -> dict[str, Any]:
        """Return the error as the JSON document that crosses the wire."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "facts": self.facts,
        }


# --- raised on the client's side -------------------------------------------------


class ClientError(RocketqError):
    """Something failed before, or instead of, a server's answer."""


class NameServersUnreachable(ClientError):
    """No NameServer answered and no cached route could stand in."""

    code = "NAMESERVERS_UNREACHABLE"
    status = 503
    retryable = True

    def __init__(self, tried: Mapping[str, str]) -> None:
        listed = "; ".join(f"{address}: {why}" for address, why in tried.items())
        super().__init__(
            f"No NameServer answered. Tried {listed or 'none: the list is empty'}.",
            hint="Check the addresses and that one is running: rocketq up, or rocketq nameserver run.",
            facts={"tried": dict(tried)},
        )


class BrokerUnreachable(ClientError):
    """A broker did not answer; unless `sent` is False, whether it took the request is unknown."""

    code = "BROKER_UNREACHABLE"
    status = 503
    retryable = True

    sent: bool

    def __init__(self, broker: str, address: str, why: str, sent: bool = True) -> None:
        self.sent = sent
        outcome = "the request may or may not have been carried out" if sent else "nothing was sent to it"
        super().__init__(
            f"Broker {broker} at {address} did not answer: {why}.",
            hint=f"It may be restarting; {outcome}.",
            facts={"broker": broker, "address": address, "why": why, "sent": sent},
        )


class RouteNotFound(ClientError):
    """The NameServers know no broker that serves this topic."""

    code = "ROUTE_NOT_FOUND"
    status = 404

    def __init__(self, topic: str, known: str = "") -> None:
        near = f" Nearest known topic: {known!r}." if known else ""
        super().__init__(
            f"No broker serves topic {topic!r}.{near}",
            hint=f"Create it first: rocketq topic create {topic}",
            facts={"topic": topic, "known": known},
        )


class SendFailed(ClientError):
    """Every attempt to send failed; `facts['attempts']` tells each.

    `may_be_stored` is whether a broker may have carried out one of the requests.
    """

    code = "SEND_FAILED"
    status = 503

    def __init__(self, topic: str, attempts: list[str], elapsed_ms: int, may_be_stored: bool = True) -> None:
        hint = "Nothing of this request was stored; it can be sent again."
        if may_be_stored:
            hint = "An attempt without an answer may have been stored; sending again can duplicate it."
        super().__init__(
            f"Sending to topic {topic!r} failed after {len(attempts)} attempt(s) in {elapsed_ms} ms: "
            + "; ".join(_ends_of(attempts))
            + ".",
            hint=hint,
            facts={
                "topic": topic,
                "attempts": attempts,
                "elapsed_ms": elapsed_ms,
                "may_be_stored": may_be_stored,
            },
        )


def _ends_of(attempts: list[str]) -> list[str]:
    """Return the first and the last attempts of a long story; `facts` has all."""
    if len(attempts) <= 6:
        return attempts
    return [*attempts[:2], f"({len(attempts) - 5} more)", *attempts[-3:]]


class InvalidConfiguration(ClientError):
    """An option or argument is not usable; nothing was started."""

    code = "INVALID_CONFIGURATION"
    status = 400

    def __init__(self, name: str, value: Any, why: str, hint: str = "") -> None:
        super().__init__(
            f"{name}={value!r}: {why}.",
            hint=hint,
            facts={"name": name, "value": str(value), "why": why},
        )


class Closed(ClientError):
    """The object was closed and takes no further calls."""

    code = "CLOSED"
    status = 503

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is closed.", hint="Open a new one; a closed one is never reused.", facts={"what": what}
        )


# --- a server's answer -----------------------------------------------------------


class RemoteError(RocketqError):
    """A server understood the call and refused it; nothing was changed."""


class InvalidRequest(RemoteError):
    """A parameter or the body is not of the form the call takes."""

    code = "INVALID_REQUEST"
    status = 400

    def __init__(self, where: str, why: str, hint: str = "") -> None:
        super().__init__(f"{where}: {why}.", hint=hint, facts={"where": where, "why": why})


class InvalidName(RemoteError):
    """A topic, broker, cluster or group name breaks the rules for names."""

    code = "INVALID_NAME"
    status = 400

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} name {name[:200]!r} is not legal.",
            hint="Use 1 to 127 of the characters A-Z a-z 0-9 _ - % and |.",
            facts={"kind": kind, "name": name[:200]},
        )


class InvalidBatch(RemoteError):
    """A message batch is malformed or not of schema message/1; nothing was stored."""

    code = "INVALID_BATCH"
    status = 400

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(f"The message batch was refused: {why}.", hint=hint, facts={"why": why})


class InvalidFilter(RemoteError):
    """A tag or SQL expression does not parse; `position` is the character where, from 0."""

    code = "INVALID_FILTER"
    status = 400

    position: int

    def __init__(self, expression: str, position: int, why: str, hint: str = "") -> None:
        self.position = position
        shown = expression.encode("utf-8", "replace").decode()
        super().__init__(
            f"The filter is not valid at position {position}: {why}.\n{pointed(shown, position)}",
            hint=hint,
            facts={"expression": shown, "position": position, "why": why},
        )


class NoPermission(RemoteError):
    """The topic's or broker's permission forbids this call."""

    code = "NO_PERMISSION"
    status = 403

    def __init__(self, action: str, resource: str) -> None:
        super().__init__(
            f"{action} is not permitted on {resource}.",
            hint="Look at the topic's perm (rocketq topic describe) and at the broker's write permission.",
            facts={"action": action, "resource": resource},
        )


class NotFound(RemoteError):
    """A resource other than a topic or queue does not exist."""

    code = "NOT_FOUND"
    status = 404

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name[:200]!r} does not exist.", facts={"kind": kind, "name": name[:200]})


class TopicNotFound(RemoteError):
    """This broker has no such topic (RocketMQ: TOPIC_NOT_EXIST, 17)."""

    code = "TOPIC_NOT_FOUND"
    status = 404

    def __init__(self, topic: str, broker: str) -> None:
        super().__init__(
            f"Topic {topic!r} does not exist on broker {broker}.",
            hint=f"Create it (rocketq topic create {topic}) or allow automatic creation on the broker.",
            facts={"topic": topic, "broker": broker},
        )


class QueueNotFound(RemoteError):
    """The queue id is not below the topic's queue count; or, found by a client that looks for a queue of
    `broker`, the route does not have it. `known` then lists what the route has.
    """

    code = "QUEUE_NOT_FOUND"
    status = 404

    def __init__(self, topic: str, queue: int, queues: int, broker: str = "", known: str = "") -> None:
        facts: dict[str, Any] = {"topic": topic, "queue": queue, "queues": queues}
        message = f"Topic {topic!r} has no queue {queue}: it has {queues}, numbered from 0."
        hint = "Ask for the route again; the number of queues may have changed."
        if broker:
            facts |= {"broker": broker, "known": known}
            message = f"Topic {topic!r} has no writable queue {queue} on broker {broker!r}. It has: {known}."
            hint = "Name one of these queues. A broker that is away has none until it is back."
        super().__init__(message, hint=hint, facts=facts)


class MethodNotAllowed(RemoteError):
    """The path exists, but not for this method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405

    def __init__(self, method: str, path: str) -> None:
        super().__init__(
            f"{method} is not a method of {path[:200]}.",
            hint="docs/protocol.md lists the methods of each path.",
            facts={"method": method, "path": path[:200]},
        )


class TooSlow(RemoteError):
    """The client did not send its request in time; the connection is cut."""

    code = "TOO_SLOW"
    status = 408
    retryable = True

    def __init__(self, what: str, limit_ms: int) -> None:
        super().__init__(
            f"{what} did not arrive within {limit_ms} ms.",
            hint="Send smaller requests, or raise the server's receive deadline.",
            facts={"what": what, "limit_ms": limit_ms},
        )


class Conflict(RemoteError):
    """The state forbids the change: it exists already, or is newer."""

    code = "CONFLICT"
    status = 409

    def __init__(self, what: str, why: str, hint: str = "") -> None:
        super().__init__(f"{what}: {why}.", hint=hint, facts={"what": what, "why": why})


class TooLarge(RemoteError):
    """A body, batch or field is over its limit; nothing was stored."""

    code = "TOO_LARGE"
    status = 413

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} is {size} bytes; the limit is {limit}.",
            hint="Send it in smaller parts, or raise the limit on the broker or topic.",
            facts={"what": what, "size": size, "limit": limit},
        )


class OffsetOutOfRange(RemoteError):
    """The asked offset is outside [min, max]; `corrected` is where to go on.

    RocketMQ: PULL_OFFSET_MOVED (21), pull status OFFSET_ILLEGAL.
    """

    code = "OFFSET_OUT_OF_RANGE"
    status = 416

    queue: MessageQueue
    requested: int
    min_offset: int
    max_offset: int
    corrected: int

    def __init__(self, topic: str, broker: str, queue: int, requested: int, min: int, max: int) -> None:
        self.queue = MessageQueue(topic, broker, queue)
        self.requested, self.min_offset, self.max_offset = requested, min, max
        self.corrected = min if requested < min else max
        if requested < min:
            side, cause = "below the first stored offset", "what lies below was removed by retention"
        else:
            side, cause = "beyond the next offset to be written", "the queue was never that long"
        super().__init__(
            f"Offset {requested} of {topic}/{broker}/{queue} is {side}: it holds [{min}, {max}).",
            hint=f"Go on at {self.corrected}; {cause}.",
            facts={"topic": topic, "broker": broker, "queue": queue}
            | {"requested": requested, "min": min, "max": max},
        )


class SystemBusy(RemoteError):
    """The broker's queues are full; nothing was stored, try again later."""

    code = "SYSTEM_BUSY"
    status = 429
    retryable = True

    retry_after_ms: int

    def __init__(self, why: str, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(
            f"The broker is busy: {why}.",
            hint=f"Try again in {retry_after_ms} ms or on another broker.",
            facts={"why": why, "retry_after_ms": retry_after_ms},
        )


class InternalError(RemoteError):
    """A defect on the server; its log has the trace under this id."""

    code = "INTERNAL_ERROR"
    status = 500
    retryable = True

    def __init__(self, trace_id: str) -> None:
        super().__init__(
            f"The server failed in an unforeseen way (trace {trace_id}).",
            hint="Look up the trace id in the server's log.",
            facts={"trace_id": trace_id},
        )


class BrokerUnavailable(RemoteError):
    """The broker is starting, draining, or stopped taking writes after a disk fault."""

    code = "BROKER_UNAVAILABLE"
    status = 503
    retryable = True

    def __init__(self, broker: str, why: str) -> None:
        super().__init__(
            f"Broker {broker} is not available: {why}.",
            hint="Use another broker, or wait until it is ready (GET /readyz).",
            facts={"broker": broker, "why": why},
        )


class TooManyConnections(RemoteError):
    """The server has as many connections as it takes; this one is closed, nothing was read."""

    code = "TOO_MANY_CONNECTIONS"
    status = 503
    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The server takes no further connection: {limit} are open.",
            hint="Try again later; reuse connections, and close those that are not needed.",
            facts={"limit": limit},
        )


class StoreFull(RemoteError):
    """The disk is at its last watermark: writes are refused, reads go on."""

    code = "STORE_FULL"
    status = 507
    retryable = True

    def __init__(self, broker: str, used_percent: int) -> None:
        super().__init__(
            f"Broker {broker} refuses writes: its disk is {used_percent} % full.",
            hint="Free disk space or shorten retention; reads go on meanwhile.",
            facts={"broker": broker, "used_percent": used_percent},
        )


class CorruptFrame(RocketqError):
    """Bytes that should be log frames are not; `offset` is where in them."""

    code = "CORRUPT_FRAME"
    status = 422

    offset: int

    def __init__(self, offset: int, why: str) -> None:
        self.offset = offset
        super().__init__(
            f"Corrupt frame at byte {offset}: {why}.",
            hint="Ask again; if it repeats, the log is damaged: docs/salvage.md says what to do.",
            facts={"offset": offset, "why": why},
        )


def _walk(cls: type[RocketqError]) -> list[type[RocketqError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _walk(child))]


def by_code() -> dict[str, type[RocketqError]]:
    """Return the class of every code that has one of its own."""
    return {cls.code: cls for cls in _walk(RocketqError) if "code" in cls.__dict__}
