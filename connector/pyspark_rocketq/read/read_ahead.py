"""Record batches that threads make ahead of Spark: one thread a range, a few ranges at a time.

While Spark takes a batch, the thread of its range pulls and decodes the next ones, and the threads of the
ranges behind it do their first pulls. Of each range that has begun, one pull is in flight and at most
PREFETCHED batches wait, so these bound the memory, however long the ranges are.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: Batches of a range that are ready before Spark asks for them.
PREFETCHED: Final = 3
#: Ranges of a partition whose threads run at one time.
TOGETHER: Final = 8
#: How often a thread with nowhere to put a batch looks whether anybody still reads.
_LOOK_S: Final = 0.1

Batches = Callable[[], "Iterator[pa.RecordBatch]"]


def in_turn(ranges: Sequence[Batches]) -> Iterator[pa.RecordBatch]:
    """Yield what the ranges have, one range after the other; the next ones have begun meanwhile."""
    waiting = iter(ranges)
    begun = deque(ReadAhead(batches) for batches in islice(waiting, TOGETHER))
    try:
        while begun:
            yield from begun[0]
            begun.popleft()
            begun.extend(ReadAhead(batches) for batches in islice(waiting, 1))
    finally:
        # Spark stops early under a LIMIT; the threads must not go on pulling.
        for one in begun:
            one.abandon()


class ReadAhead:
    """The batches of one range, which a thread runs ahead by at most PREFETCHED."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._ready: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(PREFETCHED)
        self._abandoned = threading.Event()
        threading.Thread(target=self._run, name="rocketq-read-ahead", daemon=True).start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (item := self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def abandon(self) -> None:
        """Let the thread end: nobody takes its batches any more."""
        self._abandoned.set()

    def _run(self) -> None:
        try:
            for batch in self._batches():
                self._offer(batch)
                if self._abandoned.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised in the reading thread
            self._offer(error)
        else:
            self._offer(None)

    def _offer(self, item: pa.RecordBatch | BaseException | None) -> None:
        while not self._abandoned.is_set():
            try:
                self._ready.put(item, timeout=_LOOK_S)
            except queue.Full:
                continue
            return
