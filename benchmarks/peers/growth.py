"""Whether anything grows faster than the topic: 1, 10 and 50 million rows of 100 bytes.

Each size is written, read, streamed and streamed to another topic on both sides. These topics are deleted
before the next size. A first, smaller size warms the JVM and is not told. What should stay the same is the
rate; what may grow is memory, by what a broker must keep of each message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.kit.instrument import introduce, options, report, say
from benchmarks.kit.spark_rows import rows_of
from benchmarks.peers.footprint import Memory
from benchmarks.peers.jobs import QUEUES, Jobs
from benchmarks.peers.systems import BOTH, Setup, both

#: Parts of `--messages`, the largest size.
PARTS: Final = (0.02, 0.2, 1.0)
MESSAGES: Final = 50_000_000
WARMING: Final = 1_000_000


def grow(setup: Setup, jobs: Jobs, rows: int) -> dict[str, Any]:
    """Write, read and stream so many rows on one side; return the rates and what they took."""
    topic = f"growth-{rows}"
    jobs.system.make_topic(topic, QUEUES)
    topics = [topic]
    works: dict[str, Callable[[], None]] = {
        "write": lambda: jobs.write(rows_of(setup.spark, "literal", rows), topic),
        "read": lambda: jobs.read(topic, "value"),
        "stream": lambda: jobs.stream(topic, rows),
        "topic to topic": lambda: topics.append(jobs.copy(topic, rows)),
    }
    rates = {}
    ignored = setup.other(jobs.system).pids
    with Memory(jobs.system.pids, setup.jvm, ignored, in_python=jobs.system.in_python) as memory:
        for name, work in works.items():
            started = time.perf_counter()
            work()
            rates[name] = round(rows / (time.perf_counter() - started))
    found = {
        "rows_per_s": rates,
        "memory_mib": memory.peak_mib,
    }
    for each in topics:
        jobs.system.delete_topic(each)
    return found


def measure(setup: Setup, messages: int) -> dict[str, Any]:
    sides = [Jobs(setup.spark, setup.ours), Jobs(setup.spark, setup.theirs)]
    for jobs in sides:
        grow(setup, jobs, WARMING + 1)
    results: dict[str, Any] = {}
    for rows in (round(messages * part) for part in PARTS):
        for jobs in sides:
            found = results.setdefault(f"{rows}", {})[jobs.system.name] = grow(setup, jobs, rows)
            rates = ", ".join(f"{name} {rate:,}/s" for name, rate in found["rows_per_s"].items())
            say(f"{jobs.system.name:<8} {rows:>12,} rows: {rates}; MiB {found['memory_mib']}")
    return {"sizes": results}


def main() -> None:
    chosen = options("peers.growth", "A topic that grows, on both sides.", turns=1, messages=MESSAGES)
    introduce("peers.growth")
    with both("peers-growth") as setup:
        results = measure(setup, chosen.messages)
    report("peers.growth", chosen, {"systems": BOTH, **results})


if __name__ == "__main__":
    main()
