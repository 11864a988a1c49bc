"""Properties whose names have a meaning to the system (RocketMQ: MessageConst).

In RocketMQ a property can be an instruction: `DELAY=3` delays a message, `WAIT=false` weakens its
acknowledgement, `TRAN_MSG=true` hides it. A message that carries such an instruction to a broker
which does not follow it would be delivered as if nothing had been asked. So a name has one of
three meanings, and a name of RocketMQ's is never carried along silently:

    honoured   KEYS: further keys, separated by spaces; they are searched for and filtered by
               UNIQ_KEY: the message's own id, which producers make; it is searched for
               TRACE_ON: whether clients that trace record the message's way, `true` or `false`
               Those that say when a message is to be delivered (`delivery_time`)
    refused    every name below: what it asks for is not there, or is given in another way
    free       all other names, TRACE_CONTEXT among them, which tracers write for each other

Names are compared as they are written. RocketMQ refuses most of these names as well, when a user
sets them (Message.putUserProperty).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketq.protocol.rules.delivery_time import DELIVERY_PROPERTIES

#: Further keys of a message, separated by spaces. It is honoured, as `model.UNIQUE_ID_PROPERTY` is.
KEYS: Final = "KEYS"
#: Whether a message's way is recorded (RocketMQ: PROPERTY_TRACE_SWITCH). It is honoured by clients.
TRACE_ON: Final = "TRACE_ON"

_TIMER: Final = "is written by RocketMQ's timer for itself"
_TRANSACTION: Final = "is written by RocketMQ for a transaction, which is no property of its messages here"
_RETRY: Final = "is written by a broker when a message is delivered again"
_REQUEST: Final = "belongs to RocketMQ's request and reply, which does not exist here"
_DISPATCH: Final = "asks a broker to store the message under other queues, which does not exist here"
_WRITTEN: Final = "is written by RocketMQ's clients or brokers for themselves"

_REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    "is the message's tag": ("TAGS",),
    "asks for another acknowledgement than the broker's": ("WAIT",),
    "asks for an order": ("__SHARDINGKEY",),
    _TRANSACTION: (
        *("TRAN_MSG", "PGROUP", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"),
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "__transactionId__"),
    ),
    _RETRY: (
        *("RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
        "FAILURE_REASON",
        *("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "CONSUME_START_TIME"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME"),
    ),
    _REQUEST: (*("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE"),),
    _DISPATCH: (
        *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE", "REDIRECT"),
        *("PROPERTY_FORWARD_QUEUE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG"),
    ),
    _WRITTEN: (
        *("EXTEND_UNIQ_INFO", "DUP_INFO", "INSTANCE_ID", "BUYER_ID", "CLUSTER"),
        *("MIN_OFFSET", "MAX_OFFSET", "MSG_REGION", "BORN_TIMESTAMP", "__BORNHOST"),
    ),
}

#: Every refused name, and what is said of it.
REFUSED: Final[Mapping[str, str]] = {name: why for why, names in _REASONS.items() for name in names}
#: Honoured names that begin as refused ones do.
HONOURED: Final = frozenset(DELIVERY_PROPERTIES)
#: What refused names that are not listed begin with.
REFUSED_PREFIXES: Final[Mapping[str, str]] = {"TIMER_": _TIMER, "__RMQ.TRANSIENT.": _WRITTEN}

_TRANSACTION_HINT: Final = "Leave it out, and begin a transaction (docs/transactions.md)."
_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS"), _TRANSACTION_HINT),
    "TAGS": "Give it as the message's tag.",
    "WAIT": "Leave it out: the broker's flush mode decides when a send is acknowledged.",
    "__SHARDINGKEY": "Give it as the ordering key.",
}
_BEGINNINGS: Final = tuple(REFUSED_PREFIXES)


def is_refused(name: str) -> bool:
    """Whether a message may not have a property of this name."""
    return name in REFUSED or (name.startswith(_BEGINNINGS) and name not in HONOURED)


def why_refused(name: str) -> tuple[str, str]:
    """Return why a refused name is refused, as what is said of it, and what to do instead."""
    why = REFUSED.get(name) or next(w for p, w in REFUSED_PREFIXES.items() if name.startswith(p))
    return why, _HINTS.get(name, "Leave it out, or give it another name.")
