"""A broker process and the process beside it that takes a share of its long scans."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import pytest

from rocketq.local import LocalCluster
from rocketq.protocol.frame import scan
from rocketq.protocol.model import Message
from rocketq.protocol.slices import open_frames
from tests.broker.conftest import Http, stream

FRAMES = 10
WAIT_S = 60


def scanners_of(broker: int) -> list[int]:
    """The process ids of a broker's scanners."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == broker and b"rocketq_broker.scanner" in command:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_long_scan_is_shared_and_no_process_is_left_behind(is_killed: bool) -> None:
    with LocalCluster(brokers=1) as cluster:
        [name] = cluster.brokers
        http = Http(cluster.brokers[name])
        http.create("orders", read_queues=1, write_queues=1)
        messages = [Message(b"%d" % number * 140_000, tag="open") for number in range(8)]
        messages[5] = Message(b"five", tag="paid")
        for _ in range(FRAMES):
            assert http.send("orders", stream(messages), "?queue=0").status == 200
        deadline = time.monotonic() + WAIT_S
        shared = False
        while not shared:
            assert time.monotonic() < deadline
            body = http.pull("orders", 0, 0, tag="paid").body
            found = [offset for piece in open_frames(body, 0) for offset in piece.offsets().tolist()]
            assert found == list(range(5, 8 * FRAMES, 8))
            # Each share is a frame of its own.
            shared = len(list(scan(body))) == 2
        [scanner] = scanners_of(cluster.pid(name))
        handle = os.pidfd_open(scanner)
        if is_killed:
            cluster.kill(name)
        else:
            cluster.stop(name)
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        assert ended.poll(WAIT_S * 1000)
        os.close(handle)
