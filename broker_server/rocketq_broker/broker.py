"""One broker: its store, the calls that wait on it, its registration, and how it stops.

    STARTING ──> RUNNING ──> DRAINING ──> (stopped)
        │           ├──────> FAILED ────> (stopped, exit code 1)
        │           ├──────> DISPLACED ─> (stopped, exit code 5)
        │           └──────> HALTED ────> (stopped, exit code 1)
        └──> WAITING: another process has this broker's name, and it was told to wait for it

`start`, `drain` and everything the HTTP side calls run on the loop's thread; `store_events` carries there
what the store's threads tell. The HTTP side itself is made by `app`, for a broker that has started.

A broker serves nothing before it has its name from the NameServers (`registrar.claim`); if all are silent it
serves without, since those who know its address can use it. When a NameServer says later that another process
has the name, the broker stops: the other one has the better right to it (`rocketq_nameserver.ownership`).

A broker that is a replica of its group follows the group's master, or is the master: `replication_service`
decides which, and tells here. What only a master does is in `master_duties`, of which each office has its
own. A slave answers reads, and refuses everything else with an error that names the master.

After a fault of the log the broker acknowledges nothing more: every call is
answered 503, and the process is asked to end with an exit code that says so.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from typing import Final

import msgspec.structs
import structlog
from starlette.concurrency import run_in_threadpool

from rocketq.clock import Clock, SystemClock
from rocketq.errors import BrokerUnavailable, CorruptFrame, RocketqError
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq.model import Perm, TopicConfig
from rocketq.protocol.documents.nameserver import MASTER_ID, BrokerIdentity, DataVersion
from rocketq.protocol.documents.replication import ReplicationStatus
from rocketq_broker.config import BrokerConfig
from rocketq_broker.groups.membership import Membership
from rocketq_broker.groups.producers import Producers
from rocketq_broker.master_duties import Duties
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.registration.directory_lock import locked_store
from rocketq_broker.registration.registrar import Registrar
from rocketq_broker.replication_service.assembly import (
    LogHooks,
    RegisterOfGroup,
    healer_of,
    replica_at_work,
)
from rocketq_broker.replication_service.description import described
from rocketq_broker.replication_service.log_healer import Health, LogHealer
from rocketq_broker.replication_service.opening import opened_or_healed
from rocketq_broker.replication_service.service import ReplicationService
from rocketq_broker.retries.dead_letters import DeadLetters
from rocketq_broker.retries.send_back import SendBack
from rocketq_broker.runtime import wait_keys as arriving
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.runtime.store_events import StoreEvents
from rocketq_broker.runtime.trouble_watch import TroubleWatch
from rocketq_broker.sinks.publisher import SinkPublisher
from rocketq_broker.store.store import MessageStore
from rocketq_broker.transactions.check_watch import CheckWatch

#: For what must not run on the loop: inflating, the decoded forms, lookups by time.
_POOL_THREADS: Final = 4
#: For pulls that wait for the disk. They have threads of their own, so that sends never wait for them.
_READ_THREADS: Final = 4
#: How long a reader waits for a damaged frame to be healed.
HEAL_WAIT_S: Final = 4

log = structlog.get_logger("rocketq.broker")


class Phase(Enum):
    """Where a broker is in its life; the value is what a refused caller reads."""

    STARTING = "it is starting"
    WAITING = "it waits for its name, which another process has"
    RUNNING = "it is running"
    DRAINING = "it is shutting down"
    FAILED = "its log failed"
    DISPLACED = "another process has its name"
    HALTED = "its replica has halted"
    STOPPED = "it has stopped"


class Broker:
    """A broker that runs, or waits for its name; `start` and `stop` are the ends of the server's lifespan."""

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        address: str,
        *,
        clock: Clock | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> Broker:
        """Recover the store, register as `address`, and return a broker that takes calls.

        `on_failure` is to end the server; it is called on the loop when the log fails, or another process
        has the better right to the name. Raises StoreError, or BrokerNameTaken if another live process has
        the name and this broker was not told to wait for it; nothing is open then.
        """
        loop = asyncio.get_running_loop()
        clock = clock or SystemClock()
        completions = Completions(loop)
        held = LongPoll[arriving.Key](clock, config.held_calls_max, "messages")
        events = StoreEvents(config.name, completions, held)
        log_hooks = LogHooks()
        executor = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="rocketq-work")
        opened = partial(
            MessageStore.open, config.store_config(), clock=clock,
            on_arrival=events.arrived, on_change=events.changed, on_fault=events.faulted,
            on_damage=events.damaged, on_clock=events.clock_noticed,
            replica=log_hooks.hooks(config) if config.is_replica else None,
        )  # fmt: skip
        if config.is_replica:
            opened = partial(opened_or_healed, config, opened)
        try:
            store = await loop.run_in_executor(executor, opened)
        except BaseException:
            executor.shutdown()
            raise
        log.info("recovered", broker=config.name, data_dir=str(config.data_dir), **asdict(store.report))
        identity = BrokerIdentity(
            config.cluster,
            config.name,
            config.broker_id,
            (config.advertise or address).rstrip("/"),
            uuid.uuid4().hex,
        )
        try:
            broker = cls(config, clock, identity, store, events, completions, held, executor, on_failure)
            if config.is_replica:
                broker._prepare_replica(log_hooks)
        except BaseException:
            await loop.run_in_executor(executor, store.close)
            executor.shutdown()
            raise
        try:
            await broker._claim_name()
        except BaseException:
            await broker.stop()
            raise
        return broker

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        identity: BrokerIdentity,
        store: MessageStore,
        events: StoreEvents,
        completions: Completions,
        held: LongPoll[arriving.Key],
        executor: Executor,
        on_failure: Callable[[], None],
    ) -> None:
        """Take what `start` has opened; nothing else calls this."""
        self.config = config
        self.identity = identity
        self.store = store
        self.completions = completions
        self.held = held
        self.executor = executor
        self.readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="rocketq-read")
        self.phase = Phase.STARTING
        self.measurements = Measurements()
        #: Why the broker could not go on; the process then ends with an exit code above 0.
        self.failure: Exception | None = None
        self.draining = False
        self._on_failure = on_failure
        self._calls = 0
        self._drain_changes = 0
        #: Set while the broker waits for its name, and why.
        self._waiting: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._waits_because = ""
        self.clock = clock
        self._new_duties()
        self.producers = Producers(config, clock)
        #: Takes the messages that members send back.
        self.send_back = SendBack(
            config, store, clock, completions, self.readers, self.measurements,
            lambda group: self.members.look_again(group),
        )  # fmt: skip
        self.dead_letters = DeadLetters(store, completions, self.readers)
        #: What makes this broker one of several replicas; None for a group of one broker.
        self.replica: ReplicationService | None = None
        self._healer: LogHealer | None = None
        self._register: RegisterOfGroup | None = None
        #: The epoch in which this broker serves as master of several replicas.
        self._office = 0
        self._endings: set[asyncio.Task[None]] = set()
        #: Tells of what the store's tasks meet.
        self.troubles = TroubleWatch(config.name, store.troubles)
        self._registrar = Registrar(
            identity,
            config.nameservers,
            self,
            heartbeat_ms=config.heartbeat_ms,
            lease_ms=config.lease_ms,
            store=locked_store(config.data_dir),
            on_refused=lambda error: completions.post(self._displaced, error),
            clock=clock,
        )
        events.tell_changes_to(self._registrar.topics_changed)
        events.failed.add_done_callback(lambda failed: self._give_up(Phase.FAILED, failed.result()))

    async def _claim_name(self) -> None:
        """Ask the NameServers for the broker's name, and run once it has it; raise BrokerNameTaken."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self.executor, self._registrar.claim)
        except BrokerNameTaken as error:
            if not self.config.wait_for_name:
                raise
            log.warning("waiting_for_name", broker=self.config.name, why=str(error))
            self.phase, self._waits_because = Phase.WAITING, error.message
            self._waiting = loop.create_task(self._wait_for_name())
        else:
            self._run()

    def _run(self) -> None:
        if self.failure is not None:
            return
        self.phase = Phase.RUNNING
        self._registrar.start()
        if self.replica is not None:
            self.replica.start()
            if self._healer is not None:
                self._healer.start()
        else:
            self.duties.begin()
        self.troubles.start()

    async def _wait_for_name(self) -> None:
        """Ask for the name at every heartbeat, and run once this process has it."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self.config.heartbeat_ms / 1000)
            except TimeoutError:
                try:
                    await loop.run_in_executor(self.executor, self._registrar.claim)
                except BrokerNameTaken as error:
                    self._waits_because = error.message
                    continue
                if self._stopping.is_set():
                    await loop.run_in_executor(self.executor, self._registrar.withdraw)
                else:
                    self._run()
                return

    # --- what is registered with the NameServers --------------------------------------------

    @property
    def data_version(self) -> DataVersion:
        """The version of what `topics` returns."""
        version = self.store.data_version
        epoch = version.state_version if self.replica is None else self.replica.status.epoch
        return msgspec.structs.replace(
            version, state_version=epoch, timestamp_ms=version.timestamp_ms + self._drain_changes
        )

    def topics(self) -> tuple[TopicConfig, ...]:
        """The topics as clients should use them: without their write permission while draining."""
        topics = self.store.topics()
        if not self.draining:
            return topics
        return tuple(replace(topic, perm=topic.perm & ~int(Perm.WRITE)) for topic in topics)

    def drain(self, draining: bool) -> None:
        """Take writes away, or give them back: producers are sent elsewhere, readers stay."""
        if draining != self.draining:
            self.draining = draining
            self._drain_changes += 1
            self.store.drain(draining)
            self._registrar.topics_changed()

    def refuse_new_calls(self) -> None:
        """Begin to drain: leave the NameServers, take no new calls, answer those that wait."""
        self._stopping.set()
        if self.phase in (Phase.RUNNING, Phase.WAITING):
            self.phase = Phase.DRAINING
            self._release_all()
        self.duties.release()
        self._registrar.begin_stop()

    async def stop(self) -> None:
        """Close the store in good order, once no NameServer names this broker; it has no calls left."""
        self.refuse_new_calls()
        loop = asyncio.get_running_loop()
        if self._waiting is not None:
            await self._waiting
        await loop.run_in_executor(self.executor, self._registrar.stop)
        if self._healer is not None:
            await loop.run_in_executor(self.executor, self._healer.stop)
        if self.replica is not None and self._register is not None:
            await loop.run_in_executor(self.executor, self._register.close)
            await loop.run_in_executor(self.executor, self.replica.stop)
        await self.duties.end(self.executor)
        await asyncio.gather(*self._endings)
        await self.troubles.stop()
        await loop.run_in_executor(self.executor, self.store.close)
        self.executor.shutdown()
        self.readers.shutdown()
        if self.failure is None:
            self.phase = Phase.STOPPED
        log.info("stopped", broker=self.config.name, calls_left=self._calls)

    # --- what the HTTP side asks ----------------------------------------------------------

    def enter(self) -> None:
        """Begin a call of the data plane or one that writes; raise BrokerUnavailable."""
        if self.phase is not Phase.RUNNING:
            raise BrokerUnavailable(self.config.name, self.phase.value)
        self._calls += 1

    def enter_write(self) -> None:
        """Begin a call that only a master answers; raise BrokerUnavailable, NotMaster, NotEnoughReplicas."""
        self.check_office()
        self.enter()

    def check_office(self) -> None:
        """Raise unless this broker is by itself, or serves as master."""
        if self.replica is None or self._office:
            return
        status = self.replica.status
        if not status.is_master:
            raise status.not_master()
        too_few = status.too_few_in_sync()
        raise too_few or BrokerUnavailable(self.config.name, "it is taking office")

    def leave(self) -> None:
        """End a call that `enter` let in."""
        self._calls -= 1

    async def wait_until_published(self, sink: str, batch: int) -> tuple[str, ...]:
        """Wait until a batch is published, at most `sink_commit_wait_ms`; return who has not published it."""
        return await self.duties.commit_waits.wait(sink, batch, self.config.sink_commit_wait_ms)

    def topic_altered(self, topic: str) -> None:
        """Let the calls that wait for a topic look at it again."""
        self.held.changed(arriving.altered(topic))

    def forget_topic(self, topic: str) -> None:
        """Drop what was kept of a deleted topic, and let its waiting calls find out."""
        self.measurements.forget_topic(topic)
        self.topic_altered(topic)

    async def problems(self) -> dict[str, str]:
        """Return what keeps this broker from being ready; empty when it is."""
        disk = await run_in_threadpool(self.store.disk)
        found = {}
        if self.phase is not Phase.RUNNING:
            found["broker"] = self._waits_because if self.phase is Phase.WAITING else self.phase.value
        if self.replica is not None and self.replica.status.replica.role is None:
            found["replica"] = "it has not read the record of its group yet"
        if not self._registrar.ready:
            found["nameservers"] = "; ".join(
                f"{each.nameserver}: {each.problem or 'not registered yet'}"
                for each in self._registrar.statuses()
            )
        if disk.free < self.config.free_disk_bytes_min:
            found["disk"] = f"{disk.free} bytes are free"
        return found

    # --- one of several replicas ------------------------------------------------------------

    def _prepare_replica(self, hooks: LogHooks) -> None:
        self._register = RegisterOfGroup(self.config)
        self.replica = replica_at_work(
            self.config, self.store, self.identity.address, self._register.register, self, hooks, self.clock
        )
        self._healer = healer_of(self.config, self.store, self.replica, self.clock)

    def suspect(self, at: int, why: str) -> None:
        """Have the frame at a log offset looked at, and healed from another replica if it is damaged."""
        if self._healer is not None:
            self._healer.suspect(at, why)

    async def heals(self, damage: CorruptFrame) -> bool:
        """Wait a moment until another replica has healed a frame of the log; return whether it did."""
        healer, at = self._healer, damage.facts.get("log_offset", damage.offset)
        if healer is None:
            return False
        outcome = self.completions.outcome(partial(healer.suspect, at, str(damage.facts["why"])))
        try:
            return bool(await asyncio.wait_for(outcome, HEAL_WAIT_S))
        except TimeoutError:
            return False

    def replication(self) -> ReplicationStatus | None:
        """Return the group as this broker sees it; None for a group of one broker."""
        if self.replica is None or self.store.replica is None:
            return None
        view, now_ms = self.store.replica.view(), self.clock.monotonic_ms()
        health = self._healer.health if self._healer is not None else Health()
        fetched_bytes = self.replica.fetched_bytes
        return described(self.config.name, self.replica.status, view, health, fetched_bytes, now_ms)

    def took_office(self, epoch: int) -> None:
        """Called on the replica's thread."""
        self.completions.post(self._begin_office, epoch)

    def left_office(self) -> None:
        """Called on the replica's thread."""
        self.completions.post(self._end_office, None)

    def log_changed(self) -> None:
        """Called on the replica's thread."""
        self.completions.post(self.held.changed, arriving.OF_LOG)

    def halted(self, why: RocketqError) -> None:
        """Called on the replica's thread, which has ended."""
        self.completions.post(partial(self._give_up, Phase.HALTED), why)

    def _begin_office(self, epoch: int) -> None:
        if self.phase is not Phase.RUNNING or self.replica is None or self.replica.status.epoch != epoch:
            return
        self._end_office(None)
        log.info("took_office", broker=self.config.name, number=self.config.broker_id, epoch=epoch)
        self.duties.begin()
        self._office = epoch
        self._registrar.take_identity(msgspec.structs.replace(self.identity, broker_id=MASTER_ID))

    def _end_office(self, _: None) -> None:
        if not self._office:
            return
        log.info("left_office", broker=self.config.name, number=self.config.broker_id, epoch=self._office)
        self._office = 0
        ended = self.duties
        self._endings.add(task := asyncio.get_running_loop().create_task(ended.end(self.executor)))
        task.add_done_callback(self._endings.discard)
        self._new_duties()
        self._registrar.take_identity(self.identity)

    def _new_duties(self) -> None:
        self.duties = Duties(
            self.config, self.store, self.clock, self.completions, self.readers, self.measurements
        )

    @property
    def members(self) -> Membership:
        return self.duties.members

    @property
    def publisher(self) -> SinkPublisher:
        return self.duties.publisher

    @property
    def check_watch(self) -> CheckWatch:
        return self.duties.check_watch

    # --- what other threads tell --------------------------------------------------------------

    def _release_all(self) -> None:
        """Let every call that waits answer as things stand."""
        self.held.release_all()
        self.duties.release()

    def _displaced(self, error: BrokerNameTaken) -> None:
        log.critical("displaced", broker=self.config.name, why=str(error))
        self._give_up(Phase.DISPLACED, error)

    def _give_up(self, phase: Phase, error: RocketqError) -> None:
        if self.failure is not None:
            return
        self.phase, self.failure = phase, error
        self._release_all()
        self._on_failure()
