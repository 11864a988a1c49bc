"""kill -9 of a real broker while a writer stages and commits the batches of an exactly-once sink.

Each life the writer begins a run, goes on behind the last batch that is decided, as Spark would, and
is cut off after a number of answers drawn from a seed. Then every decided batch must be there once, and
nothing else.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketq.config import TransportConfig
from rocketq.errors import ClientError, RemoteError
from rocketq.errors.sink_errors import BatchAlreadyDecided, BatchDiffers
from rocketq.model import Message, PullStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.sinks import CommitBatchRequest, Participant, Staged, StageName
from rocketq.protocol.message_schema import from_messages
from tests.support.conditions import WAIT_S
from tests.support.crash_victims import Nursery

SINK, TOPIC, QUEUES, BROKER = "etl", "orders", 2, "broker-a"


def bodies_of(batch: int) -> list[list[bytes]]:
    """The messages of a batch, by queue; whoever writes it writes these."""
    rows = 1 + batch % 3
    return [
        [b"%d:%d:%d." % (batch, queue, row) + bytes(2000) for row in range(rows)] for queue in range(QUEUES)
    ]


def rows_of(batch: int) -> dict[str, int]:
    """How many messages a batch has, by topic."""
    return {TOPIC: sum(map(len, bodies_of(batch)))}


@dataclass
class SinkRun:
    """One data directory, one sink, many lives."""

    directory: Path
    seed: int
    flush: str
    committed: int = -1
    lives: int = 0
    #: How often the kill came while a commit was under way.
    commits_cut: int = 0
    answers: int = 0
    refusals: list[Exception] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def arguments(self) -> list[str]:
        return [
            "--name", BROKER, "--data-dir", str(self.directory / "data"), "--port", "0",
            "--flush", self.flush, "--segment-bytes", "60000", "--parent-pid", str(os.getpid()),
        ]  # fmt: skip

    def live(self, api: BrokerApi, nursery: Nursery) -> None:
        """Write batches until enough was answered, and kill the broker in the middle of it."""
        api.create_topic(TOPIC, CreateTopicRequest(QUEUES, QUEUES, if_absent=True))
        api.register_sink(SINK, BROKER)
        self.lives += 1
        self._enough.clear()
        until = self.answers + self.rng.randint(2, 25)
        writer = threading.Thread(target=self._write, args=(api, f"run-{self.lives}", until))
        writer.start()
        assert self._enough.wait(WAIT_S), f"{self.answers} of {until} answers"
        nursery.kill()
        writer.join()
        assert self.refusals == []

    def _write(self, api: BrokerApi, run: str, until: int) -> None:
        try:
            decided = api.begin_run(SINK, run, "query").decided
            batch = 0 if decided is None else decided + 1
            while True:
                self._write_batch(api, batch, run, until)
                batch += 1
        except (ClientError, RemoteError) as error:
            # The broker is gone, or too busy to answer in time; anything else is a defect.
            if not error.retryable:
                self.refusals.append(error)
        finally:
            self._enough.set()

    def _write_batch(self, api: BrokerApi, batch: int, run: str, until: int) -> None:
        staged: list[Staged] = []
        for queue, bodies in enumerate(bodies_of(batch)):
            stream = write_stream([from_messages([Message(body) for body in bodies])])
            for _ in range(1 + (batch + queue) % 2):
                # Where it is staged twice, the first time counts for nothing, as an attempt that failed.
                [frame] = api.stage(StageName(SINK, batch, run, BROKER), TOPIC, [queue], stream).staged
                self._answered(until)
            staged.append(frame)
        part = Participant(BROKER, tuple(f.log_offset for f in staged), sum(f.count for f in staged))
        if self.answers + 1 == until:
            # The kill and the commit race.
            self.commits_cut += 1
            self._enough.set()
        api.commit_batch(SINK, batch, CommitBatchRequest(run, (part,), "query", rows_of(batch)))
        self.committed = batch
        self._answered(until)

    def _answered(self, until: int) -> None:
        self.answers += 1
        if self.answers == until:
            self._enough.set()

    def check(self, api: BrokerApi) -> None:
        if not any(each.name == TOPIC for each in api.topics().topics):
            assert self.committed == -1
            return
        decided = api.sink(SINK).decided
        last = -1 if decided is None else decided
        assert last in (self.committed, self.committed + 1)
        self.committed = last
        while api.sink(SINK).pending:
            # The batch again, as by a driver that did not learn of its commit: waits until it is published.
            api.commit_batch(SINK, last, CommitBatchRequest("any", (), "query", rows_of(last)))
        self._check_what_is_refused(api, last)
        for queue in range(QUEUES):
            wanted = [body for batch in range(last + 1) for body in bodies_of(batch)[queue]]
            assert pulled(api, queue) == wanted

    def _check_what_is_refused(self, api: BrokerApi, last: int) -> None:
        """A checkpoint that was set back does not pass for a repetition: the counts outlive the kill."""
        if last < 0:
            return
        other = {TOPIC: rows_of(last)[TOPIC] + 1}
        with pytest.raises(BatchDiffers):
            api.commit_batch(SINK, last, CommitBatchRequest("any", (), "query", other))
        if last > 0:
            with pytest.raises(BatchAlreadyDecided):
                api.commit_batch(SINK, last - 1, CommitBatchRequest("any", (), "query", rows_of(last - 1)))


def pulled(api: BrokerApi, queue: int) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while (answer := api.pull(TOPIC, queue, offset)).status is PullStatus.FOUND:
        for piece in answer.slices():
            found += piece.batch.column("body").to_pylist()
        offset = answer.next_offset
    return found


def run(directory: Path, cycles: int, seed: int, flush: str) -> SinkRun:
    this = SinkRun(directory, seed, flush)
    with Nursery(directory / "broker.log") as nursery, Transport(TransportConfig(timeout_ms=60_000)) as calls:
        for _ in range(cycles):
            nursery.fork(this.arguments())
            api = BrokerApi(calls, BROKER, nursery.address())
            this.check(api)
            this.live(api, nursery)
        nursery.fork(this.arguments())
        this.check(BrokerApi(calls, BROKER, nursery.address()))
        nursery.kill()
    return this


def test_six_kills_leave_every_decided_batch_once_and_nothing_else(tmp_path: Path) -> None:
    assert run(tmp_path, 6, seed=1, flush="async").committed > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 16))
def test_hundreds_of_kills_leave_every_decided_batch_once(tmp_path: Path, seed: int) -> None:
    this = run(tmp_path, 80, seed, "sync" if seed % 2 else "async")
    assert this.committed > 50
    assert this.commits_cut >= 5, "kills that never meet a commit prove little"
