"""The key index behind the writer: how fast it indexes, and how far it lags behind appends at full speed.

Every message has a key. The store is driven directly, as the broker drives it; appends go as fast
as they can, and when they end, what is not yet indexed is the lag.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.kit import data
from benchmarks.kit.instrument import introduce, options, report, say
from rocketq.protocol.arrow.stream_reader import read_stream
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.store import MessageStore, QueueBatch

QUEUES: Final = 4
MESSAGES: Final = 5_000_000
TARGET: Final = 1_000_000


def measure(seed: int) -> dict[str, Any]:
    message = read_stream(write_stream([data.batch(data.MIB_ROWS, seed, keys=True)]))[0]
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        store = MessageStore.open(StoreConfig(Path(directory)))
        created = threading.Event()
        store.create_topic("t", CreateTopicRequest(QUEUES, QUEUES), lambda _: created.set())
        created.wait()
        appends = MESSAGES // data.MIB_ROWS
        room = threading.Semaphore(8)
        started = time.perf_counter()
        for number in range(appends):
            room.acquire()
            batch = QueueBatch(number % QUEUES, message.encapsulated, message.batch)
            store.append("t", [batch], lambda _: room.release())
        for _ in range(8):
            room.acquire()
        appended = time.perf_counter() - started
        store.flush()
        now = store.statistics()
        lag = now.log_end - now.index_position
        store.catch_up_index()
        indexed = time.perf_counter() - started
        store.close()
    messages = appends * data.MIB_ROWS
    return {
        "messages": messages,
        "appended_per_second": messages / appended,
        "indexed_per_second": messages / indexed,
        "lag_bytes_when_appends_end": lag,
        "lag_messages_when_appends_end": int(lag / now.log_end * messages),
        "seconds_to_catch_up": indexed - appended,
        "target_per_second": TARGET,
    }


def main() -> None:
    chosen = options("key_index", "Index keyed messages behind appends at full speed.", turns=3)
    introduce("key_index")
    turns = [measure(chosen.seed) for _ in range(chosen.turns)]
    middle = sorted(turns, key=lambda each: float(each["indexed_per_second"]))[len(turns) // 2]
    say(f"appended {middle['appended_per_second'] / 1e6:.2f} M keyed messages/s")
    met = "met" if middle["indexed_per_second"] >= TARGET else "MISSED"
    say(f"indexed  {middle['indexed_per_second'] / 1e6:.2f} M/s until all were   target >= 1 M/s  {met}")
    say(
        f"lag when the appends end: {middle['lag_messages_when_appends_end']:,} messages, "
        f"gone after {middle['seconds_to_catch_up']:.2f} s"
    )
    report("key_index", chosen, {"median": middle, "turns": turns})


if __name__ == "__main__":
    main()
