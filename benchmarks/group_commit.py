"""Sync flush: 64 concurrent senders of single messages, against one write and one sync for each message.

The ceiling does what a broker without group commit would do at best: the bytes of one frame,
one fdatasync, and the next, with no HTTP in between. Group commit lets all senders that wait share
a sync.

What that is worth depends on what a sync takes. So it is measured twice: on this disk as it is,
and with syncs that take SLOW_SYNC_MS longer on both sides, as on a disk that has no battery behind it.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.append import create_topic
from benchmarks.kit import data, servers
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report, say
from benchmarks.small_sends import QUEUES, send_singles
from rocketq.system.durability import sync_file

SENDERS: Final = 64
TARGET: Final = 20.0
SLOW_SYNC_MS: Final = 2.0
#: A frame of one message of 100 bytes.
FRAME_BYTES: Final = 752


def _grouped(chosen: Options, body: bytes, sync_ms: float) -> float:
    with (
        tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory,
        servers.broker(Path(directory), "--flush", "sync", sync_ms=sync_ms) as broker,
    ):
        create_topic(broker, queues=QUEUES)
        send_singles(broker, 0.5, body, SENDERS)
        return send_singles(broker, chosen.seconds, body, SENDERS)


def _one_by_one(chosen: Options, sync_ms: float) -> float:
    frame = os.urandom(FRAME_BYTES)
    with tempfile.TemporaryDirectory(prefix="rocketq-bench-") as directory:
        file = os.open(Path(directory) / "log", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            count, started = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < chosen.seconds:
                os.pwrite(file, frame, count * FRAME_BYTES)
                sync_file(file)
                time.sleep(sync_ms / 1000)
                count += 1
            return count / elapsed
        finally:
            os.close(file)


def measure(chosen: Options, body: bytes, sync_ms: float) -> dict[str, Any]:
    say("-- this disk as it is" if not sync_ms else f"-- every sync takes {sync_ms:g} ms longer")
    ours = Contestant("broker, 64 senders, sync flush", partial(_grouped, chosen, body, sync_ms))
    alone = Contestant("write and fdatasync, one by one", partial(_one_by_one, chosen, sync_ms))
    alternate([ours, alone], chosen.turns)
    say(f"one write and one sync take {1000 / alone.median:.2f} ms")
    return compare(ours, alone, "calls", TARGET)


def main() -> None:
    chosen = options("group_commit", "Group commit against one sync a message.", seconds=4)
    introduce("group_commit")
    body = data.bodies(1, chosen.seed)[0].as_py()
    report("group_commit", chosen, {
        "this_disk": measure(chosen, body, 0.0),
        "slow_sync": measure(chosen, body, SLOW_SYNC_MS),
    })  # fmt: skip


if __name__ == "__main__":
    main()
