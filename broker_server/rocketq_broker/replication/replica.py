"""One replica of a broker group: what it knows, and what it does about each thing that it hears. No I/O.

A caller hands in what happened (a record was read, a fetch came, an answer came, the log was synced), with
its log and the time as arguments, and gets the next value of the replica and *effects* to carry out. It
carries out the effects of one call in their order, and before the next call.

    the register  --learned-->  +---------+  --Ask-->       a compare-and-set of the register
    slaves        --fetched-->  | Replica |  --KeepStanding--> the disk, before anything that follows it
    the master    --answered->  +---------+  --TakeOffice, Follow, LeaveOffice--> the broker
    the disk      --synced--->

An epoch belongs to one life of one broker. A replica writes in an epoch only if its disk knew of no epoch
as high before, so after a restart a master elects itself again. Frames that a crash took from its log were
perhaps shipped already; new frames in their place are then of another epoch, and the two are told apart.

Rules that hold at each step (docs/design.md, "Replication", has the argument):
  * the epoch on disk is at least that of every call, answer and frame of this replica;
  * `confirmed` falls only when an operator has accepted a loss;
  * at most one proposal is under way, and it counts until a later version of the record is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rocketq.errors.replication_errors import (
    ElectionRefused,
    EpochAhead,
    ForeignReplica,
    NotMaster,
    ReplicaUnknown,
    StaleEpoch,
)
from rocketq.model import ReplicationMode
from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.replication import record_changes
from rocketq_broker.replication.errors import (
    CorruptGroupRecord,
    ForeignLog,
    RegisterWentBack,
    ReplicaReplaced,
)
from rocketq_broker.replication.fetching import Fetch, FetchAnswer, Shipment, compared
from rocketq_broker.replication.group_record import GroupRecord, Known, Member, ReplicaId
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.slave_role import Confirmed, SlaveRole, Step


@dataclass(frozen=True, slots=True)
class Standing:
    """What a replica keeps on disk beside its log: its group, and the highest epoch that it has seen."""

    group: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class KeepStanding:
    """Put the standing on disk; what follows depends on it."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Ask:
    """Replace version `version` of the record; hand the answer, or a later read, to `learned`."""

    version: int
    record: GroupRecord


@dataclass(frozen=True, slots=True)
class TakeOffice:
    """This replica is master: frames from `start`, the end of its log, on are of `epoch`.

    Without `waits` it confirms what it holds, and waits for no slave.
    """

    epoch: int
    start: int
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Follow:
    """This replica follows a master."""

    epoch: int
    master: ReplicaId


@dataclass(frozen=True, slots=True)
class LeaveOffice:
    """This replica is no longer master: refuse appends; the outcome of those who wait is unknown."""

    epoch: int


Effect = KeepStanding | Ask | TakeOffice | Follow | LeaveOffice


@dataclass(frozen=True, slots=True)
class Replica:
    """The whole knowledge of one replica in this life; `role` is None until a record names a role for it."""

    me: Member
    standing: Standing = field(default_factory=Standing)
    confirmed: Confirmed = field(default_factory=Confirmed)
    known: Known | None = None
    role: MasterRole | SlaveRole | None = None
    #: What was proposed and is not settled. It may yet take effect, however long ago it was sent.
    asked: Ask | None = None
    #: Whether the record has had this incarnation as a member; if another takes its place, it was replaced.
    has_joined: bool = False

    @property
    def id(self) -> ReplicaId:
        return self.me.replica

    @property
    def readable_end(self) -> int:
        """Readers see only what lies below; on slaves too, and also while there is no master."""
        return self.confirmed.end

    @property
    def may_append(self) -> bool:
        """Whether senders' messages may go into the log: not while the office is being handed over."""
        is_leaving = self.asked is not None and self.asked.record.epoch > self.standing.epoch
        return isinstance(self.role, MasterRole) and not is_leaving

    # The record.

    def learned(self, known: Known, log: LogView, now_ms: int) -> tuple[Replica, Sequence[Effect]]:
        """Take a version of the record that was read, or that was set; raise a ReplicationHalt.

        An older version than the known one is no news: answers may overtake each other.
        """
        if self.known is not None and known.version <= self.known.version:
            return self, ()
        self._check(known, log)
        record = known.record
        settled = replace(
            self, known=known, asked=None, standing=Standing(record.group, record.epoch),
            has_joined=self.has_joined or record.has_joined(self.id),
        )  # fmt: skip
        effects: list[Effect] = [] if settled.standing == self.standing else [KeepStanding(settled.standing)]
        if record.master == self.id:
            after, more = self._as_master(settled, log, now_ms)
        else:
            after, more = self._as_slave(settled)
        effects += more
        if isinstance(self.role, MasterRole) and not isinstance(after.role, MasterRole):
            effects.insert(0, LeaveOffice(self.role.epoch))
        if record.member(self.id.number) != self.me:
            # A new replica, or one that has a new address.
            after, more = after._ask(record_changes.joined(record, self.me))
            effects += more
        return after._confirming(log), effects

    def _check(self, known: Known, log: LogView) -> None:
        record, mine = known.record, self.standing
        if mine.group and record.group != mine.group:
            raise ForeignLog(record.group, mine.group, log.end)
        # A master without a group founded it, and crashed before its standing was on disk.
        if not mine.group and log.end and record.master != self.id:
            raise ForeignLog(record.group, "", log.end)
        if record.epoch < mine.epoch:
            raise RegisterWentBack(record.group, f"epoch {mine.epoch}", f"epoch {record.epoch}")
        member = record.member(self.id.number)
        if self.has_joined and member is not None and member.replica != self.id:
            raise ReplicaReplaced(*self.id, member.replica.incarnation, member.address)

    def _as_master(self, settled: Replica, log: LogView, now_ms: int) -> tuple[Replica, list[Effect]]:
        record = settled._record
        role = self.role
        if isinstance(role, MasterRole) and role.epoch == record.epoch:
            role = replace(
                role, registered=record.in_sync, proposed=frozenset(), min_in_sync=record.min_in_sync
            )
            return replace(settled, role=role), []
        if not self.may_begin(record.epoch):
            return replace(settled, role=None), []
        role = MasterRole(
            self.id, record.epoch, log.end, now_ms, record.min_in_sync, record.in_sync, waits=record.waits
        )
        return replace(settled, role=role), [TakeOffice(record.epoch, log.end, record.waits)]

    def may_begin(self, epoch: int) -> bool:
        """Whether this life may write in an epoch: only if the disk has not known of it before."""
        return epoch > self.standing.epoch

    def _as_slave(self, settled: Replica) -> tuple[Replica, list[Effect]]:
        record = settled._record
        if isinstance(self.role, SlaveRole) and self.role.epoch == record.epoch:
            return replace(settled, role=self.role), []
        role = SlaveRole(record.epoch, record.master, record.unclean_epoch)
        return replace(settled, role=role), [Follow(record.epoch, record.master)]

    @property
    def _record(self) -> GroupRecord:
        if self.known is None:
            raise ValueError("no record is known")
        return self.known.record

    # Proposals.

    def founding(
        self, group: str, min_in_sync: int, replication: ReplicationMode = ReplicationMode.SYNC
    ) -> tuple[Replica, Sequence[Effect]]:
        """Found a group whose register is empty; raise RegisterWentBack for a replica that is of a group."""
        if self.standing.group:
            raise RegisterWentBack(self.standing.group, f"epoch {self.standing.epoch}", "nothing")
        record = record_changes.founded(
            group, self.me, epoch=1, min_in_sync=min_in_sync, replication=replication
        )
        ask = Ask(0, record)
        return replace(self, asked=ask), (ask,)

    def standing_for_election(self) -> tuple[Replica, Sequence[Effect]]:
        """Ask to be master; raise ElectionRefused for a replica that may lack what is confirmed."""
        record = self._record_for_election()
        after = record_changes.elected(record, self.id)
        if after is None:
            raise ElectionRefused(self.id.number, "it is neither in sync nor eligible")
        return self._ask(after)

    def seizing_office(self) -> tuple[Replica, Sequence[Effect]]:
        """Ask to be master whatever is lost: an operator's command, and nobody else's."""
        record = self._record_for_election()
        self._check_settled(self.id.number)
        return self._ask(record_changes.elected_uncleanly(record, self.id))

    def _check_settled(self, number: int) -> None:
        """Refuse a command that would do nothing now."""
        if self.asked is not None:
            raise ElectionRefused(number, "another change of the group is under way; ask again")

    def _record_for_election(self) -> GroupRecord:
        if self.known is None:
            raise ElectionRefused(self.id.number, "it has not read the record of its group")
        if isinstance(self.role, MasterRole):
            raise ElectionRefused(self.id.number, "it is master")
        if not self.known.record.has_joined(self.id):
            raise ElectionRefused(self.id.number, "it is no member of its group yet")
        return self.known.record

    def handing_over(self, successor: int, *, leaves: bool = False) -> tuple[Replica, Sequence[Effect]]:
        """Ask for another in-sync replica to be master. From now on this one appends nothing."""
        role = self._master(self.standing.group)
        self._check_settled(successor)
        chosen = next((each for each in role.registered if each.number == successor), None)
        after = None
        if chosen is not None:
            after = record_changes.handed_over(self._record, chosen, leaves=leaves)
        if after is None:
            raise ElectionRefused(successor, "it is not in sync, or it is the master")
        return self._ask(after)

    def reviewed(self, log: LogView, now_ms: int, limit_ms: int) -> tuple[Replica, Sequence[Effect]]:
        """As master, ask for the in-sync set without those who have been behind for longer than the limit."""
        if not isinstance(self.role, MasterRole):
            return self, ()
        behind = self.role.fallen_behind(now_ms, limit_ms)
        if not behind:
            return self, ()
        after, effects = self._ask(record_changes.shrunk(self._record, behind))
        return after._confirming(log), effects

    def without(self, slave: ReplicaId, log: LogView) -> tuple[Replica, Sequence[Effect]]:
        """As master, ask for the in-sync set without a slave that stops, if enough others are in it."""
        role = self.role
        if not isinstance(role, MasterRole) or slave not in role.registered:
            return self, ()
        if len(role.registered) <= role.min_in_sync:
            return self, ()
        after, effects = self._ask(record_changes.shrunk(self._record, {slave}))
        return after._confirming(log), effects

    def asking_again(self) -> Sequence[Effect]:
        """Return the proposal that is not settled: to set it twice does no harm, its version is set once."""
        return (self.asked,) if self.asked is not None else ()

    def _ask(self, record: GroupRecord) -> tuple[Replica, list[Effect]]:
        if self.asked is not None or self.known is None:
            return self, []
        why = record_changes.fault_of_change(self.known.record, record)
        if why:
            raise CorruptGroupRecord(why)
        ask = Ask(self.known.version, record)
        role = self.role
        if isinstance(role, MasterRole):
            role = replace(role, proposed=record.in_sync)
        return replace(self, asked=ask, role=role), [ask]

    # The log.

    def synced(self, log: LogView) -> Replica:
        """Take that more of the log is held: the confirmed end may move."""
        return self._confirming(log)

    def fetched(
        self, fetch: Fetch, log: LogView, now_ms: int
    ) -> tuple[Replica, FetchAnswer, Sequence[Effect]]:
        """As master, answer a slave's fetch; raise what `rocketq.errors.replication_errors` has."""
        if self.standing.group and fetch.group != self.standing.group:
            raise ForeignReplica(self.standing.group, fetch.group)
        self._check_epoch(fetch.place.epoch)
        role = self._master(fetch.group)
        if not self._record.has_joined(fetch.replica):
            raise ReplicaUnknown(fetch.group, *fetch.replica)
        answer = compared(fetch.place, log, self.confirmed.end)
        if not isinstance(answer, Shipment):
            return self, answer, ()
        heard = role.heard(fetch.replica, min(fetch.held, fetch.place.end), log.end, now_ms)
        after = replace(self, role=heard)._confirming(log)
        effects: Sequence[Effect] = ()
        if heard.may_join(fetch.replica, after.confirmed.end, now_ms):
            after, effects = after._ask(record_changes.expanded(self._record, fetch.replica))
        return after, replace(answer, confirmed=after.confirmed.end), effects

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.standing.epoch:
            raise StaleEpoch(epoch, self.standing.epoch)
        if epoch > self.standing.epoch:
            raise EpochAhead(epoch, self.standing.epoch)

    def _master(self, group: str) -> MasterRole:
        if not isinstance(self.role, MasterRole):
            raise NotMaster(group, self.standing.epoch)
        return self.role

    def fetch(self, log: LogView) -> Fetch | None:
        """As slave, return the call to make; None for a replica that follows nobody."""
        if not isinstance(self.role, SlaveRole) or not self._record.has_joined(self.id):
            return None
        return Fetch(self.standing.group, self.id, self.role.place(log), log.held)

    def answered(self, answer: FetchAnswer, log: LogView) -> tuple[Replica, Step | None]:
        """As slave, decide what the master's answer means for the log; raise ConfirmedDiverged."""
        if not isinstance(self.role, SlaveRole):
            return self, None
        step = self.role.step(answer, log, self.confirmed)
        lost = getattr(step, "confirmed_lost", 0)
        after = self
        if lost:
            after = replace(self, confirmed=replace(self.confirmed, end=self.confirmed.end - lost))
        if isinstance(answer, Shipment) and self.role.is_current(answer, log):
            after = replace(after, role=replace(self.role, offered=max(self.role.offered, answer.confirmed)))
            after = after._confirming(log)
        return after, step

    def _confirming(self, log: LogView) -> Replica:
        match self.role:
            case MasterRole():
                end = self.role.confirm_offset(log.held, self.confirmed.end)
            case SlaveRole():
                end = min(self.role.offered, log.held)
            case None:
                return self
        if end <= self.confirmed.end:
            return self
        return replace(self, confirmed=Confirmed(end, self.role.epoch))
