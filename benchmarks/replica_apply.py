"""A follower's catch-up: frames of a full log are verified, folded and appended, against a bare copy.

Both take the same bytes, in shipments of 4 MiB, from the files of a log that a master has written, and write
them to the same disk; async flush, and one sync in the end. The follower also verifies each frame's checksum,
reads its tags, keeps a ConsumeQueue unit for each message, and the state. There is no HTTP between: this is
what the store adds.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, alternate, compare, introduce, options, report, say
from rocketq.errors.replication_errors import NotMaster
from rocketq.model import FlushMode
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.system.durability import sync_file
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.replica.operations import ReplicaHooks, ReplicaOperations
from rocketq_broker.store.store import MessageStore, QueueBatch

LOG_BYTES: Final = 256 << 20
SHIPMENT_BYTES: Final = 4 << 20
QUEUES: Final = 8
TARGET: Final = 0.6


def opened(directory: Path) -> tuple[MessageStore, ReplicaOperations]:
    """Open the store of a replica that waits for nobody."""
    hooks = ReplicaHooks(lambda: None, NotMaster("bench", 1))
    config = StoreConfig(directory, flush=FlushMode.ASYNC, segment_bytes=64 << 20)
    store = MessageStore.open(config, replica=hooks)
    assert store.replica is not None
    return store, store.replica


def fill(directory: Path, seed: int) -> None:
    """Write a master's log of `LOG_BYTES`."""
    store, replica = opened(directory)
    replica.take_office(1, waits=False)
    done: Future[Any] = Future()
    store.create_topic("bench", CreateTopicRequest(QUEUES, QUEUES), done.set_result)
    done.result()
    record = data.batch(data.MIB_ROWS, seed)
    body = encapsulate(record, None)
    number = 0
    while replica.view().end < LOG_BYTES:
        done = Future()
        store.append("bench", [QueueBatch(number % QUEUES, body, record)], done.set_result)
        done.result()
        number += 1
    store.close()


def follow(master: ReplicaOperations, costs: list[float]) -> float:
    """Have an empty follower catch up; return bytes a second, and note the processor time of a byte."""
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        store, replica = opened(Path(directory))
        end = master.view().end
        began, worked = time.perf_counter(), time.process_time()
        at = 0
        while at < end:
            raw = master.frames(at, SHIPMENT_BYTES)
            replica.append_frames(raw)
            at = raw.end
        store.flush()
        rate = end / (time.perf_counter() - began)
        costs.append((time.process_time() - worked) / end)
        assert replica.view().end == end
        store.close()
        return rate


def copy(source: Path, costs: list[float]) -> float:
    """Copy the segments as they are; return bytes a second, and note the processor time of a byte."""
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        began, worked, size = time.perf_counter(), time.process_time(), 0
        for segment in sorted((source / "commitlog").iterdir()):
            with segment.open("rb") as read, (Path(directory) / segment.name).open("wb") as write:
                while chunk := read.read(SHIPMENT_BYTES):
                    size += write.write(chunk)
                write.flush()
                sync_file(write.fileno())
        costs.append((time.process_time() - worked) / size)
        return size / (time.perf_counter() - began)


def main() -> None:
    chosen = options("replica_apply", "A follower's catch-up against a bare copy.", seconds=4)
    introduce("replica_apply")
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        fill(Path(directory), chosen.seed)
        say(f"-- {LOG_BYTES >> 20} MiB of log, {data.MIB_ROWS} messages a frame")
        store, master = opened(Path(directory))
        ours = Contestant("follower")
        ours.turn = partial(follow, master, ours.costs)
        bare = Contestant("bare copy")
        bare.turn = partial(copy, Path(directory), bare.costs)
        alternate([ours, bare], chosen.turns)
        store.close()
        report("replica_apply", chosen, {"catch_up": compare(ours, bare, "bytes", TARGET)})


if __name__ == "__main__":
    main()
