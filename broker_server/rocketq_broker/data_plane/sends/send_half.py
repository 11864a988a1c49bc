"""Half messages: what turns a send into messages that nobody sees until their transaction is committed.

    ?transaction=ID&group=G&part=N      all three, or none for an ordinary send

The id is the producer's, and names the transaction on this broker. Its sends are numbered from 0. A send that
comes again because its answer was lost is held once. Each is for one queue. Everything else of a send
(`send`) stays as it is: its forms, its limits, its permissions, its topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rocketq.errors import InvalidRequest
from rocketq.model import SendStatus
from rocketq.protocol.documents.broker import encode
from rocketq.protocol.documents.transactions import HalfAnswer, HalfName
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.data_plane.data_call import Answer, json_answer
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, whole_number
from rocketq_broker.store.commit.small_batches import Addressed, DelayedBatch, DelayedMessage

HALF_PARAMETERS: Final = frozenset({"transaction", "group", "part"})


def half_of(parameters: Mapping[str, str]) -> HalfName | None:
    """Return what transaction a send is part of, None if of none; raise InvalidRequest or InvalidName."""
    given = HALF_PARAMETERS & parameters.keys()
    if not given:
        return None
    missing = sorted(HALF_PARAMETERS - given)
    if missing:
        raise InvalidRequest(
            f"parameter {missing[0]}", "is required of a half message",
            hint=f"Give all of {', '.join(sorted(HALF_PARAMETERS))}, or none of them.",
        )  # fmt: skip
    check_name("transaction", parameters["transaction"])
    check_user_group(parameters["group"])
    return HalfName(
        parameters["transaction"], parameters["group"], whole_number(parameters, "part", 0, NUMBER_MAX)
    )


def check_half(batches: Sequence[Addressed]) -> None:
    """Raise InvalidRequest unless what a send has is one batch, and none of its messages is delayed."""
    if any(isinstance(each, DelayedBatch | DelayedMessage) for each in batches):
        raise InvalidRequest(
            "the message", "is delayed and in a transaction, and a committed message is delivered at once",
            hint="Leave the delay out, or send the delayed message by itself when the transaction has ended.",
        )  # fmt: skip
    if len(batches) > 1:
        raise InvalidRequest(
            "the request body", f"has {len(batches)} batches or queues, and a part of a transaction has one",
            hint="Send each batch as a part of its own: part=0, part=1 and so on.",
        )  # fmt: skip


def half_answer(status: SendStatus, broker: str, topic: str, name: HalfName, messages: int) -> Answer:
    """Return the answer to half messages that are held."""
    return json_answer(encode(HalfAnswer(status, broker, topic, name.transaction, messages)))
