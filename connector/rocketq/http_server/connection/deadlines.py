"""The deadlines of one connection, as numbers: no clock, no timer, no socket.

    the client's first request begins     header_ms
    a request's head ends                 header_ms     counted from the request's first byte
    the whole request ends                request_ms    counted from the request's first byte
    the client takes its answer           answer_ms     counts only while the server waits to write
    the client's next request begins      idle_ms
    a connection that closes is gone      linger_ms after a refusal, answer_ms otherwise

While the server makes an answer, no deadline runs. Time counts from the begin of a phase, so a client that
sends byte by byte gains nothing. Time in which the server does not read is added to the request's deadline.
"""

from __future__ import annotations

from enum import Enum
from math import inf

from rocketq.http_server.connection.limits import ServerLimits


class Due(Enum):
    """What a client has not done in time."""

    CLOSE = "close"
    ANSWER = "answer"
    NEXT_REQUEST = "next request"
    REQUEST = "request"


class Deadlines:
    """When a client must have done what; in seconds of one clock; `inf` where nothing is due."""

    __slots__ = (
        "_answer_began", "_answer_left_s", "_limits", "_request_began", "answer_by", "closed_by",
        "next_request_by", "request_by",
    )  # fmt: skip

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._request_began = 0.0
        self._answer_began = 0.0
        self._answer_left_s = limits.answer_ms / 1000
        self.next_request_by = inf
        self.request_by = inf
        self.answer_by = inf
        self.closed_by = inf

    def connected(self, now: float) -> None:
        """The client is to send its first request."""
        self.next_request_by = now + self._limits.header_ms / 1000

    def request_began(self, now: float) -> None:
        """The first byte of a request is here; its head is to follow."""
        self._request_began = now
        self.request_by = now + self._limits.header_ms / 1000
        self.next_request_by = inf

    def head_ended(self) -> None:
        """The rest of the request is to follow."""
        self.request_by = self._request_began + self._limits.request_ms / 1000

    def request_ended(self) -> None:
        """The request is here; the next step is the server's."""
        self.request_by = inf

    def reading_resumed(self, paused_s: float) -> None:
        """The server did not read for so long; the client gets that time back."""
        self.request_by += paused_s

    def answer_began(self) -> None:
        """The server makes another answer; the client has the whole time for it."""
        self._answer_left_s = self._limits.answer_ms / 1000

    def writing_paused(self, now: float) -> None:
        """The server waits until the client takes more of its answer."""
        self._answer_began = now
        self.answer_by = now + self._answer_left_s

    def writing_resumed(self, now: float) -> None:
        """The client took some of its answer."""
        self.answer_by = inf
        self._answer_left_s -= now - self._answer_began

    def answered(self, now: float) -> None:
        """Nothing is under way; the client is to send its next request."""
        self.answer_began()
        self.next_request_by = now + self._limits.idle_ms / 1000

    def closing(self, now: float) -> None:
        """The connection closes once the client has taken the rest of its answer."""
        if self.closed_by == inf:
            self.closed_by = now + self._limits.answer_ms / 1000

    def refused(self, now: float) -> None:
        """A refusal was written; what the client still sends is thrown away until the connection closes."""
        self.next_request_by = self.request_by = self.answer_by = inf
        self.closed_by = now + self._limits.linger_ms / 1000

    def due(self, now: float, is_reading: bool) -> Due | None:
        """Return what is due now; of a request nothing is due while the server does not read."""
        if now >= self.closed_by:
            return Due.CLOSE
        if now >= self.answer_by:
            return Due.ANSWER
        if now >= self.next_request_by:
            return Due.NEXT_REQUEST
        return Due.REQUEST if is_reading and now >= self.request_by else None

    def next_at(self, is_reading: bool) -> float:
        """Return when something is due next."""
        request_by = self.request_by if is_reading else inf
        return min(self.next_request_by, request_by, self.answer_by, self.closed_by)
