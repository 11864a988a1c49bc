"""What this broker has to do for sinks now: pure decisions without a clock, a thread or a call.

As a coordinator the broker tells each participant to publish its part of the decided batches: in batch order
for each sink, and the next batch only when the one before is settled (the participant has published it).
As a participant the broker asks the coordinator about a stage that was quiet for a while, because the driver
that staged it may have ended without an abort (RocketMQ: TransactionalMessageCheckService).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from rocketq_broker.store.sinks.table import SinkTable, Stage

#: A sink and a broker.
Lane = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PublicationDue:
    """A participant is to publish its part of a decided batch."""

    sink: str
    batch: int
    run: str
    broker: str
    frames: tuple[int, ...]
    messages: int

    @property
    def lane(self) -> Lane:
        return self.sink, self.broker


@dataclass(frozen=True, slots=True)
class CheckDue:
    """A coordinator is to be asked about a stage; with `abandon` it was undecided for too long."""

    stage: Stage
    coordinator: str
    abandon: bool


@dataclass(frozen=True, slots=True)
class DropDue:
    """A stage that began after its batch was published here: late attempts, which nobody will name."""

    stage: Stage


def publications_due(
    table: SinkTable, broker: str, under_way: Collection[Lane], not_before_ms: Mapping[Lane, int], now_ms: int
) -> Iterator[PublicationDue]:
    """Yield what participants are to publish now: for each sink and participant its first unsettled batch."""
    for sink, entry in sorted(table.sinks.items(), key=itemgetter(0)):
        if entry.coordinator != broker:
            continue
        seen: set[str] = set()
        for decision in sorted(entry.pending, key=lambda each: each.batch):
            for part in decision.participants:
                if part.broker in decision.settled or part.broker in seen:
                    continue
                seen.add(part.broker)
                lane = (sink, part.broker)
                if lane not in under_way and not_before_ms.get(lane, 0) <= now_ms:
                    yield PublicationDue(
                        sink, decision.batch, decision.run, part.broker, part.frames, part.messages
                    )


def stages_due(
    table: SinkTable, asked_ms: Mapping[int, int], now_ms: int, check_ms: int, ttl_ms: int
) -> Iterator[CheckDue | DropDue]:
    """Yield the stages that nothing was heard of for `check_ms`, from a writer or the coordinator."""
    for number, stage in sorted(table.stages.items(), key=itemgetter(0)):
        heard_ms = max(stage.last_at_ms, asked_ms.get(number, 0))
        if now_ms - heard_ms < check_ms:
            continue
        entry = table.sinks[stage.sink]
        if (stage.batch, stage.run) in entry.published:
            yield DropDue(stage)
        else:
            yield CheckDue(stage, entry.coordinator, now_ms - stage.opened_at_ms >= ttl_ms)
