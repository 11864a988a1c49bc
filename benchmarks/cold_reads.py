"""Small sends beside a consumer whose messages are not in the page cache.

One connection sends single messages of 100 bytes and notes how long each answer takes. A consumer in a
process of its own pulls old messages meanwhile, a MiB at a time; before each pull it has the kernel drop
the pages of the old segments (posix_fadvise), so the broker reads them from the disk. The same sends
without a consumer, and beside one whose messages are in the page cache, are measured in the same run:
a consumer costs processor time in any case, and only the rest is the disk's.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, get, post, request
from benchmarks.kit.instrument import Contestant, Options, alternate, introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, NEXT_OFFSET_HEADER

SENDS: Final = "/v1/topics/sends"
OLD: Final = "/v1/topics/old"
#: MiB of old messages, in segments of SEGMENT_BYTES.
BACKLOG_BATCHES: Final = 192
SEGMENT_BYTES: Final = 64 << 20
PULL_BYTES: Final = 1 << 20
#: What the 99th percentile may grow to beside a cold consumer, times that beside one from memory.
TARGET: Final = 2.0

_NEXT: Final = NEXT_OFFSET_HEADER.encode()


def old_segments(directory: Path) -> list[Path]:
    """Return the segments that are full, and so are on the disk."""
    return sorted((directory / "commitlog").iterdir())[:-1]


def drop_from_memory(segments: list[Path]) -> None:
    for path in segments:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def consume(host: str, port: int, directory: Path, cold: bool, running: Event, stop: Event) -> None:
    """Pull the old messages from the first to the last, over and over."""
    segments = old_segments(directory)
    end = BACKLOG_BATCHES * data.MIB_ROWS * 3 // 4
    offset = 0
    with Connection(host, port) as connection:
        while not stop.is_set():
            if cold:
                drop_from_memory(segments)
            path = f"{OLD}/queues/0/messages?offset={offset}&max_bytes={PULL_BYTES}"
            offset = int(connection.exchange(get(path)).header(_NEXT)) % end
            running.set()


def send_for(server: Server, seconds: float, body: bytes) -> list[float]:
    """Send one message after the other; return how long each took, in seconds."""
    message = post(f"{SENDS}/messages?queue=0", body, ARROW_STREAM)
    taken = []
    with Connection(server.host, server.port) as connection:
        begun = time.perf_counter()
        while (started := time.perf_counter()) < begun + seconds:
            connection.exchange(message)
            taken.append(time.perf_counter() - started)
    return taken


def percentile_99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100)[98]


def turn(server: Server, directory: Path, seconds: float, body: bytes, cold: bool | None) -> float:
    """Return the 99th percentile of sends, beside a consumer unless `cold` is None; in seconds."""
    if cold is None:
        return percentile_99(send_for(server, seconds, body))
    spawn = multiprocessing.get_context("spawn")
    running, stop = spawn.Event(), spawn.Event()
    arguments = (server.host, server.port, directory, cold, running, stop)
    consumer = spawn.Process(target=consume, args=arguments, daemon=True)
    consumer.start()
    try:
        if not running.wait(60):
            raise RuntimeError("the consumer has pulled nothing within a minute")
        return percentile_99(send_for(server, seconds, body))
    finally:
        stop.set()
        consumer.join(60)


def measure(chosen: Options) -> dict[str, Any]:
    body = write_stream([data.batch(1, chosen.seed)]).to_pybytes()
    backlog = write_stream([data.batch(data.MIB_ROWS, chosen.seed)]).to_pybytes()
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as name:
        directory = Path(name)
        with servers.broker(directory, "--segment-bytes", str(SEGMENT_BYTES)) as broker:
            with Connection(broker.host, broker.port) as connection:
                for path in (SENDS, OLD):
                    connection.exchange(request("PUT", path, b'{"read_queues": 1, "write_queues": 1}'))
                for _ in range(BACKLOG_BATCHES):
                    connection.exchange(post(f"{OLD}/messages?queue=0", backlog, ARROW_STREAM))
            kinds = {"sends alone": None, "beside a consumer from memory": False, "beside a cold one": True}
            contestants = [
                Contestant(each, partial(turn, broker, directory, chosen.seconds, body, cold))
                for each, cold in kinds.items()
            ]
            send_for(broker, 0.5, body)
            alternate(contestants, chosen.turns)
    alone, warm, cold = contestants
    for each in contestants:
        spread = f"({min(each.rates) * 1e3:.2f} to {max(each.rates) * 1e3:.2f})"
        say(f"{each.name:<36} {each.median * 1e3:>8.2f} ms  {spread}")
    ratio = cold.median / warm.median
    met = "met" if ratio <= TARGET else "MISSED"
    say(f"{'cold against from memory':<36} {ratio:>8.2f}   target <= {TARGET:g}  {met}")
    return {
        "unit": "seconds, 99th percentile of a send",
        "sends": [{"name": each.name, "median": each.median, "turns": each.rates} for each in contestants],
        "cold_against_alone": round(cold.median / alone.median, 4),
        "cold_against_from_memory": round(ratio, 4),
        "target": TARGET,
    }


def main() -> None:
    chosen = options("cold_reads", "Small sends beside a consumer of cold data.", seconds=4)
    introduce("cold_reads")
    report("cold_reads", chosen, {"sends_beside_a_consumer": measure(chosen)})


if __name__ == "__main__":
    main()
