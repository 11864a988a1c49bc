"""Driving a MessageStore from a test: calls that wait for answers, groups that are what the test says.

The log writer takes whatever waits when it is free, so two appends from a test may
or may not share a group. `burst` hands operations over from the writer's own
thread, while it answers another, so they are all there when it looks again: the
group is exactly the burst, and a seeded run always does the same to its disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocketq.clock import Clock
from rocketq.errors import RocketqError
from rocketq.model import FlushMode, Message, PullStatus, TopicConfig
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.documents.broker import CommitOffsetsRequest, CreateTopicRequest, GroupOffset
from rocketq.protocol.frame_slices import FrameSlice, open_frames
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.store.config import StoreConfig
from rocketq_broker.store.disk.files import Files
from rocketq_broker.store.store import AppendOutcome, MessageStore, QueueBatch

#: Far longer than any answer takes; a test that waits this long has found a hang.
ANSWER_S = 60
#: Housekeeping only happens when a test calls it.
NEVER_MS = 1_000_000_000

Call = Callable[[Callable[[Any], None]], None]


def config(directory: Path | None = None, **settings: Any) -> StoreConfig:
    """A store without timers of its own: the test flushes, takes snapshots and retains."""
    quiet: dict[str, Any] = {
        "flush": FlushMode.SYNC,
        "flush_interval_ms": NEVER_MS,
        "snapshot_interval_ms": NEVER_MS,
        "retention_interval_ms": NEVER_MS,
        "index_interval_ms": NEVER_MS,
        "queue_wait_ms_max": NEVER_MS,
    }
    return StoreConfig(directory or Path(tempfile.gettempdir()) / "unused", **{**quiet, **settings})


def batch(queue: int, bodies: Iterable[bytes | Message], codec: str | None = None) -> QueueBatch:
    """A batch for a queue, of bodies or whole messages."""
    messages = [each if isinstance(each, Message) else Message(each) for each in bodies]
    record = from_messages(messages)
    return QueueBatch(queue, encapsulate(record, codec), record)


def answer(call: Call) -> Any:
    """Make a call that takes `done`; return what it answered, raise the error it answered with."""
    future: Future[Any] = Future()
    call(future.set_result)
    result = future.result(ANSWER_S)
    if isinstance(result, RocketqError):
        raise result
    return result


def barrier(done: Callable[[Any], None], store: MessageStore) -> None:
    """Have `done` called on the writer's thread, without a byte written."""
    store.consumer_groups.commit_offsets("barrier", CommitOffsetsRequest(()), done)


def burst(store: MessageStore, calls: Sequence[Call]) -> list[Any]:
    """Make all calls so that they are one group; return what each answered, errors included."""
    futures: list[Future[Any]] = [Future() for _ in calls]

    def hand_over(ready: Any) -> None:
        for call, future in zip(calls, futures, strict=True):
            if isinstance(ready, RocketqError):
                future.set_result(ready)
            else:
                call(future.set_result)

    barrier(hand_over, store)
    return [future.result(ANSWER_S) for future in futures]


class Driver:
    """A started store and short words for what tests do to it."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    def create(self, name: str, queues: int = 4, **request: Any) -> TopicConfig:
        asked = CreateTopicRequest(read_queues=queues, write_queues=queues, **request)
        made: TopicConfig = answer(lambda done: self.store.create_topic(name, asked, done))
        return made

    def delete(self, name: str) -> None:
        answer(lambda done: self.store.delete_topic(name, done))

    def send(self, topic: str, queue: int, bodies: Iterable[bytes | Message]) -> int:
        """Append one batch; return the offset of its first message."""
        return self.append(topic, [batch(queue, bodies)]).appended[0].offset

    def append(self, topic: str, batches: Sequence[QueueBatch]) -> AppendOutcome:
        outcome: AppendOutcome = answer(lambda done: self.store.append(topic, batches, done))
        return outcome

    def commit(self, group: str, topic: str, queue: int, offset: int, reset: bool = False) -> None:
        asked = CommitOffsetsRequest((GroupOffset(topic, queue, offset),), reset)
        answer(lambda done: self.store.consumer_groups.commit_offsets(group, asked, done))

    def progress(self, group: str) -> dict[tuple[str, int], int]:
        found = self.store.group_offsets(group).offsets
        return {(each.topic, each.queue): each.offset for each in found}

    def slices(self, topic: str, queue: int, offset: int | None = None, **limits: Any) -> list[FrameSlice]:
        """Pull everything from an offset (the first) on; every frame is verified."""
        return pull_all(self.store, topic, queue, offset, **limits)

    def bodies(self, topic: str, queue: int, offset: int | None = None, **limits: Any) -> list[bytes]:
        return [
            body
            for each in self.slices(topic, queue, offset, **limits)
            for body in each.batch.column("body").to_pylist()
        ]

    def ends(self, topic: str) -> list[int]:
        return [each.max for each in self.store.offsets(topic).queues]


def pull_all(
    store: MessageStore,
    topic: str,
    queue: int,
    offset: int | None = None,
    max_bytes: int = 4096,
    max_messages: int | None = None,
) -> list[FrameSlice]:
    """Pull [offset, max) with as many calls as it takes, and check that the pieces join."""
    at = store.offsets(topic).queues[queue].min if offset is None else offset
    found: list[FrameSlice] = []
    while True:
        result = store.pull(topic, queue, at, max_bytes=max_bytes, max_messages=max_messages)
        if result.status is PullStatus.NO_NEW_MSG:
            assert not result.chunks
            assert at == result.max_offset == result.next_offset
            return found
        assert result.status is PullStatus.FOUND
        pieces = open_frames(b"".join(result.chunks), at, result.next_offset)
        for piece in pieces:
            assert piece.offset == at, f"offset {at} was asked for, {piece.offset} came"
            at = piece.next_offset
        assert at == result.next_offset, f"the answer ends at {at}, not {result.next_offset}"
        found.extend(pieces)


@contextmanager
def opened(
    settings: StoreConfig,
    files: Files | None = None,
    clock: Clock | None = None,
    **hooks: Any,
) -> Iterator[Driver]:
    """A started store that is closed in the end."""
    store = MessageStore.open(settings, files=files, clock=clock, **hooks)
    try:
        yield Driver(store)
    finally:
        store.close()
