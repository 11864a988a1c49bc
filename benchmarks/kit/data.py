"""The data of all benchmarks: messages of 100 random bytes, made from a seed."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from rocketq.protocol.message_schema import MESSAGE_SCHEMA

BODY_BYTES: Final = 100
#: Rows of 100 bytes that make an IPC stream of about 1 MiB, with the offsets of the empty columns.
MIB_ROWS: Final = 7_900


def bodies(rows: int, seed: int) -> pa.Array:
    """Return `rows` bodies of 100 random bytes."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(0, (rows + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(rng.bytes(rows * BODY_BYTES))]
    )


def batch(rows: int, seed: int, *, tags: bool = False, keys: bool = False) -> pa.RecordBatch:
    """Return a batch of message/1: bodies alone, or with one of four tags and a key each."""
    columns = [pa.nulls(rows, field.type) for field in MESSAGE_SCHEMA]
    columns[2] = bodies(rows, seed)
    rng = np.random.default_rng(seed + 1)
    if tags:
        columns[1] = pa.array(["created", "paid", "shipped", "cancelled"]).take(rng.integers(0, 4, rows))
    if keys:
        columns[0] = pa.array([b"order-%08d" % n for n in rng.integers(0, 10**8, rows)], pa.binary())
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)
