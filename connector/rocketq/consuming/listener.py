"""A function that is called for each message of a group (RocketMQ: the push consumer and its listeners).

    @client.listener("orders", group="audit", filter=Tag("paid"), workers=8)
    def on_order(message):
        ...

Worker threads take messages and call the function. When it returns, the message is acknowledged; when it
raises, the message is tried again, after the back-off levels or, with `ordered`, before any message behind
it. With `ordered` one worker at a time works on a queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from rocketq.consuming.consumed_message import ConsumedMessage, Delivery
from rocketq.consuming.group_reader import GroupReader
from rocketq.consuming.member_view import ListenerView
from rocketq.consuming.worker_pace import WorkerPace
from rocketq.errors import Closed, InvalidConfiguration

log = logging.getLogger("rocketq.consuming.listener")

#: RocketMQ: 1 to 1,000 threads.
WORKERS_MAX: Final = 1_000

#: What a listener calls.
Function = Callable[[ConsumedMessage], object]


class Listener(ListenerView):
    """A member of a group whose messages are handled by a function; made by `Client.listener`.

    >>> handled = threading.Event()
    >>> @client.listener("orders", group="shipping")
    ... def ship(message: ConsumedMessage) -> None:
    ...     handled.set()
    >>> handled.wait(30)
    True
    >>> ship.close()  # every message that was begun is done
    True

    It runs from when it is made until `close`. Calling the listener calls the function, so that a decorated
    function stays usable.
    """

    def __init__(self, reader: GroupReader, function: Function, workers: int) -> None:
        super().__init__(reader)
        self._function, self._workers = function, workers
        self._pace = WorkerPace(workers)
        self._close_lock = threading.Lock()
        self._running = workers
        self._idle = threading.Condition()
        for number in range(workers):
            name = f"rocketq-listener-{reader.group}-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def __call__(self, message: ConsumedMessage) -> object:
        return self._function(message)

    def close(self, timeout_ms: int = 30_000) -> bool:
        """Finish the messages that are being handled, commit, release the queues and leave the group.

        Returns False, and logs a warning, if a function had not returned after `timeout_ms`: its messages
        are not acknowledged and come again. Twice is no error. A function may not close its own listener.
        """
        if threading.current_thread().name.startswith(f"rocketq-listener-{self.group}-"):
            raise InvalidConfiguration(
                "close", self.group, "the function of a listener cannot close it: it would wait for itself",
                hint="Set an event in the function, and close the listener where it was made.",
            )  # fmt: skip
        with self._close_lock:
            # From here on no worker begins with a message; each of them ends after the one in its hands.
            self._reader.recall()
            with self._idle:
                is_finished = self._idle.wait_for(lambda: self._running == 0, timeout_ms / 1000)
            if not is_finished:
                log.warning(
                    "%d function(s) of the listener of group %s had not returned after %d ms; their messages "
                    "are delivered again: %s", self._running, self.group, timeout_ms, ", ".join(self.in_hand),
                )  # fmt: skip
            self._reader.close()
        return is_finished

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- workers -----------------------------------------------------------------

    def _work(self) -> None:
        try:
            while True:
                rows = self._pace.rows(self._reader.ready_messages())
                delivery = self._reader.hand_out(rows, None, raising=False)
                if delivery is not None:
                    began = time.perf_counter()
                    self._pace.handled(self._handle(delivery), time.perf_counter() - began)
                    self._reader.settled()
        except Closed:
            return
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def _handle(self, delivery: Delivery) -> int:
        """Call the function for each message; return for how many."""
        function, handled = self._function, delivery.handled
        for row, message in enumerate(delivery.messages()):
            # In this order: see handling_watch.
            delivery.row = row
            if delivery.is_recalled:
                self._reader.take_back(delivery, row)
                return row
            try:
                function(message)
            except Exception as error:
                log.exception(
                    "The listener of group %s failed with message %s", self.group, message.message_id
                )
                message.nack(reason=f"{type(error).__name__}: {error}")
            else:
                handled[row] = 1
        delivery.row = delivery.rows
        return delivery.rows


def checked_function(function: object) -> Function:
    """Return the function of a listener; raise InvalidConfiguration if it cannot be called."""
    if not callable(function):
        raise InvalidConfiguration(
            "function", function, "a listener calls it for each message, and it cannot be called",
            hint="Give a function of one argument: def on_order(message): …",
        )  # fmt: skip
    return function


def checked_workers(workers: int) -> int:
    """Return the number of workers; raise InvalidConfiguration."""
    if not 1 <= workers <= WORKERS_MAX:
        raise InvalidConfiguration("workers", workers, f"it must be between 1 and {WORKERS_MAX}")
    return workers
