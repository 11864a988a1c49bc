"""Errors that are raised on the client's side, before or instead of a server's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocketq.errors.base import ClientError


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
            hint=f"It may be restarting; {outcome}. `rocketq broker list` shows who is there.",
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


class ExtraMissing(ClientError, ImportError):
    """A part of rocketq needs an extra that is not installed; nothing was started.

    It is an ImportError, too: a program that can do without the part catches that.
    """

    code = "EXTRA_MISSING"
    status = 500

    def __init__(self, part: str, missing: Mapping[str, Sequence[str]]) -> None:
        modules = ", ".join(name for names in missing.values() for name in names)
        extras = ",".join(missing)
        super().__init__(
            f"{part} needs packages that are not installed: {modules}.",
            hint=f"pip install 'rocketq[{extras}]'; in a clone of the repository: pip install '.[{extras}]'.",
            facts={"part": part, "missing": {extra: list(names) for extra, names in missing.items()}},
        )


class WrongEventLoop(ClientError):
    """Something of asyncio was used where its event loop does not run."""

    code = "WRONG_EVENT_LOOP"
    status = 409

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} cannot be used here: {why}.",
            hint="Make an AsyncClient for each event loop. From another thread, call "
            "asyncio.run_coroutine_threadsafe(coroutine, loop), or use a Client.",
            facts={"what": what, "why": why},
        )


class Closed(ClientError):
    """The object was closed and takes no further calls."""

    code = "CLOSED"
    status = 503

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is closed.", hint="Open a new one; a closed one is never reused.", facts={"what": what}
        )


class TraceNotFound(ClientError):
    """No trace record of a message was found; `lag_bytes` of the brokers' logs are not indexed yet."""

    code = "TRACE_NOT_FOUND"
    status = 404

    def __init__(self, message_id: str, lag_bytes: int = 0) -> None:
        late = f" {lag_bytes} bytes of log are still to be indexed." if lag_bytes else ""
        super().__init__(
            f"There is no trace of message {message_id[:200]!r}.{late}",
            hint="Only clients with a trace record messages: Client(trace=True). Records are sent about a "
            "second after they are made, and removed with the retention of RMQ_SYS_TRACE_TOPIC.",
            facts={"message_id": message_id[:200], "lag_bytes": lag_bytes},
        )
