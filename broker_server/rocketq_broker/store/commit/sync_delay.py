"""When a group is worth its sync: whom the log writer waits for under sync flush, and how long.

While a group is being put on disk, others come, and those that were in it send again only when
it is done: a moment too late for the next sync. So senders fall into two halves that take turns, and
each sync serves half of them. A short wait lets them come together.

It ends as soon as all are there: as many as were in the last group and came meanwhile. It ends when for
a `GAP` of a sync nobody has come, so a sender that is alone, or senders that come when they like, are
hardly held up; and it never lasts longer than a sync did, nor than LONGEST_WAIT_S where the disk had
stalled. With a disk whose sync is short nobody waits at all. PostgreSQL's `commit_delay` with
`commit_siblings` is the same thought, with fixed numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Syncs shorter than this need not be shared; seconds.
SHORT_SYNC_S: Final = 0.000_5
#: No stall of the disk makes the next group wait longer than this; seconds.
LONGEST_WAIT_S: Final = 0.010
#: The part of a sync's time in which somebody has to come.
GAP: Final = 1 / 8


@dataclass(frozen=True, slots=True)
class Gathering:
    """What the last sync taught: its time in seconds, and how many operations may be on their way."""

    sync_s: float = 0.0
    expected: int = 0

    @staticmethod
    def after(sync_s: float, answered: int, waiting: int) -> Gathering:
        """Return what to do after a sync that served `answered` operations while `waiting` others came."""
        return Gathering(sync_s, answered + waiting)

    def wait_s(self, waiting: int, gathered_s: float) -> float:
        """Return how long to wait for one more when `waiting` are there after `gathered_s`; 0: not at all."""
        if self.sync_s < SHORT_SYNC_S or waiting >= self.expected:
            return 0.0
        allowed_s = min(self.sync_s, LONGEST_WAIT_S)
        return max(0.0, min(allowed_s * GAP, allowed_s - gathered_s))
