"""Many millions of messages in one queue: what the broker holds, and what a pull costs at either end.

Memory must be bounded by configuration and never by backlog, and a pull must cost the same
wherever it begins. So one queue is filled, with keys (they are indexed) and tags; then the same
pull of one 1 MiB frame is made in turn at the first offset, in the middle and at the end.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.append import TOPIC, create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, drive, get, post
from benchmarks.kit.instrument import Options, introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, MAX_OFFSET_HEADER

MESSAGES: Final = 20_000_000
RSS_TARGET: Final = 300_000_000
#: A pull at the end may cost this many times one at offset 0, and the other way round.
RATIO_TARGET: Final = 1.25
CONNECTIONS: Final = 2
MIB: Final = 1 << 20


def fill(server: Server, body: bytes, messages: int) -> float:
    """Send until the queue holds `messages`; return messages a second."""
    requests = post(f"{TOPIC}/messages?queue=0", body, ARROW_STREAM)
    left = -(-messages // data.MIB_ROWS)
    sent, started = 0, time.perf_counter()
    while left:
        count = min(left, 200)

        def one(connection: Connection, number: int, n: int, count: int = count) -> int:
            for _ in range(count // CONNECTIONS + (number < count % CONNECTIONS)):
                connection.exchange(requests)
            return 0

        drive(server.host, server.port, CONNECTIONS, 0.001, one)
        sent += count
        left -= count
        if sent % 1000 == 0:
            say(f"  {sent * data.MIB_ROWS:,} messages, {server.memory_bytes() / 1e6:,.0f} MB resident")
    return sent * data.MIB_ROWS / (time.perf_counter() - started)


def pull_times(server: Server, chosen: Options) -> dict[str, list[float]]:
    """Make the same pull in turn at the beginning, the middle and the end; return seconds of each."""
    times: dict[str, list[float]] = {"offset 0": [], "middle": [], "end": []}
    with Connection(server.host, server.port) as connection:
        path = f"{TOPIC}/queues/0/messages?max_bytes={MIB}&offset="
        end = int(connection.exchange(get(path + "0")).header(MAX_OFFSET_HEADER.encode()))
        frames = end // data.MIB_ROWS
        deadline = time.perf_counter() + chosen.seconds
        turn = 0
        while time.perf_counter() < deadline or turn < 20:
            # Neighbouring frames in turn, so that neither end is always the same hot MiB.
            step = turn % 20
            places = {"offset 0": step, "middle": frames // 2 + step, "end": frames - 20 + step}
            for name in places if turn % 2 == 0 else reversed(places):
                request = get(f"{path}{places[name] * data.MIB_ROWS}")
                started = time.perf_counter()
                connection.exchange(request)
                times[name].append(time.perf_counter() - started)
            turn += 1
    return times


def measure(chosen: Options) -> dict[str, Any]:
    body = write_stream([data.batch(data.MIB_ROWS, chosen.seed, tags=True, keys=True)]).to_pybytes()
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        servers.broker(Path(directory)) as broker,
    ):
        create_topic(broker, queues=1)
        empty = broker.memory_bytes()
        say(f"-- {chosen.messages:,} messages with keys and tags into one queue")
        rate = fill(broker, body, chosen.messages)
        filled = broker.memory_bytes()
        times = pull_times(broker, chosen)
        after, peak = broker.memory_bytes(), broker.memory_bytes("VmHWM")
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratio = medians["end"] / medians["offset 0"]
    met = max(filled, after) < RSS_TARGET
    say(f"sent at {rate / 1e6:.2f} M messages/s")
    say(
        f"resident: {empty / 1e6:,.0f} MB empty, {filled / 1e6:,.0f} MB filled, {after / 1e6:,.0f} MB after "
        f"the pulls, {peak / 1e6:,.0f} MB at most   target < {RSS_TARGET / 1e6:,.0f} MB  "
        + ("met" if met else "MISSED")
    )
    for name, median in medians.items():
        say(f"pull of 1 MiB at {name:<10} {median * 1e3:8.3f} ms  (median of {len(times[name])})")
    even = 1 / RATIO_TARGET <= ratio <= RATIO_TARGET
    say(f"end / offset 0: {ratio:.2f}   target <= {RATIO_TARGET}  {'met' if even else 'MISSED'}")
    return {
        "messages": chosen.messages,
        "messages_per_second": rate,
        "resident_bytes": {"empty": empty, "filled": filled, "after_pulls": after, "peak": peak},
        "resident_target": RSS_TARGET,
        "pull_seconds": medians,
        "pull_ratio": round(ratio, 4),
        "pull_ratio_target": RATIO_TARGET,
    }


def main() -> None:
    chosen = options("backlog", "Fill a queue with many millions of messages.", seconds=5, messages=MESSAGES)
    introduce("backlog")
    report("backlog", chosen, {"one_queue": measure(chosen)})


if __name__ == "__main__":
    main()
