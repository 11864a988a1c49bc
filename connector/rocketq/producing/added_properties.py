"""Finding and adding properties of the messages of a batch, a column at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.protocol.column_values import mask_of, numbers, offsets_of, repeated, text
from rocketq.protocol.message_schema import PROPERTIES_TYPE

#: Which rows of a column are meant.
Mask: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[np.int64]


def lacks(column: pa.MapArray, name: str) -> Mask:
    """Return which messages have no property of this name."""
    missing = np.ones(len(column), np.bool_)
    missing[rows_with(column, name)] = False
    return missing


def rows_with(column: pa.MapArray, name: str, value: str | None = None) -> Rows:
    """Return the rows of the messages that have a property of this name, with this value if one is given.

    What is compared are the properties that there are, so messages without any cost next to nothing.
    """
    if column.null_count == len(column) or not len(column.keys):
        return np.empty(0, np.int64)
    is_meant = pc.equal(column.keys, text(name))
    if value is not None:
        is_meant = pc.and_(is_meant, pc.equal(column.items, text(value)))
    offsets = offsets_of(column)
    entries = np.flatnonzero(mask_of(is_meant)).astype(offsets.dtype)
    entries = entries[(entries >= offsets[0]) & (entries < offsets[-1])]
    rows: Rows = np.unique(offsets.searchsorted(entries, side="right")).astype(np.int64) - 1
    # A null has no properties, even where some lie behind it.
    return rows[mask_of(column.is_valid())[rows]] if column.null_count else rows


def with_properties(column: pa.MapArray, mask: Mask, added: Mapping[str, pa.StringArray]) -> pa.MapArray:
    """Put properties behind those of the messages in `mask`; each has a value for each of these messages."""
    new_keys = pa.concat_arrays([repeated(name, len(values)) for name, values in added.items()])
    new_items = pa.concat_arrays(list(added.values()))
    meant = np.count_nonzero(mask)
    # Where the n-th new property of the m-th message stands in the new keys.
    new_places = np.arange(len(new_keys)).reshape(len(added), meant).T
    keys, items = column.keys, column.items
    if column.null_count == len(column):
        ends = np.cumsum(mask, dtype=np.int32) * np.int32(len(added))
        order = numbers(new_places.ravel())
        return _properties(ends, new_keys.take(order), new_items.take(order))
    offsets = offsets_of(column).astype(np.int64)
    counts = np.diff(offsets)
    # A null has no properties, even where some lie behind it.
    counts[mask_of(column.is_null())] = 0
    grown = counts + len(added) * mask
    ends = np.cumsum(grown)
    begins = ends - grown
    row_of = np.repeat(np.arange(len(column)), counts)
    within = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
    chosen[begins[row_of] + within] = offsets[row_of] + within
    for number in range(len(added)):
        chosen[ends[mask] - len(added) + number] = len(keys) + new_places[:, number]
    places = numbers(chosen)
    names = pa.concat_arrays([keys, new_keys]).take(places)
    return _properties(ends, names, pa.concat_arrays([items, new_items]).take(places))


def _properties(ends: npt.NDArray[Any], names: pa.StringArray, values: pa.StringArray) -> pa.MapArray:
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.MapArray.from_arrays(numbers(offsets), names, values, PROPERTIES_TYPE)
