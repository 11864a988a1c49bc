"""A NameServer and brokers in this process that stop and start again, and what a sink's writer does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rocketq.clock import Clock, ManualClock
from rocketq.http_server.runner import ServerThread
from rocketq.model import Message, PullStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.nameserver_api import NameServerApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.sinks import (
    CommitBatchAnswer,
    CommitBatchRequest,
    Participant,
    StagedAnswer,
    StageName,
)
from rocketq_broker.app import BrokerApp, create_app
from rocketq_broker.config import BrokerConfig
from rocketq_nameserver.app import create_app as create_nameserver
from rocketq_nameserver.config import NameServerConfig
from tests.support.conditions import wait_until
from tests.support.http_client import stream
from tests.support.patience import patient_transport

#: Far longer than any answer takes.
CALL_MS = 60_000


@dataclass
class Node:
    """One broker, running or not; its data outlives its servers."""

    config: BrokerConfig
    clock: Clock | None
    transport: Transport
    running: ExitStack | None = None
    app: BrokerApp = field(init=False)
    api: BrokerApi = field(init=False)

    def start(self) -> Self:
        self.app = create_app(self.config, self.clock)
        server = ServerThread(self.app)
        self.app.bound(server.address)
        self.running = ExitStack()
        self.running.enter_context(server)
        self.api = BrokerApi(self.transport, self.config.name, server.address, timeout_ms=CALL_MS)
        return self

    def stop(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None

    def bodies(self, topic: str, queue: int = 0) -> list[bytes]:
        """Everything readers see in a queue."""
        found: list[bytes] = []
        at = 0
        while True:
            pulled = self.api.pull(topic, queue, at)
            if pulled.status is not PullStatus.FOUND:
                return found
            for piece in pulled.slices():
                found += piece.batch.column("body").to_pylist()
            at = pulled.next_offset


class SinkCluster:
    """Brokers named a, b, …; the first coordinates. Topic `t` has two queues on each."""

    def __init__(self, directory: Path, brokers: int, clock: Clock | None = None, **fields: Any) -> None:
        self._directory, self._count, self._clock, self._fields = directory, brokers, clock, fields
        self._stack = ExitStack()
        self.nodes: list[Node] = []

    def __enter__(self) -> Self:
        transport = self._stack.enter_context(patient_transport())
        nameserver = self._stack.enter_context(ServerThread(create_nameserver(NameServerConfig())))
        self.nameserver = NameServerApi(transport, nameserver.address)
        quick = {
            "sink_retry_ms": 20, "sink_commit_wait_ms": 30_000, "heartbeat_ms": 50, "lease_ms": 60_000,
            **self._fields,
        }  # fmt: skip
        for name in "abcdef"[: self._count]:
            config = BrokerConfig(
                name=name, data_dir=self._directory / name, port=0, nameservers=(nameserver.address,), **quick
            )
            node = Node(config, self._clock, transport)
            self._stack.callback(node.stop)
            self.nodes.append(node.start())
            node.api.create_topic("t", CreateTopicRequest(2, 2))
        wait_until(lambda: all(known_address(self, node.config.name) for node in self.nodes))
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def coordinator(self) -> BrokerApi:
        return self.nodes[0].api

    def begin(self, sink: str = "etl", run: str = "run-1", query: str = "query-1") -> None:
        self.coordinator.register_sink(sink, "a")
        self.coordinator.begin_run(sink, run, query)

    def bodies(self, queue: int = 0) -> list[list[bytes]]:
        return [node.bodies("t", queue) for node in self.nodes]


def stage(
    node: Node, bodies: Sequence[bytes], batch: int = 0, run: str = "run-1", sink: str = "etl", queue: int = 0
) -> StagedAnswer:
    name = StageName(sink, batch, run, "a")
    return node.api.stage(name, "t", [queue], stream([Message(body) for body in bodies]))


def look_later(cluster: SinkCluster, clock: ManualClock, ms: int) -> None:
    """Let time pass, and every broker do what is due then."""
    clock.advance(ms)
    for node in cluster.nodes:
        publisher = node.app.broker.publisher
        publisher.look()
        wait_until(lambda: publisher.calls == 0)  # noqa: B023


def stages(cluster: SinkCluster) -> list[int]:
    """How many undecided stages each broker has."""
    return [len(each.stages) for node in cluster.nodes for each in node.api.sinks().sinks]


def known_address(cluster: SinkCluster, broker: str) -> str:
    """Where the NameServer says that a broker is."""
    alive = cluster.nameserver.cluster().brokers
    return next((each.identity.address for each in alive if each.identity.broker == broker), "")


def participants(*answers: StagedAnswer) -> tuple[Participant, ...]:
    found: dict[str, list[StagedAnswer]] = {}
    for answer in answers:
        found.setdefault(answer.broker, []).append(answer)
    return tuple(
        Participant(
            broker,
            tuple(each.log_offset for one in some for each in one.staged),
            sum(each.count for one in some for each in one.staged),
        )
        for broker, some in found.items()
    )


def commit(
    api: BrokerApi,
    batch: int,
    *answers: StagedAnswer,
    run: str = "run-1",
    query: str = "query-1",
    sink: str = "etl",
) -> CommitBatchAnswer:
    return api.commit_batch(sink, batch, CommitBatchRequest(run, participants(*answers), query))
