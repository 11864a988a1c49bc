"""Properties of whole batches: looking values up by name, and replacing them, column by column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.protocol.column_values import (
    flags,
    mask_of,
    numbers,
    offsets_of,
    optional_numbers,
    repeated,
    text,
    texts,
)
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE

_PROPERTIES = MESSAGE_SCHEMA.get_field_index("properties")


class Entries(NamedTuple):
    """The properties of a batch of so many `messages`: the row of each, its name and its value."""

    messages: int
    rows: npt.NDArray[np.int64]
    names: pa.StringArray
    values: pa.StringArray

    def without(self, names: Collection[str]) -> Entries:
        """Return the entries whose names are none of these."""
        kept = pc.invert(pc.is_in(self.names, value_set=texts(list(names))))
        places = mask_of(kept)
        return Entries(self.messages, self.rows[places], self.names.filter(kept), self.values.filter(kept))

    def column(self, name: str) -> pa.StringArray:
        """Return the value of one name for each message, null where it has none."""
        mine = pc.equal(self.names, text(name))
        rows = self.rows[mask_of(mine)]
        places = np.full(self.messages, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return self.values.filter(mine).take(optional_numbers(places, places >= 0))


def entries_of(batch: pa.RecordBatch) -> Entries:
    """Return every property of a batch; a null map has none, even where bytes lie behind it."""
    column: pa.MapArray = batch.column(_PROPERTIES)
    offsets = offsets_of(column)
    first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0])
    names, values = column.keys.slice(first, count), column.items.slice(first, count)
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    if column.null_count:
        is_there = mask_of(column.is_valid())[rows]
        kept = flags(is_there)
        rows, names, values = rows[is_there], names.filter(kept), values.filter(kept)
    return Entries(len(column), rows, names, values)


def with_columns(
    batch: pa.RecordBatch, found: Entries, columns: Mapping[str, pa.StringArray]
) -> pa.RecordBatch:
    """Return a batch that has the properties `found`, and behind them those of `columns` that are not null.

    A name in `columns` is none of those found.
    """
    rows, names, values = [found.rows], [found.names], [found.values]
    for name, column in columns.items():
        valid = column.is_valid()
        here = np.flatnonzero(mask_of(valid))
        rows.append(here)
        names.append(repeated(name, here.size))
        values.append(column.filter(valid))
    owners = np.concatenate(rows)
    order = numbers(np.argsort(owners, kind="stable"))
    ends = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=found.messages))])
    made = pa.MapArray.from_arrays(
        numbers(ends.astype(np.int32)),
        pa.concat_arrays(names).take(order), pa.concat_arrays(values).take(order),
        PROPERTIES_TYPE,
    )  # fmt: skip
    return batch.set_column(_PROPERTIES, MESSAGE_SCHEMA.field(_PROPERTIES), made)
