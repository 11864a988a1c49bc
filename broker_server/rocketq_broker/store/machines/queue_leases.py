"""The leased messages of one queue in one group: a value that is never changed (`lease_table`).

    begin                                                    next
      |  leased, acknowledged, leased, leased, acknowledged    |  never leased

Below `begin` every message is *settled*: acknowledged, or given up. From `next` on no message was leased yet.
Between them a bitmap of CHUNK bits has a bit for each message that is still leased; a chunk without one is
not there. A *run* is what is left of one lease in one chunk: a bitmap again, with the time and the attempt
that the messages have in common. So n messages that were leased together cost a run or two and no object
each, and a message that is never acknowledged holds up nothing but `begin`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from rpds import HashTrieMap

from rocketq_broker.store.machines.due_runs import DueRuns, RunKey

#: Bits of a bitmap.
CHUNK: Final = 1024

#: Offsets of a queue that follow each other: the first, and how many.
Range: TypeAlias = "tuple[int, int]"


class Run(NamedTuple):
    """Messages of one chunk, by their bits, that are leased until the same time for the same attempt."""

    mask: int
    until_ms: int
    attempt: int


def masks(ranges: Iterable[Range]) -> dict[int, int]:
    """Return ranges of offsets as the bitmap of each chunk."""
    found: dict[int, int] = {}
    for first, count in ranges:
        end = first + count
        while first < end:
            chunk, bit = divmod(first, CHUNK)
            bits = min(end - first, CHUNK - bit)
            found[chunk] = found.get(chunk, 0) | ((1 << bits) - 1) << bit
            first += bits
    return found


def ranges_of(chunk: int, mask: int) -> Iterator[Range]:
    """Yield the offsets of a bitmap, as ranges in order."""
    at = chunk * CHUNK
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        yield at + zeros, ones
        mask >>= ones
        at += zeros + ones


def ranges_of_offsets(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Return ascending offsets as ranges."""
    found: list[Range] = []
    for offset in offsets:
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((offset, 1))
    return tuple(found)


def offsets_of(ranges: Iterable[Range]) -> Iterator[int]:
    """Yield every offset of some ranges."""
    for first, count in ranges:
        yield from range(first, first + count)


@dataclass(frozen=True, slots=True)
class QueueLeases:
    """What is leased of a queue; there is no such value for a queue of which nothing is."""

    next: int
    open: HashTrieMap[int, int] = field(default_factory=HashTrieMap)
    runs: HashTrieMap[RunKey, Run] = field(default_factory=HashTrieMap)
    due: DueRuns = field(default_factory=DueRuns)
    #: How many messages are leased.
    count: int = 0
    #: The first that is; `next` if there is none.
    begin: int = -1

    def is_leased(self, offset: int) -> bool:
        """Whether a message has been leased and is not settled yet."""
        chunk, bit = divmod(offset, CHUNK)
        return bool(self.open.get(chunk, 0) >> bit & 1)

    def run_at(self, number: int, offset: int) -> Run | None:
        """Return the run of a lease in which a message is; None if it is in none of this lease."""
        chunk, bit = divmod(offset, CHUNK)
        run = self.runs.get((number, chunk))
        return run if run is not None and run.mask >> bit & 1 else None

    def has(self, number: int, ranges: Iterable[Range]) -> bool:
        """Whether all of these messages are of one lease."""
        return all(
            (run := self.runs.get((number, chunk))) is not None and run.mask & mask == mask
            for chunk, mask in masks(ranges).items()
        )

    # --- folds --------------------------------------------------------------------------

    def advanced(self, next_offset: int) -> QueueLeases:
        """Return the value after everything below `next_offset` was looked at; leased or passed over."""
        return replace(self, next=max(self.next, next_offset))

    def leased(self, number: int, until_ms: int, attempt: int, ranges: Collection[Range]) -> QueueLeases:
        """Return the value after a lease of messages that are not leased now."""
        opened, runs, due, count = self.open, self.runs, self.due, self.count
        begin = min([first for first, _ in ranges], default=self.begin)
        for chunk, mask in masks(ranges).items():
            key = number, chunk
            before = runs.get(key)
            opened = opened.insert(chunk, opened.get(chunk, 0) | mask)
            runs = runs.insert(key, Run(mask if before is None else mask | before.mask, until_ms, attempt))
            due = due if before is not None else due.with_run(until_ms, key)
            count += mask.bit_count()
        return QueueLeases(
            self.next, opened, runs, due, count, min(begin, self.begin) if self.count else begin
        )

    def settled(self, number: int, ranges: Iterable[Range]) -> QueueLeases:
        """Return the value after messages of a lease were settled; others are passed over."""
        opened, runs, due, count = self.open, self.runs, self.due, self.count
        for chunk, mask in masks(ranges).items():
            key = number, chunk
            run = runs.get(key)
            if run is None:
                continue
            gone, left, still = run.mask & mask, run.mask & ~mask, opened[chunk] & ~(run.mask & mask)
            if left:
                runs = runs.insert(key, run._replace(mask=left))
            else:
                runs, due = runs.remove(key), due.without(run.until_ms, key)
            opened = opened.insert(chunk, still) if still else opened.remove(chunk)
            count -= gone.bit_count()
        return QueueLeases(self.next, opened, runs, due, count, _first(opened, self.begin, self.next))


def _first(opened: HashTrieMap[int, int], begin: int, next_offset: int) -> int:
    """Return the first leased offset, which is not below `begin`; mostly it is in the same chunk."""
    chunk = begin // CHUNK
    if chunk not in opened:
        if not opened:
            return next_offset
        chunk = min(opened)
    mask = opened[chunk]
    return chunk * CHUNK + (mask & -mask).bit_length() - 1
