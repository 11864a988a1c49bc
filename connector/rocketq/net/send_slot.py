"""One line of numbered requests: a broker stores a repeated one once (`rocketq.protocol.send_number`).

A slot belongs to one process. Were it used by both sides of a fork, a broker would take new requests of the
one for repetitions of the other.
"""

from __future__ import annotations

import os
import secrets

from rocketq.protocol.send_number import NUMBER_BITS, SendNumber


class SendSlot:
    """One line of numbered requests; belongs to one request at a time."""

    __slots__ = ("_name", "_pid", "_sequence")

    def __init__(self, pid: int | None = None) -> None:
        """`pid` is the process that uses it, this one by default."""
        self._name, self._sequence = secrets.randbits(NUMBER_BITS), 0
        self._pid = os.getpid() if pid is None else pid

    def next(self) -> SendNumber:
        """Return the number of the next request."""
        self._sequence += 1
        return SendNumber(self._name, self._sequence)

    def is_of(self, pid: int) -> bool:
        return self._pid == pid
