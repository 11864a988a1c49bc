"""One 64-bit hash for keys and tags, over a whole Arrow column at once.

It decides two things that must never differ between two writers: the queue of
a key under hash selection, and the tag hash in a ConsumeQueue unit. So it is
part of the protocol, pinned by golden values:

    h = LENGTH * PRIME_1
    for each 8-byte little-endian word w, the last one padded with zeros (an
    empty value is one word of zeros):
        h = (rotl(h, 31) ^ (w * PRIME_2)) * PRIME_1
    h ^= h >> 33;  h *= PRIME_2;  h ^= h >> 29

The steps are xxHash64's round and avalanche in a reduced form; the aim is an
even spread over queues, not strength against an adversary. Each step runs on
all rows that still have a word left, so the cost is the number of words of the
longest value in numpy calls, and no step loops over messages.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)

#: The hash of a null: no value has it, since `hash_column` maps 0 to 1.
NULL_HASH: Final = 0

_WORD: Final = 8
_EMPTY_TAIL: Final = np.zeros(8, dtype=np.uint8)
_ALL_BITS: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def hash_column(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Hash each value of a `string` or `binary` array; null gives NULL_HASH."""
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.uint64)
    starts, lengths, words = _layout(column)
    hashes = _mixed(lengths.view(np.uint64) * PRIME_1, words[starts] & _keep(lengths))
    at = _WORD
    rows = np.flatnonzero(lengths > at)
    while rows.size:
        left = lengths[rows] - at
        word = words[starts[rows] + at] & _keep(left)
        hashes[rows] = _mixed(hashes[rows], word)
        rows = rows[left > _WORD]
        at += _WORD
    hashes ^= hashes >> np.uint64(33)
    hashes *= PRIME_2
    hashes ^= hashes >> np.uint64(29)
    hashes[hashes == NULL_HASH] = 1
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _keep(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return masks that keep the first `length` bytes of a little-endian word, at most all eight."""
    drop = (_WORD - np.minimum(lengths, _WORD)) * _WORD
    masks: npt.NDArray[np.uint64] = _ALL_BITS >> drop.view(np.uint64)
    return masks


def _mixed(hashes: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words *= PRIME_2
    words ^= (hashes << np.uint64(31)) | (hashes >> np.uint64(33))
    words *= PRIME_1
    return words


def hash_value(value: bytes | str | None) -> int:
    """Hash one value as `hash_column` does."""
    kind = pa.string() if isinstance(value, str) else pa.binary()
    return int(hash_column(pa.array([value], type=kind))[0])


def queue_of(hashes: npt.NDArray[np.uint64], queues: int) -> npt.NDArray[np.int64]:
    """Map hashes to queue indexes in [0, queues) (RocketMQ: SelectMessageQueueByHash)."""
    return (hashes % np.uint64(queues)).astype(np.int64)


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
