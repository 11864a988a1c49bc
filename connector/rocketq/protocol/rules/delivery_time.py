"""When a message is to be delivered: the properties that say it, for one message and for whole batches.

A message with one of these properties is *delayed*: the broker stores it at once and puts it into its queue
when its time has come (RocketMQ: TimerMessageStore, ScheduleMessageService). The names and their precedence
are RocketMQ's. The first of them that a message has decides:

    TIMER_DELAY_SEC      so many seconds after the broker received the message
    TIMER_DELAY_MS       so many milliseconds after that
    TIMER_DELIVER_MS     at this time, in milliseconds since 1970, UTC
    __STARTDELIVERTIME   the same, as older clients name it
    DELAY                the delay of this level, 1 to 18; 0 is no delay, and what is above 18 is 18

The broker stores and delivers a delayed message with `TIMER_DELIVER_MS` in the place of whatever the message
had. So a consumer sees the time that was asked for. A time that is past is no error: such a message is
delivered at once. A duration cannot be negative, and no time may be further away than the broker's horizon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketq.errors import InvalidBatch, InvalidConfiguration
from rocketq.errors.message_errors import InvalidMessage
from rocketq.protocol.column_values import (
    flags,
    int64s_of,
    mask_of,
    number,
    numbers,
    offsets_of,
    repeated,
    text,
)
from rocketq.protocol.column_values import texts as text_column
from rocketq.protocol.message_schema import MESSAGE_SCHEMA, PROPERTIES_TYPE

DELIVER_MS: Final = "TIMER_DELIVER_MS"
DELAY_MS: Final = "TIMER_DELAY_MS"
_DELAY_SEC: Final = "TIMER_DELAY_SEC"
_START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
_LEVEL: Final = "DELAY"
#: The names in their precedence.
DELIVERY_PROPERTIES: Final = (_DELAY_SEC, DELAY_MS, DELIVER_MS, _START_DELIVER_TIME, _LEVEL)

#: The delays of RocketMQ's 18 levels, in milliseconds (MessageStoreConfig.messageDelayLevel).
LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30)), 3600, 7200)
)
#: The column of a table, or of Spark's rows, that has delivery times.
DELIVER_AT: Final = "deliver_at"
#: What a batch has for a message without a delivery time.
NO_TIME: Final = -1

Times = npt.NDArray[np.int64]

_PROPERTIES: Final = MESSAGE_SCHEMA.get_field_index("properties")
_DELIVER_MS_TEXT: Final = text(DELIVER_MS)
_NAMES: Final = text_column(DELIVERY_PROPERTIES)
_DIGITS_MAX: Final = number(18, pa.int32())
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_FIRST_BYTES: Final = np.zeros(256, np.bool_)
_FIRST_BYTES[[name.encode()[0] for name in DELIVERY_PROPERTIES]] = True
_LEVEL_TABLE: Final = np.array((NO_TIME, *LEVELS_MS), np.int64)
#: A duration that no horizon reaches, so that a sum with the present never overflows.
_FAR_MS: Final = 1 << 60

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _Entries(NamedTuple):
    """Properties of a batch: the row of each, its name and its value."""

    rows: npt.NDArray[np.int64]
    names: pa.StringArray
    values: pa.StringArray


@dataclass(frozen=True, slots=True)
class Horizon:
    """The present and the longest delay that a broker takes, both in milliseconds."""

    now_ms: int
    delay_ms_max: int


# --- what a caller says ---------------------------------------------------------------------


def delivery_properties(delay: str | timedelta | None, deliver_at: datetime | int | None) -> dict[str, str]:
    """Return the property that asks for a delivery `delay` from now or at a time; none if neither is given.

    `delay` is "10s" (ms, s, m, h, d) or a timedelta, `deliver_at` a datetime with its time zone or
    milliseconds since 1970. Raises InvalidConfiguration.
    """
    if delay is not None and deliver_at is not None:
        raise InvalidConfiguration(
            "delay", str(delay), "it contradicts deliver_at", hint="Give one of the two."
        )
    if delay is not None:
        return {DELAY_MS: str(duration_ms(delay))}
    return {} if deliver_at is None else {DELIVER_MS: str(time_ms(deliver_at))}


def duration_ms(delay: str | timedelta) -> int:
    """Return a delay in milliseconds, rounded up; raise InvalidConfiguration."""
    if isinstance(delay, timedelta):
        if delay >= timedelta(0):
            return -(-delay // timedelta(milliseconds=1))
    elif isinstance(delay, str) and (match := _DURATION.fullmatch(delay.strip())):
        exact_ms = float(match[1]) * _UNITS_MS[match[2]]
        if exact_ms < _FAR_MS:
            return int(-(-exact_ms // 1))
    raise InvalidConfiguration(
        "delay", str(delay), "it is not a duration",
        hint='Give a number and a unit (ms, s, m, h, d) such as "10s", or a timedelta that is not negative.',
    )  # fmt: skip


def time_ms(deliver_at: datetime | int) -> int:
    """Return a delivery time in milliseconds since 1970, rounded up; raise InvalidConfiguration."""
    if isinstance(deliver_at, datetime) and deliver_at.tzinfo is not None:
        since = deliver_at - datetime(1970, 1, 1, tzinfo=UTC)
        if since >= timedelta(0):
            return -(-since // timedelta(milliseconds=1))
    elif isinstance(deliver_at, int) and not isinstance(deliver_at, bool) and 0 <= deliver_at < _FAR_MS:
        return deliver_at
    raise InvalidConfiguration(
        "deliver_at", str(deliver_at), "it is not a delivery time",
        hint="Give a datetime with its time zone, or milliseconds since 1970.",
    )  # fmt: skip


# --- one message ------------------------------------------------------------------------------


def delivery_time(
    properties: Mapping[str, str] | None, horizon: Horizon, row: int | None = None
) -> int | None:
    """Return when a message is to be delivered, in ms since 1970; None if it is not delayed.

    Raises InvalidMessage for a value that is no number, or a time beyond the horizon.
    """
    if not properties:
        return None
    for name in DELIVERY_PROPERTIES:
        value = properties.get(name)
        if value is None:
            continue
        if not _NUMBER.fullmatch(value):
            raise _no_number(name, value, row)
        at_ms = _absolute_one(name, int(value), horizon.now_ms)
        if at_ms == NO_TIME:
            return None
        if at_ms - horizon.now_ms > horizon.delay_ms_max:
            raise _too_far(name, value, horizon, row)
        return at_ms
    return None


def is_timed(properties: Mapping[str, str] | None) -> bool:
    """Whether properties ask for a delayed delivery."""
    return properties is not None and any(name in properties for name in DELIVERY_PROPERTIES)


def check_delivery(properties: Mapping[str, str] | None) -> None:
    """Raise InvalidMessage if a delivery property has no time. Only a broker knows its horizon."""
    delivery_time(properties, Horizon(0, _FAR_MS))


def timed_properties(properties: Mapping[str, str], at_ms: int) -> dict[str, str]:
    """Return the properties with which a message is stored that is to be delivered at a time."""
    rest = {name: value for name, value in properties.items() if name not in DELIVERY_PROPERTIES}
    return {**rest, DELIVER_MS: str(at_ms)}


# --- whole batches ----------------------------------------------------------------------------


def delivery_times(batch: pa.RecordBatch, horizon: Horizon, first_row: int = 0) -> Times | None:
    """Return when each message of a batch is to be delivered, NO_TIME for one that is not delayed.

    None if no message is. Raises InvalidMessage as `delivery_time`; its row counts from `first_row`.
    """
    found = _entries(batch.column(_PROPERTIES))
    return None if found is None else _times(found, batch.num_rows, horizon, first_row)


def timed_batch(
    batch: pa.RecordBatch, horizon: Horizon, first_row: int = 0
) -> tuple[pa.RecordBatch, Times] | None:
    """Return a batch as it is stored (`with_times`), and its delivery times; None and raises as above."""
    found = _entries(batch.column(_PROPERTIES))
    times = None if found is None else _times(found, batch.num_rows, horizon, first_row)
    if found is None or times is None:
        return None
    return (batch if _is_stored_form(found) else with_times(batch, times)), times


def _times(found: _Entries, rows: int, horizon: Horizon, first_row: int) -> Times | None:
    times = np.full(rows, NO_TIME, np.int64)
    present = pc.unique(found.names).to_pylist()
    for name in reversed(DELIVERY_PROPERTIES):
        if name not in present:
            continue
        places, texts = found.rows, found.values
        if len(present) > 1:
            mine = pc.equal(found.names, text(name))
            places, texts = places[mask_of(mine)], texts.filter(mine)
        is_wrong = mask_of(pc.invert(_is_whole_number(texts)))
        if is_wrong.any():
            wrong = int(is_wrong.argmax())
            raise _no_number(name, texts[wrong].as_py(), first_row + int(places[wrong]))
        own = _absolute(name, int64s_of(pc.cast(texts, pa.int64())), horizon.now_ms)
        far = np.flatnonzero(own - horizon.now_ms > horizon.delay_ms_max)
        if far.size:
            place = int(far[0])
            raise _too_far(name, texts[place].as_py(), horizon, first_row + int(places[place]))
        times[places] = own
    return times if (times != NO_TIME).any() else None


def _is_whole_number(texts: pa.StringArray) -> pa.BooleanArray:
    return pc.and_(pc.ascii_is_decimal(texts), pc.less_equal(pc.binary_length(texts), _DIGITS_MAX))


def check_batch_delivery(batch: pa.RecordBatch, first_row: int = 0) -> None:
    """As `check_delivery` for each message of a batch; its rows count from `first_row`."""
    delivery_times(batch, Horizon(0, _FAR_MS), first_row)


def with_property(batch: pa.RecordBatch, name: str, value: str) -> pa.RecordBatch:
    """Return a batch whose messages all have one delivery property, and no other."""
    rows = np.arange(batch.num_rows)
    return _with_values(batch, rows, name, repeated(value, batch.num_rows))


def stored_times(batch: pa.RecordBatch) -> Times:
    """Return the delivery times of a stored batch, whose messages have no property but DELIVER_MS for it."""
    times = np.full(batch.num_rows, NO_TIME, np.int64)
    found = _entries(batch.column(_PROPERTIES))
    if found is not None:
        times[found.rows] = int64s_of(pc.cast(found.values, pa.int64()))
    return times


def column_times(column: pa.Array | pa.ChunkedArray) -> Times:
    """Return the delivery times of a column: timestamps with a time zone, or milliseconds since 1970.

    A null is NO_TIME; microseconds are rounded up. Raises InvalidBatch.
    """
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.nulls(0, column.type)
    if pa.types.is_timestamp(whole.type) and whole.type.tz is not None:
        exact_us = pc.cast(pc.cast(whole, pa.timestamp("us", tz=whole.type.tz), safe=False), pa.int64())
        times: Times = -(-int64s_of(pc.fill_null(exact_us, number(NO_TIME * 1000))) // 1000)
    elif pa.types.is_integer(whole.type):
        times = int64s_of(pc.fill_null(pc.cast(whole, pa.int64()), number(NO_TIME)))
    elif pa.types.is_null(whole.type):
        times = np.full(len(whole), NO_TIME, np.int64)
    else:
        raise InvalidBatch(
            f"column {DELIVER_AT!r} has the type {whole.type}, and delivery times are points in time",
            hint="Give timestamps with a time zone, or whole milliseconds since 1970; null for no delay.",
        )
    is_before = times < NO_TIME
    if is_before.any():
        row = int(np.argmax(is_before))
        raise InvalidBatch(
            f"column {DELIVER_AT!r} has a time before 1970 in row {row}", hint="Give null for no delay."
        )
    return times


def with_times(batch: pa.RecordBatch, times: Times) -> pa.RecordBatch:
    """Return a batch whose messages say these delivery times by DELIVER_MS and by nothing else."""
    column = batch.column(_PROPERTIES)
    found = _entries(column)
    if found is not None and _is_stored_form(found):
        return batch
    timed = np.flatnonzero(times != NO_TIME)
    return _with_values(batch, timed, DELIVER_MS, pc.cast(numbers(times[timed]), pa.string()))


def _with_values(
    batch: pa.RecordBatch, timed: npt.NDArray[np.int64], name: str, texts: pa.StringArray
) -> pa.RecordBatch:
    """Return a batch in which the rows `timed` have one delivery property, and no row has another."""
    column = batch.column(_PROPERTIES)
    rows, names, values = _all_entries(column)
    kept = ~mask_of(pc.is_in(names, value_set=_NAMES))
    names = pa.concat_arrays([names.filter(flags(kept)), repeated(name, len(timed))])
    values = pa.concat_arrays([values.filter(flags(kept)), texts])
    owners = np.concatenate([rows[kept], timed])
    order = numbers(np.argsort(owners, kind="stable"))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=batch.num_rows))])
    is_null = mask_of(column.is_null())
    is_null[timed] = False
    made = pa.MapArray.from_arrays(
        numbers(offsets.astype(np.int32)), names.take(order), values.take(order), PROPERTIES_TYPE,
        mask=flags(is_null),
    )  # fmt: skip
    return batch.set_column(_PROPERTIES, MESSAGE_SCHEMA.field(_PROPERTIES), made)


def _entries(column: pa.MapArray) -> _Entries | None:
    """Return the properties that say a delivery time; None if there is none.

    Nearly every batch is let go after one look at the first byte of each name.
    """
    if column.null_count == len(column):
        return None
    offsets = offsets_of(column)
    names = column.keys.slice(int(offsets[0]), int(offsets[-1]) - int(offsets[0]))
    if not _may_be_timed(names):
        return None
    found = _all_entries(column)
    chosen = pc.is_in(found.names, value_set=_NAMES)
    places = np.flatnonzero(mask_of(chosen))
    if places.size == len(found.names):
        return found if places.size else None
    if not places.size:
        return None
    return _Entries(found.rows[places], found.names.filter(chosen), found.values.filter(chosen))


def _is_stored_form(found: _Entries) -> bool:
    """Whether all of these are DELIVER_MS."""
    return bool(pc.all(pc.equal(found.names, _DELIVER_MS_TEXT)).as_py())


def _all_entries(column: pa.MapArray) -> _Entries:
    """Return every property; a null map has none, even where bytes lie behind it."""
    offsets = offsets_of(column)
    first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0])
    names, values = column.keys.slice(first, count), column.items.slice(first, count)
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    if column.null_count:
        valid = mask_of(column.is_valid())[rows]
        rows, names, values = rows[valid], names.filter(flags(valid)), values.filter(flags(valid))
    return _Entries(rows, names, values)


def _may_be_timed(names: pa.StringArray) -> bool:
    _, offsets_buffer, data = names.buffers()
    text = np.frombuffer(data or b"", np.uint8)
    if not len(names) or not text.size:
        return False
    starts = np.frombuffer(offsets_buffer, np.int32, len(names), 4 * names.offset)
    return bool(_FIRST_BYTES.take(text.take(starts, mode="clip")).any())


def _absolute(name: str, values: Times, now_ms: int) -> Times:
    """Return the times that values of a property mean; NO_TIME for level 0."""
    if name in (DELIVER_MS, _START_DELIVER_TIME):
        return values
    if name == _LEVEL:
        delays = _LEVEL_TABLE[np.minimum(values, len(LEVELS_MS))]
        return np.where(delays == NO_TIME, NO_TIME, now_ms + delays)
    scale = 1000 if name == _DELAY_SEC else 1
    return now_ms + np.minimum(values, _FAR_MS // scale) * scale


def _absolute_one(name: str, value: int, now_ms: int) -> int:
    """As `_absolute` for one value; a message that comes alone pays for every call into numpy by itself."""
    if name in (DELIVER_MS, _START_DELIVER_TIME):
        return value
    if name == _LEVEL:
        return now_ms + LEVELS_MS[min(value, len(LEVELS_MS)) - 1] if value else NO_TIME
    return now_ms + min(value * (1000 if name == _DELAY_SEC else 1), _FAR_MS)


def _no_number(name: str, value: str, row: int | None) -> InvalidMessage:
    why = f"has the value {value[:40]!r}, which is not a whole number from 0 on"
    return InvalidMessage(
        "property", name, why, "Give seconds, milliseconds or a level as its name says.", row
    )


def _too_far(name: str, value: str, horizon: Horizon, row: int | None) -> InvalidMessage:
    why = (
        f"has the value {value}, which is beyond the broker's horizon: it takes messages that are due within "
        f"{horizon.delay_ms_max} ms"
    )
    hint = "Choose an earlier time, or have the broker's operator raise delay_ms_max (--delay-ms-max)."
    return InvalidMessage("property", name, why, hint, row)
