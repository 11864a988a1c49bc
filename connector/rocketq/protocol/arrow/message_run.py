"""A run of messages that came one by one, written as one record batch without Arrow.

What Arrow charges for a batch of four messages is its five columns, not the messages. But as
with one message (`single_message`), the metadata of every such batch is the same but for
numbers: so these are put into the skeleton, and the columns are joined here.

The result is an encapsulated message as any other (Arrow columnar format, "IPC"): whatever reads
`to_batch(singles)` serialised by Arrow reads this, to the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

from rocketq.protocol.arrow.single_message import (
    BODY_BYTES_AT,
    BUFFERS,
    BUFFERS_AT,
    NODES,
    NODES_AT,
    ROWS_AT,
    SKELETON,
    Single,
)

_INT64: Final = struct.Struct("<q")
#: The mark and the length that stand before the metadata.
_PREFIX: Final = struct.pack("<ii", -1, len(SKELETON))
_PADDING: Final = tuple(bytes(count) for count in range(8))


class _Column(NamedTuple):
    """A column's buffers in their order, and how many of its values are null."""

    nulls: int
    buffers: tuple[bytes, ...]


def encapsulate_run(singles: Sequence[Single]) -> bytes:
    """Return the encapsulated batch of these messages, in their order; their data must stay below 2 GiB."""
    keys, tags, bodies, properties, born_at, _ = zip(*singles, strict=True)
    rows = len(singles)
    entries = list(chain.from_iterable(each for each in properties if each))
    columns = (
        _texts(keys),
        _texts([None if tag is None else tag.encode() for tag in tags]),
        _texts(bodies),
        _map(properties),
        # The entries themselves have a validity buffer and nothing else.
        _Column(0, (b"",)),
        _texts([name.encode() for name, _ in entries]),
        _texts([value.encode() for _, value in entries]),
        _column(born_at, struct.pack(f"<{rows}q", *(at or 0 for at in born_at))),
    )
    lengths = (rows, rows, rows, rows, len(entries), len(entries), len(entries), rows)
    nodes = [
        number for pair in zip(lengths, (each.nulls for each in columns), strict=True) for number in pair
    ]
    places: list[int] = []
    parts = [_PREFIX, b""]
    at = 0
    for buffer in chain.from_iterable(each.buffers for each in columns):
        size = len(buffer)
        places += (at, size)
        parts += (buffer, _PADDING[-size & 7])
        at += (size + 7) & -8
    metadata = bytearray(SKELETON)
    _INT64.pack_into(metadata, BODY_BYTES_AT, at)
    _INT64.pack_into(metadata, ROWS_AT, rows)
    NODES.pack_into(metadata, NODES_AT, *nodes)
    BUFFERS.pack_into(metadata, BUFFERS_AT, *places)
    parts[1] = bytes(metadata)
    return b"".join(parts)


def _texts(values: Sequence[bytes | None]) -> _Column:
    """Return a column of strings or binaries: validity, offsets, data."""
    if values.count(None) == len(values):
        # Mostly there is no tag and no key, and nothing to be joined.
        return _column(values, bytes(4 * (len(values) + 1)), b"")
    held = [value or b"" for value in values]
    return _column(values, _offsets(map(len, held)), b"".join(held))


def _map(properties: Sequence[list[tuple[str, str]] | None]) -> _Column:
    """Return the map's own buffers: validity and the offsets of its entries."""
    return _column(properties, _offsets(len(each or ()) for each in properties))


def _column(values: Sequence[object], *buffers: bytes) -> _Column:
    """Return a column of these values, its validity before its other buffers."""
    nulls = values.count(None)
    return _Column(nulls, (_validity(values, nulls), *buffers))


def _offsets(lengths: Iterable[int]) -> bytes:
    ends = list(accumulate(lengths, initial=0))
    return struct.pack(f"<{len(ends)}i", *ends)


def _validity(values: Sequence[object], nulls: int) -> bytes:
    """Return a bit for each value, 1 where there is one, lowest first; nothing if all are there."""
    if not nulls:
        return b""
    size = (len(values) + 7) // 8
    if nulls == len(values):
        return bytes(size)
    return sum(1 << row for row, value in enumerate(values) if value is not None).to_bytes(size, "little")
