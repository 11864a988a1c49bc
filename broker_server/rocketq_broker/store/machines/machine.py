"""The state machines of the log: what the broker remembers besides messages, each part behind one protocol.

A machine is a frozen value. It is folded from the log and from nothing else: from *changes*, each the
body of a frame, and from *held frames*, which lie in the log and in no queue yet. Folding returns a
new machine and leaves the old one as it was, so the log writer can decide a whole commit group against the
state that the commit group will produce, and readers keep the state of what is confirmed. Tables are
persistent maps (`rpds`): a fold costs the same whatever else is outstanding.

Held frames are how messages enter a queue later than the log. Staged messages of an exactly-once sink
are held, and so are half messages of transactions. (Delayed messages may be millions: `timer_table` counts
them, and an index on disk says which are due.) A machine says which held frames are due.
The log writer copies them to their queues, in the machine's order; each copy carries a flag and, when
it is folded, moves the machine on by one (`copied`). After a crash the copying therefore goes on where it
stopped, and every held frame comes to its queue once.

The log writer, the plan of a commit group, recovery, salvage and upkeep handle held frames through this
protocol. By name they know only topics and delayed messages. Salvage also knows sinks and transactions: its
report lists lost staged frames (`LostStaged`) and lost half messages (`LostHalf`).

`state.State` lists the machines: a new one is a subclass of `Machine`, a field of State and one of Picture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import msgspec

from rocketq.protocol.frame import FrameKind
from rocketq_broker.store.machines.topic_table import TopicTable

#: What a machine calls the frames that are copied together, to those who wait for them.
CopyName = tuple[str, int, str]


class HeldFrame(NamedTuple):
    """A held frame: where it lies, its size in bytes, how many messages it has, and for which queue."""

    log_offset: int
    size: int
    messages: int
    queue: int
    topic_number: int


@dataclass(frozen=True, slots=True)
class Holding:
    """Held frames that belong together: whose they are, and whether they are to be copied for certain."""

    name: CopyName
    is_decided: bool
    frames: tuple[HeldFrame, ...]


class CopySkipped(msgspec.Struct, frozen=True, tag="publication_skipped"):
    """The next held frame to be copied is lost; it is passed over."""

    log_offset: int
    why: str


class Machine(ABC):
    """One part of the state. The defaults are those of a machine that holds no frames."""

    __slots__ = ()

    #: The kind of the frames that it holds; each kind has one machine.
    HELD_KIND: ClassVar[FrameKind | None] = None
    #: The changes that it folds: tagged structs, told apart by their tag in the log.
    CHANGES: ClassVar[tuple[type, ...]] = ()

    @abstractmethod
    def apply(self, change: Any, topics: TopicTable) -> Self:
        """Return the machine after a change of `CHANGES`; `topics` are those there were before it."""

    @abstractmethod
    def knows(self, change: Any) -> bool:
        """Whether what a change speaks of is here; if not, the frame that brought it was lost."""

    def lost(self, change: Any) -> tuple[CopyName, int] | None:
        """Return what a change makes due that is not held here, by name and number of frames."""
        return None

    def holds(self, number: int) -> bool:
        """Whether frames can be held under this number."""
        return False

    def held(self, number: int, frame: HeldFrame, at_ms: int) -> Self:
        """Return the machine after a held frame; `holds(number)` is true."""
        raise NotImplementedError

    def due(self, at_ms: int) -> Iterator[HeldFrame]:
        """Yield the held frames that are to be copied at a store time, in their order."""
        return iter(())

    def copied(self) -> Self:
        """Return the machine after the first frame that is due was copied, or passed over as lost."""
        raise NotImplementedError

    def is_copying(self, name: CopyName) -> bool:
        """Whether frames of this name are still to be copied."""
        return False

    def holdings(self) -> Iterable[Holding]:
        """Return all that is held."""
        return ()

    @property
    def floor(self) -> int | None:
        """The lowest log offset that is still needed; None if nothing is."""
        return None
