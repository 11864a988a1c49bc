"""When a replica stands for election. Time is an argument, and safety never rests on it.

The time only decides how soon and how orderly it goes. A replica that stands too early loses nothing: its
compare-and-set makes it master, or it does not, and whoever was master before finds its epoch refused.

A slave counts how long its fetches have failed. It waits for `silence_ms`, and then for its place in the
row of candidates: in-sync replicas first, eligible ones after them, each by its number. So the first one
usually wins before the next one asks. A random part keeps two that count differently from asking at once
for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketq_broker.replication.group_record import GroupRecord, ReplicaId


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """How long a master may be silent, and how far the candidates are apart."""

    silence_ms: int = 2_000
    place_ms: int = 300
    #: The random part is below this.
    jitter_ms: int = 150


def candidates(record: GroupRecord) -> tuple[ReplicaId, ...]:
    """Return who may become master without a loss, in the order in which they stand."""
    in_sync = sorted(record.in_sync - {record.master})
    return (*in_sync, *sorted(record.eligible))


def stands_at_ms(
    record: GroupRecord, me: ReplicaId, silent_since_ms: int, jitter: float, times: ElectionTimes
) -> int | None:
    """Return when a replica asks to be master; None if it may not. `jitter` is from 0 to 1.

    A replica that is the record's master and has no role began anew: nobody else is waited for.
    """
    if me == record.master:
        return silent_since_ms
    row = candidates(record)
    if me not in row:
        return None
    return silent_since_ms + times.silence_ms + row.index(me) * times.place_ms + int(jitter * times.jitter_ms)
