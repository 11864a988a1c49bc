"""Pulling a backlog of several queues, against a server that answers with the same bytes from memory.

Both get the same requests from the same client over the same number of connections. The
broker finds each place in a ConsumeQueue and reads the frames from its log (page cache); the
ceiling has the first answer in memory and sends it whatever is asked. The client counts
bytes and decodes nothing: what it costs to open frames is measured by itself.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.append import QUEUES, TOPIC, create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, drive, get, post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.servers import Server, processor_cost
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, NEXT_OFFSET_HEADER
from rocketq.protocol.frame_slices import open_frames

CONNECTIONS: Final = 4
TARGET: Final = 0.6
#: MiB of backlog; it is pulled again and again.
BACKLOG_BATCHES: Final = 512
MAX_BYTES: Final = 4 * 1024 * 1024

_NEXT: Final = NEXT_OFFSET_HEADER.encode()


def fill(server: Server, body: bytes) -> None:
    with Connection(server.host, server.port) as connection:
        for count in range(BACKLOG_BATCHES):
            connection.exchange(post(f"{TOPIC}/messages?queue={count % QUEUES}", body, ARROW_STREAM))


def path_of(queue: int, offset: int) -> str:
    return f"{TOPIC}/queues/{queue}/messages?offset={offset}&max_bytes={MAX_BYTES}"


def pull_for(server: Server, seconds: float) -> float:
    """Read the queues from their beginning to their end, over and over; return bytes a second."""
    end = BACKLOG_BATCHES // QUEUES * data.MIB_ROWS
    places = [(number, 0) for number in range(CONNECTIONS)]

    def one(connection: Connection, number: int, count: int) -> int:
        queue, offset = places[number]
        answer = connection.exchange(get(path_of(queue, offset)))
        offset = int(answer.header(_NEXT))
        places[number] = (queue, offset) if offset < end else ((queue + CONNECTIONS) % QUEUES, 0)
        return answer.body_bytes

    return drive(server.host, server.port, CONNECTIONS, seconds, one)


def serve_for(server: Server, seconds: float) -> float:
    request = get(path_of(0, 0))

    def one(connection: Connection, number: int, count: int) -> int:
        return connection.exchange(request).body_bytes

    return drive(server.host, server.port, CONNECTIONS, seconds, one)


def opened(answer: bytes, seconds: float) -> float:
    """Open the frames of one answer for a time, as a client does; return bytes a second."""
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        open_frames(answer, 0)
        count += 1
    return count * len(answer) / (time.perf_counter() - started)


def measure(chosen: Options) -> dict[str, Any]:
    body = write_stream([data.batch(data.MIB_ROWS, chosen.seed)]).to_pybytes()
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        answer_file = Path(directory) / "answer"
        with servers.broker(Path(directory) / "broker") as broker:
            create_topic(broker)
            fill(broker, body)
            with Connection(broker.host, broker.port) as connection:
                answer = connection.exchange(get(path_of(0, 0)), keep=True).body
            answer_file.write_bytes(answer)
            with servers.ceiling("serve", str(answer_file)) as bare:
                say(f"-- {len(answer):,} bytes an answer, {CONNECTIONS} connections, {QUEUES} queues")
                ours, memory = Contestant("broker"), Contestant("bare ASGI, from memory")
                ours.turn = lambda: processor_cost(
                    broker, ours.costs, chosen.seconds, lambda: pull_for(broker, chosen.seconds)
                )
                memory.turn = lambda: processor_cost(
                    bare, memory.costs, chosen.seconds, lambda: serve_for(bare, chosen.seconds)
                )
                pull_for(broker, 0.5)
                alternate([ours, memory], chosen.turns)
            result = compare(ours, memory, "bytes", TARGET)
    rate = opened(answer, min(2.0, chosen.seconds))
    messages = ours.median / len(body) * data.MIB_ROWS
    say(f"messages pulled: {messages / 1e6:.2f} M/s; opening frames in one thread: {rate / 1e6:,.0f} MB/s")
    return {**result, "messages_per_second": messages, "open_frames_bytes_per_second": rate}


def main() -> None:
    chosen = options("pull", "Pull the backlog of several queues.", seconds=3)
    introduce("pull")
    report("pull", chosen, {"frames": measure(chosen)})


if __name__ == "__main__":
    main()
