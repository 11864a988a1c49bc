"""What one replica does about what happens and about the time: `Replica`'s decisions, carried out in order.

`Conduct` has no thread, no clock and no socket. One thread calls it, with the time as an argument; what takes
its time goes out by `Outside` and comes back as an event. At most one call to the register and one fetch are
under way.

    event, tick  -->  Conduct  -->  Replica (decides)  -->  effects, in their order  -->  ReplicaLog, Observer
                                                       -->  Outside --> (later) an event

By the clock: the record is read again; a proposal without an outcome is made again; a master reviews who is
in sync; a slave fetches again after a failure, and stands for election when its master was silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from rocketq.errors import RocketqError
from rocketq.errors.replication_errors import (
    ElectionRefused,
    EpochAhead,
    InSyncSetUnsettled,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    ReplicaUnknown,
)
from rocketq.model import ReplicationMode
from rocketq_broker.replication.election import stands_at_ms
from rocketq_broker.replication.fetching import Fetch, FetchAnswer
from rocketq_broker.replication.group_record import GroupRecord, Known, Member, ReplicaId
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.replica import (
    Ask,
    Effect,
    Follow,
    KeepStanding,
    LeaveOffice,
    Replica,
    TakeOffice,
)
from rocketq_broker.replication.slave_role import Append, BeginAt, CutTo, SlaveRole
from rocketq_broker.replication_service.ports import Observer, Outside, ReplicaLog
from rocketq_broker.replication_service.times import ReplicationTimes
from rocketq_broker.store.replica.raw_frames import RawFrames

log = structlog.get_logger("rocketq.broker.replica")

#: A replica never does nothing for longer: its clock may have been set by a test meanwhile.
IDLE_MS_MAX: Final = 1_000
#: A master that does not wait refuses writes when an in-sync slave is behind for so many times the limit.
UNSETTLED_FACTOR: Final = 2
#: How many bytes of frames one fetch brings; the append that reaches it comes whole.
FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
FETCH_BYTES_MIN: Final = 64 * 1024

Reply = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator has said about this replica."""

    #: The name that a group gets which this replica founds; empty: it founds none.
    founds: str
    min_in_sync: int
    #: Whether it stands for election by itself.
    stands: bool
    #: Whether the master of a group that it founds waits for its slaves.
    replication: ReplicationMode = ReplicationMode.SYNC
    #: How fast it fetches while it is not in sync; 0: as fast as it can.
    catch_up_bytes_per_s: int = 0

    @property
    def fetch_bytes(self) -> int:
        """How many bytes of frames one fetch brings: of a slow one, what comes in a quarter of a second."""
        if not self.catch_up_bytes_per_s:
            return FETCH_BYTES_MAX
        return max(FETCH_BYTES_MIN, min(FETCH_BYTES_MAX, self.catch_up_bytes_per_s // 4))


@dataclass(slots=True)
class _Command:
    """An operator's command that waits for its outcome."""

    reply: Reply
    ends_ms: int
    #: The epoch that the command is to end; the next one is its outcome.
    epoch: int
    #: Of a handover: the successor, until the slaves hold everything and it is proposed.
    successor: int = 0


class Conduct:
    """One replica from its start to its end. Not thread-safe."""

    def __init__(
        self,
        replica: Replica,
        policy: Policy,
        times: ReplicationTimes,
        log: ReplicaLog,
        outside: Outside,
        observer: Observer,
        jitter: Callable[[], float],
        now_ms: int,
    ) -> None:
        self.replica = replica
        self._policy = policy
        self._times = times
        self._log = log
        self._outside = outside
        self._observer = observer
        self._jitter = jitter
        self._register_is_busy = False
        self._to_ask: Ask | None = None
        self._read_ms = self._review_ms = self._fetch_ms = self._checkpoint_ms = now_ms
        self._ask_ms = 0
        self._is_fetching = False
        self._fetch_began_ms = 0
        #: When the master was last heard, and whether a call to it has failed since.
        self._heard_ms = now_ms
        self._is_silent = False
        self._random = jitter()
        self._shown = replica.confirmed
        self._kept = replica.confirmed
        self._refusal: RocketqError | None = None
        self._command: _Command | None = None
        #: The epoch in which the broker serves as master; 0 if it does not.
        self._serves = 0
        #: Under asynchronous replication: the in-sync set has been wrong for too long.
        self._is_unsettled = False
        #: The broker is about to stop: it follows no other master, and asks for no office.
        self._leaves = False

    # --- the clock ------------------------------------------------------------------------

    def tick(self, now_ms: int) -> int:
        """Do what is due; return when to come again at the latest."""
        self._call_register(now_ms)
        if isinstance(self.replica.role, MasterRole):
            self._review(now_ms)
        else:
            self._stand_if_due(now_ms)
            self._fetch_if_due(now_ms)
        self._go_on_with_command(now_ms)
        if self.replica.confirmed != self._kept and now_ms >= self._checkpoint_ms:
            self._checkpoint_ms = now_ms + self._times.checkpoint_ms
            self._kept = self.replica.confirmed
            self._log.keep_confirmed(self._kept)
        return self._next_ms(now_ms)

    def _next_ms(self, now_ms: int) -> int:
        due = [now_ms + IDLE_MS_MAX]
        if not self._register_is_busy:
            due += [self._read_ms] if self.replica.asked is None else [self._ask_ms]
        if isinstance(self.replica.role, MasterRole):
            due.append(self._review_ms)
        else:
            if not self._is_fetching:
                due.append(self._fetch_ms)
            stands_ms = self._stands_ms()
            if stands_ms is not None:
                due.append(stands_ms)
        if self._command is not None:
            due.append(self._command.ends_ms)
        if self.replica.confirmed != self._kept:
            due.append(self._checkpoint_ms)
        return max(min(due), now_ms + 1)

    # --- the register ---------------------------------------------------------------------

    def _call_register(self, now_ms: int) -> None:
        """Make a proposal, make one again whose outcome is not known, or read."""
        if self._register_is_busy:
            return
        if self._to_ask is None and self.replica.asked is not None and now_ms >= self._ask_ms:
            self._to_ask = self.replica.asked
        if self._to_ask is not None:
            ask, self._to_ask = self._to_ask, None
            self._register_is_busy = True
            self._ask_ms = now_ms + self._times.ask_again_ms
            self._outside.ask_register(ask)
        elif now_ms >= self._read_ms:
            self._register_is_busy = True
            self._read_ms = now_ms + self._times.read_ms
            self._outside.read_register()

    def _read_soon(self, now_ms: int, *, at_once: bool = False) -> None:
        """Read the record again: something says that it has changed."""
        self._read_ms = min(self._read_ms, now_ms if at_once else now_ms + self._times.read_again_ms)

    def register_has(self, known: Known | None, now_ms: int) -> None:
        """Take what was read, or set; None if nothing was ever set. Raises ReplicationHalt."""
        self._register_is_busy = False
        if known is not None:
            self._take(*self.replica.learned(known, self._log.view(), now_ms), now_ms)
        elif self.replica.asked is None and (self._policy.founds or self.replica.standing.group):
            # With a group of its own it raises: the register was emptied.
            policy = self._policy
            founding = self.replica.founding(policy.founds, policy.min_in_sync, policy.replication)
            self._take(*founding, now_ms)
        else:
            self._read_soon(now_ms)

    def register_changed(self, now_ms: int) -> None:
        """Take that another change came first."""
        self._register_is_busy = False
        self._read_soon(now_ms, at_once=True)

    def register_failed(self, now_ms: int) -> None:
        """Take that nobody knows what became of the call."""
        self._register_is_busy = False
        self._read_soon(now_ms)

    # --- effects --------------------------------------------------------------------------

    def _take(self, replica: Replica, effects: Sequence[Effect], now_ms: int) -> None:
        """Take the next value of the replica, and carry out its effects."""
        before = self.replica
        self.replica = replica
        self._outside.publish(replica, self.master)
        for effect in effects:
            self._carry_out(effect, now_ms)
        self._confirm()
        self._admit_appends()
        self._serve_if_whole()
        if replica.known != before.known:
            self._observer.log_changed()
            self._end_command()

    def _carry_out(self, effect: Effect, now_ms: int) -> None:
        match effect:
            case KeepStanding(standing):
                self._log.keep_standing(standing)
            case Ask():
                self._to_ask = effect
            case LeaveOffice():
                self._log.leave_office(OutcomeUnknown(self.group, self.replica.standing.epoch))
                self._serves = 0
                self._observer.left_office()
            case TakeOffice(epoch, _, waits):
                self._log.take_office(epoch, waits=waits)
                self._review_ms = now_ms + self._times.review_ms
            case Follow(epoch):
                self._heard_ms, self._is_silent, self._random = now_ms, False, self._jitter()
                self._fetch_ms = now_ms
                log.info("follows", epoch=epoch, master=self.master)

    def _confirm(self) -> None:
        confirmed = self.replica.confirmed
        if confirmed.end > self._shown.end:
            self._log.confirm(confirmed.end)
            self._observer.log_changed()
        self._shown = confirmed

    def _serve_if_whole(self) -> None:
        """Let the broker serve as master once everything is confirmed that earlier masters have left.

        Until then what it would decide from is older than what it has to answer for: a queue may have an
        owner in a record that is written and not confirmed.
        """
        role = self.replica.role
        if (
            isinstance(role, MasterRole)
            and self._serves != role.epoch
            and self.replica.confirmed.end >= role.start
        ):
            self._serves = role.epoch
            self._observer.took_office(role.epoch)

    def _admit_appends(self) -> None:
        """Have senders refused while what they send could not be confirmed."""
        role = self.replica.role
        refusal: RocketqError | None = None
        if not isinstance(role, MasterRole):
            return
        handing_over = self._command is not None and self._command.successor
        if not self.replica.may_append or handing_over:
            refusal = self._not_master()
        elif len(role.registered) < role.min_in_sync:
            refusal = NotEnoughReplicas(self.group, len(role.registered), role.min_in_sync)
        elif self._is_unsettled:
            refusal = InSyncSetUnsettled(self.group)
        if str(refusal) != str(self._refusal):
            self._refusal = refusal
            self._log.refuse_appends(refusal)

    # --- as master --------------------------------------------------------------------------

    def _review(self, now_ms: int) -> None:
        if now_ms >= self._review_ms:
            self._review_ms = now_ms + self._times.review_ms
            self._is_unsettled = self._lacks_slaves(now_ms)
            self._take(*self.replica.reviewed(self._log.view(), now_ms, self._times.in_sync_ms), now_ms)

    def _lacks_slaves(self, now_ms: int) -> bool:
        """Whether a slave that may be elected lacks more than a master that does not wait may risk.

        The register has not taken it out of the set for as long, so another master may be there already.
        """
        role = self.replica.role
        return (
            isinstance(role, MasterRole)
            and not role.waits
            and bool(role.fallen_behind(now_ms, UNSETTLED_FACTOR * self._times.in_sync_ms))
        )

    def fetched(self, fetch: Fetch, now_ms: int) -> FetchAnswer:
        """Answer a slave's fetch; raise what `rocketq.errors.replication_errors` has."""
        try:
            replica, answer, effects = self.replica.fetched(fetch, self._log.view(), now_ms)
        except NotMaster:
            raise self._not_master() from None
        except (EpochAhead, ReplicaUnknown):
            self._read_soon(now_ms, at_once=True)
            raise
        self._take(replica, effects, now_ms)
        return answer

    def departed(self, slave: ReplicaId, now_ms: int) -> None:
        """As master, take that a slave stops: no send waits for it, if enough others are in sync."""
        self._take(*self.replica.without(slave, self._log.view()), now_ms)
        self._call_register(now_ms)

    def log_moved(self, now_ms: int) -> None:
        """Take that more of the own log is written, or held through a crash."""
        self._take(self.replica.synced(self._log.view()), (), now_ms)

    # --- as slave -----------------------------------------------------------------------------

    def _fetch_if_due(self, now_ms: int) -> None:
        if self._leaves or self._is_fetching or now_ms < self._fetch_ms:
            return
        self._fetch_ms = now_ms + self._times.fetch_again_ms
        fetch, master = self.replica.fetch(self._log.view()), self.master
        if fetch is not None and master is not None:
            self._is_fetching = True
            self._fetch_began_ms = now_ms
            self._outside.fetch(master, fetch)

    def answered(self, answer: FetchAnswer, frames: RawFrames | None, now_ms: int) -> None:
        """Take the master's answer to a fetch, with its frames; raise CorruptFrame, ReplicationHalt."""
        self._is_fetching = False
        self._fetch_ms = max(now_ms, self._fetch_began_ms + self._pace_ms(frames))
        if isinstance(self.replica.role, SlaveRole) and answer.place.epoch == self.replica.role.epoch:
            self._heard_ms, self._is_silent = now_ms, False
        view = self._log.view()
        replica, step = self.replica.answered(answer, view)
        match step:
            case Append() if frames is not None:
                self._log.append(frames)
            case CutTo(end, lost):
                log.warning("log_cut", end=end, bytes=view.end - end, confirmed_bytes=lost)
                self._log.cut(end)
            case BeginAt(begin, before, lost):
                log.warning("log_begun_anew", begin=begin, confirmed_bytes=lost)
                self._log.begin_at(begin, before)
        self._take(replica.synced(self._log.view()), (), now_ms)

    def _pace_ms(self, frames: RawFrames | None) -> int:
        """Return how long a fetch of these frames is to take at least: one that is in sync never waits."""
        limit, record = self._policy.catch_up_bytes_per_s, self.record
        if not limit or frames is None or record is None or self.replica.id in record.in_sync:
            return 0
        return frames.size * 1_000 // limit

    def fetch_failed(self, now_ms: int, *, epoch_is_over: bool = False) -> None:
        """Take that the master did not answer, or refused: perhaps because its epoch is over."""
        self._is_fetching = False
        self._fetch_ms = now_ms + self._times.fetch_again_ms
        self._is_silent = True
        self._read_soon(now_ms, at_once=epoch_is_over)

    def refused_frames(self, now_ms: int) -> None:
        """Take that the frames of an answer could not be appended: they are fetched again."""
        self._fetch_ms = now_ms + self._times.fetch_again_ms

    def _stands_ms(self) -> int | None:
        """Return when this replica asks to be master, as things stand; None if it does not."""
        known = self.replica.known
        if known is None or not self._policy.stands or self.replica.asked is not None or self._leaves:
            return None
        is_restarted = known.record.master == self.replica.id
        if not (self._is_silent or is_restarted) or not known.record.has_joined(self.replica.id):
            return None
        return stands_at_ms(known.record, self.replica.id, self._heard_ms, self._random, self._times.election)

    def _stand_if_due(self, now_ms: int) -> None:
        stands_ms = self._stands_ms()
        if stands_ms is not None and now_ms >= stands_ms:
            self._take(*self.replica.standing_for_election(), now_ms)

    def leave(self, reply: Reply) -> None:
        """As slave, fetch no more, since the broker stops, and tell the master."""
        self._leaves = True
        fetch, master = self.replica.fetch(self._log.view()), self.master
        if fetch is None or master is None:
            reply(None)
        else:
            self._outside.say_goodbye(master, fetch, reply)

    # --- commands -----------------------------------------------------------------------------

    def promote(self, *, unclean: bool, reply: Reply, now_ms: int) -> None:
        """Ask to be master; `reply` has the epoch, or why not. With `unclean` whatever is lost."""
        self._begin_command(reply, now_ms, 0)
        try:
            seize = self.replica.seizing_office if unclean else self.replica.standing_for_election
            self._take(*seize(), now_ms)
        except RocketqError as error:
            self._refuse_command(error)

    def hand_over(self, successor: int, reply: Reply, now_ms: int, *, leaves: bool = False) -> None:
        """Give the office to another in-sync replica, once the slaves hold everything; 0: to any.

        With `leaves` this broker is about to stop.
        """
        role = self.replica.role
        if not isinstance(role, MasterRole):
            reply(self._not_master())
            return
        others = sorted(each.number for each in role.registered if each != self.replica.id)
        if not successor and others:
            successor = others[0]
        if successor not in others:
            reply(ElectionRefused(successor, "it is not in sync, or it is the master"))
            return
        self._leaves = leaves
        self._begin_command(reply, now_ms, successor)
        self._admit_appends()
        self._go_on_with_command(now_ms)

    def _begin_command(self, reply: Reply, now_ms: int, successor: int) -> None:
        self._refuse_command(ElectionRefused(self.replica.id.number, "a later command took its place"))
        ends_ms = now_ms + self._times.handover_ms
        self._command = _Command(reply, ends_ms, self.replica.standing.epoch, successor)

    def _go_on_with_command(self, now_ms: int) -> None:
        command = self._command
        if command is None:
            return
        if now_ms >= command.ends_ms:
            why = "the slaves did not reach the end of the log, or the register did not answer, in time"
            self._refuse_command(ElectionRefused(command.successor or self.replica.id.number, why))
        elif command.successor and self.replica.asked is None and self._has_everything(command.successor):
            try:
                self._take(*self.replica.handing_over(command.successor, leaves=self._leaves), now_ms)
                self._call_register(now_ms)
            except RocketqError as error:
                self._refuse_command(error)

    def _has_everything(self, successor: int) -> bool:
        """Whether all that is written is confirmed, and the next master has it."""
        end, role = self._log.view().end, self.replica.role
        if self.replica.confirmed.end < end or not isinstance(role, MasterRole):
            return False
        return any(role.held_by(each) >= end for each in role.registered if each.number == successor)

    def _refuse_command(self, error: RocketqError) -> None:
        command, self._command = self._command, None
        if command is not None:
            command.reply(error)
            self._admit_appends()

    def _end_command(self) -> None:
        """Answer a command whose epoch is over."""
        command = self._command
        if command is not None and self.replica.standing.epoch > command.epoch:
            self._command = None
            command.reply(self.replica.standing.epoch)

    # --- what is known --------------------------------------------------------------------------

    @property
    def record(self) -> GroupRecord | None:
        return self.replica.known.record if self.replica.known is not None else None

    @property
    def group(self) -> str:
        return self.replica.standing.group

    @property
    def master(self) -> Member | None:
        """The master that the record names, and where it is."""
        record = self.record
        return record.member(record.master.number) if record is not None else None

    def _not_master(self) -> NotMaster:
        master = self.master
        is_other = master is not None and master.replica != self.replica.id
        address = master.address if master is not None and is_other else ""
        return NotMaster(self.group, self.replica.standing.epoch, address)
