"""A program that sends messages at a steady rate: `python -m benchmarks.peers.steady_sender`, see `main`.

Each tick it sends the messages that are due, and each side places them as it does by default. Where there is
one message for each queue a tick, it names the queues, so that each gets one. A message begins with the
microsecond when its tick was due, as 16 digits: a message that waits in the program counts as late too. It
prints, as JSON, how many it sent and the processor seconds that it used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

TICK_S: Final = 0.05
BODY_BYTES: Final = 100

#: Sends so many messages with this body, to one queue or (None) where the client places them.
Send = Callable[[bytes, int, int | None], None]


def rocketq_sender(address: str, topic: str) -> tuple[Send, Callable[[], None]]:
    import pyarrow as pa

    from rocketq import Client

    producer = Client(address.split(",")).producer()

    def send(body: bytes, messages: int, queue: int | None) -> None:
        table = pa.table({"body": pa.repeat(pa.scalar(body, pa.binary()), messages)})
        producer.send_batch(topic, table, queue=queue)

    return send, producer.close


def kafka_sender(address: str, topic: str) -> tuple[Send, Callable[[], None]]:
    import confluent_kafka  # type: ignore[import-not-found]

    failed: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": address})

    def check(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    def send(body: bytes, messages: int, queue: int | None) -> None:
        chosen = {} if queue is None else {"partition": queue}
        for _ in range(messages):
            producer.produce(topic, body, on_delivery=check, **chosen)
        producer.poll(0)

    def close() -> None:
        producer.flush()
        if failed:
            raise RuntimeError(str(failed[0]))

    return send, close


SENDERS: Final = {"rocketq": rocketq_sender, "kafka": kafka_sender}


def main() -> None:
    """Arguments: the side as Spark calls it, its address, a topic, its queues, messages a second, seconds."""
    name, address, topic = sys.argv[1:4]
    queues, rate, seconds = int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6])
    tick_s = max(TICK_S, queues / rate)
    due_rows = round(rate * tick_s)
    places = range(queues) if due_rows == queues else (None,)
    send, close = SENDERS[name](address, topic)
    ticks = round(seconds / tick_s)
    started = time.time()
    for tick in range(ticks):
        due = started + tick * tick_s
        time.sleep(max(0.0, due - time.time()))
        for place in places:
            send(b"%016d" % round(due * 1e6) + b"x" * (BODY_BYTES - 16), due_rows // len(places), place)
    close()
    used = os.times()
    print(json.dumps({"sent": ticks * due_rows, "processor_s": used.user + used.system}), flush=True)


if __name__ == "__main__":
    main()
