"""How long the log writer waits for more operations before it commits, under synchronous flush.

While one commit is synced, new operations arrive. The senders of that commit get their answers after the
sync, and their next operations come just too late for the following sync. So the senders split into two
halves that take turns, and each sync serves only half of them. A short wait brings both halves together.

The wait ends
  * when as many operations wait as the last commit had plus those that arrived during its sync;
  * when no operation arrived for the fraction `GAP` of a sync, so that a single sender, or senders that
    send at random times, lose little;
  * at the latest after the time of one sync, and never after more than LONGEST_WAIT_S.
If a sync is short, the writer does not wait at all. PostgreSQL's `commit_delay` with `commit_siblings`
is the same idea, with fixed numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Syncs shorter than this need not be shared; seconds.
SHORT_SYNC_S: Final = 0.000_5
#: The longest wait, also after a sync that the disk stalled; seconds.
LONGEST_WAIT_S: Final = 0.010
#: The wait ends when no operation comes for this fraction of a sync's time.
GAP: Final = 1 / 8


@dataclass(frozen=True, slots=True)
class SyncDelay:
    """The last sync's time in seconds, and how many operations are expected for the next."""

    sync_s: float = 0.0
    expected: int = 0

    @staticmethod
    def after(sync_s: float, answered: int, waiting: int) -> SyncDelay:
        """Return the delay after a sync that served `answered` operations while `waiting` others came."""
        return SyncDelay(sync_s, answered + waiting)

    def wait_s(self, waiting: int, waited_s: float) -> float:
        """Return how long to wait for one more operation in seconds; `waiting` came within `waited_s`."""
        if self.sync_s < SHORT_SYNC_S or waiting >= self.expected:
            return 0.0
        allowed_s = min(self.sync_s, LONGEST_WAIT_S)
        return max(0.0, min(allowed_s * GAP, allowed_s - waited_s))
