"""What only the Spark connector can find wrong; the rest of the tree is `rocketq.errors`.

ClientError
├── InvalidConfiguration
│   ├── UnknownOption      UNKNOWN_OPTION     (an option this connector does not have)
│   └── SchemaMismatch     SCHEMA_MISMATCH    (a DataFrame's or a user schema's column)
├── BatchUnknown           BATCH_UNKNOWN      (Spark does not say which micro-batch a task is of)
├── DataLost               DATA_LOST          (messages a query still needed are gone)
├── BrokersAway            BROKERS_AWAY       (what a read needs is on brokers that do not answer)
└── CheckpointUnreadable   CHECKPOINT_UNREADABLE
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketq.errors import ClientError, InvalidConfiguration


class UnknownOption(InvalidConfiguration):
    """An option that is not known, or not known here; ignoring it would hide a typing error."""

    code = "UNKNOWN_OPTION"


class SchemaMismatch(ClientError):
    """A column is missing, unknown or of the wrong type; nothing was read or sent."""

    code = "SCHEMA_MISMATCH"
    status = 400

    def __init__(self, column: str, why: str, hint: str = "") -> None:
        super().__init__(f"Column {column!r} {why}.", hint=hint, facts={"column": column, "why": why})


class BatchUnknown(ClientError):
    """A task that should write exactly once was not told its query, batch and run; nothing was sent."""

    code = "BATCH_UNKNOWN"
    status = 500

    def __init__(self) -> None:
        super().__init__(
            "Spark did not tell this task which micro-batch of which query it works for, so what it "
            "writes could not be told from a repetition.",
            hint="Set delivery=at-least-once, or write in foreachBatch with txnAppId and txnVersion.",
        )


class DataLost(ClientError):
    """Messages that the query has not read yet can no longer be read.

    Raised under failOnDataLoss=true: by retention past the query's position, by a topic deleted or made
    anew, by a broker that lost the end of its log or all of it, or was taken off the topic.
    """

    code = "DATA_LOST"
    status = 410

    def __init__(self, queue: str, why: str, hint: str = "") -> None:
        super().__init__(
            f"Messages of {queue} that this query has not read are gone: {why}.",
            hint=hint
            or "Set failOnDataLoss=false to go on without them, or keep messages longer (retention_ms).",
            facts={"queue": queue, "why": why},
        )


class BrokersAway(ClientError):
    """Brokers that hold a topic did not answer within brokerWaitMs, and the read needs them.

    `away` is topic to broker to why.
    """

    code = "BROKERS_AWAY"
    status = 503

    def __init__(self, away: Mapping[str, Mapping[str, str]], waited_ms: int) -> None:
        flat = {(topic, broker): why for topic, brokers in away.items() for broker, why in brokers.items()}
        topic, broker = min(flat)
        super().__init__(
            f"What is to be read is partly on brokers that are away, after {waited_ms} ms of waiting: "
            f"{listed_brokers(flat)}.",
            hint="Start them again, or wait longer (brokerWaitMs). One that is gone for good can be taken "
            f"off the topic, with what it held: rocketq topic alter {topic} --remove-broker {broker}.",
            facts={"away": {topic: dict(brokers) for topic, brokers in away.items()}, "waited_ms": waited_ms},
        )


def by_topic(away: Mapping[tuple[str, str], str]) -> dict[str, dict[str, str]]:
    """Return why brokers are away, from (topic, broker) to nested by topic."""
    nested: dict[str, dict[str, str]] = {}
    for (topic, broker), why in sorted(away.items()):
        nested.setdefault(topic, {})[broker] = why
    return nested


def listed_brokers(away: Mapping[tuple[str, str], str]) -> str:
    """Return brokers by topic, and why they are away, for a message."""
    return "; ".join(f"topic {topic} on {broker} ({why})" for (topic, broker), why in sorted(away.items()))


class CheckpointUnreadable(ClientError):
    """An offset in the checkpoint is not one of ours, or of a version we do not know."""

    code = "CHECKPOINT_UNREADABLE"
    status = 400

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The offset in the query's checkpoint cannot be read: {why}.",
            hint="Was the checkpoint written by another source, or by a newer pyspark_rocketq?",
            facts={"why": why},
        )
