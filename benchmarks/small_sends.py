"""Single messages of 100 bytes from 32 connections, against a bare ASGI application that echoes them.

Each message is sent in its plain form, its body as the request's body. The broker checks it, makes one
batch of what comes together for a queue, writes the log and the units and answers with the offset;
asynchronous flush.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.append import TOPIC, create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.http import post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report
from benchmarks.kit.senders import drive_small
from benchmarks.kit.servers import Server
from rocketq.protocol.documents.broker import OCTET_STREAM

CONNECTIONS: Final = 32
QUEUES: Final = 4
TARGET: Final = 0.45


def send_singles(server: Server, seconds: float, body: bytes, connections: int = CONNECTIONS) -> float:
    """Send one message a request from all connections; return messages a second."""
    requests = [
        b"".join(post(f"{TOPIC}/messages?queue={number % QUEUES}", body, OCTET_STREAM))
        for number in range(connections)
    ]
    return drive_small(server.host, server.port, requests, seconds)


def _turn(chosen: Options, body: bytes, ours: bool, costs: list[float]) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        servers.broker(Path(directory)) if ours else servers.ceiling("echo", "-") as server,
    ):
        if ours:
            create_topic(server, queues=QUEUES)
        send_singles(server, 0.5, body)
        return servers.processor_cost(
            server, costs, chosen.seconds, lambda: send_singles(server, chosen.seconds, body)
        )


def main() -> None:
    chosen = options("small_sends", "Single messages from 32 connections.", seconds=4)
    introduce("small_sends")
    body = data.bodies(1, chosen.seed)[0].as_py()
    ours, echo = Contestant("broker"), Contestant("bare ASGI, echo")
    ours.turn = partial(_turn, chosen, body, True, ours.costs)
    echo.turn = partial(_turn, chosen, body, False, echo.costs)
    alternate([ours, echo], chosen.turns)
    report("small_sends", chosen, {"singles": compare(ours, echo, "calls", TARGET)})


if __name__ == "__main__":
    main()
