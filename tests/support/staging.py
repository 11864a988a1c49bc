"""Short words for what tests do to a store's stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from rocketq.model import Message
from rocketq.protocol.documents.sinks import PublishBatchRequest, Staged, StageName
from tests.support.store_driver import Driver, answer, batch

NAME = StageName("etl", 0, "run-1", "broker-a")


def stage(
    driver: Driver, parts: Mapping[int, Iterable[bytes | Message]], name: StageName = NAME, topic: str = "t"
) -> list[Staged]:
    """Stage a batch for each of some queues."""
    batches = [batch(queue, bodies) for queue, bodies in parts.items()]
    outcome = answer(lambda done: driver.store.append(topic, batches, done, stage=name))
    return list(outcome.staged)


def request_for(staged: Sequence[Staged], name: StageName = NAME) -> PublishBatchRequest:
    frames = tuple(each.log_offset for each in staged)
    return PublishBatchRequest(name.batch, name.run, frames, sum(each.count for each in staged))


def publish(driver: Driver, staged: Sequence[Staged], name: StageName = NAME) -> None:
    """Publish staged batches, and wait until they are in their queues."""
    answer(partial(driver.store.sinks.publish, name.sink, request_for(staged, name)))
