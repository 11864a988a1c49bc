"""Checks: brokers ask a producer group what became of transactions, and its check function answers.

    router      finds the live brokers, now and every ROUTE_MS
    checker     one for each broker: keeps a call open there, calls the check function with each half message
    that
                comes, and commits or rolls back as it says

Any live producer of a group may be asked about the transactions of all of them, also of those that have died.
What the function leaves UNKNOWN, and what it cannot answer because it raises, is asked again later by the
broker. All threads end when the transport is closed, which cuts the calls that they wait for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from rocketq.admin.live_masters import LiveMasters
from rocketq.errors import RocketqError
from rocketq.errors.transaction_errors import TransactionMisused
from rocketq.model import HalfMessage, TransactionState
from rocketq.net.route_cache import RouteCache
from rocketq.net.transaction_api import TransactionApi
from rocketq.net.transport import Transport
from rocketq.producing.attempts.send_trace import is_traced
from rocketq.producing.transactions.transaction_trace import TransactionAnswer, TransactionTrace, tell
from rocketq.protocol.documents.transactions import CheckDocument

log = logging.getLogger("rocketq.producing.transactions.transaction_checks")

#: Says what became of a transaction; it may be a coroutine function.
Check: TypeAlias = Callable[[HalfMessage], TransactionState | Awaitable[TransactionState]]

#: How often brokers are looked for (RocketMQ: heartbeatBrokerInterval).
ROUTE_MS: Final = 30_000
#: How long a broker holds the call of a checker.
HOLD_MS: Final = 20_000
#: The pause after a call that failed.
RETRY_MS: Final = 1_000


class CheckFunction:
    """A check function, and the event loop on which it runs if it is a coroutine function."""

    def __init__(self, group: str, check: Check | None) -> None:
        """Raise TransactionMisused for what is no check function, or has no loop to run on."""
        if check is None or not callable(check):
            why = (
                "no check function is given"
                if check is None
                else f"check is {check!r}, which cannot be called"
            )
            raise TransactionMisused(
                f"Transactions of group {group!r}", why,
                "Give check=f. The broker asks it what became of a transaction whose outcome got lost: "
                "f(message) returns a TransactionState.",
            )  # fmt: skip
        self._check = check
        self._loop: asyncio.AbstractEventLoop | None = None
        if inspect.iscoroutinefunction(check) or inspect.iscoroutinefunction(type(check).__call__):
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                raise TransactionMisused(
                    f"Transactions of group {group!r}",
                    "check is a coroutine function, and no event loop is running",
                    "Call transactions() in the event loop on which it is to run, or give a plain function.",
                ) from None

    def state_of(self, message: HalfMessage) -> TransactionState:
        """Return what the function says; UNKNOWN if it raises or returns something else, which is logged."""
        try:
            answer = self._check(message)
            if self._loop is not None and inspect.iscoroutine(answer):
                answer = asyncio.run_coroutine_threadsafe(answer, self._loop).result()
        except Exception:
            # Whatever it raises is the application's, and must not end the checks of other transactions.
            log.exception("The check of transaction %s failed; it is asked again", message.transaction_id)
            return TransactionState.UNKNOWN
        if isinstance(answer, TransactionState):
            return answer
        log.error(
            "The check of transaction %s returned %r, which is no TransactionState; it is asked again",
            message.transaction_id, answer,
        )  # fmt: skip
        return TransactionState.UNKNOWN


class TransactionChecks:
    """The threads of one producer group in this process, from `start` to `join`."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        group: str,
        check: CheckFunction,
        trace: TransactionTrace | None = None,
    ) -> None:
        self._transport, self._trace = transport, trace
        self._masters = LiveMasters(transport, routes)
        self._group = group
        self._check = check
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        #: Where each live broker is, and the thread that serves it.
        self._addresses: dict[str, str] = {}
        self._checkers: dict[str, threading.Thread] = {}
        self._router = threading.Thread(target=self._route, name="rocketq-checks-router", daemon=True)

    def start(self) -> None:
        self._router.start()

    def begin_stop(self) -> None:
        """Have all threads end; the caller then closes the transport, which cuts their calls."""
        self._stopping.set()

    def join(self) -> None:
        """Return when all threads have ended."""
        self._router.join()
        with self._lock:
            checkers = list(self._checkers.values())
        for each in checkers:
            each.join()

    def serve(self, broker: str, address: str) -> None:
        """Answer the checks of a broker from now on, if that is not so already."""
        with self._lock:
            self._addresses[broker] = address
            if broker in self._checkers or self._stopping.is_set():
                return
            made = threading.Thread(
                target=self._answer_checks, args=(broker,), name=f"rocketq-checks {broker}", daemon=True
            )
            self._checkers[broker] = made
            made.start()

    # --- the router -----------------------------------------------------------------

    def _route(self) -> None:
        pause_ms = 0
        while not self._stopping.wait(pause_ms / 1000):
            try:
                identities = self._masters.identities()
            except RocketqError as error:
                if not self._stopping.is_set():
                    log.warning("Group %s cannot learn which brokers are alive: %s", self._group, error)
                pause_ms = RETRY_MS
                continue
            for broker, identity in identities.items():
                self.serve(broker, identity.address)
            with self._lock:
                for broker in self._addresses.keys() - identities.keys():
                    del self._addresses[broker]
            pause_ms = ROUTE_MS

    # --- a checker ------------------------------------------------------------------

    def _answer_checks(self, broker: str) -> None:
        is_troubled = False
        while (api := self._api(broker)) is not None:
            try:
                checks = api.take_checks(self._group, wait_ms=HOLD_MS).checks
                is_troubled = False
            except RocketqError as error:
                if not (is_troubled or self._stopping.is_set()):
                    log.warning("Broker %s cannot be asked for checks: %s", broker, error)
                is_troubled = True
                self._stopping.wait(RETRY_MS / 1000)
                continue
            for each in checks:
                self._answer(api, each)

    def _api(self, broker: str) -> TransactionApi | None:
        """Return calls to a broker; None when this checker is to end: the broker is gone, or all stops."""
        if self._stopping.is_set():
            return None
        with self._lock:
            address = self._addresses.get(broker)
            if address is None:
                del self._checkers[broker]
                return None
        return TransactionApi(self._transport, broker, address)

    def _answer(self, api: TransactionApi, each: CheckDocument) -> None:
        try:
            message = each.half_message(api.broker)
            if message is None:
                log.error(
                    "Broker %s can no longer read the message of transaction %s; an operator is to decide it",
                    api.broker, each.transaction,
                )  # fmt: skip
                return
            if self._trace is not None and is_traced(message):
                self._answer_traced(self._trace, api, message)
            else:
                self._decide(api, each.transaction, self._check.state_of(message))
        except RocketqError as error:
            if not self._stopping.is_set():
                log.warning("The check of transaction %s had no effect: %s", each.transaction, error)

    def _answer_traced(self, trace: TransactionTrace, api: TransactionApi, message: HalfMessage) -> None:
        """Answer a check, and tell the trace of it whether or not the broker confirms the answer."""
        begun_ms = trace.now_ms()
        state = self._check.state_of(message)
        failure: RocketqError | None = None
        try:
            self._decide(api, message.transaction_id, state)
        except RocketqError as error:
            failure = error
            raise
        finally:
            found = (message.transaction_id, self._group, message.queue.topic, api.broker)
            tell(trace, TransactionAnswer(*found, state, message.check, begun_ms, failure))

    def _decide(self, api: TransactionApi, transaction: str, state: TransactionState) -> None:
        if state is not TransactionState.UNKNOWN:
            api.decide(self._group, transaction, state)
