"""The messages of one range of one queue, pulled piece by piece.

A range is [begin, end) of one incarnation. Every offset of it is accounted for: the message is read,
the filter leaves it out, or it is lost. A loss is an error under `failOnDataLoss`, otherwise it is logged.
The reader notices losses both where retention removed messages before the first pull and where a salvaged
log lacks some in the middle.

The reader waits for a broker that does not answer (`brokerWaitMs`) and looks up its address again before
each attempt. A broker that no NameServer knows is away; messages are lost only if their broker says so.

A range that lies far back is pulled from a slave, if its master suggests that (`rocketq.net.read_replicas`).
A slave may not have all of a range yet. So only the word of a master counts that a message is not there: what
a slave says is asked again of the master of its group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyspark_rocketq.connections import Connection
from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.options.options import SourceOptions
from pyspark_rocketq.read.partitions import QueueRange
from rocketq.consuming.fetching.damage_diagnosis import CORRUPT_MAX, diagnosed, is_in_log
from rocketq.errors import (
    BrokerUnreachable,
    CorruptFrame,
    NotMaster,
    OffsetOutOfRange,
    QueueNotFound,
    RocketqError,
    TopicNotFound,
)
from rocketq.net.broker_api import BrokerApi
from rocketq.net.pulled import Pulled
from rocketq.net.retry import persist
from rocketq.protocol.frame_slices import FrameSlice, iter_frames

log = logging.getLogger("pyspark_rocketq")


class RangePulls:
    """The pulls of one range, one after the other."""

    def __init__(
        self, connection: Connection, options: SourceOptions, range: QueueRange, pull_bytes: int
    ) -> None:
        self._connection, self._options, self._range = connection, options, range
        self._pull_bytes = pull_bytes
        self._broker = connection.broker(range.queue.broker, range.address) if range.address else None

    def slices(self) -> Iterator[FrameSlice]:
        """Yield what the range holds, frame by frame and in order; raise DataLost, CorruptFrame."""
        position, end = self._range.begin, self._range.end
        corrupt = 0
        while position < end:
            pulled = self._pull(position)
            if isinstance(pulled, DataLost):
                self._lost(pulled)
                return
            if pulled.offset > position:
                self._missing(position, pulled.offset, "retention removed")
                position = pulled.offset
            try:
                for piece in iter_frames(pulled.body, position, end):
                    if self._options.filter.wants_all and piece.offset > position:
                        self._missing(position, piece.offset, "the broker's log was damaged and lacks")
                    yield piece
                    position, corrupt = piece.next_offset, 0
            except CorruptFrame as error:
                self._connection.replicas.leave(self._range.queue)
                corrupt += 1
                if corrupt > 1:
                    found = self._diagnosed(position, error)
                    if corrupt == CORRUPT_MAX or is_in_log(found):
                        raise found from error
                log.warning("Pulling %s from %d once more: %s", self._range.queue, position, error.message)
                continue
            if self._options.filter.wants_all and position < min(end, pulled.next_offset):
                self._missing(position, pulled.next_offset, "the broker's log was damaged and lacks")
            position = max(position, pulled.next_offset)

    def _pull(self, position: int) -> Pulled | DataLost:
        """Pull from `position`, or from the first offset there is, or say why nothing can come."""
        from_slave = self._pulled_from_slave(position)
        if from_slave is not None:
            return from_slave
        pulled = self._answer(position, master_only=False)
        is_whole = isinstance(pulled, Pulled) and pulled.offset == position
        return pulled if is_whole else self._answer(position, master_only=True)

    def _pulled_from_slave(self, position: int) -> Pulled | None:
        """Pull from the slave that was suggested, if one was; None unless it brings the reader on."""
        queue, replicas = self._range.queue, self._connection.replicas
        try:
            slave = replicas.slave(queue, lambda: self._connection.routes.route(queue.topic))
        except RocketqError:
            # No NameServer answers: the master's address is known from the plan.
            return None
        if slave is None:
            return None
        try:
            pulled = self._pull_at(slave, position, master_only=False)
        except RocketqError as error:
            log.info("Going back to the master of %s: slave %s: %s", queue, slave.address, error.message)
            replicas.failed(queue, slave)
            return None
        is_of_range = not self._range.incarnation or pulled.incarnation == self._range.incarnation
        if is_of_range and pulled.next_offset > position:
            return pulled
        replicas.leave(queue)
        return None

    def _answer(self, position: int, *, master_only: bool) -> Pulled | DataLost:
        queue = self._range.queue
        try:
            pulled = persist(
                lambda: self._pull_once(position, master_only),
                f"Pull of {queue} from {position}",
                self._options.broker_wait_ms,
            )
        except OffsetOutOfRange as error:
            if error.min_offset > position:
                return (
                    self._answer(error.min_offset, master_only=master_only)
                    if error.min_offset < self._range.end
                    else DataLost(str(queue), f"retention removed offsets up to {error.min_offset - 1}")
                )
            return DataLost(str(queue), f"the broker has offsets up to {error.max_offset - 1} only")
        except TopicNotFound as error:
            return DataLost(str(queue), f"the topic was deleted ({error.message})")
        except QueueNotFound as error:
            return DataLost(str(queue), f"the queue is no longer read ({error.message})")
        if self._range.incarnation and pulled.incarnation != self._range.incarnation:
            return DataLost(str(queue), "the topic was deleted and created again")
        if pulled.next_offset <= pulled.offset:
            return DataLost(str(queue), f"the broker has offsets up to {pulled.max_offset - 1} only")
        return pulled

    def _pull_once(self, position: int, master_only: bool) -> Pulled:
        queue = self._range.queue
        if self._broker is None:
            self._broker = self._connection.locate(queue.topic, queue.broker)
        try:
            return self._pull_at(self._broker, position, master_only=master_only)
        except (BrokerUnreachable, NotMaster):
            # It may have come back elsewhere, or another one is master: the next try asks for the address.
            self._connection.routes.invalidate(queue.topic)
            self._broker = self._moved(self._broker)
            raise

    def _pull_at(self, replica: BrokerApi, position: int, *, master_only: bool) -> Pulled:
        """Make a pull, and take the replica that its answer suggests."""
        queue = self._range.queue
        pulled = replica.pull(
            queue.topic,
            queue.queue,
            position,
            max_bytes=self._pull_bytes,
            end=self._range.end,
            tag=self._options.filter.tags,
            sql=self._options.filter.sql,
            group=self._options.group,
            master_only=master_only,
        )
        self._connection.replicas.heard(queue, pulled)
        return pulled

    def _diagnosed(self, position: int, error: CorruptFrame) -> CorruptFrame:
        return error if self._broker is None else diagnosed(self._broker, self._range.queue, position, error)

    def _moved(self, known: BrokerApi) -> BrokerApi:
        queue = self._range.queue
        try:
            return self._connection.locate(queue.topic, queue.broker)
        except RocketqError:
            # Nobody knows a better address; what is raised is the broker's own failure.
            return known

    def _missing(self, first: int, last: int, why: str) -> None:
        """Account for offsets [first, last) that did not come and never will."""
        until = min(last, self._range.end) - 1
        self._lost(DataLost(str(self._range.queue), f"{why} offsets {first} to {until}"))

    def _lost(self, loss: DataLost) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        log.warning("Going on after a loss (failOnDataLoss=false): %s", loss.message)
