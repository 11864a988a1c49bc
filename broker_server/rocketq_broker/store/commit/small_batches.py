"""What is addressed to a queue, and how small pieces of it become one frame.

A *batch* came as an Arrow stream and was opened by Arrow. A *message* came alone, without Arrow
(`rocketq.protocol.plain_message`): the log writer makes one batch of a whole run of such messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.model import Message
from rocketq.protocol.arrow.small_messages import FEW_MESSAGES, encapsulate_messages
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.hashing import NULL_HASH, hash_column, hash_value
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.rules.delivery_time import Times

#: What a message takes in a batch beside its data, at most: offsets, validity, times and padding.
_MESSAGE_BYTES: Final = 64
_PROPERTY_BYTES: Final = 8
#: Tags are few, and each is on many messages.
_tag_hash: Final = lru_cache(4_096)(hash_value)


@dataclass(frozen=True, slots=True)
class QueueBatch:
    """A batch addressed to a queue: its bytes as sent, and its opened columns."""

    queue: int
    encapsulated: pa.Buffer
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def sent_bytes(self) -> int:
        return len(self.encapsulated)

    @property
    def merged_bytes(self) -> int:
        """What it takes in a merged frame.

        That is its inflated size: by its compressed one, a few batches could make a frame that no
        reader takes in.
        """
        return max(len(self.encapsulated), int(self.batch.get_total_buffer_size()))


class QueueMessage(NamedTuple):
    """A message addressed to a queue, which came alone; it is within the limits and keeps the rules."""

    queue: int
    message: Message

    @property
    def rows(self) -> int:
        return 1

    @property
    def encapsulated(self) -> pa.Buffer:
        return encapsulate(self.batch)

    @property
    def batch(self) -> pa.RecordBatch:
        return from_messages([self.message])

    @property
    def sent_bytes(self) -> int:
        return self.merged_bytes

    @property
    def merged_bytes(self) -> int:
        """What it takes in a merged frame, at most."""
        message = self.message
        size = _MESSAGE_BYTES + len(message.body) + len(message.key or b"") + _utf8_bytes(message.tag or "")
        for name, value in (message.properties or {}).items():
            size += _PROPERTY_BYTES + _utf8_bytes(name) + _utf8_bytes(value)
        return size


@dataclass(frozen=True, slots=True)
class DelayedBatch(QueueBatch):
    """A batch of delayed messages, sorted by their delivery times, which its properties say as well."""

    times: Times


class DelayedMessage(NamedTuple):
    """A delayed message that came alone, with its delivery time in milliseconds."""

    alone: QueueMessage
    at_ms: int

    @property
    def queue(self) -> int:
        return self.alone.queue

    @property
    def rows(self) -> int:
        return 1

    @property
    def sent_bytes(self) -> int:
        return self.alone.sent_bytes

    @property
    def merged_bytes(self) -> int:
        return self.alone.merged_bytes


Immediate = QueueBatch | QueueMessage
Delayed = DelayedBatch | DelayedMessage
Addressed = Immediate | Delayed


class Merged(NamedTuple):
    """The body of one frame of messages, and what its header and its units need."""

    body: bytes | pa.Buffer
    messages: int
    tag_hashes: npt.NDArray[np.uint64]
    #: Whether the index must look into it: further keys are in the properties.
    may_have_keys: bool


def merge(run: Sequence[Immediate]) -> Merged:
    """Make what goes into one frame of batches and messages for one queue, in their order."""
    if len(run) <= FEW_MESSAGES and not any(isinstance(each, QueueBatch) for each in run):
        return _merge_few([each.message for each in run if isinstance(each, QueueMessage)])
    if len(run) == 1 and isinstance(run[0], QueueBatch):
        return _merged(run[0].encapsulated, run[0].batch)
    batches = batches_of(run)
    return merged_batch(batches[0] if len(batches) == 1 else pa.concat_batches(batches))


def merged_batch(batch: pa.RecordBatch) -> Merged:
    """Make what goes into one frame of a batch."""
    return _merged(encapsulate(batch), batch)


def _merged(body: pa.Buffer, batch: pa.RecordBatch) -> Merged:
    return Merged(body, batch.num_rows, hash_column(batch.column("tag")), may_have_keys(batch))


def _merge_few(messages: Sequence[Message]) -> Merged:
    hashes = np.array(
        [NULL_HASH if each.tag is None else _tag_hash(each.tag) for each in messages], np.uint64
    )
    has_keys = any(each.key is not None or each.properties is not None for each in messages)
    return Merged(encapsulate_messages(messages), len(messages), hashes, has_keys)


def batches_of(run: Sequence[Immediate]) -> list[pa.RecordBatch]:
    """Return the batches of a run; messages that follow each other make one."""
    batches: list[pa.RecordBatch] = []
    messages: list[Message] = []
    for each in run:
        if isinstance(each, QueueMessage):
            messages.append(each.message)
            continue
        if messages:
            batches.append(from_messages(messages))
            messages = []
        batches.append(each.batch)
    if messages:
        batches.append(from_messages(messages))
    return batches


def may_have_keys(batch: pa.RecordBatch) -> bool:
    """Whether the index must look into the batch: further keys are in the properties."""
    rows = batch.num_rows
    return bool(batch.column("key").null_count < rows or batch.column("properties").null_count < rows)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
