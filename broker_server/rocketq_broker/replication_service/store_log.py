"""The log of a replica: the store's operations, as the conduct of a replica names them."""

from __future__ import annotations

from rocketq.errors import RocketqError
from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.replication.replica import Standing
from rocketq_broker.replication.slave_role import Confirmed
from rocketq_broker.store.replica.operations import ReplicaOperations
from rocketq_broker.store.replica.raw_frames import RawFrames


class StoreLog:
    """A `ReplicaLog`; only the replica's thread calls it."""

    def __init__(self, operations: ReplicaOperations) -> None:
        self._operations = operations

    def view(self) -> LogView:
        return self._operations.view()

    def keep_standing(self, standing: Standing) -> None:
        self._operations.keep_standing(standing.group, standing.epoch)

    def keep_confirmed(self, confirmed: Confirmed) -> None:
        self._operations.keep_confirmed(confirmed.end, confirmed.epoch)

    def confirm(self, end: int) -> None:
        self._operations.confirm(end)

    def append(self, frames: RawFrames) -> None:
        self._operations.append_frames(frames)

    def cut(self, end: int) -> None:
        self._operations.cut(end)

    def begin_at(self, begin: int, before: int) -> None:
        self._operations.begin_at(begin, before)

    def take_office(self, epoch: int, *, waits: bool) -> None:
        self._operations.take_office(epoch, waits=waits)

    def leave_office(self, error: RocketqError) -> None:
        self._operations.leave_office(error)

    def refuse_appends(self, error: RocketqError | None) -> None:
        self._operations.refuse_writes(error)
