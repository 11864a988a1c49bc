"""Messages that gather one by one, kept as columns.

A message costs what its fields cost: no object is made for it, and a field that it lacks takes no place.
Arrow makes a batch of all rows at once, on the thread that sends it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import pyarrow as pa

from rocketq.model import UNIQUE_ID_PROPERTY, Message
from rocketq.producing.unique_ids import IdRange, identified_properties
from rocketq.protocol.column_values import byte_strings, optional_bytes
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, nulls, sparse_properties

_TYPES = {field.name: field.type for field in MESSAGE_SCHEMA}


def fields_size(key: bytes | None, tag: str | None, properties: Mapping[str, str] | None) -> int:
    """Return how many bytes a message's fields besides its body take, about."""
    size = len(key or b"") + len(tag or "")
    for name, value in (properties or {}).items():
        size += len(name) + len(value or "")
    return size


def with_id(properties: Mapping[str, str] | None, unique_id: str) -> dict[str, str]:
    """Return the properties of a message with this id of its own, unless they have one already."""
    if properties is None:
        return {UNIQUE_ID_PROPERTY: unique_id}
    if properties.get(UNIQUE_ID_PROPERTY) is not None:
        return dict(properties)
    return {**properties, UNIQUE_ID_PROPERTY: unique_id}


class MessageColumns:
    """Columns of schema message/1 that grow by one row at a time. The fields of a row were checked before."""

    __slots__ = ("_bodies", "_born_at_us", "_keys", "_properties", "_tags")

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._born_at_us = array("q")
        #: Fields that few messages have, by row.
        self._keys: dict[int, bytes] = {}
        self._tags: dict[int, str] = {}
        self._properties: dict[int, Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def add(
        self,
        body: bytes,
        born_at_us: int,
        key: bytes | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Add a message; return its row."""
        bodies = self._bodies
        row = len(bodies)
        bodies.append(body)
        self._born_at_us.append(born_at_us)
        if key is not None:
            self._keys[row] = key
        if tag is not None:
            self._tags[row] = tag
        if properties is not None:
            self._properties[row] = properties
        return row

    def size_of(self, row: int) -> int:
        """Return how many bytes the fields of a message take, about."""
        key, tag = self._keys.get(row), self._tags.get(row)
        return len(self._bodies[row]) + fields_size(key, tag, self._properties.get(row))

    def message(self, row: int, unique_id: str | None) -> Message:
        """Return one row as a message, with this id of its own if it is given."""
        properties = self._properties.get(row)
        given = None if properties is None else dict(properties)
        return Message(
            self._bodies[row],
            self._keys.get(row),
            self._tags.get(row),
            given if unique_id is None else with_id(given, unique_id),
            self._born_at_us[row],
        )

    def to_batch(self, ids: IdRange | None = None) -> pa.RecordBatch:
        """Return all rows as a batch of schema message/1, each with its id of `ids` unless it has one."""
        rows = len(self)
        columns = {
            "key": self._sparse(self._keys, "key"),
            "tag": self._sparse({row: tag.encode() for row, tag in self._tags.items()}, "tag"),
            "body": byte_strings(self._bodies),
            "properties": self._property_column(ids),
            "born_at": pa.Array.from_buffers(
                _TYPES["born_at"], rows, [None, pa.py_buffer(self._born_at_us)], 0
            ),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=MESSAGE_SCHEMA)

    def _property_column(self, ids: IdRange | None) -> pa.Array:
        rows = len(self)
        if ids is not None:
            return identified_properties(self._properties, ids, rows)
        if not self._properties:
            return nulls(rows, _TYPES["properties"])
        return sparse_properties(self._properties, rows)

    def _sparse(self, values: Mapping[int, bytes], name: str) -> pa.Array:
        """Return a column of which some rows have a value."""
        rows = len(self)
        if not values:
            return nulls(rows, _TYPES[name])
        return optional_bytes(list(map(values.get, range(rows))), _TYPES[name])

    @property
    def properties(self) -> Mapping[int, Mapping[str, str]]:
        """The properties of the messages that have some, by row and in order."""
        return self._properties

    def put_properties(self, changed: Mapping[int, Mapping[str, str]]) -> None:
        """Give some messages other properties."""
        if changed:
            self._properties = dict(sorted({**self._properties, **changed}.items()))

    def own_ids(self) -> dict[int, str]:
        """Return the ids that callers gave in the properties, by row."""
        return {
            row: given[UNIQUE_ID_PROPERTY]
            for row, given in self._properties.items()
            if given.get(UNIQUE_ID_PROPERTY) is not None
        }
