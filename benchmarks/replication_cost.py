"""What replication costs a master: appends of 1 MiB batches to a group of three brokers, and to one of one.

The same client sends the same bytes to each master over the same connections; all brokers flush
asynchronously, on one machine. The slaves and the client share the processors with the master, so its rate
falls by what they take. What replication costs the master itself is its own processor time for each byte:
the ratio of the two is what counts. Each turn starts a new group on an empty directory.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.kit import data
from benchmarks.kit.http import Connection, drive, post, request
from benchmarks.kit.instrument import Contestant, Options, alternate, introduce, options, report, say
from benchmarks.kit.servers import cpu_seconds_of
from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM

CONNECTIONS: Final = 4
QUEUES: Final = 8
REPLICAS: Final = 3
#: A master under asynchronous replication keeps so much of its throughput, by its own processor time.
TARGET: Final = 0.85
WAIT_S: Final = 30.0
TOPIC: Final = "/v1/topics/bench"
GROUP: Final = "broker-a"


def send_for(host: str, port: int, seconds: float, body: bytes) -> float:
    """Send `body` from all connections, each to queues of its own; return bytes a second."""
    requests = [post(f"{TOPIC}/messages?queue={queue}", body, ARROW_STREAM) for queue in range(QUEUES)]

    def one(connection: Connection, number: int, count: int) -> int:
        connection.exchange(requests[(number + CONNECTIONS * count) % QUEUES])
        return len(body)

    return drive(host, port, CONNECTIONS, seconds, one)


def master_of(cluster: LocalCluster, replicas: int) -> str:
    """Return the name of the master's process, once all replicas are in sync."""
    if replicas == 1:
        return GROUP
    deadline = time.monotonic() + WAIT_S
    with ClusterAdmin(cluster.nameservers) as admin:
        while True:
            status = admin.replicas.status(GROUP)
            if len(status.replicas) == replicas and all(each.is_in_sync for each in status.replicas):
                return next(name for name, each in cluster.brokers.items() if each == status.master)
            if time.monotonic() > deadline:
                raise SystemExit("the group is not whole")
            time.sleep(0.05)


class Group(Contestant):
    """A group of brokers; `costs` are its master's seconds for a byte, `of_slaves` those of its slaves."""

    def __init__(self, name: str, replicas: int, *arguments: str) -> None:
        super().__init__(name)
        self.replicas, self.arguments = replicas, arguments
        self.of_slaves: list[float] = []

    def measured(self, chosen: Options, body: bytes) -> float:
        with (
            tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
            LocalCluster(1, 1, directory, replicas=self.replicas, broker_arguments=self.arguments) as cluster,
        ):
            master = master_of(cluster, self.replicas)
            place = urlsplit(cluster.brokers[master])
            host, port = str(place.hostname), int(place.port or 0)
            with Connection(host, port) as connection:
                connection.exchange(
                    request("PUT", TOPIC, b'{"read_queues": %d, "write_queues": %d}' % (QUEUES, QUEUES))
                )
            send_for(host, port, 0.3, body)
            before = {name: cpu_seconds_of(cluster.pid(name)) for name in cluster.brokers}
            rate = send_for(host, port, chosen.seconds, body)
            used = {name: cpu_seconds_of(cluster.pid(name)) - before[name] for name in cluster.brokers}
        size = rate * chosen.seconds
        self.costs.append(used.pop(master) / size)
        self.of_slaves.append(sum(used.values()) / size)
        return rate


def main() -> None:
    chosen = options("replication_cost", "What replication costs a master.", seconds=4, turns=3)
    introduce("replication_cost")
    body = write_stream([data.batch(data.MIB_ROWS, chosen.seed)]).to_pybytes()
    alone = Group("one broker", 1)
    groups = [
        Group("three brokers, async", REPLICAS, "--replication", "async"),
        Group("three brokers, sync", REPLICAS),
    ]
    for each in (alone, *groups):
        each.turn = partial(each.measured, chosen, body)
    alternate([alone, *groups], chosen.turns)
    found: dict[str, Any] = {"target": TARGET}
    for each in (alone, *groups):
        kept = alone.cost / each.cost
        of_slaves = sum(each.of_slaves) / len(each.of_slaves)
        goal = ""
        if each is groups[0]:
            goal = f"   target >= {TARGET:.0%}  {'met' if kept >= TARGET else 'MISSED'}"
        say(
            f"{each.name:<22} {each.median / 1e6:6.0f} MB/s   processor time a GB: "
            f"master {each.cost * 1e9:.2f} s, slaves {of_slaves * 1e9:.2f} s   kept {kept:.0%}{goal}"
        )
        found[each.name] = {
            "bytes_per_second": each.rates, "master_seconds_per_byte": each.costs,
            "slave_seconds_per_byte": each.of_slaves, "kept": kept,
        }  # fmt: skip
    report("replication_cost", chosen, found)


if __name__ == "__main__":
    main()
