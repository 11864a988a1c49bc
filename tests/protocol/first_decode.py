"""A process in which sixteen threads decode each document type for the first time at the same moment.

Run by `test_codec`: a type whose decoder is built by its first use would crash this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading

import msgspec

from rocketq.errors import InvalidRequest
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.documents import nameserver as route
from rocketq.protocol.documents import sinks

THREADS = 16
KINDS = [
    kind
    for module in (calls, route, sinks)
    for kind in vars(module).values()
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))
]


def decode_all(barrier: threading.Barrier) -> None:
    for kind in KINDS:
        barrier.wait()
        with contextlib.suppress(InvalidRequest):
            calls.decode(b"{}", kind)


if __name__ == "__main__":
    # Threads take turns as often as they can.
    sys.setswitchinterval(1e-6)
    barrier = threading.Barrier(THREADS)
    threads = [threading.Thread(target=decode_all, args=[barrier]) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(KINDS))
