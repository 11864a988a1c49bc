"""How often a replica does what it does by the clock, in milliseconds. No safety rests on any of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from rocketq_broker.replication.election import ElectionTimes


@dataclass(frozen=True, slots=True)
class ReplicationTimes:
    """The defaults are those of a broker; tests shorten them."""

    #: The record is read again this often, and this soon after a sign that it has changed.
    read_ms: int = 5_000
    read_again_ms: int = 300
    #: A proposal whose outcome is not known is made again after this.
    ask_again_ms: int = 500
    #: An in-sync slave that has not caught up for so long leaves the set (haMaxTimeSlaveNotCatchup).
    in_sync_ms: int = 5_000
    review_ms: int = 500
    #: A fetch is held by the master for so long, and repeated so soon after it failed.
    hold_ms: int = 500
    fetch_again_ms: int = 100
    #: What a fetch may take beyond its hold before the master counts as silent.
    fetch_timeout_ms: int = 1_500
    #: A handover waits so long for the slaves to hold everything.
    handover_ms: int = 2_000
    #: The confirmed end is put on disk so often.
    checkpoint_ms: int = 1_000
    election: ElectionTimes = field(default_factory=ElectionTimes)
