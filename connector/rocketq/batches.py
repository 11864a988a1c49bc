"""From what people have to batches of schema message/1 that are ready to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import InvalidBatch
from rocketq.protocol.ipc import BATCH_MESSAGES_MAX
from rocketq.protocol.message_rules import check_batch
from rocketq.protocol.model import Message
from rocketq.protocol.schema import MESSAGE_SCHEMA, from_messages, normalise

#: Chunks smaller than this are joined: each would become a frame of its own.
CHUNK_BYTES_MIN: Final = 64 * 1024

_BORN_AT: Final = MESSAGE_SCHEMA.get_field_index("born_at")


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
        first_row += batch.num_rows
    return batches


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
    return normalise(table)


def stamped(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return the batch with `born_at` filled with now where it is null."""
    column = batch.column(_BORN_AT)
    if not column.null_count:
        return batch
    field = MESSAGE_SCHEMA.field(_BORN_AT)
    filled = pc.fill_null(column, pa.scalar(now_us, field.type))
    return batch.set_column(_BORN_AT, field, filled)


def _joined(table: pa.Table) -> pa.Table:
    chunks = max((column.num_chunks for column in table.columns), default=0)
    if chunks > 1 and table.nbytes < chunks * CHUNK_BYTES_MIN:
        return table.combine_chunks()
    return table


def _is_pandas(data: Any) -> bool:
    # By name, so that pandas is never imported for the sake of the question.
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _from_pandas(frame: Any) -> pa.Table:
    unknown = [str(name) for name in frame.columns if name not in MESSAGE_SCHEMA.names]
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
            kind = MESSAGE_SCHEMA.field(name).type if series.dtype == object else None
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
