"""Messages that failed: what many of them that wait for another attempt cost a send, and sending them back.

    outstanding   single messages from 32 connections, while 100,000 messages wait in a retry topic, against
                  the same while ten wait
    sending back  how many messages a second a broker takes back, in calls of 1,000

Asynchronous flush; each turn starts a broker on an empty directory.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.append import create_topic
from benchmarks.delayed import BATCH_ROWS, QUEUES, TOPIC, TOPIC_NAME, send_singles
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM
from rocketq.protocol.documents.groups import Heartbeat, QueueOfTopic, Subscription
from rocketq.protocol.documents.send_backs import FailedMessage, SendBackOutcome, SendBackRequest

OUTSTANDING: Final = 100_000
HOUR_MS: Final = 3_600_000
CALL: Final = 1_000
#: The most that a send may cost more is a tenth.
SAME: Final = 0.9


def send_back(server: Server, count: int, seed: int) -> float:
    """Send so many messages and send each back, to be tried again in an hour; return messages a second."""
    with Connection(server.host, server.port) as connection:
        for first in range(0, count, BATCH_ROWS):
            body = write_stream([data.batch(min(BATCH_ROWS, count - first), seed + first)]).to_pybytes()
            connection.exchange(post(f"{TOPIC}/messages?queue=0", body, ARROW_STREAM))
    with Transport() as transport:
        api = BrokerApi(transport, "broker", server.address)
        api.heartbeat("bench", "member", Heartbeat(1, (Subscription(TOPIC_NAME),)))
        claim = api.claim_queues("bench", "member", [QueueOfTopic(TOPIC_NAME, 0)]).granted[0]
        began = time.perf_counter()
        for first in range(0, count, CALL):
            offsets = range(first, min(count, first + CALL))
            messages = tuple(
                FailedMessage(TOPIC_NAME, 0, claim.epoch, offset, delay_ms=HOUR_MS, reason="it failed")
                for offset in offsets
            )
            answer = api.send_back("bench", SendBackRequest("member", messages))
            assert set(answer.outcomes) == {SendBackOutcome.RETRY}
        return count / (time.perf_counter() - began)


def _sends(chosen: Options, body: bytes, outstanding: int, costs: list[float], rates: list[float]) -> float:
    """Return single messages a second, while so many wait."""
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        servers.broker(Path(directory)) as server,
    ):
        create_topic(server, queues=QUEUES)
        rates.append(send_back(server, outstanding, chosen.seed))
        send_singles(server, 1.0, body, None)
        measure = partial(send_singles, server, chosen.seconds, body, None)
        return servers.processor_cost(server, costs, chosen.seconds, measure)


def main() -> None:
    chosen = options("retried", "Messages that failed.", seconds=4, turns=3, messages=OUTSTANDING)
    introduce("retried")
    body = data.bodies(1, chosen.seed)[0].as_py()
    rates: list[float] = []
    many, few = Contestant(f"with {chosen.messages:,} waiting"), Contestant("with ten waiting")
    many.turn = partial(_sends, chosen, body, chosen.messages, many.costs, rates)
    few.turn = partial(_sends, chosen, body, 10, few.costs, [])
    alternate([many, few], chosen.turns)
    told: dict[str, Any] = {"outstanding": compare(many, few, "calls", SAME)}
    told["sent_back_per_second"] = round(sorted(rates)[len(rates) // 2])
    say(f"sent back: {told['sent_back_per_second']:,} messages/s")
    report("retried", chosen, told)


if __name__ == "__main__":
    main()
