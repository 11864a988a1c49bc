"""What sees each attempt to send, before and after it (RocketMQ: SendMessageHook).

A hook observes: it cannot change what is sent. It is called on the thread that sends, so it should be quick.
An exception that it raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from rocketq.errors import RocketqError

log = logging.getLogger("rocketq.producing.producer")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """One request to one broker: how many messages it has, and which attempt for them it is, from 1."""

    topic: str
    broker: str
    messages: int
    number: int


class SendHook(Protocol):
    """What sees attempts."""

    def before_attempt(self, attempt: SendAttempt) -> None:
        """See an attempt that begins now."""
        ...

    def after_attempt(self, attempt: SendAttempt, elapsed_ms: int, error: RocketqError | None) -> None:
        """See how an attempt ended: `error` is None if the broker has the messages."""
        ...


def observed(
    hooks: Sequence[SendHook], attempt: SendAttempt, now_ms: Callable[[], int], send: Callable[[], T]
) -> T:
    """Make an attempt by `send` and have the hooks see it."""
    for hook in hooks:
        _told(partial(hook.before_attempt, attempt))
    begun_ms = now_ms()
    error: RocketqError | None = None
    try:
        return send()
    except RocketqError as raised:
        error = raised
        raise
    finally:
        elapsed_ms = now_ms() - begun_ms
        for hook in hooks:
            _told(partial(hook.after_attempt, attempt, elapsed_ms, error))


def _told(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("A send hook raised an exception; the message is sent all the same")
