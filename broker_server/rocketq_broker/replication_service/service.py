"""The thread of a replica: it owns the `Conduct`, and hands it what comes from other threads, in order.

    event loop        fetches of slaves, commands          --post-->  +-------------------+
    log writer        more is written, more is on disk     --post-->  | rocketq-replica   |  --> the store
    rocketq-register  what the register answered           --post-->  | (owns the Conduct)|
    rocketq-fetch     what the master answered             --post-->  +-------------------+

The two threads below make one call at a time and wait for its answer, so that a register or a master which
hangs keeps no fetch of a slave waiting. What the event loop has to know is in `status`, a frozen value that
is replaced before the store changes: whoever reads frames of an epoch, and sees the same epoch in it
afterwards, has read frames of that epoch's log.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from rocketq.clock import Clock
from rocketq.errors import CorruptFrame, RocketqError, StaleEpoch, StoreFull
from rocketq.errors.replication_errors import (
    NotEnoughReplicas,
    NotMaster,
    RegisterChanged,
    RegisterUnavailable,
)
from rocketq.model import SendStatus
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.transport import Transport, TransportFailure
from rocketq.protocol.documents.replication import FETCH_HEADER, FETCH_PATH, FetchHead
from rocketq.protocol.sizes import FRAME_BYTES_MAX
from rocketq_broker.meta_register.meta_register import MetaRegister, Registered
from rocketq_broker.replication.errors import ReplicaNumberTaken
from rocketq_broker.replication.fetching import Fetch, FetchAnswer
from rocketq_broker.replication.group_record import GroupRecord, Known, Member, ReplicaId, decode, encode
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.replica import Ask, Replica
from rocketq_broker.replication_service.fetch_wire import answer_of, query_of
from rocketq_broker.replication_service.ports import Observer, ReplicaLog
from rocketq_broker.replication_service.replica_driver import Conduct, Policy
from rocketq_broker.replication_service.times import ReplicationTimes
from rocketq_broker.store.errors import ShipmentMisplaced
from rocketq_broker.store.replica.raw_frames import RawFrames

#: What a live replica of the same number may take to answer.
NAMESAKE_TIMEOUT_MS: Final = 1_000
_HEADS: Final = msgspec.json.Decoder(FetchHead)

Event = Callable[[Conduct, int], None]

log = structlog.get_logger("rocketq.broker.replica")


@dataclass(frozen=True, slots=True)
class Status:
    """What other threads may know of the replica; replaced as a whole."""

    replica: Replica
    master: Member | None = None

    @property
    def is_master(self) -> bool:
        return isinstance(self.replica.role, MasterRole)

    @property
    def epoch(self) -> int:
        return self.replica.standing.epoch

    @property
    def group(self) -> str:
        return self.replica.standing.group

    def not_master(self) -> NotMaster:
        """Return the refusal that says who is."""
        master = self.master
        is_other = master is not None and master.replica != self.replica.id
        return NotMaster(self.group, self.epoch, master.address if master is not None and is_other else "")

    def too_few_in_sync(self) -> NotEnoughReplicas | None:
        """Return the refusal of a master that can confirm nothing."""
        role = self.replica.role
        if not isinstance(role, MasterRole) or len(role.registered) >= role.min_in_sync:
            return None
        return NotEnoughReplicas(self.group, len(role.registered), role.min_in_sync)

    def late_status(self) -> SendStatus:
        """What a sender is told whose message lies in the master's log and was not confirmed in time."""
        is_short = not self.is_master or self.too_few_in_sync() is not None
        return SendStatus.SLAVE_NOT_AVAILABLE if is_short else SendStatus.FLUSH_SLAVE_TIMEOUT


class ReplicationService:
    """One replica at work, from `start` to `stop`."""

    def __init__(
        self,
        replica: Replica,
        policy: Policy,
        ports: ReplicaLog,
        register: MetaRegister,
        observer: Observer,
        *,
        times: ReplicationTimes | None = None,
        clock: Clock,
    ) -> None:
        self._times = times or ReplicationTimes()
        self._register = register
        self._observer = observer
        self._clock = clock
        self._transport = Transport()
        self._events: deque[Event] = deque()
        self._condition = threading.Condition()
        self._log_has_moved = self._stopping = False
        #: Whether the last fetch failed: only the first failure of a row is logged.
        self._fetches_fail = False
        #: Where the frames of the last answer were damaged: the master is told.
        self._damaged_at: int | None = None
        self._fetch_bytes: Final = policy.fetch_bytes
        #: Bytes of frames that came from masters, since the start.
        self.fetched_bytes = 0
        #: Whether nobody else was found to be the replica of this number.
        self._is_checked = False
        self._registering = ThreadPoolExecutor(1, thread_name_prefix="rocketq-register")
        self._fetching = ThreadPoolExecutor(1, thread_name_prefix="rocketq-fetch")
        self._conduct = Conduct(
            replica, policy, self._times, ports, self, observer, random.random, clock.monotonic_ms()
        )
        self._thread = threading.Thread(target=self._run, name="rocketq-replica", daemon=True)
        #: The newest knowledge, for any thread.
        self.status = Status(replica)

    # --- any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the threads; the store is still open. Calls that are under way are cut."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._transport.close()
        self._fetching.shutdown(cancel_futures=True)
        self._registering.shutdown(cancel_futures=True)

    def post(self, event: Event) -> None:
        """Have an event handled on the replica's thread."""
        with self._condition:
            self._events.append(event)
            self._condition.notify()

    def wake(self) -> None:
        """Look at the clock again."""
        with self._condition:
            self._condition.notify()

    def log_moved(self) -> None:
        """Take that more of the log is written, or on disk; called by the store for each commit group."""
        with self._condition:
            self._log_has_moved = True
            self._condition.notify()

    def fetched(self, fetch: Fetch, done: Callable[[FetchAnswer | RocketqError], None]) -> None:
        """Have a slave's fetch answered; `done` is called on the replica's thread."""

        def handle(conduct: Conduct, now_ms: int) -> None:
            try:
                done(conduct.fetched(fetch, now_ms))
            except RocketqError as error:
                done(error)

        self.post(handle)

    def promote(self, unclean: bool, done: Callable[[object], None]) -> None:
        """Have this replica ask to be master; `done` has the epoch or the error."""
        self.post(lambda conduct, now_ms: conduct.promote(unclean=unclean, reply=done, now_ms=now_ms))

    def hand_over(self, successor: int, done: Callable[[object], None], *, leaves: bool = False) -> None:
        """Have this master give its office away; `done` has the epoch or the error."""
        self.post(lambda conduct, now_ms: conduct.hand_over(successor, done, now_ms, leaves=leaves))

    def leave(self, done: Callable[[object], None]) -> None:
        """Have this slave tell its master that it stops."""
        self.post(lambda conduct, now_ms: conduct.leave(done))

    def departed(self, slave: ReplicaId, done: Callable[[object], None]) -> None:
        """Have the in-sync set shrink by a slave that stops; `done` is called when that is asked for."""

        def handle(conduct: Conduct, now_ms: int) -> None:
            conduct.departed(slave, now_ms)
            done(None)

        self.post(handle)

    # --- the replica's thread ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            due_ms = 0
            while self._wait(due_ms):
                due_ms = self._turn()
        except RocketqError as error:
            log.critical("replica_halted", code=error.code, why=str(error), facts=error.facts)
            self._observer.halted(error)
        except Exception as error:
            # A defect: no fetch and no sender may wait for ever for a thread that has ended.
            log.critical("replica_failed", why=repr(error), exc_info=True)
            self._observer.halted(RocketqError(f"The replica failed in an unforeseen way: {error!r}."))

    def _wait(self, due_ms: int) -> bool:
        """Wait for an event, or until something is due; return False when the service ends."""
        with self._condition:
            left_ms = due_ms - self._clock.monotonic_ms()
            if not (self._events or self._log_has_moved or self._stopping) and left_ms > 0:
                self._condition.wait(left_ms / 1000)
            return not self._stopping

    def _turn(self) -> int:
        """Handle what has come, and what is due; return when to come again."""
        with self._condition:
            events, self._events = self._events, deque()
            moved, self._log_has_moved = self._log_has_moved, False
        conduct, now_ms = self._conduct, self._clock.monotonic_ms()
        if moved:
            conduct.log_moved(now_ms)
            self._observer.log_changed()
        for event in events:
            event(conduct, now_ms)
        return conduct.tick(now_ms)

    def publish(self, replica: Replica, master: Member | None) -> None:
        """Let other threads see a new value of the replica; called before its effects are carried out."""
        self.status = Status(replica, master)

    # --- calls that take their time (`Outside`) ----------------------------------------------

    def read_register(self) -> None:
        self._registering.submit(self._call_register, self._register.read)

    def ask_register(self, ask: Ask) -> None:
        record = encode(ask.record).decode()
        self._registering.submit(self._call_register, lambda: self._register.cas(ask.version, record))

    def _call_register(self, call: Callable[[], Registered]) -> None:
        """On `rocketq-register`."""
        try:
            found = call()
            known = _known(found)
            if known is not None and not self._is_checked:
                self._check_number(known.record)
        except RegisterChanged:
            self.post(lambda conduct, now_ms: conduct.register_changed(now_ms))
        except RegisterUnavailable as error:
            log.warning("register_unavailable", why=str(error))
            self.post(lambda conduct, now_ms: conduct.register_failed(now_ms))
        except Exception as error:  # noqa: BLE001 - a defect ends the replica's thread, not this one
            self.post(_raising(error))
        else:
            self.post(lambda conduct, now_ms: conduct.register_has(known, now_ms))

    def _check_number(self, record: GroupRecord) -> None:
        """Raise ReplicaNumberTaken if a live process is the replica that this one would take the place of.

        One that hangs is not seen. It halts when it finds that it was replaced.
        """
        me, member = self.status.replica.id, record.member(self.status.replica.id.number)
        if member is not None and member.replica != me:
            api = ReplicationApi(self._transport, "", member.address, timeout_ms=NAMESAKE_TIMEOUT_MS)
            try:
                found = api.status()
            except RocketqError as error:
                log.info("former_replica_is_gone", address=member.address, why=str(error))
            else:
                if (found.number, found.incarnation) == member.replica:
                    raise ReplicaNumberTaken(record.group, me.number, member.address)
        self._is_checked = True

    def fetch(self, master: Member, fetch: Fetch) -> None:
        confirmed = self._conduct.replica.confirmed.end
        self._fetching.submit(self._call_master, master, fetch, confirmed)

    def say_goodbye(self, master: Member, fetch: Fetch, done: Callable[[object], None]) -> None:
        self._registering.submit(self._tell_master, master, fetch, done)

    def _tell_master(self, master: Member, fetch: Fetch, done: Callable[[object], None]) -> None:
        """On `rocketq-register`, since the master may hold the fetch that is under way."""
        query = query_of(fetch) | {"confirmed": 0, "max_bytes": 1, "wait_ms": 0, "leaving": 1}
        try:
            self._transport.call(
                "GET", master.address, FETCH_PATH, query=query, timeout_ms=self._times.hold_ms,
                answer_bytes_max=FRAME_BYTES_MAX,
            )  # fmt: skip
        except (RocketqError, TransportFailure) as error:
            log.info("goodbye_failed", master=master.address, why=str(error))
        done(None)

    def _call_master(self, master: Member, fetch: Fetch, confirmed: int) -> None:
        """On `rocketq-fetch`."""
        query = query_of(fetch) | {
            "confirmed": confirmed, "max_bytes": self._fetch_bytes, "wait_ms": self._times.hold_ms,
            "damaged": self._damaged_at,
        }  # fmt: skip
        try:
            answer = self._transport.call(
                "GET", master.address, FETCH_PATH, query=query, timeout_ms=self._times.fetch_timeout_ms,
                hold_ms=self._times.hold_ms, answer_bytes_max=self._fetch_bytes + FRAME_BYTES_MAX,
            )  # fmt: skip
            head = _HEADS.decode(answer.headers.get(FETCH_HEADER, ""))
            found, frames = answer_of(head, answer.body)
        except (RocketqError, TransportFailure, msgspec.DecodeError) as error:
            if not self._fetches_fail:
                self._fetches_fail = True
                log.warning("fetches_fail", master=master.address, why=str(error))
            is_over = isinstance(error, StaleEpoch)
            self.post(lambda conduct, now_ms: conduct.fetch_failed(now_ms, epoch_is_over=is_over))
        except Exception as error:  # noqa: BLE001 - a defect ends the replica's thread, not this one
            self.post(_raising(error))
        else:
            self._fetches_fail = False
            self.post(lambda conduct, now_ms: self._answered(conduct, found, frames, now_ms))

    def _answered(self, conduct: Conduct, answer: FetchAnswer, frames: RawFrames | None, now_ms: int) -> None:
        self._damaged_at = None
        try:
            conduct.answered(answer, frames, now_ms)
            self.fetched_bytes += frames.size if frames is not None else 0
        except (CorruptFrame, ShipmentMisplaced, StoreFull) as error:
            # Nothing was appended. The log is as it was, so the same frames are fetched again.
            if isinstance(error, CorruptFrame):
                self._damaged_at = error.offset
            log.warning("frames_refused", why=str(error), facts=error.facts)
            conduct.refused_frames(now_ms)


def _raising(error: Exception) -> Event:
    def event(conduct: Conduct, now_ms: int) -> None:
        raise error

    return event


def _known(found: Registered) -> Known | None:
    return Known(found.version, decode(found.record.encode())) if found.version else None
