"""Which dead letters were sent again, folded from the log: a state machine (`machine`).

A letter stays where it is when it is sent to its original topic again, so that nothing is lost if it fails
there once more. The change that marks it and the message that is sent are one append: a letter that was sent
is marked, and the other way round, whatever crashes. The marks of a topic go with the topic.

Marks are bits, MARKS_IN_A_BLOCK letters to a block. So marking costs the blocks that are touched, and a
million letters take some 130 KB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

import msgspec
from rpds import HashTrieMap

from rocketq_broker.store.machines.machine import Machine
from rocketq_broker.store.machines.topic_table import TopicDeleted, TopicTable

MARKS_IN_A_BLOCK: Final = 1_024


class LettersSent(msgspec.Struct, frozen=True, tag="letters_sent"):
    """The letters at these offsets of a dead letter topic, in its queue 0, were sent again."""

    topic: str
    offsets: tuple[int, ...]


#: The marks of a topic by block; bit n of block b is the letter at b * MARKS_IN_A_BLOCK + n.
Blocks: TypeAlias = "HashTrieMap[int, int]"

_NONE: Final[Blocks] = HashTrieMap()


@dataclass(frozen=True, slots=True)
class LetterPicture:
    """All marks, as they are in a picture of the state: for each topic (block, bits in hexadecimal)."""

    topics: dict[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)

    def table(self) -> LetterTable:
        found = {
            topic: _NONE.update({block: int(bits, 16) for block, bits in blocks})
            for topic, blocks in self.topics.items()
        }
        return LetterTable(HashTrieMap(found))


@dataclass(frozen=True, slots=True)
class LetterTable(Machine):
    """The marks of each dead letter topic."""

    CHANGES: ClassVar[tuple[type, ...]] = (LettersSent, TopicDeleted)

    topics: HashTrieMap[str, Blocks] = field(default_factory=HashTrieMap)

    def picture(self) -> LetterPicture:
        return LetterPicture(
            {
                topic: tuple((block, f"{bits:x}") for block, bits in sorted(blocks.items()))
                for topic, blocks in self.topics.items()
            }
        )

    def is_sent(self, topic: str, offset: int) -> bool:
        """Whether a letter was sent again."""
        block, place = divmod(offset, MARKS_IN_A_BLOCK)
        return bool(self.topics.get(topic, _NONE).get(block, 0) >> place & 1)

    def ranges(self, topic: str) -> list[tuple[int, int]]:
        """Return the offsets of the letters that were sent, as ranges [begin, end) in order."""
        found: list[tuple[int, int]] = []
        for block, bits in sorted(self.topics.get(topic, _NONE).items()):
            at = 0
            while rest := bits >> at:
                begin = at + (rest & -rest).bit_length() - 1
                rest = bits >> begin
                at = begin + (~rest & (rest + 1)).bit_length() - 1
                first, end = (block * MARKS_IN_A_BLOCK + each for each in (begin, at))
                if found and found[-1][1] == first:
                    first, _ = found.pop()
                found.append((first, end))
        return found

    def knows(self, change: LettersSent | TopicDeleted) -> bool:
        return True

    def apply(self, change: LettersSent | TopicDeleted, topics: TopicTable) -> LetterTable:
        match change:
            case LettersSent(topic, offsets):
                marked = _marked(self.topics.get(topic, _NONE), offsets)
                return LetterTable(self.topics.insert(topic, marked))
            case TopicDeleted(name):
                return LetterTable(self.topics.discard(name)) if name in self.topics else self


def _marked(blocks: Blocks, offsets: Iterable[int]) -> Blocks:
    found: dict[int, int] = {}
    for offset in offsets:
        block, place = divmod(offset, MARKS_IN_A_BLOCK)
        found[block] = found.get(block, blocks.get(block, 0)) | 1 << place
    return blocks.update(found)
