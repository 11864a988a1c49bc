"""Asks brokers whose last call failed whether they answer again, so that no send has to find out.

As RocketMQ's detector (LatencyFaultToleranceImpl.detectByOneRound): a broker that answers is reachable again.
Its time of avoidance goes on, but when every broker is avoided, the reachable ones are preferred.

There is no thread while every broker answers. The first failure starts one, and it ends when it has nobody
left to ask.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from rocketq.producing.selection.fault_avoidance import FaultTolerance

log = logging.getLogger("rocketq.producing.producer")

#: The pause before each round, and how long one broker may take to answer (RocketMQ: 2 s and 200 ms).
PROBE_INTERVAL_MS: Final = 2_000
PROBE_TIMEOUT_MS: Final = 200


class BrokerProbe:
    """The brokers to ask, and the thread that asks them. Thread-safe."""

    def __init__(
        self,
        fault: FaultTolerance,
        answers: Callable[[str, str], bool | None],
        interval_ms: int = PROBE_INTERVAL_MS,
    ) -> None:
        """`answers(broker, address)` is whether a broker answers within PROBE_TIMEOUT_MS; None if it left."""
        self._fault, self._answers, self._interval_s = fault, answers, interval_ms / 1000
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def watch(self, broker: str, address: str) -> None:
        """Ask a broker, from the next round on, until it answers, a call to it succeeds, or it has left."""
        with self._lock:
            if self._closing.is_set():
                return
            self._addresses[broker] = address
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rocketq-probe", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread, after the question that it is asking now."""
        self._closing.set()
        with self._lock:
            thread, self._addresses = self._thread, {}
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            with self._lock:
                asked = dict(self._addresses)
            for broker, address in asked.items():
                if self._closing.is_set():
                    break
                if not self._fault.is_reachable(broker):
                    answers = self._answers(broker, address)
                    if answers is False:
                        continue
                    if answers:
                        log.info("Broker %s at %s answers again.", broker, address)
                        self._fault.answered(broker)
                self._forget(broker)
            with self._lock:
                if not self._addresses:
                    self._thread = None
                    return

    def _forget(self, broker: str) -> None:
        with self._lock:
            self._addresses.pop(broker, None)
