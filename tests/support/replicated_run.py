"""Producers and readers of a group of replicas that goes on while its processes are killed and paused.

Each producer sends one message after the other to its own queue, so their order is known. Readers pull from
all replicas: what any of them has shown once must stay.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import NotMaster, OutcomeUnknown, RocketqError
from rocketq.model import MessageQueue, PullStatus, SendStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.replication import ReplicationStatus
from rocketq.protocol.frame_slices import FrameSlice
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.crash_history import History, Message, check
from tests.support.log_damage import log_below
from tests.support.patience import PATIENT, PatientClient

GROUP: Final = "broker-a"
TOPIC: Final = "orders"
PRODUCERS: Final = ("ann", "bob")

Strike = Callable[["ReplicatedRun"], Callable[[], None]]


class ReplicatedRun:
    """One cluster of one group, and its history; a context manager."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        replicas: int = 3,
        nameservers: int = 3,
        etcd: str = "",
        pause_s: float = 0.0,
    ) -> None:
        """`etcd` is the address of one that keeps the register in place of the NameServers.

        A producer rests for `pause_s` after each send, so that those have time who follow it.
        """
        self.rng = random.Random(seed)
        self._pause_s = pause_s
        self._register = ["--etcd", etcd] if etcd else []
        self.cluster = LocalCluster(
            1, nameservers, directory, "sync", replicas=replicas, broker_arguments=self.broker_arguments
        )
        self.history = History()
        self.acks = 0
        #: Sends that had no answer until their time was over, or were refused.
        self.failures = 0
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self.transport = Transport(PATIENT)
        self.faults: list[BaseException] = []

    def __enter__(self) -> ReplicatedRun:
        self.cluster.start()
        self.admin = ClusterAdmin(self.cluster.nameservers)
        wait_until(self._have_topic)
        self.begin()
        return self

    def _have_topic(self) -> bool:
        """Create the topic; False if the group elected meanwhile, as it does on a very busy machine."""
        request = CreateTopicRequest(self.queues, self.queues, if_absent=True)
        try:
            self.admin.topics.create(TOPIC, request, wait_ms=WAIT_MS)
        except (OutcomeUnknown, NotMaster):
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self.end()
        self.admin.close()
        self.transport.close()
        self.cluster.close()

    @property
    def queues(self) -> int:
        """How many queues the topic has: one for each producer."""
        return len(PRODUCERS)

    def broker_arguments(self, _: str) -> list[str]:
        """What the process of a broker is told more."""
        return ["--segment-bytes", "100000", *self._register]

    def begin(self) -> None:
        """Begin what goes on."""
        for queue, name in enumerate(PRODUCERS):
            self.go(self._produce, name, queue)
        self.go(self._read)

    def end(self) -> None:
        """End what goes on."""
        self.ending.set()
        for thread in self._threads:
            thread.join()

    def go(self, work: Callable[..., None], *arguments: object) -> None:
        """Have something go on on a thread of its own until `ending`."""

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.faults.append(error)
                raise

        self._threads.append(thread := threading.Thread(target=run, name=f"{work.__name__}-{arguments}"))
        thread.start()

    # --- what goes on ---------------------------------------------------------------------

    def _produce(self, name: str, queue: int) -> None:
        with PatientClient(self.cluster.nameservers) as client:
            producer, number = client.producer(), 0
            while not self.ending.wait(self._pause_s):
                message, number = Message(name, number), number + 1
                try:
                    place = MessageQueue(TOPIC, GROUP, queue)
                    result = producer.send(TOPIC, message.encode(), queue=place, timeout_ms=WAIT_MS)
                except RocketqError:
                    self.failures += 1
                    with self.lock:
                        self.history.doubt([message], queue)
                    continue
                with self.lock:
                    if result.status is SendStatus.SEND_OK:
                        self.history.ack([message], queue, result.offset)
                        self.acks += 1
                    else:
                        self.history.doubt([message], queue)

    def _read(self) -> None:
        rng, offsets = random.Random(0), dict[tuple[str, int], int]()
        while not self.ending.wait(0.02):
            name, queue = rng.choice(list(self.cluster.brokers)), rng.randrange(self.queues)
            api = BrokerApi(self.transport, GROUP, self.cluster.brokers[name], timeout_ms=1_000)
            at = offsets.get((name, queue), 0)
            try:
                found, after = pulled(api, queue, at)
            except RocketqError:
                continue
            with self.lock:
                self.history.observe({queue: found})
            offsets[name, queue] = after

    # --- what goes wrong ------------------------------------------------------------------

    def live(self, strike: Strike) -> None:
        """Let something go wrong while sends are under way; then heal it, and wait until all are in sync."""
        self.go_on(self.rng.randrange(1, 20))
        heal = strike(self)
        self.go_on(self.rng.randrange(5, 20))
        heal()
        wait_until(self.is_whole)

    def go_on(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        enough = self.acks + count
        wait_until(lambda: self.acks >= enough or bool(self.faults))
        assert not self.faults, self.faults

    def is_whole(self) -> bool:
        try:
            status = self.admin.replicas.status(GROUP)
        except RocketqError:
            return False
        return status.role == "master" and all(each.is_in_sync for each in status.replicas)

    def status(self) -> ReplicationStatus:
        return self.admin.replicas.status(GROUP)

    @property
    def master(self) -> str:
        """The name of the master's process."""
        status = self.status()
        assert status.role == "master"
        return f"{GROUP}.{status.number}"

    def slaves(self) -> list[str]:
        master = self.master
        return [name for name in self.cluster.brokers if name != master]

    def slave(self) -> str:
        return self.rng.choice(self.slaves())

    # --- what must hold -------------------------------------------------------------------

    def check(self) -> None:
        """End the producers, and hold what each replica has against the history."""
        self.end()
        assert not self.faults, self.faults
        wait_until(self.is_whole)
        end = self.status().end
        for address in self.cluster.brokers.values():
            api = BrokerApi(self.transport, GROUP, address)
            wait_until(lambda api=api: self._confirmed(api) >= end)  # type: ignore[misc]
            found = {queue: pulled(api, queue, 0)[0] for queue in range(self.queues)}
            violations = check(self.history, found, {})
            assert not violations, "\n".join(map(str, violations[:20]))
        logs = {name: log_below(self.cluster.data_dir / name, end) for name in self.cluster.brokers}
        assert len(set(logs.values())) == 1, {name: len(log) for name, log in logs.items()}

    def _confirmed(self, api: BrokerApi) -> int:
        return ReplicationApi(self.transport, GROUP, api.address).status().confirmed


def pulled(api: BrokerApi, queue: int, offset: int) -> tuple[list[tuple[int, Message]], int]:
    """Return what one replica shows of a queue from an offset on, and where that ends."""
    found: list[tuple[int, Message]] = []
    for piece in frames_pulled(api, queue, offset):
        bodies = piece.batch.column("body").to_pylist()
        found += [(piece.offset + index, Message.decode(body)) for index, body in enumerate(bodies)]
        offset = piece.offset + len(bodies)
    return found, offset


def frames_pulled(api: BrokerApi, queue: int, offset: int) -> Iterator[FrameSlice]:
    """Yield the messages that one replica shows of a queue from an offset on, frame by frame."""
    while (answer := api.pull(TOPIC, queue, offset)).status is PullStatus.FOUND:
        yield from answer.slices()
        offset = answer.next_offset


def kill_master(run: ReplicatedRun) -> Callable[[], None]:
    return _kill(run, run.master)


def kill_slave(run: ReplicatedRun) -> Callable[[], None]:
    return _kill(run, run.slave())


def kill_nameserver(run: ReplicatedRun) -> Callable[[], None]:
    return _kill(run, f"nameserver-{run.rng.randint(1, len(run.cluster.nameservers))}")


def pause_master(run: ReplicatedRun) -> Callable[[], None]:
    return _pause(run, run.master)


def pause_slave(run: ReplicatedRun) -> Callable[[], None]:
    return _pause(run, run.slave())


def lose_disk_of_master(run: ReplicatedRun) -> Callable[[], None]:
    return _lose_disk(run, run.master)


def lose_disk_of_slave(run: ReplicatedRun) -> Callable[[], None]:
    return _lose_disk(run, run.slave())


def hand_over(run: ReplicatedRun) -> Callable[[], None]:
    run.admin.replicas.hand_over(GROUP)
    return lambda: None


def rolling_restart(run: ReplicatedRun) -> Callable[[], None]:
    """What docs/replication.md says of planned work: each slave in turn, then the master."""
    former = run.master
    for name in run.slaves():
        run.cluster.restart(name)
        wait_until(run.is_whole)
    run.cluster.restart(former)
    return lambda: None


STRIKES: Final[tuple[Strike, ...]] = (
    kill_master, pause_master, kill_slave, kill_nameserver, pause_slave, hand_over, lose_disk_of_master,
    lose_disk_of_slave,
)  # fmt: skip


def _kill(run: ReplicatedRun, name: str) -> Callable[[], None]:
    run.cluster.kill(name)
    return lambda: run.cluster.restart(name)


def _lose_disk(run: ReplicatedRun, name: str) -> Callable[[], None]:
    """Kill a broker, and let it come back with an empty directory."""
    run.cluster.kill(name)
    shutil.rmtree(run.cluster.data_dir / name)
    return lambda: run.cluster.restart(name)


def _pause(run: ReplicatedRun, name: str) -> Callable[[], None]:
    run.cluster.pause(name)
    return lambda: run.cluster.resume(name)
