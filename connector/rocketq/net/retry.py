"""Calls that may be repeated, made until they are answered or time is over."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from rocketq.errors import RocketqError, SystemBusy

log = logging.getLogger("rocketq.net.retry")

#: A call that cannot be done without is repeated this long: a broker restarts in less.
PERSIST_MS: Final = 60_000
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MAX_MS: Final = 2_000

T = TypeVar("T")


def persist(call: Callable[[], T], what: str, persist_ms: int = PERSIST_MS) -> T:
    """Make a call that may be repeated until it is answered, at most `persist_ms` long.

    Only errors marked retryable are waited out, a busy broker as long as it asks for; the last one is
    raised when time is over.
    """
    give_up_at = time.monotonic() + persist_ms / 1000
    pause_ms = _PAUSE_FIRST_MS
    while True:
        try:
            return call()
        except RocketqError as error:
            if not error.retryable:
                raise
            asked_ms = error.retry_after_ms if isinstance(error, SystemBusy) else 0
            # Jitter, so that the tasks of one job do not all come back at once.
            wait_s = max(asked_ms, pause_ms * random.uniform(0.5, 1.0)) / 1000
            if time.monotonic() + wait_s >= give_up_at:
                raise
            log.warning("%s: %s Trying again in %d ms.", what, error.message, wait_s * 1000)
            time.sleep(wait_s)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
