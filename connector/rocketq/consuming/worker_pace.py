"""How many messages a worker of a listener takes at once: a decision, no I/O.

Many at once cost less for each message. But a queue can be handed over only when its workers are done: if
several have messages of it, those in front are handled to the end, since messages behind them may be handled
already (`ProcessQueue.leave`). So a worker takes about WORK_S of work, as the last messages took.
"""

from __future__ import annotations

from typing import Final

#: The most that one worker takes at once; the less there is, the less it takes, so that others get some.
MESSAGES_MAX: Final = 256
#: How long a worker is to be busy with what it takes at once.
WORK_S: Final = 0.1
#: Before anything is known, a message is taken to be slow.
FIRST_MESSAGE_S: Final = 0.01


class WorkerPace:
    """How long messages take the function of a listener. Threads may share it: the last word counts."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._message_s = FIRST_MESSAGE_S

    def rows(self, ready: int) -> int:
        """Return how many of `ready` messages a worker takes now, at least one."""
        in_time = MESSAGES_MAX if self._message_s * MESSAGES_MAX <= WORK_S else int(WORK_S / self._message_s)
        return max(1, min(in_time, ready // self._workers))

    def handled(self, rows: int, elapsed_s: float) -> None:
        """Learn how long some messages took; none teach nothing."""
        if rows:
            self._message_s = elapsed_s / rows
