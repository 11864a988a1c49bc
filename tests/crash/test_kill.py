"""kill -9 of a real broker, again and again, while several producers send over HTTP under sync flush.

After each kill the broker recovers and all it holds is pulled and held against the
whole history. The moment of the kill is a number of acknowledgements, drawn from a
seed; what is in flight then is up to the machine.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketq.config import TransportConfig
from rocketq.errors import BrokerUnavailable, ClientError, RemoteError
from rocketq.model import Message as Sent
from rocketq.model import PullStatus, SendStatus
from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Transport
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import CommitOffsetsRequest, CreateTopicRequest, GroupOffset
from rocketq.protocol.message_schema import from_messages
from tests.support.crash_history import History, Message, check
from tests.support.crash_victims import Nursery

TOPIC, GROUP, QUEUES = "orders", "billing", 3
PRODUCERS = ("ann", "bob", "cyd")


@dataclass
class Run:
    """One data directory, one history, many lives."""

    directory: Path
    seed: int
    flush: str = "sync"
    history: History = field(default_factory=History)
    numbers: dict[str, int] = field(default_factory=dict)
    acks: int = 0
    cycles_in_recovery: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def arguments(self) -> list[str]:
        return [
            "--name", "broker-a", "--data-dir", str(self.directory / "data"), "--port", "0",
            "--flush", self.flush, "--segment-bytes", "40000", "--parent-pid", str(os.getpid()),
        ]  # fmt: skip

    # --- a life ------------------------------------------------------------------------

    def live(self, api: BrokerApi, nursery: Nursery, how: signal.Signals) -> None:
        """Send from all producers until enough is acknowledged, and end the broker in the middle of it."""
        api.create_topic(TOPIC, CreateTopicRequest(read_queues=QUEUES, write_queues=QUEUES, if_absent=True))
        enough = self.acks + self.rng.choice((1, 5, 20, 60))
        reached = threading.Event()
        workers = [
            threading.Thread(target=self._produce, args=(api, name, enough, reached, self.rng.random()))
            for name in PRODUCERS
        ]
        workers.append(threading.Thread(target=self._consume, args=(api, reached)))
        for worker in workers:
            worker.start()
        assert reached.wait(60), f"{self.acks} of {enough} acknowledgements"
        assert self.acks >= enough, "the broker went before it was killed"
        nursery.kill(how)
        for worker in workers:
            worker.join()

    def _produce(self, api: BrokerApi, name: str, enough: int, reached: threading.Event, seed: float) -> None:
        """Send until the broker is gone."""
        rng = random.Random(seed)
        while True:
            queues = [rng.randrange(QUEUES) for _ in range(rng.choice((1, 1, 2)))]
            batches = [self._messages(name, rng.choice((1, 1, 3, 10))) for _ in queues]
            stream = write_stream(
                [
                    from_messages([Sent(each.encode() + bytes(rng.choice((0, 100, 2000)))) for each in some])
                    for some in batches
                ]
            )
            try:
                answer = api.send(TOPIC, queues, stream)
            except (ClientError, BrokerUnavailable):
                self._note(batches, queues, None)
                reached.set()
                return
            except RemoteError:
                with self._lock:
                    for some in batches:
                        self.history.refuse(some)
                continue
            self._note(
                batches,
                queues,
                [each.offset for each in answer.appended] if answer.status is SendStatus.SEND_OK else None,
            )
            if self.acks >= enough:
                reached.set()

    def _messages(self, name: str, count: int) -> list[Message]:
        first = self.numbers.get(name, 0)
        self.numbers[name] = first + count
        return [Message(name, number) for number in range(first, first + count)]

    def _note(self, batches: list[list[Message]], queues: list[int], offsets: list[int] | None) -> None:
        with self._lock:
            for index, (some, queue) in enumerate(zip(batches, queues, strict=True)):
                if offsets is None:
                    self.history.doubt(some, queue)
                else:
                    self.history.ack(some, queue, offsets[index])
            self.acks += offsets is not None

    def _consume(self, api: BrokerApi, reached: threading.Event) -> None:
        """Read whatever is there and commit it, until the broker is gone."""
        rng = random.Random(self.seed)
        while True:
            queue = rng.randrange(QUEUES)
            offset = self.history.committed.get(queue, 0)
            try:
                pulled = api.pull(TOPIC, queue, offset, max_bytes=20_000, wait_ms=20)
            except (ClientError, RemoteError):
                return
            if pulled.status is not PullStatus.FOUND:
                continue
            found = entries(pulled.slices())
            request = CommitOffsetsRequest((GroupOffset(TOPIC, queue, pulled.next_offset),))
            with self._lock:
                self.history.observe({queue: found})
                self.history.commit(queue, pulled.next_offset, acked=False)
            try:
                api.commit_offsets(GROUP, request)
            except (ClientError, RemoteError):
                return
            with self._lock:
                self.history.commit(queue, pulled.next_offset, acked=True)

    # --- between lives --------------------------------------------------------------------

    def check(self, api: BrokerApi) -> None:
        if not any(each.name == TOPIC for each in api.topics().topics):
            assert not self.history.acked
            return
        found = {queue: pull_all(api, queue) for queue in range(QUEUES)}
        offsets = api.group_offsets(GROUP).offsets
        violations = check(self.history, found, {each.queue: each.offset for each in offsets})
        assert not violations, "\n".join(map(str, violations[:20]))
        self.history.observe(found)


def entries(slices: list) -> list[tuple[int, Message]]:  # type: ignore[type-arg]
    return [
        (piece.offset + index, Message.decode(body))
        for piece in slices
        for index, body in enumerate(piece.batch.column("body").to_pylist())
    ]


def pull_all(api: BrokerApi, queue: int) -> list[tuple[int, Message]]:
    found: list[tuple[int, Message]] = []
    offset = 0
    while True:
        pulled = api.pull(TOPIC, queue, offset)
        if pulled.status is not PullStatus.FOUND:
            return found
        found += entries(pulled.slices())
        offset = pulled.next_offset


def run(directory: Path, cycles: int, seed: int, flush: str = "sync") -> Run:
    """End a broker `cycles` times by kill -9, every fifth time before it listens.

    Every seventh time it may stop in good order instead, and leave a snapshot to begin from.
    """
    this = Run(directory, seed, flush)
    transport = Transport(TransportConfig(timeout_ms=60_000))
    with Nursery(directory / "broker.log") as nursery:
        for cycle in range(cycles):
            nursery.fork(this.arguments())
            if cycle % 5 == 4:
                for _ in range(this.rng.randrange(300_000)):
                    pass
                nursery.kill()
                this.cycles_in_recovery += 1
                continue
            api = BrokerApi(transport, "broker-a", nursery.address())
            this.check(api)
            this.live(api, nursery, signal.SIGTERM if cycle % 7 == 6 else signal.SIGKILL)
        nursery.fork(this.arguments())
        this.check(BrokerApi(transport, "broker-a", nursery.address()))
        nursery.kill()
    transport.close()
    return this


def test_kills_under_sync_flush_lose_nothing_acknowledged(tmp_path: Path) -> None:
    this = run(tmp_path, 28, seed=1)
    assert this.cycles_in_recovery >= 5
    assert this.acks > 150
    assert this.history.unknown, "kills that never meet a send prove little"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_thousand_kills_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    """The page cache outlives a process, so the promise is the same under either flush mode."""
    run(tmp_path, 100, seed, "sync" if seed % 2 else "async")
