"""A group of replicas that goes on while the network between its processes is cut.

Brokers reach each other and the NameServers by lines of a faulty network. Beside the producers of every run,
one sends to each broker, whoever is master, on a way that is never cut: it sees what a former master says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rocketq.errors import RocketqError
from rocketq.model import SendStatus
from rocketq.net.broker_api import BrokerApi
from tests.support import office_history
from tests.support.conditions import wait_until
from tests.support.crash_history import Message
from tests.support.faulty_network import FaultyNetwork, ways_between
from tests.support.office_history import Acknowledged, Place
from tests.support.replicated_run import GROUP, PRODUCERS, TOPIC, ReplicatedRun, Strike, frames_pulled

#: A broker answers a send within 3 s, also one that it cannot confirm.
_SEND_MS: Final = 10_000
_PAUSE_S: Final = 0.02


class PartitionedRun(ReplicatedRun):
    """One cluster of one group whose network can be cut."""

    def __init__(self, directory: Path, seed: int, *, nameservers: int = 3) -> None:
        self.network = FaultyNetwork()
        self._lines: dict[str, list[str]] = {}
        self._acks: list[Acknowledged] = []
        super().__init__(directory, seed, nameservers=nameservers)

    def __enter__(self) -> PartitionedRun:
        self.network.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.network.heal(is_late=False)
        super().__exit__(*_)
        self.network.__exit__()

    @property
    def queues(self) -> int:
        return len(PRODUCERS) + self.cluster.replicas

    @property
    def nameservers(self) -> list[str]:
        return [name for name in self.cluster.names if name not in self.cluster.brokers]

    def broker_arguments(self, broker: str) -> list[str]:
        if broker not in self._lines:
            own = self.network.line(broker, lambda: self.cluster.brokers[broker], group=GROUP)
            to_nameservers = [
                self.network.line(name, lambda name=name: self.cluster.addresses[name], caller=broker)  # type: ignore[misc]
                for name in self.nameservers
            ]
            self._lines[broker] = [*("--advertise", own), *("--nameservers", ",".join(to_nameservers))]
        return [*super().broker_arguments(broker), *self._lines[broker]]

    def begin(self) -> None:
        super().begin()
        for number, broker in enumerate(self.cluster.brokers):
            self.go(self._send_to, broker, len(PRODUCERS) + number)

    def _send_to(self, broker: str, queue: int) -> None:
        """Send to one broker only, one message after the other."""
        api = BrokerApi(self.transport, GROUP, self.cluster.brokers[broker], timeout_ms=_SEND_MS)
        number = 0
        while not self.ending.wait(_PAUSE_S):
            message, number = Message(f"only {broker}", number), number + 1
            begun_ns = time.monotonic_ns()
            try:
                answer = api.send_one(TOPIC, queue, "", message.encode())
            except RocketqError:
                with self.lock:
                    self.history.doubt([message], queue)
                continue
            answered_ns, piece = time.monotonic_ns(), answer.appended[0]
            with self.lock:
                if answer.status is SendStatus.SEND_OK:
                    self.history.ack([message], queue, piece.offset)
                    self._acks.append(Acknowledged(broker, (queue, piece.offset), begun_ns, answered_ns))
                else:
                    self.history.doubt([message], queue)

    def await_office_elsewhere(self, former: str) -> None:
        """Wait until another broker than this one has acknowledged what was sent to it alone."""
        known = len(self._acks)
        wait_until(lambda: any(each.broker != former for each in self._acks[known:]) or bool(self.faults))
        assert not self.faults, self.faults

    def check(self) -> None:
        """Check the history, and in whose epochs acknowledged messages lie."""
        super().check()
        api = BrokerApi(self.transport, GROUP, self.cluster.brokers[self.master])
        epochs = {place: epoch for queue in range(self.queues) for place, epoch in epochs_of(api, queue)}
        assert not (found := office_history.violations(self._acks, epochs)), "\n".join(found[:20])


def epochs_of(api: BrokerApi, queue: int) -> Iterator[tuple[Place, int]]:
    """Yield each place of a queue, and in which epoch it was written."""
    for piece in frames_pulled(api, queue, 0):
        for index in range(piece.rows):
            yield (queue, piece.offset + index), piece.header.epoch


def cut_off_master(peers: str, direction: str) -> Strike:
    """Cut the master off from the "slaves", the "nameservers", or "both"; in a direction seen from it."""

    def strike(run: ReplicatedRun) -> Callable[[], None]:
        assert isinstance(run, PartitionedRun)
        former, slaves, nameservers = run.master, run.slaves(), run.nameservers
        others = {"slaves": slaves, "nameservers": nameservers, "both": [*slaves, *nameservers]}[peers]
        return _cut(run, former, others, direction, is_replaced=peers != "nameservers")

    return strike


def cut_off_from_one(direction: str) -> Strike:
    """Cut the way between the master and one slave; the other one and the NameServers are reached by both."""

    def strike(run: ReplicatedRun) -> Callable[[], None]:
        assert isinstance(run, PartitionedRun)
        return _cut(run, run.master, [run.slave()], direction, is_replaced=False)

    return strike


def cut_off_slave(direction: str) -> Strike:
    """Cut a slave off from everybody."""

    def strike(run: ReplicatedRun) -> Callable[[], None]:
        assert isinstance(run, PartitionedRun)
        slave = run.slave()
        others = [name for name in run.cluster.names if name != slave]
        return _cut(run, slave, others, direction, is_replaced=False)

    return strike


def _cut(
    run: PartitionedRun, node: str, others: list[str], direction: str, *, is_replaced: bool
) -> Callable[[], None]:
    run.network.cut(ways_between(node, others, direction))
    if is_replaced:
        run.await_office_elsewhere(node)
    is_late = run.rng.random() < 0.5
    return lambda: run.network.heal(is_late=is_late)
