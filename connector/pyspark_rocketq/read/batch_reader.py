"""Reading a range of one queue, the same way for batches and streams; and the batch reader.

A thread for each range pulls and decodes frames ahead of Spark (`read_ahead`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.datasource import Filter as SparkFilter

from pyspark_rocketq.connections import TopicOnBroker, connection_to
from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.options.options import SourceOptions
from pyspark_rocketq.options.position_syntax import AtOffsets
from pyspark_rocketq.read.filter_pushdown import Narrowing, push
from pyspark_rocketq.read.partitions import QueueRange, Ranges, plan_partitions
from pyspark_rocketq.read.range_pull import RangePulls
from pyspark_rocketq.read.read_ahead import TOGETHER, in_turn
from pyspark_rocketq.survey.broker_survey import (
    losses_by_record,
    raise_or_log,
    require_found,
    survey_all,
    warn_of_unrecorded,
)
from pyspark_rocketq.survey.message_size import BytesPerMessage, MessageSizes
from pyspark_rocketq.survey.position_lookup import look_up, resolve, time_offsets
from pyspark_rocketq.survey.subscription import Places, require_assigned
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: What the pulls of a partition that are in flight together ask for.
PULL_BYTES: Final = 4 * 1024 * 1024


class RangePartition(InputPartition):
    """A Spark partition: one range of one queue, or small ranges of several."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.ranges = ranges

    def __repr__(self) -> str:
        told = ", ".join(f"{one.queue}, [{one.begin}, {one.end})" for one in self.ranges)
        return f"RangePartition({told})"


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges as record batches of the schema Spark expects. Travels to the executors."""

    options: SourceOptions
    schema: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, queue by queue, each in its order."""
        if not isinstance(partition, RangePartition):
            # Spark makes one empty partition of no partitions.
            return
        # Of Spark's own making, so that it equals what Spark compares with; only in a worker.
        from pyspark.sql.pandas.types import to_arrow_schema

        from pyspark_rocketq.read.frames_to_rows import RowBuilder, joined

        schema = to_arrow_schema(self.schema, timezone="UTC")
        connection = connection_to(self.options.nameservers)
        pull_bytes = PULL_BYTES // min(len(partition.ranges), TOGETHER)

        def batches(one: QueueRange) -> Iterator[pa.RecordBatch]:
            pulls = RangePulls(connection, self.options, one, pull_bytes)
            return RowBuilder(one.queue, schema).batches(pulls.slices())

        found = in_turn([partial(batches, one) for one in partition.ranges])
        # Of one range, `batches` has joined what is small already.
        yield from found if len(partition.ranges) == 1 else joined(found)


class RocketqReader(DataSourceReader):
    """`spark.read.format("rocketq")`: every queue from the starting to the ending position.

    Every queue of every broker that holds a topic: one that stays away for `brokerWaitMs` fails the read.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._ranges = RangeReader(options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """Fix where the batch begins and ends, and cut it into partitions. Runs on the driver, once."""
        options = self._options
        connection = connection_to(options.nameservers)
        full = survey_all(connection, options.subscription, options.broker_wait_ms).require_all()
        places, survey = full.topology.places, full.survey
        require_found(connection, options.subscription, full)
        require_assigned(options.subscription, full.topology)
        warn_of_unrecorded(full.topology.unrecorded)
        raise_or_log(losses_by_record(survey), options.fail_on_data_loss)
        begins = resolve(
            options.starting,
            "startingOffsets",
            survey,
            look_up(options.starting, places, survey, options),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        ends = resolve(
            options.ending, "endingOffsets", survey, look_up(options.ending, places, survey, options)
        )
        if isinstance(options.starting, AtOffsets) and isinstance(options.ending, AtOffsets):
            _check_order(begins, ends)
        whole = [
            located(QueueRange(queue, begin, ends[queue]), places, survey.incarnations)
            for queue, begin in begins.items()
        ]
        wanted = self._wanted(whole, places)
        bytes_per_message: BytesPerMessage = size_not_needed
        if options.splitting.max_bytes is not None:
            bytes_per_message = MessageSizes().measure({one.queue: one.begin for one in wanted}, places)
        parts = plan_partitions(wanted, options.splitting, bytes_per_message)
        return [RangePartition(each) for each in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)

    def _wanted(self, whole: Sequence[QueueRange], places: Places) -> list[QueueRange]:
        """Return what is left of the ranges by the filters that Spark has pushed."""
        times = self._narrowing.asked_times()
        queues = [one.queue for one in whole if one.size and self._narrowing.reads(one.queue)]
        asked = {(queue.topic, queue.broker): times for queue in queues}
        found = time_offsets(places, asked, self._options.broker_wait_ms)

        def narrowed(one: QueueRange) -> QueueRange:
            def offset_at(at_us: int) -> int:
                if (one.queue, at_us) not in found:
                    raise DataLost(str(one.queue), "the queue was removed while the read was planned")
                return found[one.queue, at_us]

            return self._narrowing.narrowed(one, offset_at) if one.size else one

        return [narrowed(one) for one in whole]


class FilteredReader(RocketqReader):
    """The same under the option `pushFilters`: what Spark's WHERE leaves out is not read.

    A class of its own, since Spark fails a query whose reader takes filters while its setting
    `spark.sql.python.filterPushdown.enabled` is off. And an option, since Spark (4.3) keeps what it
    planned for one use of a DataFrame for all later ones: with other filters they would get wrong rows.
    """

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:  # noqa: N802 - Spark's name
        """Take on what the brokers can do; return the others, which Spark applies itself."""
        self._narrowing, chosen, back = push(filters, self._options.filter)
        self._ranges = replace(self._ranges, options=replace(self._options, filter=chosen))
        return back


def located(one: QueueRange, places: Places, incarnations: Mapping[TopicOnBroker, str]) -> QueueRange:
    """Add to a range where its broker is and which incarnation of the topic is meant."""
    key = (one.queue.topic, one.queue.broker)
    address = places[key].broker.address if key in places else ""
    return replace(one, address=address, incarnation=incarnations.get(key, ""))


def _check_order(begins: dict[MessageQueue, int], ends: dict[MessageQueue, int]) -> None:
    for queue, begin in begins.items():
        if ends[queue] < begin:
            raise InvalidConfiguration(
                "endingOffsets", f"{queue}: {ends[queue]}", f"it lies before the starting offset, {begin}"
            )


def size_not_needed(queue: MessageQueue) -> float:
    raise AssertionError(f"the size of messages in {queue} was asked for without a limit in bytes")
