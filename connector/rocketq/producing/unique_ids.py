"""An id of its own for each message, made by the client (RocketMQ: UNIQ_KEY, MessageClientIDSetter).

    8 digits   the machine: a hash of its host name and network address
    6 digits   the process
    11 digits  when the ids of this process began, in milliseconds since 1970
    11 digits  a counter

All digits are hexadecimal. The id is made once, when the message is given to the producer or leaves its
accumulator, and is sent with every attempt. So copies of a message have the same id, whatever made them, and
two messages never have: a child of a fork, and a process that takes another's number, begin anew.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
import zlib
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rocketq.model import UNIQUE_ID_PROPERTY
from rocketq.producing.property_columns import lacks, with_properties
from rocketq.protocol.column_values import flags, numbers, repeated
from rocketq.protocol.message_schema import PROPERTIES_TYPE

COUNTER_DIGITS: Final = 11
ID_CHARACTERS: Final = 36
_COUNTER_END: Final = 16**COUNTER_DIGITS
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.arange(4 * (COUNTER_DIGITS - 1), -1, -4, dtype=np.int64)


class IdRange(NamedTuple):
    """Ids that follow each other: those of the messages of a batch, by row."""

    prefix: str
    first: int

    def id_of(self, row: int) -> str:
        return f"{self.prefix}{self.first + row:0{COUNTER_DIGITS}X}"

    def column(self, rows: int) -> pa.StringArray:
        """Return the ids of the first `rows` rows."""
        text = np.empty((rows, ID_CHARACTERS), np.uint8)
        text[:, :-COUNTER_DIGITS] = np.frombuffer(self.prefix.encode(), np.uint8)
        counters = np.arange(self.first, self.first + rows, dtype=np.int64)
        text[:, -COUNTER_DIGITS:] = _DIGITS[(counters[:, None] >> _SHIFTS) & 15]
        offsets = np.arange(0, (rows + 1) * ID_CHARACTERS, ID_CHARACTERS, dtype=np.int32)
        return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))


class UniqueIds:
    """The ids of one process. Thread-safe; usable on both sides of a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefix, self._next = _prefix(), 0

    def one(self) -> str:
        """Return a new id."""
        return self.many(1).id_of(0)

    def many(self, count: int) -> IdRange:
        """Return `count` new ids."""
        with self._lock:
            if self._next + count > _COUNTER_END:
                self._prefix, self._next = _prefix(), 0
            first = self._next
            self._next = first + count
            return IdRange(self._prefix, first)

    def after_fork(self) -> None:
        """Begin anew in a child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._prefix, self._next = _prefix(), 0


def _prefix() -> str:
    machine = zlib.crc32(f"{platform.node()}/{uuid.getnode()}".encode())
    began_ms = time.time_ns() // 1_000_000
    return f"{machine:08X}{os.getpid() & 0xFFFFFF:06X}{began_ms & (1 << 44) - 1:011X}"


#: Producers of one process share the counter, so that no two of them make the same id.
UNIQUE_IDS: Final = UniqueIds()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=UNIQUE_IDS.after_fork)


def identified(batch: pa.RecordBatch, ids: IdRange) -> pa.RecordBatch:
    """Return a batch of schema message/1 in which each message has an id: its own, or that of its row."""
    at = batch.schema.get_field_index("properties")
    column = batch.column(at)
    rows = batch.num_rows
    if column.null_count == rows:
        offsets = np.arange(rows + 1, dtype=np.int32)
        names = repeated(UNIQUE_ID_PROPERTY, rows)
        made = pa.MapArray.from_arrays(numbers(offsets), names, ids.column(rows), PROPERTIES_TYPE)
    else:
        lacking = lacks(column, UNIQUE_ID_PROPERTY)
        own = ids.column(rows).filter(flags(lacking))
        made = with_properties(column, lacking, {UNIQUE_ID_PROPERTY: own})
    return batch.set_column(at, batch.schema.field(at), made)
