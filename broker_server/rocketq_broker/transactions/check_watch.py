"""Checks of undecided transactions: handed to producers that wait for them; what stays undecided is parked.

A producer keeps a call open. Once in a *tick* the watch looks for producer groups with a check that is due
and wakes their calls. Each call then asks the log writer to hand out what is due: the log decides which call
gets a check, so no check is handed to two. One look costs the number of groups, however many transactions are
open.

In the same tick transactions are parked whose checks are used up, and those are rolled back that were parked
for too long (`store.transactions.decisions`). What fails is tried again in the next tick.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final

import structlog

from rocketq.clock import Clock
from rocketq.errors import RocketqError
from rocketq.http_server.error_answers import Disconnected
from rocketq.http_server.longpoll.long_poll import LongPoll, Receive, Woken
from rocketq.model import TransactionState
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq_broker.config import BrokerConfig
from rocketq_broker.metrics.broker_metrics import Measurements
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.machines.transaction_table import Transaction
from rocketq_broker.store.store import MessageStore, Outcome
from rocketq_broker.store.transactions.parked_batches import PARKING_TOPIC

#: A look at least this often, in milliseconds: a check is never later than that.
TICK_MS_MAX: Final = 1_000
#: Transactions that one tick parks or gives up.
_PARKED_MAX: Final = 100

log = structlog.get_logger("rocketq.broker.transactions")


class CheckWatch:
    """Hands out checks and parks transactions; everything here runs on the loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        completions: Completions,
        readers: Executor,
        measurements: Measurements,
    ) -> None:
        self._store = store
        self._clock = clock
        self._completions = completions
        self._readers = readers
        self._measurements = measurements
        self._calls = LongPoll[str](clock, config.held_calls_max, "checks of transactions")
        policy = config.transactions
        self._tick_s = min(TICK_MS_MAX, policy.timeout_ms, policy.check_interval_ms, policy.kept_ms) / 1000
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many calls wait for a check."""
        return len(self._calls)

    def start(self) -> None:
        """Begin to look, in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def release_all(self) -> None:
        """Let every call answer as things stand, and hold none from now on."""
        self._stopping.set()
        self._calls.release_all()

    async def stop(self) -> None:
        """End the task; the store is still open."""
        self.release_all()
        if self._task is not None:
            await self._task

    async def take(self, group: str, count: int, wait_ms: int, receive: Receive) -> tuple[Transaction, ...]:
        """Return checks of a group for this call alone, at most `count`; none if none falls due in `wait_ms`.

        Raises Disconnected if the client leaves while it waits, SystemBusy if too many calls wait.
        """
        deadline_ms = self._calls.deadline_ms(wait_ms)
        transactions = self._store.transactions
        while True:
            while transactions.has_check(group, self._now_ms()):
                handed: tuple[Transaction, ...] = await self._completions.outcome(
                    partial(transactions.hand_out, group, count, self._now_ms())
                )
                if handed:
                    return handed
            if self._clock.monotonic_ms() >= deadline_ms:
                return ()
            woken = await self._calls.wait((group,), deadline_ms, receive)
            if woken is Woken.GONE:
                raise Disconnected
            if woken is Woken.TIME_IS_UP:
                return ()

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    # --- the tick -----------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await asyncio.wait_for(self._stopping.wait(), self._tick_s)
            except TimeoutError:
                await self._look()

    async def _look(self) -> None:
        now_ms = self._now_ms()
        transactions = self._store.transactions
        self._calls.changed(transactions.groups_to_check(now_ms))
        try:
            for each in transactions.to_park(now_ms, _PARKED_MAX):
                await self._park(each)
            for each in transactions.to_give_up(now_ms, _PARKED_MAX):
                given_up: Outcome = await self._completions.outcome(
                    partial(transactions.decide, each.id, each.group, TransactionState.ROLLBACK)
                )
                self._measurements.decided(given_up)
                log.warning("transaction_given_up", transaction=each.id, group=each.group)
        except (RocketqError, OSError) as error:
            log.warning("parking_failed", why=str(error))

    async def _park(self, each: Transaction) -> None:
        """Park a transaction; its messages can be read in the parking topic then."""
        transactions = self._store.transactions
        loop = asyncio.get_running_loop()
        batches = await loop.run_in_executor(self._readers, transactions.parked_batches, each)
        if PARKING_TOPIC not in transactions.topics:
            request = CreateTopicRequest(1, 1, if_absent=True, automatic=True)
            await self._completions.outcome(partial(self._store.create_topic, PARKING_TOPIC, request))
        await self._completions.outcome(partial(transactions.park, each, batches))
        log.warning("transaction_parked", transaction=each.id, group=each.group, checks=each.checks)
