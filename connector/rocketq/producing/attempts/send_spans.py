"""Spans around sends: what a producer of a client with OpenTelemetry calls (`rocketq.tracing.spans`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from rocketq.model import Message, SendResult


class SendSpans(Protocol):
    """What makes spans of sends."""

    def sent_one(self, topic: str, message: Message, send: Callable[[Message], SendResult]) -> SendResult:
        """Send a message by `send` in a span, whose context the message carries."""
        ...

    def created(self, topic: str, properties: Mapping[str, str] | None) -> dict[str, str]:
        """Return the properties of a message that is sent later, with the context of a span of its own."""
        ...

    def sending(self, topic: str) -> AbstractContextManager[None]:
        """Return the span of a send of many messages; it is the current one in the block."""
        ...
