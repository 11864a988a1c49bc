"""`Producer.send` of one 100-byte message after the other, against `http.client` and a server that echoes.

One thread, one connection. The ceiling posts the same body with Python's own HTTP client to a bare ASGI
application that answers it with itself. Ours finds the topic's route, chooses a queue, sends the message to a
broker, which writes it to its log, and returns where the message is; asynchronous flush. Both servers are
processes on this machine. The median round trip of a turn counts, because a send passes two threads more than
an echo, and other work on the machine makes each of these hand-overs wait.
"""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.kit import data, servers
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report
from rocketq import Client, LocalCluster

TARGET: Final = 0.5
TOPIC: Final = "bench"
QUEUES: Final = 4
#: Calls before each turn, which are not measured.
WARM_UP: Final = 200


def rate(call: Callable[[], object], seconds: float) -> float:
    """Call again and again for a time; return how many calls of median length fit a second."""
    for _ in range(WARM_UP):
        call()
    lengths = []
    deadline = time.perf_counter() + seconds
    while (began := time.perf_counter()) < deadline:
        call()
        lengths.append(time.perf_counter() - began)
    return 1 / statistics.median(lengths)


def _echo(chosen: Options, body: bytes) -> float:
    with servers.ceiling("echo", "-") as server:
        connection = http.client.HTTPConnection(server.host, server.port)

        def call() -> None:
            connection.request("POST", f"/v1/topics/{TOPIC}/messages?queue=0", body=body)
            connection.getresponse().read()

        measured = rate(call, chosen.seconds)
        connection.close()
        return measured


def _send(chosen: Options, body: bytes) -> float:
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as client:
        client.create_topic(TOPIC, queues=QUEUES)
        with client.producer() as producer:
            return rate(lambda: producer.send(TOPIC, body), chosen.seconds)


def main() -> None:
    chosen = options("sync_send", "Synchronous sends, one after the other.", seconds=3)
    introduce("sync_send")
    body = data.bodies(1, chosen.seed)[0].as_py()
    ours = Contestant("Producer.send", partial(_send, chosen, body))
    echo = Contestant("http.client, bare ASGI, echo", partial(_echo, chosen, body))
    alternate([ours, echo], chosen.turns)
    report("sync_send", chosen, {"sync": compare(ours, echo, "calls", TARGET)})


if __name__ == "__main__":
    main()
