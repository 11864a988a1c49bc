"""The data source that Spark finds by its name, `rocketq`.

Spark makes one of these for every DataFrame and asks it for a reader or a writer; only then is it
known what the options are for. Without a user schema it first asks for the schema, so a wrong
option is an error at `load()`, where it was written, and not at the first action.

What reads and writes is imported when it is asked for: every Python session of Spark imports this
module, whether it uses rocketq or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_rocketq.read.batch_reader import RocketqReader
    from pyspark_rocketq.stream.stream_reader import RocketqStreamReader
    from pyspark_rocketq.write.writer import RocketqStreamWriter, RocketqWriter


class RocketqDataSource(DataSource):
    """Topics of rocketq as DataFrames (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        return "rocketq"

    def schema(self) -> StructType:
        """Return the row that is read when the user gives no schema; raise for options no read has."""
        from pyspark_rocketq.options.options import source_options
        from pyspark_rocketq.options.table import Use
        from pyspark_rocketq.read.row_schema import source_schema

        return source_schema(source_options(self.options, Use.READ).include_properties)

    def reader(self, schema: StructType) -> RocketqReader:
        from pyspark_rocketq.options.options import source_options
        from pyspark_rocketq.options.table import Use
        from pyspark_rocketq.read.batch_reader import FilteredReader, RocketqReader
        from pyspark_rocketq.read.row_schema import check_source_schema

        options = source_options(self.options, Use.BATCH_READ)
        check_source_schema(schema, options.include_properties)
        return FilteredReader(options, schema) if options.push_filters else RocketqReader(options, schema)

    def streamReader(self, schema: StructType) -> RocketqStreamReader:  # noqa: N802 - Spark's name
        from pyspark_rocketq.options.options import source_options
        from pyspark_rocketq.options.table import Use
        from pyspark_rocketq.read.row_schema import check_source_schema
        from pyspark_rocketq.stream.stream_reader import RefusedStreamReader, RocketqStreamReader
        from rocketq.errors import RocketqError

        try:
            options = source_options(self.options, Use.STREAM_READ)
            check_source_schema(schema, options.include_properties)
        except RocketqError as error:
            return RefusedStreamReader(error)
        return RocketqStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> RocketqWriter:
        from pyspark_rocketq.options.options import sink_options
        from pyspark_rocketq.options.table import Use
        from pyspark_rocketq.write.rows_to_messages import check_sink_schema
        from pyspark_rocketq.write.writer import RocketqWriter, refuse_overwrite

        options = sink_options(self.options, Use.BATCH_WRITE)
        refuse_overwrite(overwrite)
        check_sink_schema(schema, options.topic, options.selection_needs_key)
        return RocketqWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> RocketqStreamWriter:  # noqa: N802
        """Return the sink of a query. `overwrite` is output mode complete: each batch is the whole result,
        and is sent whole, as Kafka's sink does."""
        from pyspark_rocketq.options.options import sink_options
        from pyspark_rocketq.options.table import Use
        from pyspark_rocketq.write.rows_to_messages import check_sink_schema
        from pyspark_rocketq.write.writer import RocketqStreamWriter

        options = sink_options(self.options, Use.STREAM_WRITE)
        check_sink_schema(schema, options.topic, options.selection_needs_key)
        return RocketqStreamWriter(options)
