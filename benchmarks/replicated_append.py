"""Appending to a group of three replicas, against three servers that only checksum and write the same bytes.

All processes are on this machine. Ours sends 1 MiB batches to the master, and each answer waits until all
three replicas hold the batch. The ceiling has no master: its client sends each body to three servers at once,
and waits for all three. Both are measured under asynchronous flush, where to hold is to have written, and
under sync flush, where it is to have synced. Each turn starts new servers on empty directories.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, drive, post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.model import FlushMode
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, CreateTopicRequest

REPLICAS: Final = 3
CONNECTIONS: Final = 4
QUEUES: Final = 8
TARGET: Final = 0.6
GROUP: Final = "broker-a"
TOPIC: Final = "bench"
WARM_UP_S: Final = 0.5
WAIT_MS: Final = 60_000


def requests(body: bytes) -> list[list[bytes]]:
    return [post(f"/v1/topics/{TOPIC}/messages?queue={each}", body, ARROW_STREAM) for each in range(QUEUES)]


def group_turn(flush: FlushMode, chosen: Options, body: bytes, costs: list[float]) -> float:
    """Send to the master of a new group; return bytes a second."""
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        LocalCluster(1, 1, directory, flush, replicas=REPLICAS) as cluster,
        ClusterAdmin(cluster.nameservers) as admin,
    ):
        admin.topics.create(TOPIC, CreateTopicRequest(QUEUES, QUEUES), wait_ms=WAIT_MS)
        status = admin.replicas.status(GROUP)
        assert sum(each.is_in_sync for each in status.replicas) == REPLICAS
        host, _, port = status.master.removeprefix("http://").partition(":")
        calls = requests(body)

        def one(connection: Connection, number: int, count: int) -> int:
            answer = connection.exchange(calls[(number + CONNECTIONS * count) % QUEUES], keep=True)
            if b'"SEND_OK"' not in answer.body:
                raise RuntimeError(f"not all replicas hold what was sent: {answer.body!r}")
            return len(body)

        pids = [cluster.pid(name) for name in cluster.brokers]
        drive(host, int(port), CONNECTIONS, WARM_UP_S, one)
        used = sum(map(servers.cpu_seconds_of, pids))
        rate = drive(host, int(port), CONNECTIONS, chosen.seconds, one)
        costs.append((sum(map(servers.cpu_seconds_of, pids)) - used) / (rate * chosen.seconds))
        return rate


def plain_turn(flush: FlushMode, chosen: Options, body: bytes, costs: list[float]) -> float:
    """Send to three plain servers at once; return bytes a second, counted once."""
    form = "sync" if flush is FlushMode.SYNC else "append"
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory, ExitStack() as stack:
        plain = [
            stack.enter_context(servers.ceiling(form, str(Path(directory) / f"log-{each}")))
            for each in range(REPLICAS)
        ]
        others = {
            (number, each.address): stack.enter_context(Connection(each.host, each.port))
            for number in range(CONNECTIONS)
            for each in plain[1:]
        }
        calls = requests(body)

        def one(connection: Connection, number: int, count: int) -> int:
            call = calls[(number + CONNECTIONS * count) % QUEUES]
            all_three = [connection, *(others[number, each.address] for each in plain[1:])]
            for each in all_three:
                each.send(call)
            for each in all_three:
                each.receive()
            return len(body)

        first = plain[0]
        drive(first.host, first.port, CONNECTIONS, WARM_UP_S, one)
        used = sum(each.cpu_seconds() for each in plain)
        rate = drive(first.host, first.port, CONNECTIONS, chosen.seconds, one)
        costs.append((sum(each.cpu_seconds() for each in plain) - used) / (rate * chosen.seconds))
        return rate


def measure(flush: FlushMode, chosen: Options, body: bytes) -> dict[str, Any]:
    ours, plain = Contestant("group of three"), Contestant("three bare ASGI, checksum and write")
    ours.turn = partial(group_turn, flush, chosen, body, ours.costs)
    plain.turn = partial(plain_turn, flush, chosen, body, plain.costs)
    say(f"-- {flush} flush: {len(body):,} bytes a request, {CONNECTIONS} connections, {QUEUES} queues")
    alternate([ours, plain], chosen.turns)
    return compare(ours, plain, "bytes", TARGET)


def main() -> None:
    chosen = options("replicated_append", "Append to a group of three replicas.", seconds=3, turns=3)
    introduce("replicated_append")
    body = write_stream([data.batch(data.MIB_ROWS, chosen.seed)]).to_pybytes()
    found = {str(flush): measure(flush, chosen, body) for flush in (FlushMode.ASYNC, FlushMode.SYNC)}
    report("replicated_append", chosen, found)


if __name__ == "__main__":
    main()
