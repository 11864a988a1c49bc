"""One-way sends: a thread makes one attempt for each message, and nobody hears of it but a counter.

WAITING_MAX messages wait for a thread at most. Then `begin` waits for a place; in asyncio another
`take_place` raises instead. Closing a producer sends what still waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rocketq.errors import Closed, RocketqError

log = logging.getLogger("rocketq.producing.producer")

#: One-way sends that may wait for a thread before `send_oneway` blocks.
WAITING_MAX: Final = 1_024


class OnewaySends:
    """The one-way sends of one producer."""

    def __init__(self) -> None:
        #: How many messages were not stored, as far as is known.
        self.lost = 0
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(WAITING_MAX)

    def begin(self, workers: ThreadPoolExecutor, topic: str, send: Callable[[], object]) -> None:
        """Have a thread make the attempt; raises Closed when no thread takes it any more."""
        self.take_place()
        try:
            workers.submit(self._attempt, topic, send)
        except RuntimeError:
            self.give_place_back()
            raise Closed("The producer") from None

    def take_place(self) -> None:
        """Wait until a message may wait."""
        self._places.acquire()

    def give_place_back(self) -> None:
        self._places.release()

    def _attempt(self, topic: str, send: Callable[[], object]) -> None:
        try:
            send()
        except RocketqError as error:
            with self._lock:
                self.lost += 1
            log.warning("A one-way message to %s was lost: %s", topic, error)
        finally:
            self.give_place_back()
