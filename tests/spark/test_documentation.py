"""docs/spark.md knows every option and every column."""

from __future__ import annotations

from pathlib import Path

from pyspark_rocketq.options.table import OPTIONS
from pyspark_rocketq.read.row_schema import COLUMNS
from pyspark_rocketq.write.rows_to_messages import SINK_COLUMNS

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
TABLES = [line for line in TEXT.splitlines() if line.startswith("|")]


def named_in_a_table(name: str) -> bool:
    return any(f"`{name}`" in line.split("|")[1] for line in TABLES)


def test_every_option_is_documented() -> None:
    assert [option.name for option in OPTIONS if not named_in_a_table(option.name)] == []


def test_every_column_is_documented() -> None:
    names = [column.name for column in COLUMNS] + list(SINK_COLUMNS)
    assert [name for name in names if not named_in_a_table(name)] == []
