"""The properties of a batch as columns, for SQL expressions.

    TAGS            the tag
    KEYS            the key, if it is UTF-8; then a space and the further keys of the property KEYS
    any other name  the property of that name; if a message has the name twice, its last value

A message without the property, or with a null in its place, has null. A column is made when an expression
first asks for it, and kept for the batch, also as numbers or truth values.

To extract a property, one comparison over all property names of the batch finds the places of its values. The
row of each place is computed once for the batch. So each property costs one `take`. Measured on 10,000
messages of four properties: 0.22 ms. Arrow's own `map_lookup` takes 0.47 ms for the last of equal names, and
3.8 ms for the first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.protocol.rules.system_properties import KEYS
from rocketq_broker.filters.numerics import Numbers, parse_numbers

TAGS: Final = "TAGS"

_TRUTH: Final = pa.array(["false", "true"])
#: UTF-8 as RFC 3629 has it, over bytes: Arrow can check a whole column, but not say which rows fail.
_UTF8: Final = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


class Columns:
    """The columns of one batch, each made once."""

    __slots__ = ("_batch", "_entries", "_numbers", "_texts", "_truths", "rows")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.rows: int = batch.num_rows
        self._batch = batch
        self._entries: _Entries | None = None
        self._texts: dict[str, pa.StringArray] = {}
        self._numbers: dict[str, Numbers] = {}
        self._truths: dict[str, pa.BooleanArray] = {}

    def texts(self, name: str) -> pa.StringArray:
        """Return the values of a property."""
        if name not in self._texts:
            self._texts[name] = self._extracted(name)
        return self._texts[name]

    def numbers(self, name: str) -> Numbers:
        """Return the values that are numbers; the others are null."""
        if name not in self._numbers:
            self._numbers[name] = parse_numbers(self.texts(name))
        return self._numbers[name]

    def truths(self, name: str) -> pa.BooleanArray:
        """Return the values that are `true` or `false` in any case; the others are null."""
        if name not in self._truths:
            places = pc.index_in(pc.ascii_lower(self.texts(name)), value_set=_TRUTH)
            self._truths[name] = pc.cast(places, pa.bool_())
        return self._truths[name]

    def _extracted(self, name: str) -> pa.StringArray:
        if name == TAGS:
            return self._batch.column("tag")
        if self._entries is None:
            self._entries = _Entries(self._batch.column("properties"))
        values = self._entries.values_of(name)
        return _joined_keys(self._batch.column("key"), values) if name == KEYS else values


class _Entries:
    """The entries of a map column, laid flat, with the row that each belongs to."""

    __slots__ = ("_absent", "_names", "_row_of", "_rows", "_values")

    def __init__(self, column: pa.MapArray) -> None:
        self._rows = len(column)
        offsets = column.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        # Of a slice, Arrow gives the names and values of the whole.
        self._names = column.keys.slice(first, last - first)
        self._values = column.items.slice(first, last - first)
        self._row_of = np.repeat(np.arange(self._rows), np.diff(offsets))
        # A null map has no entries, even where bytes lie behind it.
        self._absent = np.flatnonzero(column.is_null().to_numpy(False)) if column.null_count else None

    def values_of(self, name: str) -> pa.StringArray:
        places = _places(pc.equal(self._names, pa.scalar(name, pa.string())))
        if not places.size:
            return pa.nulls(self._rows, pa.string())
        chosen: npt.NDArray[np.int64] = np.full(self._rows, -1)
        chosen[self._row_of[places]] = places  # numpy keeps the last of equal rows
        if self._absent is not None:
            chosen[self._absent] = -1
        missing = chosen < 0
        return self._values.take(pa.array(chosen, mask=missing if missing.any() else None))


def _places(found: pa.BooleanArray) -> npt.NDArray[np.int64]:
    """Return where a column without nulls is true; Arrow's own ways take twice as long."""
    if not len(found):
        return np.empty(0, np.int64)
    end = found.offset + len(found)
    bits = np.unpackbits(np.frombuffer(found.buffers()[1], np.uint8), count=end, bitorder="little")
    return np.flatnonzero(bits[found.offset :].view(np.bool_))


def _joined_keys(key: pa.BinaryArray, further: pa.StringArray) -> pa.StringArray:
    """Return all keys of each message, separated by spaces (RocketMQ: the property KEYS)."""
    first = utf8_or_null(key)
    if further.null_count == len(further):
        return first
    return pc.coalesce(pc.binary_join_element_wise(first, further, " "), first, further)


def utf8_or_null(column: pa.BinaryArray) -> pa.StringArray:
    """Return a binary column as text; values that are not UTF-8 become null."""
    try:
        return pc.cast(column, pa.string())
    except pa.ArrowInvalid:
        sound = pc.match_substring_regex(column, _UTF8)
        return pc.cast(pc.if_else(sound, column, pa.scalar(None, pa.binary())), pa.string())
