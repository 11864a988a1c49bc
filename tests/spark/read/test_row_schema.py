"""Schemas: a user schema is a projection, a DataFrame must be messages; both are checked in words."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_rocketq.errors import SchemaMismatch
from pyspark_rocketq.read.row_schema import COLUMNS, check_source_schema, source_schema
from pyspark_rocketq.write.rows_to_messages import check_sink_schema
from rocketq.protocol.message_schema import MESSAGE_COLUMNS

TEXT_MAP = MapType(StringType(), StringType())


def row(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_the_row_has_the_columns_the_documents_promise() -> None:
    assert source_schema(False).simpleString() == (
        "struct<key:binary,value:binary,tag:string,topic:string,broker:string,queue:int,offset:bigint,"
        "timestamp:timestamp>"
    )
    assert source_schema(True).fieldNames()[-1] == "properties"
    assert all(field.nullable for field in source_schema(True).fields)


def test_any_of_the_columns_in_any_order_is_a_projection() -> None:
    check_source_schema(row(offset=LongType(), value=BinaryType()))
    check_source_schema(StructType([StructField(column.name, column.type) for column in reversed(COLUMNS)]))


def test_what_every_message_has_may_be_not_null() -> None:
    check_source_schema(StructType([StructField("value", BinaryType(), False)]))
    with pytest.raises(SchemaMismatch, match="messages may lack it"):
        check_source_schema(StructType([StructField("key", BinaryType(), False)]))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (row(ofset=LongType()), "'ofset' is none of the source's columns. Did you mean offset?"),
        (row(zzz=LongType()), "Columns: key, value, tag"),
        (row(Value=BinaryType()), "Did you mean value?"),
        (row(value=StringType()), r"CAST\(value AS string\)"),
        (row(queue=LongType()), "is asked for as bigint, and is int"),
        (row(properties=MapType(StringType(), StringType(), False)), "with nullable values"),
        (StructType([]), "asks for no column"),
        (StructType([StructField("tag", StringType()), StructField("tag", StringType())]), "twice"),
    ],
)
def test_a_user_schema_says_what_is_wrong(schema: StructType, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        check_source_schema(schema)


def test_a_schema_and_the_option_for_properties_must_agree() -> None:
    check_source_schema(row(value=BinaryType(), properties=TEXT_MAP), include_properties=True)
    with pytest.raises(SchemaMismatch, match="Add it to the schema"):
        check_source_schema(row(value=BinaryType()), include_properties=True)


def test_a_sink_takes_text_or_bytes_and_all_its_columns() -> None:
    check_sink_schema(row(value=StringType()), "t", False)
    full = row(
        value=BinaryType(), key=StringType(), tag=StringType(), properties=TEXT_MAP, topic=StringType(),
        broker=StringType(), queue=IntegerType(),
    )  # fmt: skip
    check_sink_schema(full, None, True)


@pytest.mark.parametrize(
    ("schema", "topic", "hashes", "said"),
    [
        (row(key=StringType()), "t", False, "'value' is missing.*to_json"),
        (row(value=StringType()), None, False, "'topic' is missing"),
        (row(value=StringType()), "t", True, "'key' is missing. queueSelection=hash"),
        (row(value=IntegerType()), "t", False, "has the type int, and must be string or binary"),
        (row(value=StringType(), tag=BinaryType()), "t", False, "must be string"),
        (row(value=StringType(), properties=MapType(StringType(), IntegerType())), "t", False, "map<string"),
        (row(value=StringType(), valeu=StringType()), "t", False, "Did you mean value?"),
        (row(value=StringType(), offset=LongType()), "t", False, "drop the column"),
        (
            row(value=StringType(), timestamp=TimestampType()),
            "t",
            False,
            "gives a message its place and time",
        ),
        (row(value=StringType(), queue=IntegerType()), "t", False, "'broker' is missing beside 'queue'"),
        (row(value=StringType(), broker=StringType()), "t", False, "'queue' is missing beside 'broker'"),
    ],
)
def test_a_sink_schema_says_what_is_wrong(
    schema: StructType, topic: str | None, hashes: bool, said: str
) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        check_sink_schema(schema, topic, hashes)


def test_every_column_of_a_message_is_in_the_rows() -> None:
    names = {column.name for column in COLUMNS}
    assert {column.row_name for column in MESSAGE_COLUMNS} <= names
