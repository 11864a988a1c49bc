"""What is addressed to a queue, and how small pieces of it become one frame.

A *batch* came opened by Arrow. A *message* came alone and was read without Arrow
(`rocketq.protocol.arrow.single_message`): a run of such messages becomes a batch at once, column by
column, instead of a batch each that would then be joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.protocol.arrow.message_run import encapsulate_run
from rocketq.protocol.arrow.single_message import Single, encapsulated, to_batch
from rocketq.protocol.arrow.stream_reader import encapsulate
from rocketq.protocol.hashing import NULL_HASH, hash_column, hash_value


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
    """A message addressed to a queue: the stream it came as, and what was read of it."""

    queue: int
    stream: bytes
    single: Single

    @property
    def rows(self) -> int:
        return 1

    @property
    def encapsulated(self) -> pa.Buffer:
        return encapsulated(self.stream)

    @property
    def batch(self) -> pa.RecordBatch:
        return to_batch([self.single])

    @property
    def sent_bytes(self) -> int:
        return len(self.stream)

    @property
    def merged_bytes(self) -> int:
        return len(self.stream)


Addressed = QueueBatch | QueueMessage


class Merged(NamedTuple):
    """The body of one frame of messages, and what its header and its units need."""

    body: pa.Buffer
    messages: int
    tag_hashes: npt.NDArray[np.uint64]
    #: Whether the index must look into it: further keys are in the properties.
    may_have_keys: bool


def merge(run: Sequence[Addressed]) -> Merged:
    """Make what goes into one frame of batches and messages for one queue, in their order."""
    singles = [each.single for each in run if type(each) is QueueMessage]
    if len(singles) == len(run):
        body = run[0].encapsulated if len(run) == 1 else pa.py_buffer(encapsulate_run(singles))
        hashes = [NULL_HASH if each.tag is None else _tag_hash(each.tag) for each in singles]
        keyed = any(each.key is not None or each.properties is not None for each in singles)
        return Merged(body, len(run), np.array(hashes, dtype=np.uint64), keyed)
    if len(run) == 1:
        return _merged(run[0].encapsulated, run[0].batch)
    batch = pa.concat_batches([each.batch for each in run])
    return _merged(encapsulate(batch), batch)


def _merged(body: pa.Buffer, batch: pa.RecordBatch) -> Merged:
    return Merged(body, batch.num_rows, hash_column(batch.column("tag")), may_have_keys(batch))


def may_have_keys(batch: pa.RecordBatch) -> bool:
    """Whether the index must look into the batch: further keys are in the properties."""
    rows = batch.num_rows
    return bool(batch.column("key").null_count < rows or batch.column("properties").null_count < rows)


#: Tags are few; hashing one takes Python's integers some microseconds.
_tag_hash = lru_cache(maxsize=4_096)(hash_value)
