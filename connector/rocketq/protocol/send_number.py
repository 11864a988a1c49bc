"""The number of a send, by which a broker recognises a send that comes again.

A producer has *slots*. A slot has one send under way at a time, and numbers its sends upwards: their
*sequence* (RFC 8881, 2.10.6: the slots and sequence ids of a session). All attempts of a send have the same
number. So a broker that remembers the last send of each slot, and where its messages went, knows every
repetition: a sequence that it has answered is answered again, a lower one is outdated, a higher one is new.

    POST /v1/topics/orders/messages?queue=0&number=5840092817465112034-17

A slot is named by a random number, so no broker has to hand out names, and no two producers share one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: The name of the query's parameter.
NUMBER: Final = "number"
#: Of the name of a slot, and of a sequence.
NUMBER_BITS: Final = 63
_END: Final = 1 << NUMBER_BITS
_CHARACTERS_MAX: Final = 39


class SendNumber(NamedTuple):
    """The slot of a send, and its sequence there."""

    slot: int
    sequence: int

    @property
    def text(self) -> str:
        """The number as the parameter has it."""
        return f"{self.slot}-{self.sequence}"


def number_from(text: str) -> SendNumber | None:
    """Return the number that a parameter has; None if it has none."""
    slot, _, sequence = text.partition("-")
    if not (slot.isdigit() and sequence.isdigit() and text.isascii() and len(text) <= _CHARACTERS_MAX):
        return None
    number = SendNumber(int(slot), int(sequence))
    return number if number.slot < _END and number.sequence < _END else None
