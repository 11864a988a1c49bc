"""Restarting a broker with 20 GB of log: after a stop in good order, and after kill -9.

The page cache is left as it is, and it cannot hold the log. Counted is the time from starting the
process to its answer that it is ready.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.append import TOPIC, create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, drive, get, post
from benchmarks.kit.instrument import introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM

LOG_BYTES: Final = 20_000_000_000
TARGET_S: Final = 5.0
QUEUES: Final = 8


def fill(server: Server, body: bytes, log_bytes: int) -> None:
    requests = [post(f"{TOPIC}/messages?queue={queue}", body, ARROW_STREAM) for queue in range(QUEUES)]
    each = log_bytes // len(body) // 2

    def one(connection: Connection, number: int, count: int) -> int:
        for turn in range(each):
            connection.exchange(requests[(2 * turn + number) % QUEUES])
        return each

    # Long enough for both threads to begin, and for neither to begin again.
    drive(server.host, server.port, 2, 0.5, one)


def start_again(directory: Path) -> tuple[Server, float]:
    started = time.perf_counter()
    server = servers.broker(directory).__enter__()
    with Connection(server.host, server.port) as connection:
        connection.exchange(get("/readyz"))
    return server, time.perf_counter() - started


def measure(seed: int, log_bytes: int) -> dict[str, Any]:
    body = write_stream([data.batch(4 * data.MIB_ROWS, seed)]).to_pybytes()
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as name:
        directory = Path(name)
        with servers.broker(directory) as broker:
            create_topic(broker, queues=QUEUES)
            fill(broker, body, log_bytes)
        server, clean = start_again(directory)
        say(f"after a stop in good order   {clean:6.2f} s")
        fill(server, body, 1_000_000_000)
        server.kill()
        size = int(subprocess.check_output(["du", "-sb", str(directory / "commitlog")]).split()[0])
        server, killed = start_again(directory)
        server.__exit__(None, None, None)
        say(f"after kill -9 under load     {killed:6.2f} s")
    worst = max(clean, killed)
    say(f"{size / 1e9:.1f} GB of log   target < {TARGET_S:.0f} s   {'met' if worst < TARGET_S else 'MISSED'}")
    return {"log_bytes": size, "clean_s": clean, "killed_s": killed, "target_s": TARGET_S}


def main() -> None:
    chosen = options("restart", "Restart a broker with 20 GB of log.", turns=1)
    introduce("restart")
    report("restart", chosen, measure(chosen.seed, LOG_BYTES))


if __name__ == "__main__":
    main()
