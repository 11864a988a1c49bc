"""The inbox of the log writer: operations that wait, bounded in bytes, and whose appends are refused.

Any thread submits operations; the writer thread takes all that wait for one commit. A caller with several
operations wakes the writer once, after the last: a writer that is woken for each operation would compete
with its caller for the processor and make one commit of each.

The wake-up is a lock that the writer acquires and a caller releases. It is no `queue.SimpleQueue`: in
CPython 3.11 a `get` with a timeout waits for ever if its time is over when it looks at the queue again. The
writer waits for about a millisecond at a time, so on a busy machine it hung some day, with its callers.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from rocketq.errors import BrokerUnavailable, RocketqError, SystemBusy
from rocketq_broker.store.commit.waiting_operations import AppendBatches, Operation, WorkAlone
from rocketq_broker.store.config import StoreConfig

#: How long a full inbox tells senders to wait: roughly the time of one or two commits; milliseconds.
RETRY_AFTER_MS: Final = 50
_OPERATION_BYTES: Final = 256


class Inbox:
    """Operations in the order of their submission, until it is closed."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._operations: deque[Operation | None] = deque()
        #: What an idle writer waits on: released to wake it, so it is free only while `_is_woken`.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_woken = False
        self._lock = threading.Lock()
        #: Why appends are refused while everything else goes on, by who says so.
        self._append_refusals: dict[str, RocketqError] = {}
        #: Why changes are refused as well, and nothing but `WorkAlone` is taken.
        self._write_refusals: dict[str, RocketqError] = {}
        self.queued_bytes = 0
        #: Why nothing is taken any more; empty while the inbox is open.
        self.closed_why = ""

    def __len__(self) -> int:
        return len(self._operations)

    # --- any thread -------------------------------------------------------------------

    def submit(self, operation: Operation, wake: bool) -> None:
        """Take an operation; raise SystemBusy or BrokerUnavailable if it cannot be taken now."""
        size = operation.size + _OPERATION_BYTES
        with self._lock:
            if self.closed_why:
                raise BrokerUnavailable(self._config.broker, self.closed_why)
            if self._write_refusals and not isinstance(operation, WorkAlone):
                raise next(iter(self._write_refusals.values()))
            if self._append_refusals and isinstance(operation, AppendBatches):
                raise next(iter(self._append_refusals.values()))
            if self.queued_bytes and self.queued_bytes + size > self._config.queued_bytes_max:
                raise SystemBusy(f"{self.queued_bytes} bytes wait to be written", RETRY_AFTER_MS)
            self.queued_bytes += size
            self._operations.append(operation)
        if wake:
            self.wake()

    def wake(self) -> None:
        """Have the writer look at what was submitted."""
        if self._is_woken:
            return
        with self._lock:
            if not self._is_woken:
                self._is_woken = True
                self._bell.release()

    def refuse_appends(self, who: str, error: RocketqError | None) -> None:
        """Refuse appends with this error until the same `who` takes it back with None."""
        self._refuse(self._append_refusals, who, error)

    def refuse_writes(self, who: str, error: RocketqError | None) -> None:
        """Refuse appends and changes with this error until the same `who` takes it back with None."""
        self._refuse(self._write_refusals, who, error)

    def _refuse(self, refusals: dict[str, RocketqError], who: str, error: RocketqError | None) -> None:
        with self._lock:
            refusals.pop(who, None)
            if error is not None:
                refusals[who] = error

    def close(self, why: str, *, anew: bool = False) -> None:
        """Take nothing more, and let the writer end behind what was taken; `anew` replaces the reason."""
        with self._lock:
            first = not self.closed_why
            if first or anew:
                self.closed_why = why
            self._operations.append(None)
        self.wake()

    # --- the writer thread --------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a wake-up; return False if none came in time."""
        if not self._bell.acquire(timeout=-1 if timeout_s is None else timeout_s):
            return False
        # Cleared before the operations are looked at: whoever submits later wakes the writer again.
        self._is_woken = False
        return True

    def take(self, operations: list[Operation]) -> bool:
        """Move one commit's worth into `operations`; return False at the end of a closed inbox."""
        size = 0
        operation: Operation | None = None
        is_open = True
        while self._operations and size < self._config.group_bytes_max:
            operation = self._operations.popleft()
            if operation is None:
                is_open = False
                break
            operations.append(operation)
            size += operation.size + _OPERATION_BYTES
        with self._lock:
            self.queued_bytes -= size
        return is_open

    def empty(self) -> list[Operation]:
        """Take everything that is left."""
        rest = [operation for operation in self._operations if operation is not None]
        self._operations.clear()
        return rest
