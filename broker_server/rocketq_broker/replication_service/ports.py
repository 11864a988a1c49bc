"""What the conduct of a replica needs of the world: its log, the register, the master, the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rocketq.errors import RocketqError
from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.replication.fetching import Fetch
from rocketq_broker.replication.group_record import Member
from rocketq_broker.replication.replica import Ask, Replica, Standing
from rocketq_broker.replication.slave_role import Confirmed
from rocketq_broker.store.replica.raw_frames import RawFrames


class ReplicaLog(Protocol):
    """The log of a replica, and what lies beside it on disk. A method has done its work when it returns."""

    def view(self) -> LogView: ...

    def keep_standing(self, standing: Standing) -> None: ...

    def keep_confirmed(self, confirmed: Confirmed) -> None: ...

    def confirm(self, end: int) -> None:
        """Show readers what lies below, and answer the senders of it."""
        ...

    def append(self, frames: RawFrames) -> None:
        """Append frames of the master, verified; raise CorruptFrame, and then nothing was appended."""
        ...

    def cut(self, end: int) -> None: ...

    def begin_at(self, begin: int, before: int) -> None: ...

    def take_office(self, epoch: int, *, waits: bool) -> None:
        """Write frames of this epoch from now on; without `waits` they are confirmed without `confirm`."""
        ...

    def leave_office(self, error: RocketqError) -> None:
        """Write none any more; senders without an answer get `error`."""
        ...

    def refuse_appends(self, error: RocketqError | None) -> None:
        """Refuse senders with an error, or take what they send again."""
        ...


class Outside(Protocol):
    """Calls that take their time: each returns at once, and its outcome comes back as an event."""

    def read_register(self) -> None: ...

    def ask_register(self, ask: Ask) -> None: ...

    def fetch(self, master: Member, fetch: Fetch) -> None: ...

    def say_goodbye(self, master: Member, fetch: Fetch, done: Callable[[object], None]) -> None:
        """Tell the master that this slave stops; `done` is called, whatever the master answers."""
        ...

    def publish(self, replica: Replica, master: Member | None) -> None:
        """Let other threads see what is known now, before it is acted upon."""
        ...


class Observer(Protocol):
    """The broker, told of the role of its replica."""

    def took_office(self, epoch: int) -> None:
        """This replica is master, and what the masters before it left is confirmed."""
        ...

    def left_office(self) -> None:
        """It is master no more; the log takes no writes already."""
        ...

    def log_changed(self) -> None:
        """The confirmed end or the role has changed: held fetches look again."""
        ...

    def halted(self, why: RocketqError) -> None:
        """The replica cannot go on."""
        ...
