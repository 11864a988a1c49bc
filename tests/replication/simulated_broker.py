"""One broker of a simulation, as its disk and its present life; and a register that all see alike."""

from __future__ import annotations

import itertools

from rocketq.model import FlushMode
from rocketq_broker.replication import incarnation as storage
from rocketq_broker.replication.group_record import GroupRecord, Known, Member, ReplicaId, decode, encode
from rocketq_broker.replication.replica import Replica, Standing
from rocketq_broker.replication.slave_role import Confirmed
from tests.replication.invariants import Invariants
from tests.replication.simulated_log import SimFrame, SimLog


class SimRegister:
    """A register that every caller sees alike; `invariants` looks at each change."""

    def __init__(self, invariants: Invariants) -> None:
        self.known: Known | None = None
        self.invariants = invariants

    @property
    def record(self) -> GroupRecord | None:
        return self.known.record if self.known is not None else None

    def cas(self, version: int, record: GroupRecord) -> Known | None:
        """Replace a version; return what the register has then."""
        if version == (self.known.version if self.known is not None else 0):
            self.invariants.registered(self.record, record)
            self.known = Known(version + 1, decode(encode(record)))
        return self.known


class SimBroker:
    """A broker: what its disk keeps, and its present life."""

    def __init__(self, number: int, flush: FlushMode) -> None:
        self.number = number
        self.log = SimLog(flush)
        self.standing, self.checkpoint = Standing(), Confirmed()
        self.incarnation = ""
        self.incarnations = itertools.count()
        self.life = 0
        self.is_up = self.is_paused = False
        self.is_same_boot = self.is_clean = True
        self.replica = Replica(Member(ReplicaId(number, ""), ""))
        self.waiting: list[SimFrame] = []

    def new_incarnation(self) -> str:
        return f"{self.number}.{next(self.incarnations)}"

    def broken_promise(self) -> str:
        """Say why a start now would need a new incarnation."""
        facts = storage.DiskFacts(
            self.incarnation, self.log.flush, self.is_clean, self.is_same_boot, self.log.end,
            self.checkpoint.end, is_rotten=False,
        )  # fmt: skip
        return storage.broken_promise(facts)

    def is_intact(self) -> bool:
        """Whether its disk holds what this incarnation promised."""
        return self.is_up or not self.broken_promise()

    def start(self) -> None:
        """Begin a life with what the disk has."""
        if self.broken_promise():
            self.incarnation = self.new_incarnation()
        self.checkpoint = Confirmed(min(self.checkpoint.end, self.log.view.held), self.checkpoint.epoch)
        self.is_same_boot = self.is_clean = True
        self.life += 1
        self.is_up, self.waiting = True, []
        me = Member(ReplicaId(self.number, self.incarnation), f"http://b{self.number}")
        self.replica = Replica(me, self.standing, self.checkpoint)
