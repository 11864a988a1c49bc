"""The slots of a producer: they number its sends, so that a broker stores a repeated one once.

A send takes a slot for all its attempts and gives it back at its end. What brokers make of it, says
`rocketq.protocol.send_number`. A producer has as many slots as it ever had sends under way at the same time.
The slot that was given back last is taken first, so that brokers have few to remember.

A slot belongs to one process. Were it used by both sides of a fork, a broker would take new sends of the one
for repetitions of the other.
"""

from __future__ import annotations

import os
import secrets
from collections import deque

from rocketq.protocol.send_number import NUMBER_BITS, SendNumber


class SendSlot:
    """One line of numbered sends; belongs to one send at a time."""

    __slots__ = ("_name", "_pid", "_sequence")

    def __init__(self, pid: int) -> None:
        self._name, self._pid, self._sequence = secrets.randbits(NUMBER_BITS), pid, 0

    def next(self) -> SendNumber:
        """Return the number of the next send."""
        self._sequence += 1
        return SendNumber(self._name, self._sequence)

    def is_of(self, pid: int) -> bool:
        return self._pid == pid


class SendSlots:
    """The slots that no send uses now. Thread-safe; usable on both sides of a fork."""

    def __init__(self) -> None:
        self._free: deque[SendSlot] = deque()

    def take(self) -> SendSlot:
        """Return a slot for one send."""
        pid = os.getpid()
        while True:
            try:
                slot = self._free.pop()
            except IndexError:
                return SendSlot(pid)
            if slot.is_of(pid):
                return slot

    def give_back(self, slot: SendSlot | None) -> None:
        """Let a send take this slot, which no attempt uses any more."""
        if slot is not None:
            self._free.append(slot)
