"""The number of a send, by which a broker recognises a send that comes again.

A producer has *slots*. A slot has one send under way at a time, and numbers its sends upwards: their
*sequence* (RFC 8881, 2.10.6: the slots and sequence ids of a session). All attempts of a send have the same
number. So a broker that remembers the last send of each slot, and where its messages went, knows every
repetition: a sequence that it has answered is answered again, a lower one is outdated, a higher one is new.

    POST /v1/topics/orders/messages?queue=0&slot=5840092817465112034&sequence=17

A slot is named by a random number, so no broker has to hand out names, and no two producers share one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SLOT: Final = "slot"
SEQUENCE: Final = "sequence"
#: Of the name of a slot, and of a sequence.
NUMBER_BITS: Final = 63


class SendNumber(NamedTuple):
    """The slot of a send, and its sequence there."""

    slot: int
    sequence: int

    @property
    def query(self) -> str:
        """The number as a part of a query."""
        return f"slot={self.slot}&sequence={self.sequence}"
