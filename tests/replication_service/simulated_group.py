"""Replicas of one group in one thread, on logs in memory and with a time that the test sets.

Calls are answered at once or not at all: a broker that is down or cut off does not answer. What is under test
is `Conduct`; that the decisions under it are safe whatever the network does, `tests/replication` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rocketq.errors import RocketqError, StaleEpoch
from rocketq.model import FlushMode, ReplicationMode
from rocketq_broker.replication.fetching import Fetch, LogView, Shipment
from rocketq_broker.replication.group_record import GroupRecord, Known, Member, ReplicaId
from rocketq_broker.replication.replica import Ask, Replica, Standing
from rocketq_broker.replication.slave_role import Confirmed
from rocketq_broker.replication_service.replica_driver import Conduct, Policy
from rocketq_broker.replication_service.times import ReplicationTimes
from rocketq_broker.store.replica.raw_frames import RawFrames
from tests.replication.simulated_log import SimFrame, SimLog

STEP_MS = 10


@dataclass
class Register:
    """One record, and whether the register answers."""

    known: Known | None = None
    is_up: bool = True

    def cas(self, version: int, record: GroupRecord) -> Known | None:
        """Set a version; None if another one is there."""
        if version != (self.known.version if self.known else 0):
            return None
        self.known = Known(version + 1, record)
        return self.known


@dataclass
class Disk:
    """What a broker has kept when it starts again."""

    log: SimLog = field(default_factory=lambda: SimLog(FlushMode.SYNC))
    standing: Standing = field(default_factory=Standing)
    confirmed: Confirmed = field(default_factory=Confirmed)
    incarnation: str = "first"


class Broker:
    """One life of one replica: its log, what it was told, and its `Conduct`."""

    def __init__(self, group: Group, number: int, disk: Disk, *, stands: bool = True) -> None:
        self.group = group
        self.number = number
        self.disk = disk
        self.is_up = True
        self.serves = 0
        self.shown = 0
        #: With which the log refuses senders, and whether it is in office.
        self.refusal: RocketqError | None = None
        self.writes = False
        self.halted: RocketqError | None = None
        self.lost: list[RocketqError] = []
        me = Member(ReplicaId(number, disk.incarnation), f"http://b{number}")
        policy = Policy(
            "group" if stands else "", group.min_in_sync, stands, group.replication,
            group.catch_up_bytes_per_s,
        )  # fmt: skip
        self.conduct = Conduct(
            Replica(me, disk.standing, disk.confirmed), policy, group.times, self, self, self, lambda: 0.0,
            group.now_ms,
        )  # fmt: skip

    # The log.

    def view(self) -> LogView:
        return self.disk.log.view

    def keep_standing(self, standing: Standing) -> None:
        self.disk.standing = standing

    def keep_confirmed(self, confirmed: Confirmed) -> None:
        self.disk.confirmed = confirmed

    def confirm(self, end: int) -> None:
        assert end <= self.disk.log.end
        self.shown = end

    def append(self, frames: RawFrames) -> None:
        for frame in frames.parts:
            self.disk.log.append(frame)
        self.disk.log.sync()

    def cut(self, end: int) -> None:
        self.disk.log.cut(end)

    def begin_at(self, begin: int, before: int) -> None:
        self.disk.log.begin_at(begin, before)

    def take_office(self, epoch: int, *, waits: bool) -> None:
        self.writes = True

    def leave_office(self, error: RocketqError) -> None:
        self.lost.append(error)
        self.writes = False

    def refuse_appends(self, error: RocketqError | None) -> None:
        self.refusal = error

    # The outside.

    def read_register(self) -> None:
        self.group.later(self, self._read)

    def ask_register(self, ask: Ask) -> None:
        self.group.later(self, lambda: self._set(ask))

    def _read(self) -> None:
        if self.group.register.is_up:
            self.conduct.register_has(self.group.register.known, self.group.now_ms)
        else:
            self.conduct.register_failed(self.group.now_ms)

    def _set(self, ask: Ask) -> None:
        now_ms = self.group.now_ms
        if not self.group.register.is_up:
            self.conduct.register_failed(now_ms)
            return
        known = self.group.register.cas(ask.version, ask.record)
        if known is None:
            self.conduct.register_changed(now_ms)
        else:
            self.conduct.register_has(known, now_ms)

    def fetch(self, master: Member, fetch: Fetch) -> None:
        self.group.later(self, lambda: self._call(self.group.brokers[master.replica.number], fetch))

    def _call(self, master: Broker, fetch: Fetch) -> None:
        now_ms = self.group.now_ms
        if not master.is_up or (self.number, master.number) in self.group.cut:
            self.conduct.fetch_failed(now_ms)
            return
        try:
            answer = master.conduct.fetched(fetch, now_ms)
        except RocketqError as error:
            self.conduct.fetch_failed(now_ms, epoch_is_over=isinstance(error, StaleEpoch))
            return
        frames = None
        if isinstance(answer, Shipment) and answer.end > answer.place.end:
            frames = RawFrames(answer.place.end, master.disk.log.frames_from(answer.place.end, 100))
        self.conduct.answered(answer, frames, now_ms)

    def say_goodbye(self, master: Member, fetch: Fetch, done: Callable[[object], None]) -> None:
        told = self.group.brokers[master.replica.number]
        self.group.later(told, lambda: told.conduct.departed(fetch.replica, self.group.now_ms))
        self.group.later(self, lambda: done(None))

    def publish(self, replica: Replica, master: Member | None) -> None: ...

    # The observer.

    def took_office(self, epoch: int) -> None:
        self.serves = epoch

    def left_office(self) -> None:
        self.serves = 0

    def log_changed(self) -> None: ...

    def halted_by(self, error: RocketqError) -> None:
        self.halted, self.is_up, self.serves = error, False, 0

    # What a sender does.

    def write(self, value: int) -> SimFrame:
        """Append a frame and sync it; raise the refusal that a sender would get."""
        if self.refusal is not None:
            raise self.refusal
        assert self.serves
        assert self.writes
        log, end = self.disk.log, self.disk.log.end
        frame = SimFrame(end + 8, 8, self.conduct.replica.standing.epoch, value)
        log.append(frame)
        log.sync()
        self.conduct.log_moved(self.group.now_ms)
        return frame

    def values(self) -> list[int]:
        return [frame.value for frame in self.disk.log.frames]


class Group:
    """Brokers 1 to `count`, their register, and the time."""

    def __init__(
        self, count: int = 3, min_in_sync: int = 2, times: ReplicationTimes | None = None,
        replication: ReplicationMode = ReplicationMode.SYNC, catch_up_bytes_per_s: int = 0,
    ) -> None:  # fmt: skip
        self.min_in_sync = min_in_sync
        self.replication = replication
        self.catch_up_bytes_per_s = catch_up_bytes_per_s
        self.times = times or ReplicationTimes()
        self.now_ms = 1_000
        self.register = Register()
        self.disks = {number: Disk() for number in range(1, count + 1)}
        self.brokers: dict[int, Broker] = {}
        #: Pairs of a slave and a master that it does not reach.
        self.cut: set[tuple[int, int]] = set()
        self._later: list[tuple[Broker, Callable[[], None]]] = []
        for number in self.disks:
            self.start(number)

    def start(self, number: int, *, stands: bool = True) -> Broker:
        """Begin a life of a broker on its disk."""
        self.brokers[number] = Broker(self, number, self.disks[number], stands=stands)
        return self.brokers[number]

    def kill(self, number: int) -> None:
        self.brokers[number].is_up = False

    def later(self, broker: Broker, call: Callable[[], None]) -> None:
        self._later.append((broker, call))

    def pass_time(self, ms: int) -> None:
        """Let so much time go by, in steps, with all that happens in it."""
        for _ in range(0, ms, STEP_MS):
            self.now_ms += STEP_MS
            calls, self._later = self._later, []
            for broker, call in calls:
                self._guarded(broker, call)
            for broker in list(self.brokers.values()):
                self._guarded(broker, lambda b=broker: b.conduct.tick(self.now_ms))  # type: ignore[misc]

    def _guarded(self, broker: Broker, act: Callable[[], object]) -> None:
        if not broker.is_up:
            return
        try:
            act()
        except RocketqError as error:
            broker.halted_by(error)

    @property
    def master(self) -> Broker:
        """The one that serves as master; there must be exactly one."""
        (found,) = [broker for broker in self.brokers.values() if broker.is_up and broker.serves]
        return found

    @property
    def record(self) -> GroupRecord:
        assert self.register.known is not None
        return self.register.known.record

    def slaves(self) -> list[Broker]:
        return [b for b in self.brokers.values() if b.is_up and b is not self.master]
