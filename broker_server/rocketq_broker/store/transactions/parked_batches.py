"""The copies of half messages that go to the parking topic, with properties that say where they come from.

The names of the properties are RocketMQ's (MessageConst). The half messages themselves stay as they are: what
an operator commits are those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE
from rocketq_broker.store.commit.small_batches import QueueBatch
from rocketq_broker.store.machines.machine import HeldFrame
from rocketq_broker.store.machines.transaction_table import Transaction

#: RocketMQ: TopicValidator.RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC.
PARKING_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
_PROPERTIES: Final = MESSAGE_SCHEMA.get_field_index("properties")


def parked_batch(batch: pa.RecordBatch, each: Transaction, frame: HeldFrame, topic: str) -> QueueBatch:
    """Return the batch for queue 0 of the parking topic that shows a half frame."""
    added = {
        "REAL_TOPIC": topic,
        "REAL_QID": str(frame.queue),
        "PGROUP": each.group,
        "__transactionId__": each.id,
        "TRANSACTION_CHECK_TIMES": str(each.checks),
    }
    made = batch.set_column(
        _PROPERTIES, MESSAGE_SCHEMA.field(_PROPERTIES), with_properties(batch.column(_PROPERTIES), added)
    )
    return QueueBatch(0, encapsulate(made), made)


def with_properties(column: pa.MapArray, added: Mapping[str, str]) -> pa.MapArray:
    """Return a column of properties in which every message has these as well; it has none of them."""
    rows = len(column)
    offsets = column.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0])
    names, values = column.keys.slice(first, count), column.items.slice(first, count)
    owners = np.repeat(np.arange(rows), np.diff(offsets))
    if column.null_count:
        is_there = column.is_valid().to_numpy(zero_copy_only=False)[owners]
        owners, names, values = (
            owners[is_there],
            names.filter(pa.array(is_there)),
            values.filter(pa.array(is_there)),
        )
    names = pa.concat_arrays([names, pa.array(list(added) * rows, pa.string())])
    values = pa.concat_arrays([values, pa.array(list(added.values()) * rows, pa.string())])
    owners = np.concatenate([owners, np.repeat(np.arange(rows), len(added))])
    order = pa.array(np.argsort(owners, kind="stable"))
    ends = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=rows))])
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()), names.take(order), values.take(order), PROPERTIES_TYPE
    )
