"""Errors that a server answers with, and `CorruptFrame`, which whoever reads frames may meet."""

from __future__ import annotations

from typing import Any

from rocketq.errors.base import RemoteError, RocketqError
from rocketq.errors.caret import pointed
from rocketq.model import MessageQueue


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
        longest = 120 if kind == "group" else 127
        super().__init__(
            f"{kind} name {name[:200]!r} is not legal.",
            hint=f"Use 1 to {longest} of the characters A-Z a-z 0-9 _ - % and |.",
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

    def __init__(self, action: str, resource: str, hint: str = "") -> None:
        super().__init__(
            f"{action} is not permitted on {resource}.",
            hint=hint
            or "Look at the topic's perm (rocketq topic describe) and at the broker's write permission.",
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
            hint="Send it in smaller parts. A topic's limit for a body is set by "
            "rocketq topic alter --message-bytes-max.",
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
            f"Offset {requested} of {topic}/{broker}/{queue} is {side}: "
            + (
                f"it holds the offsets {min} to {max - 1}."
                if min < max
                else f"it is empty, and the next offset is {max}."
            ),
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
