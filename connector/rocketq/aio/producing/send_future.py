"""What a task keeps of a message that it submitted: it can be awaited, on the loop of its producer.

All futures of a batch wait for one outcome. The thread that sent the batch wakes the loop once, and the loop
goes on with all tasks that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from copy import copy
from typing import Any

import msgspec

from rocketq.aio.home_loop import HomeLoop
from rocketq.errors import RocketqError, SendFailed
from rocketq.model import SendResult
from rocketq.producing.accumulation.send_future import BatchOutcome, SendFuture


class Outcomes:
    """Tasks that wait for batches of one producer. Belongs to the loop."""

    def __init__(self, home: HomeLoop) -> None:
        self._home = home
        self._waiters: dict[BatchOutcome, list[asyncio.Future[None]]] = {}

    def known(self, outcome: BatchOutcome) -> asyncio.Future[None]:
        """Return a future that is done when an outcome is known."""
        waiter: asyncio.Future[None] = self._home.check().create_future()
        waiters = self._waiters.get(outcome)
        if waiters is None:
            self._waiters[outcome] = [waiter]
            outcome.when_known(self._tell, 0)
        else:
            waiters.append(waiter)
        return waiter

    def _tell(self, known: SendFuture) -> None:
        self._home.post(self._wake, known.place[0])

    def _wake(self, outcome: BatchOutcome) -> None:
        for waiter in self._waiters.pop(outcome):
            if not waiter.done():
                waiter.set_result(None)


class AsyncSendFuture(msgspec.Struct, gc=False, eq=False, repr_omit_defaults=True):
    """The result of one submitted message; `await` gives it, as often as you like.

    To cancel a task that awaits it does not cancel the message; `cancel` does.
    """

    _outcome: BatchOutcome
    _row: int
    _outcomes: Outcomes

    def __await__(self) -> Generator[Any, Any, SendResult]:
        outcome = self._outcome
        if not outcome.is_known and not self.done():
            yield from self._outcomes.known(outcome)
        return outcome.result_of(self._row) if outcome.whole is not None else self._stored()

    def done(self) -> bool:
        """Whether the message is stored, or certainly will not be by this call."""
        return self._future().done()

    def cancel(self) -> bool:
        """Do not send the message; return False if it is under way already, or has its outcome."""
        return self._future().cancel()

    def cancelled(self) -> bool:
        return self._future().cancelled()

    @property
    def had_company(self) -> bool:
        """Whether other messages were in its batch; known with the outcome."""
        return self._outcome.rows > 1

    def result(self) -> SendResult:
        """Return where the message is. Raises what its send raised.

        Raises asyncio.CancelledError if it was cancelled, and asyncio.InvalidStateError without an outcome.
        """
        self._check_done()
        return self._stored()

    def exception(self) -> BaseException | None:
        """Return what its send raised, None if the message is stored. Raises as `result` does without one."""
        self._check_done()
        try:
            error = self._future().exception()
        except CancelledError:
            raise asyncio.CancelledError("The message was cancelled") from None
        if not isinstance(error, RocketqError):
            return error
        # The messages of a batch have one error; each task raises a copy, with a traceback of its own.
        own = copy(error)
        own.__cause__ = error
        if isinstance(own, SendFailed):
            own.facts = {**own.facts, "unique_id": self._outcome.unique_id_of(self._row)}
        return own

    def add_done_callback(self, call: Callable[[AsyncSendFuture], object]) -> None:
        """Have `call(future)` made on the loop when the message has its outcome."""
        self._outcomes.known(self._outcome).add_done_callback(lambda _: call(self))

    def _future(self) -> SendFuture:
        return SendFuture(self._outcome, self._row)

    def _check_done(self) -> None:
        if not self.done():
            raise asyncio.InvalidStateError("The message has no outcome yet; await it.")

    def _stored(self) -> SendResult:
        error = self.exception()
        if error is not None:
            raise error
        return self._outcome.result_of(self._row)
