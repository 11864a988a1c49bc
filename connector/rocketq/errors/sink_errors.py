"""What goes wrong with an exactly-once sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rocketq.errors.base import ClientError, RemoteError

# --- raised on the client's side -------------------------------------------------


class CoordinatorUnreachable(ClientError):
    """The broker that decides about a sink does not answer; no other one can stand in for it."""

    code = "COORDINATOR_UNREACHABLE"
    status = 503
    retryable = True

    def __init__(self, sink: str, coordinator: str, why: str) -> None:
        super().__init__(
            f"Broker {coordinator}, which coordinates sink {sink!r}, cannot be reached: {why}.",
            hint="Only this broker knows what the sink has committed. Start it, then start the query again.",
            facts={"sink": sink, "coordinator": coordinator, "why": why},
        )


class CoordinatorUnknown(ClientError):
    """No broker that answered knows the sink, and not all answered, so none may be elected yet."""

    code = "COORDINATOR_UNKNOWN"
    status = 503
    retryable = True

    def __init__(self, sink: str, silent: Mapping[str, str]) -> None:
        listed = "; ".join(f"{broker} ({why})" for broker, why in silent.items())
        super().__init__(
            f"Nobody knows who coordinates sink {sink!r}: "
            + (f"these brokers did not answer: {listed}." if silent else "no broker is registered."),
            hint="A new sink begins when every registered broker is up: start them, and try again.",
            facts={"sink": sink, "silent": dict(silent)},
        )


class CoordinatorConflict(ClientError):
    """Brokers disagree about who coordinates a sink; nothing was written."""

    code = "COORDINATOR_CONFLICT"
    status = 409

    def __init__(self, sink: str, claims: Mapping[str, str]) -> None:
        listed = ", ".join(f"{broker} says {coordinator}" for broker, coordinator in sorted(claims.items()))
        super().__init__(
            f"Brokers disagree about who coordinates sink {sink!r}: {listed}.",
            hint=f"rocketq sink describe {sink} shows what each has decided. Keep one, and forget the sink "
            f"on the brokers that name another: rocketq sink delete {sink} --broker NAME "
            "(docs/operations.md, Two coordinators).",
            facts={"sink": sink, "claims": dict(claims)},
        )


class CommitUnanswered(ClientError):
    """The coordinator did not answer a commit in time: the batch may be decided or not."""

    code = "COMMIT_UNANSWERED"
    status = 503

    def __init__(self, sink: str, batch: int, elapsed_ms: int, why: str) -> None:
        super().__init__(
            f"After {elapsed_ms} ms it is unknown whether batch {batch} of sink {sink!r} is committed. {why}",
            hint="Write the same batch again when the coordinator is back: it is published once either way.",
            facts={"sink": sink, "batch": batch, "elapsed_ms": elapsed_ms, "why": why},
        )


# --- a server's answer -----------------------------------------------------------


class SinkNotFound(RemoteError):
    """This broker knows no such sink."""

    code = "SINK_NOT_FOUND"
    status = 404

    def __init__(self, sink: str, broker: str) -> None:
        super().__init__(
            f"Sink {sink[:200]!r} is not known to broker {broker}.",
            hint="rocketq sink list shows the sinks of all brokers; a writer registers its own.",
            facts={"sink": sink[:200], "broker": broker},
        )


class SinkFenced(RemoteError):
    """Another run of the sink has begun, or this one was given up: it can decide nothing any more."""

    code = "SINK_FENCED"
    status = 409

    def __init__(self, sink: str, run: str, current: str) -> None:
        now = f"run {current!r} has taken its place" if current else "no run is current"
        super().__init__(
            f"Run {run!r} of sink {sink!r} was superseded: {now}.",
            hint="Two writers may be using one sink id; give each its own, or stop the older one.",
            facts={"sink": sink, "run": run, "current": current},
        )


class SinkQueryChanged(RemoteError):
    """The sink's batches were numbered by another query, so a number says nothing about this one's."""

    code = "SINK_QUERY_CHANGED"
    status = 409

    def __init__(self, sink: str, query: str, known: str, decided: int) -> None:
        super().__init__(
            f"Sink {sink!r} has batches up to {decided} of query {known!r}, not of query {query!r}: "
            "a query with a new checkpoint numbers its batches from 0 again, and they would be taken "
            "for ones that are written.",
            hint=f"Use another sink id, or forget what was decided: rocketq sink reset {sink}",
            facts={"sink": sink, "query": query, "known": known, "decided": decided},
        )


class NotCoordinator(RemoteError):
    """Another broker decides about this sink; `coordinator` names it."""

    code = "NOT_COORDINATOR"
    status = 409

    coordinator: str

    def __init__(self, sink: str, broker: str, coordinator: str) -> None:
        self.coordinator = coordinator
        super().__init__(
            f"As broker {broker} knows it, sink {sink!r} is coordinated by broker {coordinator}.",
            hint=f"Ask broker {coordinator}; a sink never changes its coordinator. If brokers name different "
            f"ones, rocketq sink describe {sink} shows it (docs/operations.md, Two coordinators).",
            facts={"sink": sink, "broker": broker, "coordinator": coordinator},
        )


class StageNotFound(RemoteError):
    """A broker does not have all of the staged messages that are to be published; nothing was."""

    code = "STAGE_NOT_FOUND"
    status = 409

    def __init__(self, sink: str, batch: int, run: str, broker: str, why: str) -> None:
        super().__init__(
            f"Broker {broker} cannot publish batch {batch} of sink {sink!r} by run {run!r}: {why}.",
            hint="It may have lost them with its disk or in a power cut under async flush. "
            "An undecided batch is simply written again.",
            facts={"sink": sink, "batch": batch, "run": run, "broker": broker, "why": why},
        )


class BatchAlreadyDecided(RemoteError):
    """A batch number lies below the last decided one: the writer's numbers went back. Nothing was written."""

    code = "BATCH_ALREADY_DECIDED"
    status = 409

    def __init__(self, sink: str, batch: int, decided: int, rows: int) -> None:
        super().__init__(
            f"Batch {batch} of sink {sink!r} was not written, with its {rows} rows: the sink has decided "
            f"batches up to {decided}. The writer's batch numbers went back, as they do when a checkpoint is "
            "set back, or when two writers use one sink.",
            hint="To write it, forget what was decided, and every batch is written from this one on: "
            f"rocketq sink reset {sink}. Or use another sink id.",
            facts={"sink": sink, "batch": batch, "decided": decided, "rows": rows},
        )


class BatchDiffers(RemoteError):
    """The last decided batch came again, with other numbers of rows than were decided. Nothing was written.

    `topics` maps each topic that differs to its rows then and now; it is empty where only totals are known.
    """

    code = "BATCH_DIFFERS"
    status = 409

    def __init__(
        self, sink: str, batch: int, decided_rows: int, rows: int, topics: Mapping[str, Sequence[int]]
    ) -> None:
        listed = ", ".join(f"{topic} {then} then and {now} now" for topic, (then, now) in topics.items())
        super().__init__(
            f"Batch {batch} of sink {sink!r} was decided with {decided_rows} rows and comes again with {rows}"
            + (f" (by topic: {listed})" if listed else "")
            + ": it is another batch of the same number, and was not written.",
            hint="Was the checkpoint set back, or does the query give other rows each time? To write the "
            f"batch, forget what was decided: rocketq sink reset {sink}. Or use another sink id.",
            facts={
                "sink": sink, "batch": batch, "decided_rows": decided_rows, "rows": rows,
                "topics": {topic: list(both) for topic, both in topics.items()},
            },
        )  # fmt: skip


class BatchNotDecided(RemoteError):
    """A broker was told to publish what the sink's coordinator has not decided; it published nothing."""

    code = "BATCH_NOT_DECIDED"
    status = 409

    def __init__(self, sink: str, batch: int, run: str, coordinator: str, why: str) -> None:
        super().__init__(
            f"Batch {batch} of sink {sink!r} by run {run!r} is not published: broker {coordinator}, which "
            f"coordinates the sink, {why}.",
            hint="Only the coordinator's decision publishes: commit the batch there.",
            facts={"sink": sink, "batch": batch, "run": run, "coordinator": coordinator, "why": why},
        )


class ParticipantUnknown(RemoteError):
    """A commit names a broker that the coordinator has never heard of; nothing was decided."""

    code = "PARTICIPANT_UNKNOWN"
    status = 409

    def __init__(self, sink: str, batch: int, broker: str, why: str) -> None:
        super().__init__(
            f"Batch {batch} of sink {sink!r} is not decided: it names broker {broker!r}, which is not known "
            f"to the sink's coordinator and does not answer: {why}.",
            hint="Is the name right, and of this cluster? If so, start the broker and write the batch again.",
            facts={"sink": sink, "batch": batch, "broker": broker, "why": why},
        )


class SinkBusy(RemoteError):
    """Decided batches of the sink are not published everywhere yet."""

    code = "SINK_BUSY"
    status = 409

    def __init__(self, sink: str, broker: str, why: str) -> None:
        super().__init__(
            f"Sink {sink!r} is busy on broker {broker}: {why}.",
            hint=f"rocketq sink describe {sink} shows what is awaited; "
            f"rocketq sink delete --force {sink} gives it up.",
            facts={"sink": sink, "broker": broker, "why": why},
        )
