"""A register whose acceptors are NameServers: the rounds of `proposer`, over HTTP.

Each acceptor has a thread of its own, so one that hangs holds up no call to the others: a round goes on with
the first majority that answers. Rounds that beat each other begin again after a random pause, which grows.
A call has a time. When it is over the outcome is unknown, unless no round has proposed anything.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Final

from rocketq.clock import Clock, SystemClock
from rocketq.errors import RegisterUnavailable, RocketqError
from rocketq.net.meta_register_api import RegisterApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.meta_register import AcceptorAnswer, AcceptRequest, Ballot, PrepareRequest
from rocketq_broker.meta_register.meta_register import Registered
from rocketq_broker.meta_register.proposer import Call, Change, Round

#: The pause after the first beaten round is below this; it doubles up to the second one.
PAUSE_MS: Final = 10
PAUSE_MS_MAX: Final = 200


class NameServerRegister:
    """A `MetaRegister`. One call at a time; several processes may use one register."""

    def __init__(
        self, transport: Transport, acceptors: Sequence[str], cluster: str, broker: str, *,
        timeout_ms: int = 3_000, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._name = f"{cluster}/{broker}"
        self._proposer = uuid.uuid4().hex
        self._number = self._calls = 0
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._apis = [
            RegisterApi(transport, address, cluster, broker, timeout_ms=timeout_ms) for address in acceptors
        ]
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"rocketq-register {address}") for address in acceptors
        ]

    def close(self) -> None:
        """End the threads; calls that are under way end without an outcome."""
        self._stopped.set()
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)

    def read(self) -> Registered:
        return self._carry_out(None, "")

    def cas(self, version: int, record: str) -> Registered:
        return self._carry_out(version, record)

    def _carry_out(self, expected: int | None, record: str) -> Registered:
        with self._lock:
            self._calls += 1
            call = Call(self._name, Change(f"{self._proposer}.{self._calls}", expected, record))
            deadline_ms, pause_ms = self._clock.monotonic_ms() + self._timeout_ms, PAUSE_MS
            while True:
                ended, failures = self._round(call, deadline_ms)
                if ended.chosen is not None:
                    return call.outcome(ended.chosen)
                call = call.after(ended)
                self._number = max(self._number, ended.highest.number)
                if self._clock.monotonic_ms() >= deadline_ms or self._stopped.wait(
                    random.uniform(0, pause_ms) / 1000
                ):
                    raise RegisterUnavailable(
                        self._name, "; ".join(failures) or "other calls kept beating it"
                    )
                pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _round(self, call: Call, deadline_ms: int) -> tuple[Round, list[str]]:
        """Carry out one round; return how far it came, and what failed."""
        self._number += 1
        now = call.round(Ballot(self._number, self._proposer), len(self._apis))
        prepare = PrepareRequest(now.ballot)
        now, failures = self._ask(
            now,
            lambda api: api.prepare(prepare),
            Round.promised,
            lambda r: r.proposed is not None,
            deadline_ms,
        )
        if now.proposed is None:
            return now, failures
        accept = AcceptRequest(now.ballot, now.proposed)
        now = replace(now, refused=frozenset())
        return self._ask(
            now, lambda api: api.accept(accept), Round.took, lambda r: r.chosen is not None, deadline_ms
        )

    def _ask(
        self, now: Round, ask: Callable[[RegisterApi], AcceptorAnswer],
        take: Callable[[Round, AcceptorAnswer], Round], is_enough: Callable[[Round], bool], deadline_ms: int,
    ) -> tuple[Round, list[str]]:  # fmt: skip
        """Ask all acceptors, until a majority has granted or none can."""
        waiting: set[Future[AcceptorAnswer]] = {
            thread.submit(ask, api) for thread, api in zip(self._threads, self._apis, strict=True)
        }
        failures: list[str] = []
        while waiting and not is_enough(now) and not now.is_beaten:
            left_s = max(0, deadline_ms - self._clock.monotonic_ms()) / 1000
            done, waiting = wait(waiting, timeout=left_s, return_when=FIRST_COMPLETED)
            if not done:
                failures.append(f"{len(waiting)} acceptors did not answer in time")
                break
            for future in done:
                try:
                    now = take(now, future.result())
                except RocketqError as error:
                    failures.append(error.message)
        for future in waiting:
            future.cancel()
        return now, failures
