"""One broker: its store, the calls that wait on it, its registration, and how it stops.

    STARTING ──> RUNNING ──> DRAINING ──> (stopped)
        │           ├──────> FAILED ────> (stopped, exit code 1)
        │           └──────> DISPLACED ─> (stopped, exit code 5)
        └──> WAITING: another process has this broker's name, and it was told to wait for it

The store's callbacks come on its own threads; here they are carried to the
loop. `start`, `drain` and everything the HTTP side calls run on the loop's thread.

A broker serves nothing before it has its name from the NameServers (`registrar.claim`); if all are silent it
serves without, since those who know its address can use it. When a NameServer says later that another process
has the name, the broker stops: the other one has the better right to it (`rocketq_nameserver.ownership`).

After a fault of the log the broker acknowledges nothing more: every call is
answered 503, and the process is asked to end with an exit code that says so.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from typing import Final

import structlog

from rocketq.clock import Clock, SystemClock
from rocketq.errors import BrokerUnavailable, RocketqError
from rocketq.errors.registration_errors import BrokerNameTaken
from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq.model import Perm, TopicConfig
from rocketq.protocol.nameserver_documents import BrokerIdentity, DataVersion
from rocketq_broker.cluster.registrar import Registrar
from rocketq_broker.cluster.store_identity import locked_store
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.data_call import Outgoing
from rocketq_broker.data_plane.decoding_room import DecodingRoom
from rocketq_broker.data_plane.find import FindProcessor
from rocketq_broker.data_plane.pull import PullProcessor
from rocketq_broker.data_plane.send import SendProcessor
from rocketq_broker.data_plane.topic_offsets import OffsetsProcessor
from rocketq_broker.metrics.broker_metrics import Gauges, Measurements, group_lags
from rocketq_broker.runtime import arrival_keys as arriving
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.sinks.commit_wait import SettlingBatches
from rocketq_broker.sinks.publisher import Settler
from rocketq_broker.store.errors import StoreError
from rocketq_broker.store.store import MessageStore
from rocketq_broker.store.upkeep.clock_watch import ClockNotice

#: For what must not run on the loop: inflating, the decoded forms, lookups by time.
_POOL_THREADS: Final = 4

log = structlog.get_logger("rocketq.broker")


class Phase(Enum):
    """Where a broker is in its life; the value is what a refused caller reads."""

    STARTING = "it is starting"
    WAITING = "it waits for its name, which another process has"
    RUNNING = "it is running"
    DRAINING = "it is shutting down"
    FAILED = "its log failed"
    DISPLACED = "another process has its name"
    STOPPED = "it has stopped"


class Broker:
    """Made before the loop runs; `start` and `stop` are the ends of the server's lifespan."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.phase = Phase.STARTING
        self.measurements = Measurements()
        self.gauges = Gauges(
            held_calls=lambda: len(self.held),
            in_flight_bytes=lambda: self.send.bodies.used,
            outgoing_bytes=lambda: self.outgoing.bytes,
            decoded_bytes=lambda: self.decoding.budget.used,
            permission=lambda: int(Perm.READ_WRITE if self.phase is Phase.RUNNING else Perm.NONE),
            store=lambda: self.store.statistics(),
            lags=lambda: group_lags(self.store),
        )
        #: Ends the server; called on the loop after a fault of the log.
        self.on_failure: Callable[[], None] | None = None
        #: Why the broker could not start or go on; the process then ends with an exit code above 0.
        self.failure: Exception | None = None
        self.outgoing = Outgoing(config.outgoing_bytes_max)
        self._calls = 0
        self.draining = False
        self._drain_changes = 0
        self._registrar: Registrar | None = None
        #: Set while the broker waits for its name, and why.
        self._waiting: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._waits_because = ""
        self.store = MessageStore(
            config.store_config(),
            clock=self.clock,
            on_arrival=self._arrived,
            on_change=self._changed,
            on_fault=self._faulted,
            on_damage=self._damaged,
            on_clock=self._clock_noticed,
        )

    async def start(self, address: str) -> None:
        """Recover the store, register as `address`, and take calls.

        Raises StoreError, or BrokerNameTaken if another live process has the name and this broker
        was not told to wait for it.
        """
        loop = asyncio.get_running_loop()
        config = self.config
        self.completions = Completions(loop)
        self.executor = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="rocketq-work")
        self.held = LongPoll[arriving.Key](self.clock, config.held_calls_max, "messages")
        report = await loop.run_in_executor(self.executor, self.store.start)
        log.info("recovered", broker=config.name, data_dir=str(config.data_dir), report=str(report))
        self.decoding = DecodingRoom(loop, config.decoded_bytes_max, config.decoded_wait_ms_max)
        self.send = SendProcessor(
            config, self.store, self.completions, self.measurements, self.executor, self.decoding
        )
        self.pull = PullProcessor(
            config, self.store, self.held, self.outgoing, self.measurements, self.executor, self.decoding
        )
        self.offsets = OffsetsProcessor(self.store, self.held, self.executor)
        self.find = FindProcessor(config, self.store, self.executor, self.decoding)
        self.identity = BrokerIdentity(
            config.cluster,
            config.name,
            config.broker_id,
            (config.advertise or address).rstrip("/"),
            uuid.uuid4().hex,
        )
        self._registrar = Registrar(
            self.identity,
            config.nameservers,
            self,
            heartbeat_ms=config.heartbeat_ms,
            lease_ms=config.lease_ms,
            store=locked_store(config.data_dir),
            on_refused=lambda error: self.completions.post(self._displaced, error),
            clock=self.clock,
        )
        self.settler = Settler(config, self.store, self.clock, self._settled)
        self._settling = SettlingBatches(loop, self.settler.unsettled)
        try:
            await loop.run_in_executor(self.executor, self._registrar.claim)
        except BrokerNameTaken as error:
            if not config.wait_for_name:
                await self.stop()
                raise
            log.warning("waiting_for_name", broker=config.name, why=str(error))
            self.phase, self._waits_because = Phase.WAITING, error.message
            self._waiting = loop.create_task(self._wait_for_name(self._registrar))
        else:
            self._run(self._registrar)

    def _run(self, registrar: Registrar) -> None:
        self.phase = Phase.RUNNING
        registrar.start()
        self.settler.start()

    async def _wait_for_name(self, registrar: Registrar) -> None:
        """Ask for the name at every heartbeat, and run once this process has it."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self.config.heartbeat_ms / 1000)
            except TimeoutError:
                try:
                    await loop.run_in_executor(self.executor, registrar.claim)
                except BrokerNameTaken as error:
                    self._waits_because = error.message
                    continue
                if self._stopping.is_set():
                    await loop.run_in_executor(self.executor, registrar.withdraw)
                else:
                    self._run(registrar)
                return

    # --- what is registered with the NameServers --------------------------------------------

    @property
    def data_version(self) -> DataVersion:
        """The version of what `topics` returns."""
        version = self.store.data_version
        return replace(version, timestamp_ms=version.timestamp_ms + self._drain_changes)

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
            self._changed()

    def refuse_new_calls(self) -> None:
        """Begin to drain: leave the NameServers, take no new calls, answer those that wait."""
        self._stopping.set()
        if self.phase in (Phase.RUNNING, Phase.WAITING):
            self.phase = Phase.DRAINING
            self.held.release_all()
            self._settling.release_all()
        if self._registrar is not None:
            self._registrar.begin_stop()

    async def stop(self) -> None:
        """Close the store in good order, once no NameServer names this broker; it has no calls left."""
        self.refuse_new_calls()
        loop = asyncio.get_running_loop()
        if self._waiting is not None:
            await self._waiting
        if self._registrar is not None:
            await loop.run_in_executor(self.executor, self._registrar.stop)
            await loop.run_in_executor(self.executor, self.settler.stop)
        await loop.run_in_executor(self.executor, self.store.close)
        self.executor.shutdown()
        if self.phase not in (Phase.FAILED, Phase.DISPLACED):
            self.phase = Phase.STOPPED
        log.info("stopped", broker=self.config.name, calls_left=self._calls)

    # --- what the HTTP side asks ----------------------------------------------------------

    def enter(self) -> None:
        """Begin a call of the data plane or one that writes; raise BrokerUnavailable."""
        if self.phase is not Phase.RUNNING:
            raise BrokerUnavailable(self.config.name, self.phase.value)
        self._calls += 1

    def leave(self) -> None:
        """End a call that `enter` let in."""
        self._calls -= 1

    async def settled(self, sink: str, batch: int) -> tuple[str, ...]:
        """Wait, not for long, until a batch is published; return the participants that have not done it."""
        return await self._settling.wait(sink, batch, self.config.sink_settle_ms)

    def topic_altered(self, topic: str) -> None:
        """Let the calls that wait for a topic look at it again."""
        self.held.changed(arriving.altered(topic))

    def forget_topic(self, topic: str) -> None:
        """Drop what was kept of a deleted topic, and let its waiting calls find out."""
        self.measurements.forget_topic(topic)
        self.send.forget_topic(topic)
        self.topic_altered(topic)

    def problems(self) -> dict[str, str]:
        """Return what keeps this broker from being ready; empty when it is."""
        found = {}
        if self.phase is not Phase.RUNNING:
            found["broker"] = self._waits_because if self.phase is Phase.WAITING else self.phase.value
        if self._registrar is not None and not self._registrar.ready:
            found["nameservers"] = "; ".join(
                f"{each.nameserver}: {each.problem or 'not registered yet'}"
                for each in self._registrar.statuses()
            )
        free = shutil.disk_usage(self.config.data_dir).free
        if free < self.config.free_disk_bytes_min:
            found["disk"] = f"{free} bytes are free"
        return found

    # --- what the store's threads tell -----------------------------------------------------

    def _arrived(self, arrivals: Collection[tuple[str, int]]) -> None:
        self.completions.post(self.held.changed, arriving.arrived(arrivals))

    def _settled(self, sink: str, batch: int) -> None:
        self.completions.post(self._settling.settled, (sink, batch))

    def _changed(self) -> None:
        if self._registrar is not None:
            self._registrar.topics_changed()

    def _faulted(self, error: StoreError) -> None:
        log.critical("log_failed", broker=self.config.name, why=str(error), facts=error.facts)
        self.completions.post(self._failed, error)

    def _damaged(self, error: StoreError) -> None:
        log.error("damage_found", broker=self.config.name, code=error.code, why=str(error), facts=error.facts)

    def _clock_noticed(self, notice: ClockNotice) -> None:
        write = {"error": log.error, "warning": log.warning, "info": log.info}[notice.level]
        write(notice.event, broker=self.config.name, why=notice.message, facts=notice.facts)

    def _failed(self, error: StoreError) -> None:
        self._give_up(Phase.FAILED, error)

    def _displaced(self, error: BrokerNameTaken) -> None:
        log.critical("displaced", broker=self.config.name, why=str(error))
        self._give_up(Phase.DISPLACED, error)

    def _give_up(self, phase: Phase, error: RocketqError) -> None:
        if self.failure is not None:
            return
        self.phase, self.failure = phase, error
        self.held.release_all()
        self._settling.release_all()
        if self.on_failure is not None:
            self.on_failure()
