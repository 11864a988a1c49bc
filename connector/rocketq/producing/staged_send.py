"""Staged sends: messages a broker stores and shows to nobody until their batch is committed.

The broker answers with the log offset of each frame, and only what a commit lists is ever
published. So an attempt without an answer is made again, at once and anywhere: whatever the
broker made of the first is not listed, and disappears. Otherwise a staged send is a send: the
same queues, limits, permissions, retries and avoidance of slow brokers (`attempts.send_attempts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rocketq.errors import RemoteError
from rocketq.errors.replication_errors import StageUnconfirmed
from rocketq.model import MessageQueue, SendStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.send_slot import SendSlot
from rocketq.producing.attempts.parcels import Content, Parcel, stream_of
from rocketq.protocol.documents.sinks import Participant, StageName


@dataclass(frozen=True, slots=True)
class StagedSlice:
    """One acknowledged frame of `count` messages: where it will go, and its name on that broker."""

    status: SendStatus
    queue: MessageQueue
    log_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class StagedPost:
    """A parcel's way onto a stage."""

    name: StageName

    repeatable: ClassVar[bool] = True
    is_numbered: ClassVar[bool] = False

    def numbered(self, slot: SendSlot) -> StagedPost:
        # Only what a commit names is published, so a repetition needs no number.
        return self

    def content(self, parcel: Parcel, compression: str | None) -> Content:
        return stream_of(parcel, compression)

    def __call__(
        self, broker: BrokerApi, parcel: Parcel, content: Content, timeout_ms: int
    ) -> list[StagedSlice]:
        queues = [s.queue.queue for s in parcel.slices]
        answer = broker.stage(self.name, parcel.topic, queues, content, timeout_ms=timeout_ms)
        if answer.status.is_unconfirmed:
            # Another master would lack it, and a commit that names it would be refused.
            raise StageUnconfirmed(answer.broker, answer.status)
        if len(answer.staged) != len(parcel.slices):
            raise RemoteError(
                f"Broker {broker.broker} acknowledged {len(answer.staged)} of {len(parcel.slices)} batches.",
                hint="Nothing of them is visible. Are client and broker of one version?",
            )
        return [
            StagedSlice(
                answer.status,
                MessageQueue(parcel.topic, answer.broker, staged.queue),
                staged.log_offset,
                staged.count,
            )
            for staged in answer.staged
        ]


def participants(slices: Iterable[StagedSlice]) -> tuple[Participant, ...]:
    """Return what a commit lists: each broker's frames in the order of its log, and their messages."""
    return merged(Participant(piece.queue.broker, (piece.log_offset,), piece.count) for piece in slices)


def rows_by_topic(slices: Iterable[StagedSlice]) -> dict[str, int]:
    """Return how many messages of each topic were staged, as a commit says it."""
    rows: dict[str, int] = {}
    for piece in slices:
        rows[piece.queue.topic] = rows.get(piece.queue.topic, 0) + piece.count
    return rows


def merged(parts: Iterable[Participant]) -> tuple[Participant, ...]:
    """Bring together what several have staged, broker by broker."""
    frames: dict[str, list[int]] = {}
    messages: dict[str, int] = {}
    for part in parts:
        frames.setdefault(part.broker, []).extend(part.frames)
        messages[part.broker] = messages.get(part.broker, 0) + part.messages
    return tuple(
        Participant(broker, tuple(sorted(offsets)), messages[broker])
        for broker, offsets in sorted(frames.items())
    )
