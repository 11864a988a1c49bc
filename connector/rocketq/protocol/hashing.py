"""One 64-bit hash for keys and tags, over a whole Arrow column at once.

It decides two things that must never differ between two writers: the queue of
an ordering key, and the tag hash in a ConsumeQueue unit. So it is
part of the protocol, pinned by golden values:

    h = LENGTH * PRIME_1
    for each 8-byte little-endian word w, the last one padded with zeros (an
    empty value is one word of zeros):
        h = (rotl(h, 31) ^ (w * PRIME_2)) * PRIME_1
    h ^= h >> 33;  h *= PRIME_2;  h ^= h >> 29

The steps are xxHash64's round and avalanche in a reduced form; the aim is an
even spread over queues, not strength against an adversary. Each step runs on
all rows that still have a word left, so the cost is the number of words of the
longer values in numpy calls; the last few rows, be they very long, and batches
of a few rows are hashed one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)

#: The hash of a null: no value has it, since 0 becomes 1.
NULL_HASH: Final = 0

#: Below this many rows, Python's integers are quicker than twenty calls of numpy.
_FEW: Final = 12
_HASHED_TYPES: Final = frozenset({pa.string().id, pa.binary().id})
_WORD: Final = 8
_EMPTY_TAIL: Final = np.zeros(8, dtype=np.uint8)
_ALL_BITS: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
#: Keeps the first n bytes of a little-endian word, n = 0 to 8.
_KEEP: Final = np.array([0, *(2 ** (8 * n) - 1 for n in range(1, 9))], dtype=np.uint64)


def hash_column(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Hash each value of a `string` or `binary` array; null gives NULL_HASH."""
    if column.type.id not in _HASHED_TYPES:
        raise TypeError(f"string or binary is hashed, not {column.type}")
    rows = len(column)
    if column.null_count == rows:
        return np.zeros(rows, dtype=np.uint64)
    if rows < _FEW:
        return np.array([_hash(value.as_buffer()) for value in column], dtype=np.uint64)
    starts, lengths, words = _layout(column)
    if (lengths == lengths[0]).all():
        hashes = _of_one_length(int(lengths[0]), starts, words)
        if column.null_count:
            hashes *= _validity(column)
        return hashes
    hashes = _mixed(lengths.view(np.uint64) * PRIME_1, _words(words, starts, lengths))
    at = _WORD
    longer = np.flatnonzero(lengths > at)
    while longer.size >= _FEW:
        chosen = slice(None) if longer.size == rows else longer
        left = lengths[chosen] - at
        hashes[chosen] = _mixed(hashes[chosen], _words(words, starts[chosen] + at, left))
        longer = longer[left > _WORD]
        at += _WORD
    _finish(hashes)
    for row in longer:
        hashes[row] = _hash(column[int(row)].as_buffer())
    if column.null_count:
        hashes *= _validity(column)
    return hashes


def hash_value(value: bytes | str | None) -> int:
    """Hash one value as `hash_column` does."""
    return _hash(value.encode() if isinstance(value, str) else value)


def queue_of(hashes: npt.NDArray[np.uint64], queues: int) -> npt.NDArray[np.int64]:
    """Map hashes to queue indexes in [0, queues) (RocketMQ: SelectMessageQueueByHash)."""
    return (hashes % np.uint64(queues)).astype(np.int64)


def _hash(value: bytes | pa.Buffer | None) -> int:
    """Hash one value in Python's integers, masked to 64 bits."""
    if value is None:
        return NULL_HASH
    prime_1, prime_2, mask = int(PRIME_1), int(PRIME_2), int(_ALL_BITS)
    data = bytes(value)
    h = (len(data) * prime_1) & mask
    for at in range(0, max(len(data), 1), _WORD):
        word = int.from_bytes(data[at : at + _WORD], "little")
        h = ((((h << 31) | (h >> 33)) ^ (word * prime_2)) & mask) * prime_1 & mask
    h ^= h >> 33
    h = h * prime_2 & mask
    h ^= h >> 29
    return h or 1


def _of_one_length(
    length: int, starts: npt.NDArray[np.int64], words: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Hash values that are all as long: their words lie at even distances and need not be looked up."""
    first, rows = int(starts[0]), starts.size
    hashes = np.full(rows, length, dtype=np.uint64)
    hashes *= PRIME_1
    for at in range(0, max(length, 1), _WORD):
        # Of no length all are the same word, of which nothing is kept.
        some = words[first + at :: length][:rows] if length else words[:1].repeat(rows)
        taken = some.astype(np.uint64)
        if length - at < _WORD:
            taken &= _KEEP[length - at]
        hashes = _mixed(hashes, taken)
    _finish(hashes)
    return hashes


def _finish(hashes: npt.NDArray[np.uint64]) -> None:
    """Spread every bit of the words over the whole hash, in place."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= PRIME_2
    hashes ^= hashes >> np.uint64(29)
    np.maximum(hashes, np.uint64(1), out=hashes)


def _words(
    words: npt.NDArray[np.uint64], starts: npt.NDArray[np.int64], left: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return the word at each start, zeros in place of what lies past the `left` bytes of its value."""
    taken: npt.NDArray[np.uint64] = words[starts]
    taken &= _KEEP[np.minimum(left, _WORD)]
    return taken


def _mixed(hashes: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words *= PRIME_2
    words ^= (hashes << np.uint64(31)) | (hashes >> np.uint64(33))
    words *= PRIME_1
    return words


def _validity(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return 1 for each value and 0 for each null."""
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], dtype=np.uint8), bitorder="little")
    valid: npt.NDArray[np.uint8] = bits[column.offset : column.offset + len(column)]
    return valid


def _layout(
    column: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Return each value's start and length, and a view of the data as a word at every byte."""
    _, offsets_buffer, data_buffer = column.buffers()
    rows = len(column)
    if offsets_buffer is None or rows == 0:
        zeros = np.zeros(rows, dtype=np.int64)
        return zeros, zeros, np.zeros(1, dtype=np.uint64)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=rows + 1, offset=4 * column.offset)
    starts = offsets[:-1].astype(np.int64)
    lengths = offsets[1:].astype(np.int64) - starts
    first, last = int(offsets[0]), int(offsets[-1])
    # Eight bytes past the end, so that the word at the last byte can be read whole.
    held = np.frombuffer(data_buffer, dtype=np.uint8)[first:last] if last > first else _EMPTY_TAIL[:0]
    padded = np.concatenate([held, _EMPTY_TAIL])
    words = np.ndarray(shape=(padded.size - 7,), dtype="<u8", buffer=padded, strides=(1,))
    return starts - first, lengths, words
