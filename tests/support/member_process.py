"""A member of a consumer group as a process of its own: `python -m tests.support.member_process …`.

It writes a line for each message that it handled to a file, at once and whole: topic, broker, queue, offset,
and the time of the machine's count in ns. With --broadcasting it keeps its offsets beside that file.
A line on stdin ends it in good order. With --failing it sends every third message back, and writes no line.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

from rocketq import ConsumedMessage
from tests.support.patience import PatientClient


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("file", type=Path)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--broadcasting", action="store_true")
    parser.add_argument("--failing", action="store_true")
    parser.add_argument("--session-timeout-ms", type=int)
    given = parser.parse_args()
    written = os.open(given.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(message: ConsumedMessage) -> None:
        if given.failing and (message.offset + message.attempt) % 3 == 0:
            message.nack("1ms")
            return
        place = message.queue
        at_ns = time.monotonic_ns()
        line = f"{place.topic} {place.broker} {place.queue} {message.offset} {at_ns}\n"
        os.write(written, line.encode())

    with (
        PatientClient(given.nameserver) as mq,
        mq.listener(
            given.topic, handle, group=given.group, ordered=given.ordered, workers=2, commit_ms=50,
            session_timeout_ms=given.session_timeout_ms, broadcasting=given.broadcasting,
            offsets_file=f"{given.file}.offsets" if given.broadcasting else None,
        ),
    ):  # fmt: skip
        print("ready", flush=True)
        ended = threading.Thread(target=sys.stdin.readline)
        ended.start()
        ended.join()


if __name__ == "__main__":
    main()
