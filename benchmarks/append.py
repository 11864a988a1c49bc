"""Appending: 1 MiB batches of 100-byte messages over HTTP, against a server that only checksums and writes.

Both servers are processes on this machine and get the same bytes from the same client
over the same number of connections; both write to the page cache of the same disk
(asynchronous flush). The broker also checks every batch in full, keeps a ConsumeQueue
unit for each message, and answers with offsets. Each turn starts a new server on an
empty directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, drive, post, request
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM

CONNECTIONS: Final = 4
QUEUES: Final = 8
TARGET: Final = 0.6
TOPIC: Final = "/v1/topics/bench"


def send_for(server: Server, seconds: float, body: bytes) -> float:
    """Send `body` from all connections, each to queues of its own; return bytes a second."""
    requests = [post(f"{TOPIC}/messages?queue={queue}", body, ARROW_STREAM) for queue in range(QUEUES)]

    def one(connection: Connection, number: int, count: int) -> int:
        connection.exchange(requests[(number + CONNECTIONS * count) % QUEUES])
        return len(body)

    return drive(server.host, server.port, CONNECTIONS, seconds, one)


def create_topic(server: Server, path: str = TOPIC, queues: int = QUEUES) -> None:
    with Connection(server.host, server.port) as connection:
        body = b'{"read_queues": %d, "write_queues": %d}' % (queues, queues)
        connection.exchange(request("PUT", path, body))


def turn(start: Callable[[Path], AbstractContextManager[Server]], chosen: Options, body: bytes,
         costs: list[float]) -> float:  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        start(Path(directory)) as server,
    ):
        if "rocketq_broker" in server.command:
            create_topic(server)
        send_for(server, 0.3, body)
        return servers.processor_cost(
            server, costs, chosen.seconds, lambda: send_for(server, chosen.seconds, body)
        )


def _bare(directory: Path) -> Server:
    return servers.ceiling("append", str(directory / "log"))


def measure(chosen: Options, name: str, *, tags: bool, keys: bool) -> dict[str, Any]:
    body = write_stream([data.batch(data.MIB_ROWS, chosen.seed, tags=tags, keys=keys)]).to_pybytes()
    ours, bare = Contestant("broker"), Contestant("bare ASGI, checksum and write")
    ours.turn = partial(turn, servers.broker, chosen, body, ours.costs)
    bare.turn = partial(turn, _bare, chosen, body, bare.costs)
    say(f"-- {name}: {len(body):,} bytes a request, {CONNECTIONS} connections, {QUEUES} queues")
    alternate([ours, bare], chosen.turns)
    result = compare(ours, bare, "bytes", TARGET)
    result["messages_per_second"] = ours.median / len(body) * data.MIB_ROWS
    return result


def main() -> None:
    chosen = options("append", "Append 1 MiB batches through the broker.", seconds=4)
    introduce("append")
    report("append", chosen, {
        "bodies": measure(chosen, "bodies only", tags=False, keys=False),
        "keys_and_tags": measure(chosen, "bodies, keys and tags", tags=True, keys=True),
    })  # fmt: skip


if __name__ == "__main__":
    main()
