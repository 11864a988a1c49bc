"""Delayed messages: what scheduling costs, how late messages leave, and what a million outstanding changes.

    batches       batches of 100-byte messages with delivery times over an hour, against the same messages
                  sent as usual
    singles       single messages with a delay from 32 connections, against the same sent as usual
    lateness      many messages whose times are spread evenly over a minute: how late each was delivered
    outstanding   single messages that are scheduled and delivered one second later, while a million messages
                  wait for their time, against the same while ten wait
    restarts      time and memory of a start with ten million outstanding: after a stop in good order, after
                  kill -9, and without the snapshot, when all is read from the log

Asynchronous flush; each turn starts a broker on an empty directory. A delayed message is written twice, and
its delivery is part of what the broker does meanwhile only in `lateness` and `outstanding`.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.append import TOPIC, create_topic, send_for
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, get, post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.senders import drive_small
from benchmarks.kit.servers import Server
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, OCTET_STREAM
from rocketq.protocol.rules.delivery_time import stored_times, with_times

QUEUES: Final = 4
CONNECTIONS: Final = 32
TARGET: Final = 0.5
#: With many outstanding, a message may cost no more than with few; what is below 1 is noise.
SAME: Final = 0.9
OUTSTANDING: Final = 1_000_000
#: Messages that are outstanding at a restart, for each of `--messages`.
RESTART_TIMES: Final = 10
BATCH_ROWS: Final = 10_000
HOUR_MS: Final = 3_600_000
SPREAD_MS: Final = 60_000
#: Time for the schedule to be sent before the first of it is due.
LEAD_MS: Final = 30_000
TOPIC_NAME: Final = "bench"


def timed_batch(rows: int, seed: int, begin_ms: int, span_ms: int) -> pa.RecordBatch:
    """A batch of messages with delivery times at random places of an interval."""
    times = begin_ms + np.random.default_rng(seed).integers(0, span_ms, rows)
    return with_times(data.batch(rows, seed), times)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _batches(chosen: Options, is_delayed: bool, costs: list[float]) -> float:
    """Return messages a second."""
    made = (
        timed_batch(BATCH_ROWS, chosen.seed, _now_ms() + HOUR_MS, HOUR_MS)
        if is_delayed
        else data.batch(BATCH_ROWS, chosen.seed)
    )
    body = write_stream([made]).to_pybytes()
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory, _broker(directory) as server:
        create_topic(server)
        send_for(server, 0.3, body)

        def rate() -> float:
            return send_for(server, chosen.seconds, body) / len(body) * BATCH_ROWS

        return servers.processor_cost(server, costs, chosen.seconds, rate)


def _broker(directory: str) -> Server:
    return servers.broker(Path(directory))


def send_singles(server: Server, seconds: float, body: bytes, delay_ms: int | None) -> float:
    """Send one message a request from all connections; return messages a second."""
    delay = "" if delay_ms is None else f"&property.TIMER_DELAY_MS={delay_ms}"
    requests = [
        b"".join(post(f"{TOPIC}/messages?queue={number % QUEUES}{delay}", body, OCTET_STREAM))
        for number in range(CONNECTIONS)
    ]
    return drive_small(server.host, server.port, requests, seconds)


def _singles(
    chosen: Options, body: bytes, delay_ms: int | None, outstanding: int, costs: list[float]
) -> float:
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory, _broker(directory) as server:
        create_topic(server, queues=QUEUES)
        schedule(server, outstanding, chosen.seed, _now_ms() + HOUR_MS, HOUR_MS)
        send_singles(server, 2.0, body, delay_ms)
        return servers.processor_cost(
            server, costs, chosen.seconds, lambda: send_singles(server, chosen.seconds, body, delay_ms)
        )


def schedule(server: Server, count: int, seed: int, begin_ms: int, span_ms: int) -> None:
    """Send so many messages with delivery times in an interval."""
    with Connection(server.host, server.port) as connection:
        for first in range(0, count, BATCH_ROWS):
            batch = timed_batch(min(BATCH_ROWS, count - first), seed + first, begin_ms, span_ms)
            queue = first // BATCH_ROWS % QUEUES
            body = write_stream([batch]).to_pybytes()
            connection.exchange(post(f"{TOPIC}/messages?queue={queue}", body, ARROW_STREAM))


def measure_lateness(chosen: Options) -> dict[str, Any]:
    """Schedule `--messages` messages that are due within a minute, and see when each was delivered."""
    say(f"-- lateness: {chosen.messages:,} messages due within {SPREAD_MS // 1000} s")
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory, _broker(directory) as server:
        create_topic(server, queues=QUEUES)
        begin_ms, began = _now_ms() + LEAD_MS, server.cpu_seconds()
        schedule(server, chosen.messages, chosen.seed, begin_ms, SPREAD_MS)
        scheduled_ms = _now_ms()
        late_ms = np.concatenate(_late(server, chosen.messages))
        cpu_s = server.cpu_seconds() - began
    told = {
        "messages": int(late_ms.size),
        "scheduled_before_first_is_due_ms": begin_ms - scheduled_ms,
        "late_ms": {f"p{share}": float(np.percentile(late_ms, share)) for share in (0, 50, 99, 100)},
        "processor_seconds": round(cpu_s, 2),
    }
    verdict = "met" if late_ms.min() >= 0 and late_ms.max() <= 1_000 else "MISSED"
    least, median, most_of_them, most = told["late_ms"].values()
    say(f"late, ms: least {least:.0f}, median {median:.0f}, 99 % {most_of_them:.0f}, most {most:.0f}")
    say(f"{'target 0 to 1000':<36} {verdict}")
    return told


def _late(server: Server, count: int) -> list[np.ndarray]:
    """Pull every message as it is delivered; return by how much each was late, in ms."""
    broker = BrokerApi(Transport(), "broker", server.address)
    offsets = [0] * QUEUES
    late: list[np.ndarray] = []
    while sum(offsets) < count:
        broker.offsets(TOPIC_NAME, after_total=sum(offsets), wait_ms=60_000)
        for queue in range(QUEUES):
            pulled = broker.pull(TOPIC_NAME, queue, offsets[queue])
            late += [
                piece.header.stored_at_us / 1000 - stored_times(piece.batch) for piece in pulled.slices()
            ]
            offsets[queue] = pulled.next_offset
    return late


def measure_restarts(chosen: Options) -> dict[str, Any]:
    """Start a broker with ten times `--messages` outstanding, three times; return seconds and memory."""
    count = RESTART_TIMES * chosen.messages
    say(f"-- restarts: {count:,} messages outstanding")
    told: dict[str, Any] = {"messages": count}
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        with _broker(directory) as server:
            create_topic(server, queues=QUEUES)
            told["empty"] = {"memory_bytes": server.memory_bytes("VmHWM")}
            schedule(server, count, chosen.seed, _now_ms() + HOUR_MS, HOUR_MS)
        for name in ("stopped", "killed", "without snapshot"):
            if name == "without snapshot":
                (Path(directory) / "state" / "snapshot").unlink()
            began = time.perf_counter()
            server = _broker(directory).__enter__()
            with Connection(server.host, server.port) as connection:
                connection.exchange(get("/readyz"))
            seconds, cpu_s = time.perf_counter() - began, server.cpu_seconds()
            told[name] = {
                "seconds": round(seconds, 2),
                "processor_seconds": round(cpu_s, 2),
                "memory_bytes": server.memory_bytes("VmHWM"),
            }
            if name == "stopped":
                schedule(server, chosen.messages // 10, chosen.seed, _now_ms() + HOUR_MS, HOUR_MS)
            server.kill()
            memory = told[name]["memory_bytes"] >> 20
            say(f"{name:<36} {seconds:6.2f} s, {cpu_s:6.2f} s of processor, {memory} MiB at most")
    say(f"{'with nothing':<36} {told['empty']['memory_bytes'] >> 20} MiB at most")
    return told


def _pair(chosen: Options, ours: Contestant, other: Contestant, target: float) -> dict[str, Any]:
    alternate([ours, other], chosen.turns)
    return compare(ours, other, "calls", target)


def main() -> None:
    chosen = options("delayed", "Delayed messages.", seconds=4, turns=3, messages=OUTSTANDING)
    introduce("delayed")
    body = data.bodies(1, chosen.seed)[0].as_py()
    scheduled, plain = Contestant("scheduled, batches"), Contestant("appended, batches")
    scheduled.turn = partial(_batches, chosen, True, scheduled.costs)
    plain.turn = partial(_batches, chosen, False, plain.costs)
    later, now = Contestant("scheduled, alone"), Contestant("appended, alone")
    later.turn = partial(_singles, chosen, body, HOUR_MS, 0, later.costs)
    now.turn = partial(_singles, chosen, body, None, 0, now.costs)
    many, few = Contestant(f"with {chosen.messages:,} outstanding"), Contestant("with ten outstanding")
    many.turn = partial(_singles, chosen, body, 1_000, chosen.messages, many.costs)
    few.turn = partial(_singles, chosen, body, 1_000, 10, few.costs)
    report("delayed", chosen, {
        "batches": _pair(chosen, scheduled, plain, TARGET),
        "singles": _pair(chosen, later, now, TARGET),
        "lateness": measure_lateness(chosen),
        "outstanding": _pair(chosen, many, few, SAME),
        "restarts": measure_restarts(chosen),
    })  # fmt: skip


if __name__ == "__main__":
    main()
