"""What send_batch takes: Arrow, pandas, messages; and what it refuses."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq.errors import InvalidBatch
from rocketq.model import Message
from rocketq.producing.input_batches import batches_of, stamped
from rocketq.protocol.message_schema import MESSAGE_COLUMNS, MESSAGE_SCHEMA, PROPERTIES_TYPE, from_messages
from rocketq.protocol.sizes import BATCH_MESSAGES_MAX


def test_a_dataframe_becomes_messages_whatever_its_index_is() -> None:
    frame = pd.DataFrame(
        {
            "body": ["a", b"b"],
            "key": [b"k", None],
            "tag": ["x", None],
            "properties": [{"p": "q"}, None],
            "born_at": pd.to_datetime(["2026-01-01T00:00:00Z", None]),
        },
        index=["one", "two"],
    )
    (batch,) = batches_of(frame)
    assert batch.schema == MESSAGE_SCHEMA
    first, second = batch.to_pylist()
    assert (first["body"], first["key"], first["tag"]) == (b"a", b"k", "x")
    assert first["properties"] == [("p", "q")]
    assert first["born_at"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert second == {"key": None, "tag": None, "body": b"b", "properties": None, "born_at": None}


@settings(deadline=None)
@given(
    rows=st.lists(
        st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=4),
        max_size=20,
    ),
    begin=st.integers(0, 20),
    count=st.integers(0, 20),
)
def test_a_property_without_a_value_is_one_the_message_does_not_have(
    rows: list[dict[str, str | None] | None], begin: int, count: int
) -> None:
    column = pa.array([None if row is None else list(row.items()) for row in rows], PROPERTIES_TYPE)
    table = pa.table({"body": [b""] * len(rows), "properties": column}).slice(begin, count)
    found = [row for batch in batches_of(table) for row in batch.column("properties").to_pylist()]
    assert found == [
        None if row is None else [(name, value) for name, value in row.items() if value is not None]
        for row in rows[begin : begin + count]
    ]


def test_a_message_with_a_property_without_a_value_lacks_the_property() -> None:
    properties = {"region": "eu", "trace": None}
    (batch,) = batches_of([Message(b"x", properties=properties)])  # type: ignore[arg-type]
    assert batch.column("properties").to_pylist() == [[("region", "eu")]]


def test_a_dataframe_with_an_unknown_column_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidBatch, match="price"):
        batches_of(pd.DataFrame({"body": ["a"], "price": [1.0]}))


def test_a_dataframe_with_a_wrong_type_is_refused() -> None:
    for value in (1.5, 7, object()):
        with pytest.raises(InvalidBatch):
            batches_of(pd.DataFrame({"body": [value]}))


def test_anything_with_arrows_stream_interface_is_taken() -> None:
    reader = pa.RecordBatchReader.from_batches(
        pa.schema([("body", pa.large_string())]),
        [pa.record_batch({"body": pa.array(["a"], pa.large_string())})],
    )
    (batch,) = batches_of(reader)
    assert batch.column("body").to_pylist() == [b"a"]


def test_small_batches_are_joined_and_empty_ones_are_left_out() -> None:
    crumbs = pa.Table.from_batches([from_messages([Message(b"%d" % n)]) for n in range(100)])
    (joined,) = batches_of(crumbs)
    assert joined.num_rows == 100
    assert batches_of(crumbs.slice(0, 0)) == []
    assert batches_of([]) == []


def test_a_long_list_becomes_batches_that_a_request_may_hold() -> None:
    batches = batches_of([Message(b"")] * (BATCH_MESSAGES_MAX + 1))
    assert [b.num_rows for b in batches] == [BATCH_MESSAGES_MAX, 1]


@pytest.mark.parametrize("data", [b"bytes", "text", 7, None, [b"no message"]])
def test_what_is_no_set_of_messages_is_refused(data: object) -> None:
    with pytest.raises(InvalidBatch):
        batches_of(data)


def test_born_at_is_filled_in_only_where_it_is_null() -> None:
    batch = from_messages([Message(b"a"), Message(b"b", born_at_us=5)])
    assert stamped(batch, 9).column("born_at").cast(pa.int64()).to_pylist() == [9, 5]


def test_every_column_of_a_message_comes_from_its_attribute() -> None:
    message = Message(b"body", b"key", "tag", {"name": "value"}, 7)
    (row,) = from_messages([message]).to_pylist()
    row["born_at"] = int(row["born_at"].timestamp() * 1_000_000)
    row["properties"] = dict(row["properties"])
    assert row == {column.name: getattr(message, column.attribute) for column in MESSAGE_COLUMNS}
