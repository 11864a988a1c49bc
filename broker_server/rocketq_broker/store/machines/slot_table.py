"""The table of numbered sends: a state machine (`machine`) that is folded from the log.

    a numbered append  ->  its frames, and SendsNumbered: one append together  ->  the last send of its slot

The number of a send is in the log behind its messages, as a part of the same append. So whoever has the
messages has the number as well, after a crash and on a replica. One SendsNumbered stands for all numbered
appends that the log writer has written together.

Of each slot the last send is remembered, with where its messages went. That is enough, because a producer has
one send of a slot under way (`rocketq.protocol.send_number`).

Slots are forgotten by generations, so that each fold costs the same. New sends are in the *young*
generation. When it has PLACES_MAX batches, or is KEPT_MS old, it becomes the *old* one, and what was the old
one is forgotten. So a slot is remembered for at least KEPT_MS after its last send, unless PLACES_MAX batches
of other slots came meanwhile. The times are store times, so every replay forgets the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq.model import Appended
from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.timer_table import TimerPlace
from rocketq_broker.store.machines.topic_table import TopicTable

#: Batches that a generation remembers; both generations are in every picture of the state.
PLACES_MAX: Final = 16_384
#: How old a generation becomes, if it does not fill up before; milliseconds.
KEPT_MS: Final = 600_000


class NumberedSend(msgspec.Struct, frozen=True, array_like=True):
    """A send that is stored, by its number: where its batches went, as its answer said (`AppendOutcome`)."""

    slot: int
    sequence: int
    appended: tuple[Appended, ...]
    pieces: tuple[int, ...] = ()
    timers: tuple[TimerPlace | None, ...] = ()

    @property
    def messages(self) -> int:
        return sum(each.count for each in self.appended)


class SendsNumbered(msgspec.Struct, frozen=True, tag="sends_numbered"):
    """The appends that end here have these numbers."""

    at_ms: int
    sends: tuple[NumberedSend, ...]


Sends: TypeAlias = "HashTrieMap[int, NumberedSend]"


@dataclass(frozen=True, slots=True)
class SlotTable(Machine):
    """The last send of each slot that is remembered."""

    CHANGES: ClassVar[tuple[type, ...]] = (SendsNumbered,)

    young: Sends = field(default_factory=HashTrieMap)
    old: Sends = field(default_factory=HashTrieMap)
    #: How many batches the young generation has, and when its first one came.
    places: int = 0
    since_ms: int = 0

    def find(self, slot: int) -> NumberedSend | None:
        """Return the last send of a slot; None if there was none, or it is forgotten."""
        found = self.young.get(slot)
        return self.old.get(slot) if found is None else found

    def __len__(self) -> int:
        """How many slots are remembered, at most: one may be in both generations."""
        return len(self.young) + len(self.old)

    def knows(self, change: SendsNumbered) -> bool:
        return True

    def apply(self, change: SendsNumbered, topics: TopicTable) -> SlotTable:
        """Return the table after numbered sends."""
        young, places = self.young, self.places
        for each in change.sends:
            before = young.get(each.slot)
            places += len(each.appended) - (0 if before is None else len(before.appended))
            young = young.insert(each.slot, each)
        since_ms = self.since_ms if self.young else change.at_ms
        if places >= PLACES_MAX or change.at_ms - since_ms >= KEPT_MS:
            return SlotTable(HashTrieMap(), young, 0, change.at_ms)
        return SlotTable(young, self.old, places, since_ms)


# --- in a picture of the state ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotPicture:
    """The table as a document; versions before it wrote none, and remembered no sends."""

    young: tuple[NumberedSend, ...] = ()
    old: tuple[NumberedSend, ...] = ()
    since_ms: int = 0

    @staticmethod
    def of(table: SlotTable) -> SlotPicture:
        return SlotPicture(tuple(table.young.values()), tuple(table.old.values()), table.since_ms)

    def table(self) -> SlotTable:
        places = sum(len(each.appended) for each in self.young)
        young, old = ({each.slot: each for each in sends} for sends in (self.young, self.old))
        return SlotTable(HashTrieMap(young), HashTrieMap(old), places, self.since_ms)
