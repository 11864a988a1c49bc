"""Sending messages that failed back to their brokers: a thread for each broker, one call for many messages.

What fails while a call is under way goes into the next call. Until the broker has answered that it stored a
copy, the message counts as not handled. If it does not take it, the message stays with the member, which
tries it again itself after NOT_TAKEN_MS (RocketMQ: a send-back that failed).

Calls are numbered like sends. If the answer to one is lost, its broker may have stored the copies. So the
same call is made again, with the same number, until the broker says what became of it, or the member has
none of the queues any more. A repetition makes no second copy.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.consuming.members.member_sessions import Sessions
from rocketq.errors import BrokerUnreachable, ClaimLost, Closed, InternalError, RocketqError
from rocketq.model import MessageQueue
from rocketq.net.send_slot import SendSlot
from rocketq.protocol.documents.send_backs import (
    SEND_BACK_MESSAGES_MAX,
    FailedMessage,
    SendBackAnswer,
    SendBackOutcome,
    SendBackRequest,
)

log = logging.getLogger("rocketq.consuming.members.member")

_TAKEN = (SendBackOutcome.RETRY, SendBackOutcome.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Given:
    """A message to send back; `done` is called once, under the lock of the fetching: was it taken?"""

    message: FailedMessage
    done: Callable[[bool], None]


class SendBacks:
    """What one member sends back. The lock is that of its `Fetching`."""

    def __init__(
        self,
        sessions: Sessions,
        fetching: Fetching,
        group: str,
        client_id: str,
        retries_max: int | None,
        retry_ms: int,
    ) -> None:
        """`retry_ms` is the wait before a call whose answer was lost is made again."""
        self._sessions, self._fetching = sessions, fetching
        self._group, self._client_id, self._retries_max = group, client_id, retries_max
        self._retry_ms = retry_ms
        self._slots: dict[str, SendSlot] = defaultdict(SendSlot)
        self._waiting: dict[str, deque[Given]] = defaultdict(deque)
        #: How many were added and are not done.
        self._undone = 0

    def add(self, broker: str, given: Given) -> None:
        """Have a message sent back."""
        with self._fetching.changed:
            self._waiting[broker].append(given)
            self._undone += 1
            self._fetching.start_thread(("send-backs", broker), partial(self._run, broker))
            self._fetching.changed.notify_all()

    def flush(self, timeout_ms: int) -> None:
        """Wait until all that was added is done, at most `timeout_ms`."""
        with self._fetching.changed:
            self._fetching.changed.wait_for(lambda: not self._undone, timeout_ms / 1000)

    # --- the thread of a broker ----------------------------------------------------

    def _run(self, broker: str) -> None:
        fetching, waiting = self._fetching, self._waiting[broker]
        while True:
            with fetching.changed:
                fetching.changed.wait_for(lambda: fetching.is_stopping or waiting)
                if fetching.is_stopping:
                    return
                batch = [waiting.popleft() for _ in range(min(len(waiting), SEND_BACK_MESSAGES_MAX))]
            self._send_back(broker, batch)

    def _send_back(self, broker: str, batch: list[Given]) -> None:
        messages = tuple(each.message for each in batch)
        number = self._slots[broker].next().text
        request = SendBackRequest(self._client_id, messages, self._retries_max, number)
        try:
            answer = self._answer(broker, request)
        except Closed:
            raise
        except ClaimLost as error:
            self._without_lost(broker, batch, error)
        except RocketqError:
            self._settle(broker, [(each, False) for each in batch], [])
        else:
            self._take_answer(broker, batch, answer)

    def _answer(self, broker: str, request: SendBackRequest) -> SendBackAnswer:
        """Return what the broker says; make the call again while nobody knows whether it was carried out."""
        may_be_stored = False
        while True:
            try:
                answer = self._sessions.api(broker).send_back(self._group, request)
            except (Closed, ClaimLost):
                raise
            except RocketqError as error:
                if isinstance(error, BrokerUnreachable):
                    self._sessions.invalidate(broker)
                self._fetching.log_once(("send-backs", broker), error)
                unanswered = isinstance(error, InternalError | BrokerUnreachable)
                may_be_stored |= unanswered and not (isinstance(error, BrokerUnreachable) and not error.sent)
                is_final = not (unanswered or error.retryable)
                if is_final or not may_be_stored or not self._owns_any(broker, request):
                    raise
                self._fetching.wait(self._retry_ms)
                if self._fetching.is_stopping:
                    raise
            else:
                self._fetching.is_well(("send-backs", broker))
                return answer

    def _owns_any(self, broker: str, request: SendBackRequest) -> bool:
        """Whether the member still owns one of the queues of a call, under the epoch that the call names."""
        named = {(MessageQueue(m.topic, broker, m.queue), m.epoch) for m in request.messages}
        with self._fetching.changed:
            states = ((self._fetching.prefetch.state(queue), epoch) for queue, epoch in named)
            return any(state is not None and state.epoch == epoch for state, epoch in states)

    def _take_answer(self, broker: str, batch: list[Given], answer: SendBackAnswer) -> None:
        pairs = list(zip(batch, answer.outcomes, strict=True))
        left = [each for each, outcome in pairs if outcome is SendBackOutcome.NOT_YET]
        done = [(each, o in _TAKEN) for each, o in pairs if o is not SendBackOutcome.NOT_YET]
        refused = {str(o): each.message for each, o in pairs if o not in (*_TAKEN, SendBackOutcome.NOT_YET)}
        for outcome, message in refused.items():
            log.warning(
                "Broker %s did not take back messages of group %s, such as %s/%d at %d: %s. %s", broker,
                self._group, message.topic, message.queue, message.offset, outcome, answer.why,
            )  # fmt: skip
        self._settle(broker, done, left)

    def _without_lost(self, broker: str, batch: list[Given], error: ClaimLost) -> None:
        """Send back again what is of other queues than those that the member has lost."""
        lost = {(each["topic"], each["queue"]) for each in error.lost}
        gone = [each for each in batch if (each.message.topic, each.message.queue) in lost] or batch
        self._sessions.look_again(broker)
        self._settle(broker, [(each, False) for each in gone], [each for each in batch if each not in gone])

    def _settle(self, broker: str, done: list[tuple[Given, bool]], left: list[Given]) -> None:
        with self._fetching.changed:
            for each, is_taken in done:
                each.done(is_taken)
            self._undone -= len(done)
            self._waiting[broker].extendleft(reversed(left))
            self._fetching.changed.notify_all()
