"""Arrow arrays made of Python's and numpy's values, and read as numpy's, by their buffers alone.

`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas with the first value that they convert, wherever it
is installed: 60 MB and most of a second, in a process that may never see a DataFrame. What stands here makes
and reads the same buffers without that.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]

_STRING: Final = pa.string()
_BINARY: Final = pa.binary()
_BOOL: Final = pa.bool_()
_INT64: Final = pa.int64()


# --- to Arrow ---------------------------------------------------------------------------------


def numbers(values: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return numbers as an array, without a copy if they lie in one piece; `kind` is as wide as they are."""
    whole = np.ascontiguousarray(values)
    kind = kind or pa.from_numpy_dtype(whole.dtype)
    return pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(whole)], 0)


def number(value: int, kind: pa.DataType = _INT64) -> pa.Scalar:
    """Return one whole number as Arrow's value of a type of 32 or 64 bits."""
    return numbers(np.array([value], np.int32 if kind.bit_width == 32 else np.int64), kind)[0]


def flags(mask: Mask) -> pa.BooleanArray:
    """Return a mask as an array."""
    return pa.Array.from_buffers(_BOOL, len(mask), [None, _bits(mask)], 0)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return texts as an array."""
    return _joined([value.encode() for value in values], _STRING)


def text(value: str) -> pa.StringScalar:
    """Return one text as Arrow's value, such as a column is compared with."""
    return texts((value,))[0]


def repeated(value: str, count: int) -> pa.StringArray:
    """Return the same text `count` times."""
    return pa.repeat(text(value), count)


def byte_strings(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return values of bytes as an array."""
    return _joined(values, _BINARY)


def optional_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return bytes or UTF-8 as an array of type binary or string; None is null."""
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    column = _joined([value or b"" for value in values], kind)
    return column if is_there.all() else _masked(column, is_there)


def optional_int64s(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return whole numbers as an array of a type of 64 bits; None is null."""
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    # Not numpy's own conversion, which takes fractions.
    exact = array("q", [0 if value is None else value for value in values])
    column = pa.Array.from_buffers(kind, len(exact), [None, pa.py_buffer(exact)], 0)
    return column if is_there.all() else _masked(column, is_there)


def optional_numbers(values: npt.NDArray[Any], is_there: Mask) -> pa.Array:
    """Return numbers as an array, null where they are not there."""
    return _masked(numbers(values), is_there)


def _masked(column: pa.Array, is_there: Mask) -> pa.Array:
    nulls = len(column) - int(np.count_nonzero(is_there))
    buffers = [_bits(is_there), *column.buffers()[1:]]
    return pa.Array.from_buffers(column.type, len(column), buffers, nulls)


def _joined(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    buffers = [None, pa.py_buffer(_ends(lengths)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers, 0)


def byte_pieces(pieces: Sequence[bytes | memoryview], lengths: npt.NDArray[np.int64]) -> pa.StringArray:
    """Return texts as an array: their UTF-8 in pieces of any size, and the length of each in bytes."""
    buffers = [None, pa.py_buffer(_ends(lengths)), pa.py_buffer(b"".join(pieces))]
    return pa.Array.from_buffers(_STRING, len(lengths), buffers, 0)


def _ends(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Return where each of some values begins that follow each other, and where the last one ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowCapacityError(f"{ends[-1]} bytes are more than a column of a batch can have")
    return ends.astype(np.int32)


def _bits(mask: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


# --- from Arrow -------------------------------------------------------------------------------


def mask_of(column: pa.BooleanArray) -> Mask:
    """Return which rows of a column are true; a null is not."""
    validity, values = column.buffers()
    mask = _unpacked(values, column)
    if column.null_count:
        mask &= _unpacked(validity, column)
    return mask


def offsets_of(column: pa.MapArray) -> npt.NDArray[np.int32]:
    """Return where the entries of each row begin, and where those of the last one end."""
    offsets = column.offsets
    return np.frombuffer(offsets.buffers()[1], np.int32, len(offsets), 4 * offsets.offset)


def int64s_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return a column of 64 bits a row, such as integers or points in time; what a null has is anything."""
    if not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def _unpacked(bits: pa.Buffer | None, column: pa.Array) -> Mask:
    rows, first = len(column), column.offset
    if bits is None or not rows:
        return np.ones(rows, np.bool_)
    packed = np.frombuffer(bits, np.uint8)[first // 8 :]
    unpacked = np.unpackbits(packed, count=first % 8 + rows, bitorder="little")
    return unpacked[first % 8 :].view(np.bool_)
