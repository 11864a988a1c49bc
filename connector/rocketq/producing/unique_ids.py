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
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketq.model import UNIQUE_ID_PROPERTY
from rocketq.producing.added_properties import lacks, with_properties
from rocketq.protocol.column_values import byte_pieces, flags, numbers, repeated
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
        offsets = np.arange(0, (rows + 1) * ID_CHARACTERS, ID_CHARACTERS, dtype=np.int32)
        return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(self.text(rows)))

    def text(self, rows: int) -> npt.NDArray[np.uint8]:
        """Return the ids of the first `rows` rows as ASCII, a row each."""
        text = np.empty((rows, ID_CHARACTERS), np.uint8)
        text[:, :-COUNTER_DIGITS] = np.frombuffer(self.prefix.encode(), np.uint8)
        counters = np.arange(self.first, self.first + rows, dtype=np.int64)
        text[:, -COUNTER_DIGITS:] = _DIGITS[(counters[:, None] >> _SHIFTS) & 15]
        return text


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


def identified_properties(given: Mapping[int, Mapping[str, str]], ids: IdRange, rows: int) -> pa.MapArray:
    """Return the properties of `rows` messages, each with an id: its own, or that of its row behind the rest.

    `given` has the properties of a few messages, by row and in order; a property whose value is None is left
    out. The column is written in pieces, of which those between these few messages have ids alone.
    """
    name, made = UNIQUE_ID_PROPERTY.encode(), ids.text(rows).reshape(-1).data
    names: list[bytes] = []
    values: list[bytes | memoryview] = []
    #: Of each given property: its place among all of them, and how long its name and its value are.
    places: list[tuple[int, int, int]] = []
    counts = np.ones(rows + 1, np.int32)
    counts[0] = begun = shift = 0
    for row, properties in given.items():
        own = [(key.encode(), value.encode()) for key, value in properties.items() if value is not None]
        has_id = properties.get(UNIQUE_ID_PROPERTY) is not None
        names.append(name * (row - begun))
        values.append(made[ID_CHARACTERS * begun : ID_CHARACTERS * row])
        for place, (key, value) in enumerate(own, row + shift):
            names.append(key)
            values.append(value)
            places.append((place, len(key), len(value)))
        counts[row + 1] = len(own) + (not has_id)
        shift += len(own) - has_id
        begun = row + has_id
    names.append(name * (rows - begun))
    values.append(made[ID_CHARACTERS * begun :])
    lengths = np.empty((2, rows + shift), np.int64)
    lengths[0], lengths[1] = len(name), ID_CHARACTERS
    at, *own_lengths = np.array(places, np.int64).reshape(-1, 3).T
    lengths[:, at] = own_lengths
    columns = (byte_pieces(part, size) for part, size in ((names, lengths[0]), (values, lengths[1])))
    return pa.MapArray.from_arrays(numbers(np.cumsum(counts, dtype=np.int32)), *columns, PROPERTIES_TYPE)
