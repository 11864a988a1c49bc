"""A receiver of a group as a process of its own: `python -m tests.support.receiver …`.

It writes a line to a file, at once and whole, for each message that it received (`R`, receipt handle,
attempt, when the call began and when its answer was there, in ms of the machine's count) and for each
acknowledgement that a broker confirmed (`A`, receipt handle). It goes on until it is killed.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from rocketq import Client, RocketqError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("file", type=Path)
    parser.add_argument("--invisible-ms", type=int, required=True)
    given = parser.parse_args()
    written = os.open(given.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    settings = {"invisible_ms": given.invisible_ms, "wait_ms": 500}
    with Client(given.nameserver) as mq, mq.simple_consumer(given.group, given.topic, **settings) as consumer:
        print("ready", flush=True)
        while True:
            began_ms = time.monotonic_ns() // 1_000_000
            try:
                messages = consumer.receive(20)
                ended_ms = time.monotonic_ns() // 1_000_000
                lines = [f"R {e.receipt_handle} {e.attempt} {began_ms} {ended_ms}\n" for e in messages]
                os.write(written, "".join(lines).encode())
                if not messages:
                    continue
                refused = {each.receipt_handle for each in consumer.ack(messages).refused}
            except RocketqError:
                # A broker was killed at this moment; the history says what came of it.
                continue
            good = [e.receipt_handle for e in messages if e.receipt_handle not in refused]
            os.write(written, "".join(f"A {handle}\n" for handle in good).encode())


if __name__ == "__main__":
    main()
