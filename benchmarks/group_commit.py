"""Sync flush: 64 concurrent senders of single messages, against one write and one sync for each message.

The ceiling does what a broker without group commit would do at best: the bytes of one frame,
one fdatasync, and the next, with no HTTP in between. Group commit lets all senders that wait share
a sync.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import data, servers
from benchmarks.append import create_topic
from benchmarks.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.small_sends import QUEUES, send_singles
from rocketq.protocol.ipc import write_stream

SENDERS: Final = 64
TARGET: Final = 20.0
#: A frame of one message of 100 bytes.
FRAME_BYTES: Final = 752


def _grouped(chosen: Options, body: bytes) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        servers.broker(Path(directory), "--flush", "sync") as broker,
    ):
        create_topic(broker, queues=QUEUES)
        send_singles(broker, 0.5, body, SENDERS)
        return send_singles(broker, chosen.seconds, body, SENDERS)


def _one_by_one(chosen: Options) -> float:
    frame = os.urandom(FRAME_BYTES)
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        file = os.open(Path(directory) / "log", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            count, started = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < chosen.seconds:
                os.pwrite(file, frame, count * FRAME_BYTES)
                os.fdatasync(file)
                count += 1
            return count / elapsed
        finally:
            os.close(file)


def main() -> None:
    chosen = options("group_commit", "Group commit against one sync a message.", seconds=4)
    introduce("group_commit")
    body = write_stream([data.batch(1, chosen.seed)]).to_pybytes()
    ours = Contestant("broker, 64 senders, sync flush", partial(_grouped, chosen, body))
    alone = Contestant("write and fdatasync, one by one", partial(_one_by_one, chosen))
    alternate([ours, alone], chosen.turns)
    say(f"one write and one sync take {1000 / alone.median:.2f} ms")
    report("group_commit", chosen, {"singles": compare(ours, alone, "calls", TARGET)})


if __name__ == "__main__":
    main()
