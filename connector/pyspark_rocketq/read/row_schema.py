"""The rows of the source: their columns, and what a user schema may ask for.

A user schema is a projection: any of the columns, in any order, by name and type. Spark
hands it on unchecked (an unknown name would give nulls), so it is checked here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_rocketq.errors import SchemaMismatch


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the source; `always` if no row is without a value."""

    name: str
    type: DataType
    always: bool
    #: Whether it is in the row when no schema is given.
    default: bool = True


COLUMNS: Final = (
    Column("key", BinaryType(), always=False),
    Column("value", BinaryType(), always=True),
    Column("tag", StringType(), always=False),
    Column("topic", StringType(), always=True),
    Column("broker", StringType(), always=True),
    Column("queue", IntegerType(), always=True),
    Column("offset", LongType(), always=True),
    Column("timestamp", TimestampType(), always=True),
    Column("properties", MapType(StringType(), StringType()), always=False, default=False),
    Column("born_timestamp", TimestampType(), always=False, default=False),
    Column("message_id", StringType(), always=True, default=False),
)

_BY_NAME: Final[Mapping[str, Column]] = {column.name: column for column in COLUMNS}


def source_schema(include_properties: bool) -> StructType:
    """Return the row that is read when the user gives no schema."""
    return StructType(
        [
            StructField(column.name, column.type)
            for column in COLUMNS
            if column.default or (include_properties and column.name == "properties")
        ]
    )


def check_source_schema(schema: StructType, include_properties: bool = False) -> None:
    """Raise SchemaMismatch unless `schema` is a projection of the source's columns.

    It is the user's, or `source_schema`'s own; a user's must agree with `include_properties`.
    """
    if not schema.fields:
        raise SchemaMismatch("", "must be there: the schema asks for no column", hint="Ask for offset.")
    if include_properties and "properties" not in schema.fieldNames():
        raise SchemaMismatch(
            "properties", "is asked for by includeProperties, and not by the schema",
            hint="Add it to the schema, which alone decides, or leave the option out.",
        )  # fmt: skip
    seen: set[str] = set()
    for field in schema.fields:
        column = _BY_NAME.get(field.name)
        if column is None:
            raise SchemaMismatch(
                field.name, "is none of the source's columns", hint=_unknown_hint(field.name)
            )
        if field.name in seen:
            raise SchemaMismatch(field.name, "is asked for twice")
        seen.add(field.name)
        if field.dataType != column.type:
            raise SchemaMismatch(
                field.name,
                f"is asked for as {field.dataType.simpleString()}, and is {column.type.simpleString()}",
                hint=_cast_hint(column, field.dataType),
            )
        if not field.nullable and not column.always:
            raise SchemaMismatch(
                field.name, "is asked for as NOT NULL, and messages may lack it", hint="Make it nullable."
            )


def _unknown_hint(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Columns: {', '.join(_BY_NAME)}."


def _cast_hint(column: Column, wanted: DataType) -> str:
    if isinstance(column.type, MapType):
        return "Use map<string,string> with nullable values."
    return f"Read it as {column.type.simpleString()} and use CAST({column.name} AS {wanted.simpleString()})."
