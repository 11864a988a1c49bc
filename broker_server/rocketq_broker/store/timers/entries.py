"""Entries of the timer index: which rows of which frame are due when.

     0  i64  due time        milliseconds since 1970, UTC
     8  u64  log offset      of the DELAYED frame
    16  u32  size            of the frame
    20  u32  row             the first of the rows that are due then
    24  u32  count           how many rows
    28  u32  queue id
    32  u32  topic number    of the topic as it was when the frame was stored

An entry stands for all rows of its frame with its due time: a frame is sorted by delivery time, so they are
neighbours. Entries of a frame follow from the frame alone (`frame_entries`), so the log writer and a replay
make the same ones. All integers are little-endian; an entry has 36 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketq.protocol.rules.delivery_time import Times
from rocketq_broker.store.machines.timer_table import TICK_MS, WINDOW_MS, DueKey

ENTRY: Final = np.dtype(
    [
        ("due_ms", "<i8"), ("log_offset", "<u8"), ("size", "<u4"), ("row", "<u4"), ("count", "<u4"),
        ("queue", "<u4"), ("topic", "<u4"),
    ]
)  # fmt: skip
ENTRY_BYTES: Final = 36

Entries = npt.NDArray[np.void]

NO_ENTRIES: Final[Entries] = np.empty(0, ENTRY)
#: An entry as mere bytes: numpy takes fifteen times as long to join arrays with fields.
_BYTES: Final = np.dtype(f"V{ENTRY_BYTES}")


def due_times(times: Times, stored_at_ms: int) -> Times:
    """Return when messages with these delivery times are due that were stored at `stored_at_ms`.

    Not before the tick of that time began: up to there messages may have been delivered already.
    """
    return np.maximum(times, last_tick(stored_at_ms))


def last_tick(at_ms: int) -> int:
    """Return the tick that began last at a time: what is due up to it may leave."""
    return at_ms - at_ms % TICK_MS


def next_tick(due_ms: int) -> int:
    """Return when messages of a due time leave: at the next tick, never early."""
    return -(-due_ms // TICK_MS) * TICK_MS


def frame_entries(
    times: Times, stored_at_ms: int, log_offset: int, size: int, queue: int, topic: int
) -> Entries:
    """Return the entries of a DELAYED frame whose rows have these delivery times, in ascending order."""
    due = due_times(times, stored_at_ms)
    is_start = np.ones(due.size, np.bool_)
    np.not_equal(due[1:], due[:-1], out=is_start[1:])
    starts = is_start.nonzero()[0]
    made = np.empty(starts.size, ENTRY)
    made["due_ms"] = due[starts]
    made["row"] = starts
    made["count"][:-1] = starts[1:] - starts[:-1]
    made["count"][-1] = due.size - starts[-1]
    made["log_offset"], made["size"], made["queue"], made["topic"] = log_offset, size, queue, topic
    return made


def joined(parts: Sequence[Entries]) -> Entries:
    """Return entries one after the other; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.view(_BYTES) for part in parts]).view(ENTRY)


def by_window(entries: Entries) -> dict[int, Entries]:
    """Return the entries of one frame, whose due times ascend, by the window of their due time."""
    numbers = entries["due_ms"] // WINDOW_MS
    if not entries.size:
        return {}
    if numbers[0] == numbers[-1]:
        return {int(numbers[0]): entries}
    cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), entries.size]
    return {int(numbers[first]): entries[first:end] for first, end in pairwise(cuts)}


def messages_by_window(entries: Entries) -> dict[int, int]:
    """Return how many messages entries stand for in each window; their due times ascend."""
    return {number: int(some["count"].sum()) for number, some in by_window(entries).items()}


def in_order(entries: Entries) -> Entries:
    """Return entries in the order of delivery."""
    return entries[np.lexsort((entries["log_offset"], entries["due_ms"]))]


def behind(entries: Entries, cursor: DueKey) -> Entries:
    """Return the entries that come after the cursor in the order of delivery."""
    due = entries["due_ms"]
    later = due > cursor.due_ms
    if cursor.log_offset >= 0:
        # The log offset is not negative here, so it can be compared with the unsigned column.
        later |= (due == cursor.due_ms) & (entries["log_offset"] > np.uint64(cursor.log_offset))
    return entries if later.all() else entries[later]


def key_of(entries: Entries, at: int) -> DueKey:
    """Return the key of one entry."""
    return DueKey(int(entries["due_ms"][at]), int(entries["log_offset"][at]))
