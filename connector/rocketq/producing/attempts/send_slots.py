"""The slots of a producer: they number its sends, so that a broker stores a repeated one once.

A send takes a slot for all its attempts and releases it at its end. What brokers make of it, says
`rocketq.protocol.send_number`. A producer has as many slots as it ever had sends under way at the same time.
The slot that was released last is taken first, so that brokers have few to remember.

A slot belongs to one process. Were it used by both sides of a fork, a broker would take new sends of the one
for repetitions of the other.
"""

from __future__ import annotations

import os
from collections import deque

from rocketq.net.send_slot import SendSlot


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

    def release(self, slot: SendSlot | None) -> None:
        """Let a send take this slot, which no attempt uses any more."""
        if slot is not None:
            self._free.append(slot)
