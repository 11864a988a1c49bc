"""A stream of one plain message, read without Arrow.

Opening an Arrow stream costs some thirty microseconds however little is in it, which a
message that comes alone pays by itself. But what pyarrow writes for one message always has the
same metadata, in which only lengths differ. So it is held against a *skeleton*, the metadata
of a stream written here, and what differs is checked by arithmetic: every buffer must
lie right behind the one before it and be as long as one message makes it.

This is no second parser: whatever is not exactly as expected (another writer, several
messages, compression, text that is not UTF-8) gives None, and the caller goes the whole way
through `rocketq.protocol.arrow.stream_reader`, which says what is wrong. What is taken here is taken there
too, with the same values; a test holds the two against each other on damaged streams.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from rocketq.protocol.arrow.stream_reader import (
    CANONICAL_SCHEMA,
    END_OF_STREAM,
    metadata_places,
    write_stream,
)
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE

#: Longer streams are not for here: what one costs is then no longer its metadata.
SINGLE_BYTES_MAX: Final = 64 * 1024
#: Properties are taken apart one by one; a message with more of them goes the other way.
_ENTRIES_MAX: Final = 64
#: Layouts remembered, of the many that messages of different lengths have.
_LAYOUTS_MAX: Final = 4_096

_PREFIX: Final = struct.Struct("<ii")
_OFFSETS: Final = struct.Struct("<ii")
_INT64: Final = struct.Struct("<q")
#: Length and null count of key, tag, body, properties, their entries, names and values, and of born_at.
NODES: Final = struct.Struct("<16q")
#: Where each buffer lies and how long it is. Key, tag and body have validity, offsets and data; the
#: properties validity and offsets; their entries validity; names and values three again; born_at
#: validity and data.
BUFFERS: Final = struct.Struct("<40q")
#: A column that is null: its validity, padded; and the offsets of nothing.
_NULL: Final = bytes(8)


class Single(NamedTuple):
    """One message as it was sent."""

    key: bytes | None
    tag: str | None
    body: bytes
    properties: list[tuple[str, str]] | None
    born_at_us: int | None
    #: Names and values of its properties together.
    properties_bytes: int


class _Texts(NamedTuple):
    """Where the names of properties lie, or their values: offsets, data, and the data's length."""

    offsets_at: int
    at: int
    size: int


class _Layout(NamedTuple):
    """Where the parts of a message lie in its stream of `size` bytes.

    What it has not is (0, 0), 0 or None. `fixed` are stretches that can hold but one thing.
    """

    size: int
    fixed: tuple[tuple[int, int, bytes], ...]
    key: tuple[int, int]
    tag: tuple[int, int]
    body: tuple[int, int]
    properties: tuple[int, _Texts, _Texts] | None
    born_at: int


def read_single(data: bytes) -> Single | None:
    """Read a whole stream of one plain message; None if it is anything else, valid or not."""
    layout = _layouts.get(data[_METADATA_AT:_BODY_AT]) or _learn(data)
    if layout is None:
        return None
    size, fixed, key, tag, body, entries, born_at = layout
    if len(data) != size or not data.startswith(_HEAD) or not data.endswith(END_OF_STREAM):
        return None
    for first, last, expected in fixed:
        if data[first:last] != expected:
            return None
    try:
        return Single(
            data[key[0] : key[1]] if key[1] else None,
            data[tag[0] : tag[1]].decode() if tag[1] else None,
            data[body[0] : body[1]],
            None if entries is None else _properties(data, *entries),
            _INT64.unpack_from(data, born_at)[0] if born_at else None,
            0 if entries is None else entries[1].size + entries[2].size,
        )
    except ValueError:
        return None


def encapsulated(data: bytes) -> pa.Buffer:
    """Return the encapsulated batch of a stream that `read_single` read, without a copy."""
    return pa.py_buffer(data).slice(_BATCH_AT, len(data) - _BATCH_AT - len(END_OF_STREAM))


def to_batch(singles: Sequence[Single]) -> pa.RecordBatch:
    """Return messages that came one by one as one batch of schema message/1."""
    keys, tags, bodies, properties, born_at, _ = zip(*singles, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            _array(keys, pa.binary()),
            _array(tags, pa.string()),
            pa.array(bodies, pa.binary()),
            _array(properties, PROPERTIES_TYPE),
            _array(born_at, _BORN_AT),
        ],
        schema=MESSAGE_SCHEMA,
    )


def _array(values: tuple[object, ...], kind: pa.DataType) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


def _properties(data: bytes, count: int, names: _Texts, values: _Texts) -> list[tuple[str, str]]:
    """Return the properties; raise ValueError if a text is not UTF-8, or not within its data."""
    if not count:
        return []
    return list(zip(_texts(data, count, names), _texts(data, count, values), strict=True))


def _texts(data: bytes, count: int, where: _Texts) -> list[str]:
    offsets_at, at, size = where
    offsets = struct.unpack_from(f"<{count + 1}i", data, offsets_at)
    if offsets[0] != 0 or offsets[-1] != size:
        raise ValueError("the offsets do not span the data")
    texts = []
    for first, last in pairwise(offsets):
        if first > last:
            raise ValueError("the offsets do not ascend")
        texts.append(data[at + first : at + last].decode())
    return texts


# --- layouts -------------------------------------------------------------------------


def _learn(data: bytes) -> _Layout | None:
    """Make a layout of a stream's metadata and remember it; None if it is not one plain message's."""
    metadata = data[_METADATA_AT:_BODY_AT]
    if not data.startswith(_HEAD) or len(metadata) < len(SKELETON):
        return None
    if _INT64.unpack_from(metadata, ROWS_AT)[0] != 1:
        # Mostly a plain batch; seen before all of the metadata is compared.
        return None
    if any(metadata[first:last] != SKELETON[first:last] for first, last in _CONSTANT):
        return None
    body_bytes = _INT64.unpack_from(metadata, BODY_BYTES_AT)[0]
    nodes = NODES.unpack_from(metadata, NODES_AT)
    buffers = BUFFERS.unpack_from(metadata, BUFFERS_AT)
    if not _is_one_message(nodes, buffers[1::2]) or not _is_dense(buffers, body_bytes):
        return None
    layout = _layout(nodes, buffers, body_bytes)
    if len(_layouts) >= _LAYOUTS_MAX:
        _layouts.clear()
    _layouts[metadata] = layout
    return layout


def _is_one_message(nodes: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether every buffer is as long as one message makes it, with or without each of its parts."""
    entries = nodes[8]
    key, tag, body, properties, _, _, _, born_at = nulls = nodes[1::2]
    if nodes[0::2] != (1, 1, 1, 1, entries, entries, entries, 1) or not 0 <= entries <= _ENTRIES_MAX:
        return False
    if not {0, 1}.issuperset(nulls) or body or any(nulls[4:7]) or (properties and entries):
        return False
    text_offsets = 4 * (entries + 1)
    # Of no entries pyarrow writes one offset or two.
    allowed = (text_offsets,) if entries else (text_offsets, text_offsets + 4)
    if sizes[13] not in allowed or sizes[16] not in allowed:
        return False
    if (key and sizes[2]) or (tag and sizes[5]) or (not entries and (sizes[14] or sizes[17])):
        return False
    told = (*sizes[0:2], *sizes[3:5], *sizes[6:8], *sizes[9:13], sizes[15], *sizes[18:20])
    return told == (key, 8, tag, 8, 0, 8, properties, 8, 0, 0, 0, born_at, 8)


def _is_dense(buffers: tuple[int, ...], body_bytes: int) -> bool:
    """Whether each buffer begins where the one before it ends, rounded up to 8."""
    at = 0
    for offset, size in zip(buffers[0::2], buffers[1::2], strict=True):
        if offset != at or not 0 <= size <= SINGLE_BYTES_MAX:
            return False
        at += (size + 7) & -8
    return at == body_bytes


def _layout(nodes: tuple[int, ...], buffers: tuple[int, ...], body_bytes: int) -> _Layout:
    """Return the layout of a message whose nodes and buffers have been checked."""
    starts = [_BODY_AT + offset for offset in buffers[0::2]]
    sizes = buffers[1::2]
    entries = nodes[8]
    key, tag, _, properties, _, _, _, born_at = nodes[1::2]
    fixed: list[tuple[int, bytes]] = []
    for column, is_null in ((0, key), (3, tag), (6, 0), (9, properties)):
        if is_null:
            fixed.append((starts[column], _NULL))
        reach = entries if column == 9 else sizes[column + 2]
        fixed.append((starts[column + 1], _OFFSETS.pack(0, reach)))
    if not entries:
        fixed += [(starts[13], _NULL), (starts[16], _NULL)]
    if born_at:
        fixed.append((starts[18], _NULL))
    names = _Texts(starts[13], starts[14], sizes[14])
    values = _Texts(starts[16], starts[17], sizes[17])
    return _Layout(
        _BODY_AT + body_bytes + len(END_OF_STREAM),
        _joined(fixed),
        (0, 0) if key else (starts[2], starts[2] + sizes[2]),
        (0, 0) if tag else (starts[5], starts[5] + sizes[5]),
        (starts[8], starts[8] + sizes[8]),
        None if properties else (entries, names, values),
        0 if born_at else starts[19],
    )


def _joined(stretches: list[tuple[int, bytes]]) -> tuple[tuple[int, int, bytes], ...]:
    """Join stretches that touch, so that few are compared: mostly it is those before and behind the body."""
    joined: list[tuple[int, int, bytes]] = []
    for at, expected in stretches:
        if joined and joined[-1][1] == at:
            first, _, before = joined.pop()
            at, expected = first, before + expected
        joined.append((at, at + len(expected), expected))
    return tuple(joined)


def _sample() -> bytes:
    """Return the stream of an empty message."""
    columns = [pa.nulls(1, field.type) for field in MESSAGE_SCHEMA]
    nothing = [None, pa.py_buffer(_OFFSETS.pack(0, 0)), pa.py_buffer(b"")]
    columns[MESSAGE_SCHEMA.get_field_index("body")] = pa.Array.from_buffers(pa.binary(), 1, nothing)
    stream: bytes = write_stream([pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)]).to_pybytes()
    return stream


_BORN_AT: Final = MESSAGE_SCHEMA.field("born_at").type
_BATCH_AT: Final = len(CANONICAL_SCHEMA)
_METADATA_AT: Final = _BATCH_AT + _PREFIX.size
_SAMPLE: Final = _sample()
#: Every plain stream begins like this: the schema, and the length of the batch's metadata.
_HEAD: Final = _SAMPLE[:_METADATA_AT]
_BODY_AT: Final = _METADATA_AT + _PREFIX.unpack_from(_SAMPLE, _BATCH_AT)[1]
SKELETON: Final = _SAMPLE[_METADATA_AT:_BODY_AT]
BODY_BYTES_AT, ROWS_AT, NODES_AT, BUFFERS_AT = metadata_places(SKELETON)
_VARIABLE: Final = sorted(
    [
        (BODY_BYTES_AT, _INT64.size),
        (ROWS_AT, _INT64.size),
        (NODES_AT, NODES.size),
        (BUFFERS_AT, BUFFERS.size),
    ]
)
#: What is left of the metadata without what differs from message to message.
_CONSTANT: Final = tuple(
    zip(
        [0, *(at + size for at, size in _VARIABLE)],
        [*(at for at, _ in _VARIABLE), len(SKELETON)],
        strict=True,
    )
)
_layouts: dict[bytes, _Layout] = {}
