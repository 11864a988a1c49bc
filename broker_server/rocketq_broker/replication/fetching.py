"""What master and slave say to each other: a fetch, and the master's answers to it (RocketMQ: HAService).

A slave asks for the frames behind its own end. The fetch is the acknowledgement too: `held` says how far the
slave keeps the log through a crash, which under sync flush is its durable end. Each answer repeats the place
that it answers to, and a slave obeys it only while its log still ends there, in the same epoch. So an answer
that comes late or twice does nothing.

A call of another epoch is refused (`StaleEpoch`, `EpochAhead` in `rocketq.errors.replication_errors`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.replication.group_record import ReplicaId


@dataclass(frozen=True, slots=True)
class FetchPlace:
    """Where a fetch goes on: its epoch, and the end and the last epoch of the slave's log."""

    epoch: int
    end: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A slave's call. `group` keeps a slave of another group away."""

    group: str
    replica: ReplicaId
    place: FetchPlace
    held: int


@dataclass(frozen=True, slots=True)
class Shipment:
    """The logs agree: frames from `place.end` on may follow, none of them beyond `end`, the master's."""

    place: FetchPlace
    end: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """The logs differ before `place.end`. Common may be the frame of `keep_epoch` that ends at `keep`.

    A slave that would have to cut below the begin of its own log begins again, as for `BeginsLater`.
    """

    place: FetchPlace
    keep: int
    keep_epoch: int
    begin: int
    before: int


@dataclass(frozen=True, slots=True)
class BeginsLater:
    """The master's log begins behind what the slave has in common with it: begin again, empty, at `begin`."""

    place: FetchPlace
    begin: int
    before: int


FetchAnswer = Shipment | Diverged | BeginsLater


def compared(place: FetchPlace, log: LogView, confirmed: int) -> FetchAnswer:
    """Compare a slave's log with the master's, at the slave's end."""
    lineage = log.lineage
    if lineage.matches(place.end, place.last_epoch, log.end):
        return Shipment(place, log.end, confirmed)
    if place.end < log.begin or place.last_epoch < lineage.before:
        return BeginsLater(place, log.begin, lineage.before)
    keep = min(place.end, lineage.end_of(place.last_epoch, log.end))
    return Diverged(place, keep, lineage.epoch_before(keep), log.begin, lineage.before)
