"""What the caller of `submit` keeps: a future that has its batch's outcome in common with all of the batch.

A batch has one outcome, one event that says it is known, and one list of callbacks, which is empty if nobody
asked for any. A future is the outcome and a row. The `SendResult` of a message is made when it is asked for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketq.model import NO_OFFSET, SendResult
from rocketq.producing.unique_ids import IdRange

log = logging.getLogger("rocketq.producing.producer")

#: Guards the callbacks of all outcomes for the moment in which one is added or they are taken.
_callbacks_lock: Final = threading.Lock()


class BatchOutcome:
    """What became of each message of a batch.

    Messages that were taken out of the batch before it was sent are in `taken_out`, with the reason.
    """

    __slots__ = (
        "_callbacks",
        "_error",
        "_event",
        "_numbers",
        "_parts",
        "ids",
        "on_cancel",
        "own_ids",
        "rows",
        "taken_out",
        "whole",
    )

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[tuple[Callable[[SendFuture], object], int]] = []
        #: The results of the parts that are stored. Of each row, which part it is in (-1: none) and its
        #: number there, if the parts are several or lack a row.
        self._parts: list[SendResult] = []
        self._numbers: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        #: How many messages the batch had; 0 until the outcome is known.
        self.rows = 0
        #: The ids of the rows, if they have any, and those that callers gave.
        self.ids: IdRange | None = None
        self.own_ids: dict[int, str] = {}
        #: The result of the batch if all of it is stored in one place.
        self.whole: SendResult | None = None
        self._error: BaseException | None = None
        self.taken_out: dict[int, BaseException] = {}
        #: Takes a row out of a batch that is not under way, and says whether it could. None when the outcome
        #: is known.
        self.on_cancel: Callable[[int], bool] | None = None

    @property
    def is_known(self) -> bool:
        return self._event.is_set()

    def settle(
        self,
        rows: int,
        parts: list[tuple[npt.NDArray[np.int64], SendResult]],
        error: BaseException | None,
    ) -> None:
        """Make the outcome of `rows` messages known; those in no part have failed because of `error`."""
        self.rows = rows
        self._parts = [result for _, result in parts]
        self._error = error
        if len(parts) == 1 and _are_all(parts[0][0], rows):
            self.whole = parts[0][1]
        else:
            part_of, number_in = np.full(rows, -1, np.int64), np.zeros(rows, np.int64)
            for at, (places, _) in enumerate(parts):
                part_of[places] = at
                number_in[places] = np.arange(len(places))
            self._numbers = (part_of, number_in)
        self.on_cancel = None
        self._event.set()

    def call_back(self) -> None:
        """Make the calls that were asked for; an exception in one is logged, as `concurrent.futures` does."""
        with _callbacks_lock:
            callbacks, self._callbacks = self._callbacks, []
        for call, row in callbacks:
            _call(call, SendFuture(self, row))

    def wait(self, timeout_s: float | None) -> bool:
        return self._event.wait(timeout_s)

    def when_known(self, call: Callable[[SendFuture], object], row: int) -> None:
        """Have `call(future)` made once: by the thread that settles, or now if the outcome is known."""
        with _callbacks_lock:
            if not self._event.is_set():
                self._callbacks.append((call, row))
                return
        _call(call, SendFuture(self, row))

    def error_of(self, row: int) -> BaseException | None:
        """Return why a message was not stored; None if it was. The outcome is known."""
        if row in self.taken_out:
            return self.taken_out[row]
        is_stored = self.whole is not None or (self._numbers is not None and self._numbers[0][row] >= 0)
        return None if is_stored else self._error

    def result_of(self, row: int) -> SendResult:
        """Return where a message is; the outcome is known, and it has no error."""
        if self.whole is not None:
            part, number = self.whole, row
        else:
            assert self._numbers is not None
            part, number = self._parts[self._numbers[0][row]], int(self._numbers[1][row])
        offset = NO_OFFSET if part.is_delayed else part.offset + number
        return SendResult(part.status, part.queue, offset, 1, self.unique_id_of(row), part.timer_id)

    def unique_id_of(self, row: int) -> str | None:
        """Return the id of its own that a message was sent with, None without one."""
        return None if self.ids is None else self.own_ids.get(row) or self.ids.id_of(row)


class SendFuture:
    """The result of one submitted message, as a `concurrent.futures.Future` has it.

    `to_future` gives such a Future, for `concurrent.futures.wait`.
    """

    __slots__ = ("_outcome", "_row")

    def __init__(self, outcome: BatchOutcome, row: int) -> None:
        self._outcome, self._row = outcome, row

    @property
    def place(self) -> tuple[BatchOutcome, int]:
        """The outcome of its batch, and the message's row in it."""
        return self._outcome, self._row

    def done(self) -> bool:
        """Whether the message is stored, or certainly will not be by this call."""
        return self._outcome.is_known or self._row in self._outcome.taken_out

    def cancel(self) -> bool:
        """Do not send the message; return False if it is under way already, or has its outcome."""
        on_cancel = self._outcome.on_cancel
        return self.cancelled() or (on_cancel is not None and on_cancel(self._row))

    def cancelled(self) -> bool:
        return isinstance(self._outcome.taken_out.get(self._row), CancelledError)

    def result(self, timeout: float | None = None) -> SendResult:
        """Return where the message is, at most `timeout` seconds later.

        Raises what its send raised, CancelledError, and TimeoutError if there is no outcome yet.
        """
        outcome = self._outcome
        if outcome.whole is None:
            error = self.exception(timeout)
            if error is not None:
                raise error
        return outcome.result_of(self._row)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what its send raised, None if the message is stored. Raises as `result` does without one."""
        outcome = self._outcome
        if self._row not in outcome.taken_out and not (outcome.is_known or outcome.wait(timeout)):
            raise TimeoutError(f"no outcome within {timeout} s")
        error = outcome.error_of(self._row)
        if isinstance(error, CancelledError):
            raise error
        return error

    def add_done_callback(self, call: Callable[[SendFuture], object]) -> None:
        """Have `call(future)` made when the message has its outcome; at once if it has it already.

        A sending thread makes the call, so it should be short. An exception in it is logged.
        """
        self._outcome.when_known(call, self._row)

    def to_future(self) -> Future[SendResult]:
        """Return a `concurrent.futures.Future` with the same outcome; to cancel it has no effect."""
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()

        def settle(known: SendFuture) -> None:
            try:
                future.set_result(known.result())
            except BaseException as error:  # noqa: BLE001  it is the future's
                future.set_exception(error)

        self.add_done_callback(settle)
        return future


def _call(call: Callable[[SendFuture], object], future: SendFuture) -> None:
    try:
        call(future)
    except Exception:
        log.exception("A callback of a submitted message raised an exception")


def _are_all(rows: npt.NDArray[np.int64], count: int) -> bool:
    """Whether these are the rows from 0 to `count`, in order."""
    return len(rows) == count and bool((rows == np.arange(count)).all())
