"""What a search by key is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketq.protocol.frame_slices import FrameSlice
from rocketq_broker.store.index.index_file import Hole

#: What a search returns at most, in bytes of decoded messages, unless its first message alone is larger.
FOUND_BYTES_MAX: Final = 4 * 1024 * 1024


class PlaceInLog(NamedTuple):
    """Which message: the log offset of its frame, and its row there."""

    log_offset: int
    row: int


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """What to find: messages of `topic` with `key`, stored within [begin_us, end_us], newest first.

    At most `limit` messages and `bytes_max` bytes of them, but always one. With `before`, only messages that
    lie before that place in the log.
    """

    topic: str
    key: bytes
    begin_us: int = 0
    end_us: int = (1 << 63) - 1
    limit: int = 64
    bytes_max: int = FOUND_BYTES_MAX
    before: PlaceInLog | None = None


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """What a search found, each message a slice of one, and the holes that may hide more of it.

    `last` is the place of the last message if the search stopped at the query's limit or bytes, else None.
    """

    slices: tuple[FrameSlice, ...]
    holes: tuple[Hole, ...]
    last: PlaceInLog | None = None
