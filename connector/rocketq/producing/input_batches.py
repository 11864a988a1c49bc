"""From what people have to batches of schema message/1 that are ready to send, and what orders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import InvalidBatch, InvalidConfiguration
from rocketq.model import Message
from rocketq.producing.selection.queue_selectors import Hashes, batch_bytes
from rocketq.protocol.column_values import number
from rocketq.protocol.hashing import hash_column
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, from_messages, normalise
from rocketq.protocol.rules.delivery_time import (
    DELIVER_AT,
    check_batch_delivery,
    column_times,
    delivery_properties,
    with_property,
    with_times,
)
from rocketq.protocol.rules.message_rules import check_batch
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX

#: The ordering keys of a batch: the name of a column, or one key (bytes, text or None) for each message.
OrderingKeys: TypeAlias = str | pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[bytes | str | None]

#: Chunks smaller than this are joined: each would become a frame of its own.
CHUNK_BYTES_MIN: Final = 64 * 1024

_BORN_AT: Final = MESSAGE_SCHEMA.get_field_index("born_at")


@dataclass(frozen=True)
class OrderedBatch:
    """A batch of schema message/1, and the hash of each message's ordering key if there are such keys."""

    batch: pa.RecordBatch
    hashes: Hashes | None = None

    @cached_property
    def nbytes(self) -> int:
        """About how many bytes the batch takes in a request."""
        return batch_bytes(self.batch)


def combined(batches: Sequence[OrderedBatch]) -> OrderedBatch:
    """Return the rows of all batches, of which there is at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches([one.batch for one in batches]).combine_chunks().to_batches()
    hashes = [one.hashes for one in batches if one.hashes is not None]
    return OrderedBatch(whole, np.concatenate(hashes) if hashes else None)


def ordered_batches(data: Any, ordering_key: OrderingKeys | None, now_us: int) -> list[OrderedBatch]:
    """Return `data` as batches ready to send, with the hashes of their ordering keys.

    A column that `ordering_key` names and that is not of schema message/1 orders the messages and is not
    sent. Raises InvalidBatch, and InvalidConfiguration for keys that do not fit the data.
    """
    if ordering_key is None:
        return [OrderedBatch(stamped(batch, now_us)) for batch in batches_of(data)]
    if isinstance(ordering_key, str):
        data, keys = _column_taken(data, ordering_key)
    else:
        keys = ordering_key
    batches = [stamped(batch, now_us) for batch in batches_of(data)]
    hashes = _key_hashes(keys, ordering_key)
    ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
    rows = int(ends[-1]) if batches else 0
    if len(hashes) != rows:
        raise InvalidConfiguration(
            "ordering_key", _shown(ordering_key), f"it has {len(hashes)} keys for {rows} messages"
        )
    parts = np.split(hashes, ends[:-1]) if batches else []
    return [OrderedBatch(batch, part) for batch, part in zip(batches, parts, strict=True)]


def batches_of(data: Any) -> list[pa.RecordBatch]:
    """Return `data` as batches of schema message/1, without empty ones.

    Takes a Table, RecordBatch, pandas DataFrame, anything else with Arrow's
    stream interface, or a sequence of Message. Raises InvalidBatch, or InvalidMessage, which
    counts rows over all of `data`.
    """
    batches = [batch for batch in _batches(data) if batch.num_rows]
    first_row = 0
    for batch in batches:
        check_batch(batch, first_row)
        check_batch_delivery(batch, first_row)
        first_row += batch.num_rows
    return batches


def timed_data(data: Any, delay: str | timedelta | None, deliver_at: datetime | int | None) -> Any:
    """Return data whose messages are all delivered after this delay or at this time; as it is without one.

    Raises InvalidConfiguration for a delay or a time that is none, and as `batches_of`.
    """
    given = delivery_properties(delay, deliver_at)
    if not given:
        return data
    [(name, value)] = given.items()
    return pa.Table.from_batches(
        [with_property(each, name, value) for each in batches_of(data)], MESSAGE_SCHEMA
    )


def _batches(data: Any) -> list[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        table: pa.RecordBatch | pa.Table = data
    elif isinstance(data, pa.Table):
        table = _joined(data)
    elif _is_pandas(data):
        table = _from_pandas(data)
    elif hasattr(data, "__arrow_c_stream__"):
        table = _joined(pa.table(data))
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _from_sequence(data)
    else:
        raise InvalidBatch(
            f"messages cannot be made of a {type(data).__name__}",
            hint="Give a pyarrow Table or RecordBatch, a pandas DataFrame, or a list of Message.",
        )
    return _timed(table) if DELIVER_AT in table.schema.names else normalise(table)


def _timed(table: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Return a table with delivery times as batches whose messages say them by a property."""
    times = column_times(table.column(DELIVER_AT))
    batches = normalise(table.drop_columns([DELIVER_AT]))
    ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
    parts = np.split(times, ends[:-1]) if batches else []
    return [with_times(batch, own) for batch, own in zip(batches, parts, strict=True)]


def stamped(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the batch with `born_at` filled with now where it is null."""
    column = batch.column(_BORN_AT)
    if not column.null_count:
        return batch
    field = MESSAGE_SCHEMA.field(_BORN_AT)
    filled = pc.fill_null(column, number(now_us, field.type))
    return batch.set_column(_BORN_AT, field, filled)


def _column_taken(data: Any, name: str) -> tuple[Any, Any]:
    """Return the data without the column `name`, unless it is of message/1, and the column."""
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        data = pa.Table.from_batches(batches_of(data), MESSAGE_SCHEMA)
    elif not isinstance(data, pa.Table | pa.RecordBatch) and not _is_pandas(data):
        if not hasattr(data, "__arrow_c_stream__"):
            return data, ()  # `batches_of` says what is wrong with it.
        data = pa.table(data)
    names = [str(column) for column in (data.columns if _is_pandas(data) else data.schema.names)]
    if name not in names:
        raise InvalidConfiguration(
            "ordering_key",
            name,
            "the data has no such column",
            hint=f"Its columns are {', '.join(names)}. Give one of them, or one key for each message.",
        )
    keys = data[name]
    if name in MESSAGE_SCHEMA.names:
        return data, keys
    return data.drop(columns=[name]) if _is_pandas(data) else data.drop_columns([name]), keys


def _key_hashes(keys: Any, given: OrderingKeys) -> Hashes:
    """Return the hash of each key; raise InvalidConfiguration unless they are bytes or text."""
    try:
        if isinstance(keys, bytes | bytearray | memoryview):
            raise TypeError("one value, and a batch needs a key for each message")
        if not isinstance(keys, pa.Array | pa.ChunkedArray):
            kind = pa.binary() if isinstance(keys, list | tuple) else None
            keys = pa.array(keys, kind, from_pandas=True)
        column = pc.cast(keys, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidConfiguration(
            "ordering_key",
            _shown(given),
            f"its keys cannot be read: {error}",
            hint="Give the name of a column, or one key for each message: bytes, text or None.",
        ) from error
    return hash_column(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)


def _shown(ordering_key: OrderingKeys) -> str:
    return ordering_key if isinstance(ordering_key, str) else type(ordering_key).__name__


def _joined(table: pa.Table) -> pa.Table:
    chunks = max((column.num_chunks for column in table.columns), default=0)
    if chunks > 1 and table.nbytes < chunks * CHUNK_BYTES_MIN:
        return table.combine_chunks()
    return table


def _is_pandas(data: Any) -> bool:
    # By name, so that pandas is never imported for the sake of the question.
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _from_pandas(frame: Any) -> pa.Table:
    known = {*MESSAGE_SCHEMA.names, DELIVER_AT}
    unknown = [str(name) for name in frame.columns if name not in known]
    if unknown:
        raise InvalidBatch(
            f"columns {unknown} are not of schema message/1",
            hint=f"The columns are {', '.join(MESSAGE_SCHEMA.names)}; only body is required.",
        )
    columns = {}
    try:
        for name in frame.columns:
            series = frame[name]
            # Only Python objects need to be told their type. Of other columns Arrow knows it, and
            # whether it fits is seen by `normalise`; Arrow would take a float's bytes for a binary.
            is_known = series.dtype == object and name in MESSAGE_SCHEMA.names
            kind = MESSAGE_SCHEMA.field(name).type if is_known else None
            columns[name] = pa.array(series, type=kind, from_pandas=True)
        return pa.table(columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidBatch(
            f"the DataFrame does not fit schema message/1: {error}",
            hint="body and key are bytes or str, tag is str, properties are dicts or lists of pairs.",
        ) from error


def _from_sequence(messages: Sequence[Any]) -> list[pa.RecordBatch]:
    strange = next((m for m in messages if not isinstance(m, Message)), None)
    if strange is not None:
        raise InvalidBatch(
            f"the sequence holds a {type(strange).__name__}, not only Message",
            hint="Make values with rocketq.Message(body, key=...).",
        )
    return [
        from_messages(messages[begin : begin + BATCH_MESSAGES_MAX])
        for begin in range(0, len(messages), BATCH_MESSAGES_MAX)
    ]
