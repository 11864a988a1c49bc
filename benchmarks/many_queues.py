"""Ten thousand queues on one broker: memory, open files, and the time to start again.

A thousand topics of ten queues each get a message in every queue; then the broker is stopped and
started again.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.append import create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, get, post
from benchmarks.kit.instrument import introduce, options, report, say
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM

TOPICS: Final = 1_000
QUEUES: Final = 10
RSS_TARGET: Final = 400_000_000
START_TARGET_S: Final = 5.0


def measure(seed: int) -> dict[str, Any]:
    body = write_stream([data.batch(10, seed)] * QUEUES).to_pybytes()
    queues = ",".join(map(str, range(QUEUES)))
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as name:
        directory = Path(name)
        with servers.broker(directory) as broker, Connection(broker.host, broker.port) as connection:
            for number in range(TOPICS):
                create_topic(broker, f"/v1/topics/t{number}", QUEUES)
                connection.exchange(post(f"/v1/topics/t{number}/messages?queue={queues}", body, ARROW_STREAM))
            filled = broker.memory_bytes()
            descriptors = len(os.listdir(f"/proc/{broker.pid}/fd"))
        started = time.perf_counter()
        with servers.broker(directory) as broker, Connection(broker.host, broker.port) as connection:
            connection.exchange(get("/readyz"))
            start_s = time.perf_counter() - started
            for number in range(TOPICS):
                connection.exchange(get(f"/v1/topics/t{number}/queues/{number % QUEUES}/messages?offset=0"))
            again = broker.memory_bytes()
            descriptors = max(descriptors, len(os.listdir(f"/proc/{broker.pid}/fd")))
    memory = max(filled, again)
    say(f"{TOPICS * QUEUES:,} queues, each written")
    met = "met" if memory < RSS_TARGET else "MISSED"
    say(f"resident {memory / 1e6:,.0f} MB   target < {RSS_TARGET / 1e6:,.0f} MB   {met}")
    met = "met" if start_s < START_TARGET_S else "MISSED"
    say(f"started again in {start_s:.2f} s   target < {START_TARGET_S:.0f} s   {met}")
    say(f"open files at most {descriptors}")
    return {
        "queues": TOPICS * QUEUES,
        "resident_bytes": {"filled": filled, "again": again, "target": RSS_TARGET},
        "start_s": start_s,
        "start_target_s": START_TARGET_S,
        "open_files": descriptors,
    }


def main() -> None:
    chosen = options("many_queues", "Ten thousand queues on one broker.", turns=1)
    introduce("many_queues")
    report("many_queues", chosen, measure(chosen.seed))


if __name__ == "__main__":
    main()
