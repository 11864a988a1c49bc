"""A few messages as one encapsulated Arrow batch, written without Arrow.

Arrow makes an array of every column, checks it, and walks over it again to serialise it. For one message this
takes longer than writing the bytes. The metadata of a batch of message/1 has the same form whatever is in the
batch (Arrow columnar format, "IPC"): the number of rows, the size of the body, for each field its length and
its number of nulls, and for each buffer its place and its size. So it is taken from a batch that Arrow
serialised, and the numbers are put in. `read_batch` reads and checks what is made here like everything else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple

from rocketq.model import Message
from rocketq.protocol.arrow.stream_reader import BatchPlaces, batch_places
from rocketq.protocol.arrow.stream_writer import encapsulate
from rocketq.protocol.message_schema import from_messages

#: For more messages Arrow is as quick.
FEW_MESSAGES: Final = 64

_PADDING: Final = tuple(bytes(size) for size in range(8))
_ONE: Final = struct.Struct("<q")


class _Form(NamedTuple):
    """What all batches have in common: what stands before the body, and where its numbers go."""

    head: bytes
    places: BatchPlaces
    nodes: struct.Struct
    extents: struct.Struct


@cache
def _form() -> _Form:
    """Return the form, from a batch that Arrow makes.

    Not at import, because pyarrow loads pandas with its first array.
    """
    specimen = encapsulate(from_messages([Message(b"x")]))
    places = batch_places(specimen)
    nodes, extents = (struct.Struct(f"<{2 * n}q") for n in (places.node_count, places.buffer_count))
    return _Form(specimen.slice(0, places.body).to_pybytes(), places, nodes, extents)


class _Columns:
    """The buffers of a batch, one after the other, and what its metadata says of them."""

    __slots__ = ("extents", "nodes", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.nodes: list[int] = []
        self.extents: list[int] = []

    def put(self, data: bytes) -> None:
        """Add a buffer, padded to 8 bytes."""
        size = len(data)
        self.extents += (self.size, size)
        if size:
            padding = -size & 7
            self.parts += (data, _PADDING[padding])
            self.size += size + padding

    def field(self, values: Sequence[object]) -> None:
        """Begin a column: its length, its nulls, and which rows have a value if some have none."""
        nulls = values.count(None)
        self.nodes += (len(values), nulls)
        self.put(_validity(values) if nulls else b"")

    def null_texts(self, rows: int) -> None:
        """Add a column of bytes or UTF-8 of which no row has a value."""
        bits, offsets, padded = _null_texts(rows)
        self.nodes += (rows, rows)
        behind = self.size + len(padded)
        self.extents += (self.size, bits, self.size + _padded(bits), offsets, behind, 0)
        self.parts.append(padded)
        self.size = behind

    def texts(self, values: Sequence[bytes | None]) -> None:
        """Add a column of bytes or UTF-8."""
        if values.count(None) == len(values):
            self.null_texts(len(values))
            return
        self.field(values)
        present = [value or b"" for value in values]
        self.offsets(map(len, present), len(present))
        self.put(b"".join(present))

    def offsets(self, lengths: Iterable[int], rows: int) -> None:
        """Add where the value of each row begins, and where the last one ends."""
        self.put(struct.pack(f"<{rows + 1}i", 0, *accumulate(lengths)))


def encapsulate_messages(messages: Sequence[Message]) -> bytes:
    """Return the encapsulated batch of some messages; a property whose value is None is left out."""
    columns = _Columns()
    columns.texts([message.key for message in messages])
    columns.texts([None if message.tag is None else message.tag.encode() for message in messages])
    columns.texts([message.body for message in messages])
    _put_properties(columns, messages)
    times = [message.born_at_us for message in messages]
    columns.field(times)
    columns.put(struct.pack(f"<{len(times)}q", *[time or 0 for time in times]))
    form = _form()
    places = form.places
    head = bytearray(form.head)
    _ONE.pack_into(head, places.rows, len(messages))
    _ONE.pack_into(head, places.body_bytes, columns.size)
    form.nodes.pack_into(head, places.nodes, *columns.nodes)
    form.extents.pack_into(head, places.buffers, *columns.extents)
    return b"".join([head, *columns.parts])


def _put_properties(columns: _Columns, messages: Sequence[Message]) -> None:
    names: list[bytes] = []
    values: list[bytes] = []
    counts: list[int] = []
    for message in messages:
        before = len(names)
        for name, value in (message.properties or {}).items():
            if value is not None:
                names.append(name.encode())
                values.append(value.encode())
        counts.append(len(names) - before)
    columns.field([message.properties for message in messages])
    columns.offsets(counts, len(counts))
    columns.field(names)
    columns.texts(names)
    columns.texts(values)


def _padded(size: int) -> int:
    return (size + 7) & ~7


@cache
def _null_texts(rows: int) -> tuple[int, int, bytes]:
    """Return the sizes of the validity and the offsets of a column of nulls, and both buffers, padded."""
    bits, offsets = (rows + 7) // 8, 4 * rows + 4
    return bits, offsets, bytes(_padded(bits) + _padded(offsets))


def _validity(values: Sequence[object]) -> bytes:
    """Return a bit for each row, from the lowest of the first byte on: 1 if it has a value."""
    bits = 0
    for row, value in enumerate(values):
        if value is not None:
            bits |= 1 << row
    return bits.to_bytes((len(values) + 7) // 8, "little")
