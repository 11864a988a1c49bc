"""What follows from a failed attempt to send, and how long an attempt may take: pure decisions.

`verdict` is RocketMQ's rules (DefaultMQProducerImpl, 5.x) as one function:

    error                                stored?    in any order      in its queue
    -------------------------------------------------------------------------------
    refused for what it says             no         raise             raise
      (InvalidBatch, TooLarge, ...)
    the connection never came about      no         elsewhere         again
    the route names no address           no         elsewhere         again
    busy, unavailable, full, too slow    no         elsewhere         again
    not the master, too few in sync      no         elsewhere         again
    no topic, no queue, no permission    no         new route         new route
    no answer, or an internal error      unknown    here, once        here
    its master left office meanwhile     unknown    here, once        here
    the same, of a send without number   unknown    elsewhere         raise

A numbered send (`send_slots`) that has no answer is repeated *here*: at the same broker, which knows whether
it has stored it. In any order it goes elsewhere after a second failure; the broker that never answered may
have a copy then. A parcel whose order matters never leaves a broker that may have stored it, and without a
number it is repeated only when it is certain that nothing was stored.

All attempts share one timeout, and one attempt gets a part of it (`attempt_ms`): a broker that
accepts a request and does not answer leaves time for another broker, or for the same one after its
restart. RocketMQ leaves this out by default (sendMsgMaxTimeoutPerRequest is -1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from rocketq.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    InternalError,
    NoPermission,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    QueueNotFound,
    RocketqError,
    StoreFull,
    SystemBusy,
    TooManyConnections,
    TooSlow,
    TopicNotFound,
)

#: An attempt gets at least this, or a third of all time if that is less, where it could go to another broker.
ATTEMPT_MS_MIN: Final = 1_500
#: An attempt gets at least this where no other broker has the topic (RocketMQ: sendMsgTimeout).
ATTEMPT_ALONE_MS_MIN: Final = 3_000
#: An attempt at a group of several replicas gets at most this: if the master hangs, another one takes office.
ATTEMPT_REPLICAS_MS_MAX: Final = 5_000
#: No attempt gets less than this part of the time that is left, however many may follow.
SHARES_MAX: Final = 3


#: Errors of a broker that did not take the parcel, and may take it later.
_NOT_NOW: Final = (
    SystemBusy, BrokerUnavailable, StoreFull, TooSlow, TooManyConnections, NotMaster, NotEnoughReplicas,
)  # fmt: skip


class Verdict(Enum):
    """What to do after a failed attempt."""

    RAISE = "raise"
    GIVE_UP = "give up"
    ELSEWHERE = "elsewhere"
    AGAIN = "again"
    NEW_ROUTE = "new route"
    HERE = "here"


#: What ends the attempts, whatever is left of them.
ENDS: Final = frozenset({Verdict.RAISE, Verdict.GIVE_UP})


def verdict(error: RocketqError, ordered: bool, repeatable: bool = False, numbered: bool = False) -> Verdict:
    """Decide what follows from an error, as the table above draws it; `staying` decides about *here*.

    `repeatable` is whether storing the parcel twice does no harm, `numbered` whether its broker would see
    that it comes again.
    """
    if isinstance(error, TopicNotFound | QueueNotFound | NoPermission):
        return Verdict.NEW_ROUTE
    if isinstance(error, _NOT_NOW):
        return Verdict.AGAIN if ordered else Verdict.ELSEWHERE
    if isinstance(error, BrokerUnreachable) and not error.sent:
        return Verdict.AGAIN if ordered else Verdict.ELSEWHERE
    if isinstance(error, BrokerUnreachable | InternalError | OutcomeUnknown):
        if ordered:
            return Verdict.AGAIN if repeatable or numbered else Verdict.GIVE_UP
        return Verdict.ELSEWHERE
    return Verdict.RAISE


def counts_as_attempt(error: RocketqError, *, has_replicas: bool, others: bool, numbered: bool) -> bool:
    """Whether a failed attempt is one of those that the caller has allowed.

    A group of several replicas whose master is gone takes some seconds to have another one. Where no other
    broker group has the topic, the send waits for it, as long as its time lasts. A numbered send may also be
    repeated that has no answer.
    """
    if others or not has_replicas:
        return True
    if isinstance(error, BrokerUnreachable):
        return error.sent and not numbered
    return not isinstance(error, NotMaster | NotEnoughReplicas | OutcomeUnknown)


def staying(decision: Verdict, trip: Trip, broker: str, *, must_stay: bool, others: bool) -> Verdict:
    """Return HERE in the place of a decision if a numbered send is to be repeated at the same broker.

    `must_stay` is whether it may never leave a broker that may have stored it. `others` is whether there are
    other brokers to go to; the last attempt goes there.
    """
    if broker not in trip.unanswered or decision in ENDS:
        return decision
    is_first = broker not in trip.asked_again and trip.attempts_left > 1
    return Verdict.HERE if must_stay or is_first or not others else decision


def attempt_ms(
    left_ms: int, timeout_ms: int, attempts_left: int, others: bool, asks_again: bool = False
) -> int:
    """Return how long the next attempt may take: an even share of `left_ms` among `attempts_left` attempts.

    The share is never below a third of `left_ms`, since a caller that allows many attempts means those that
    are refused at once. It is never below ATTEMPT_MS_MIN or a third of the whole `timeout_ms`, whichever is
    less; where there are no `others`, no other brokers to send to, never below ATTEMPT_ALONE_MS_MIN. An
    attempt that would leave less than that for the next one gets all that is left. An attempt that only asks
    a broker again leaves half of the time to the others. All times are milliseconds.
    """
    if asks_again and others and attempts_left > 1:
        return max(1, left_ms // 2)
    least_ms = min(ATTEMPT_MS_MIN, timeout_ms // SHARES_MAX) if others else ATTEMPT_ALONE_MS_MIN
    share_ms = max(left_ms // min(attempts_left, SHARES_MAX), least_ms)
    return max(1, left_ms if left_ms - share_ms < least_ms else share_ms)


@dataclass(frozen=True, slots=True)
class Trip:
    """The attempts to deliver one parcel: what they may take, and what became of those that failed."""

    begun_ms: int
    timeout_ms: int
    retries: int
    attempts: tuple[str, ...] = ()
    #: How many of them count against `retries`.
    spent: int = 0
    failed: frozenset[str] = frozenset()
    #: The brokers that may have carried out the request of a failed attempt, and those of them at which a
    #: later attempt failed too.
    unanswered: frozenset[str] = frozenset()
    asked_again: frozenset[str] = frozenset()

    @property
    def may_be_stored(self) -> bool:
        return bool(self.unanswered)

    @property
    def attempts_left(self) -> int:
        return self.retries + 1 - self.spent

    def left_ms(self, now_ms: int) -> int:
        return self.timeout_ms - (now_ms - self.begun_ms)

    def after(self, broker: str, error: RocketqError, *, counts: bool = True) -> Trip:
        """Return the trip with one more failed attempt, at `broker` (`counts`: `counts_as_attempt`)."""
        is_unsent = isinstance(error, BrokerUnreachable) and not error.sent
        unknown = isinstance(error, InternalError | OutcomeUnknown | BrokerUnreachable) and not is_unsent
        told = f"{broker}: {error.message.rstrip('.')}"
        is_same = not counts and self.attempts[-1:] == (told,)
        return replace(
            self,
            attempts=self.attempts if is_same else (*self.attempts, told),
            spent=self.spent + counts,
            failed=self.failed | {broker},
            unanswered=self.unanswered | {broker} if unknown else self.unanswered,
            asked_again=self.asked_again | (self.unanswered & {broker}),
        )
