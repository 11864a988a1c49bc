"""A tag that 1 % of the messages have: filtered by the broker, against a client that pulls everything.

Both read the same backlog over HTTP and end with the same matching messages. Who pulls everything
opens every frame and keeps the rows with the tag; what comes filtered is opened and has only those.
Counted are messages scanned a second.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.append import TOPIC, create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.http import Connection, get, post
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.kit.servers import Server
from rocketq.protocol.arrow.stream_reader import read_stream
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, NEXT_OFFSET_HEADER
from rocketq.protocol.frame_slices import open_frames

BATCHES: Final = 300
TARGET: Final = 3.0
_NEXT: Final = NEXT_OFFSET_HEADER.encode()


def tagged(seed: int) -> bytes:
    """A batch whose rows have the tag `rare` once in a hundred, anywhere."""
    made = data.batch(data.MIB_ROWS, seed)
    rare = np.random.default_rng(seed).random(data.MIB_ROWS) < 0.01
    tags = pc.if_else(pa.array(rare), "rare", "common")
    column = made.schema.get_field_index("tag")
    stream: bytes = write_stream([made.set_column(column, made.schema.field(column), tags)]).to_pybytes()
    return stream


def wanted(batch: pa.RecordBatch) -> pa.Array:
    return pc.equal(batch.column("tag"), "rare")


def scan_for(
    server: Server, chosen: Options, end: int, rare: int, by_broker: bool, costs: list[float]
) -> float:
    """Scan the queue again and again; return messages scanned a second, and note what each cost in all."""
    scanned = 0
    used, started = server.cpu_seconds() + time.process_time(), time.perf_counter()
    while (elapsed := time.perf_counter() - started) < chosen.seconds:
        scan(server, end, rare, by_broker)
        scanned += end
    costs.append((server.cpu_seconds() + time.process_time() - used) / scanned)
    return scanned / elapsed


def scan(server: Server, end: int, rare: int, by_broker: bool) -> None:
    """Read the queue from 0 to `end`, and all that are `rare`."""
    path = f"{TOPIC}/queues/0/messages?max_bytes=4194304" + ("&tag=rare" if by_broker else "") + "&offset="
    at = matches = 0
    with Connection(server.host, server.port) as connection:
        while at < end:
            answer = connection.exchange(get(f"{path}{at}"), keep=True)
            for piece in open_frames(answer.body, at):
                kept = piece.batch if by_broker else piece.batch.filter(wanted(piece.batch))
                matches += kept.num_rows
            at = int(answer.header(_NEXT))
    assert matches == rare


def main() -> None:
    chosen = options("tag_filter", "Filter 1 % of the messages by tag, on either side.", seconds=2)
    introduce("tag_filter")
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        servers.broker(Path(directory)) as broker,
    ):
        create_topic(broker, queues=1)
        with Connection(broker.host, broker.port) as connection:
            request = post(f"{TOPIC}/messages?queue=0", tagged(chosen.seed), ARROW_STREAM)
            for _ in range(BATCHES):
                connection.exchange(request)
        end = BATCHES * data.MIB_ROWS
        [sent] = read_stream(tagged(chosen.seed))
        rare = BATCHES * pc.sum(wanted(sent.batch)).as_py()
        say(f"-- {end:,} messages, one in a hundred tagged")
        ours, everything = Contestant("filtered by the broker"), Contestant("client that pulls everything")
        ours.turn = partial(scan_for, broker, chosen, end, rare, True, ours.costs)
        everything.turn = partial(scan_for, broker, chosen, end, rare, False, everything.costs)
        alternate([ours, everything], chosen.turns)
        result = compare(ours, everything, "rows", TARGET)
    report("tag_filter", chosen, {"one_percent": result})


if __name__ == "__main__":
    main()
