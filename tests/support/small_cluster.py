"""Brokers in memory that answer over real HTTP, and may be told to misbehave.

They keep the protocol of docs/protocol.md as far as the client uses it. A test puts
answers into `script`; each is given once, to the next call it matches, instead of the true one.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from rocketq.errors import OffsetOutOfRange, RocketqError, RouteNotFound
from rocketq.model import Appended, QueueOffsets, SendStatus
from rocketq.protocol.arrow.stream_reader import encapsulate, read_stream
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.documents.broker import (
    CommitOffsetsRequest,
    GroupOffset,
    GroupOffsets,
    SendAnswer,
    TopicOffsets,
)
from rocketq.protocol.documents.nameserver import (
    BrokerData,
    BrokerIdentity,
    ClusterView,
    DataVersion,
    LiveBroker,
    QueueData,
    TopicList,
    TopicRoute,
)
from rocketq.protocol.frame import FrameKind, encode
from rocketq.protocol.message_schema import from_messages
from rocketq.protocol.send_number import NUMBER, number_from
from rocketq_broker.data_plane.sends.send_plain import read_message
from tests.support.small_server import Answer, Asked, SmallServer

TOPIC = "t"


def refusal(error: RocketqError) -> Answer:
    return Answer(error.status, error.document())


@dataclass
class QueueLog:
    """The batches of one queue; what lies below `min` is gone."""

    batches: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)
    min: int = 0
    max: int = 0


class SmallBroker:
    """One broker of topic TOPIC."""

    def __init__(self, name: str, queues: int) -> None:
        self.name = name
        self.incarnation = "first"
        self.status = SendStatus.SEND_OK
        self.queues = [QueueLog() for _ in range(queues)]
        self.group: dict[int, int] = {}
        self.sends: list[tuple[int, ...]] = []
        #: Of each slot the last send, and its answer.
        self.numbered: dict[int, tuple[int, bytes]] = {}
        #: Kind of call ("send", "pull") to the answers to give instead, first come first.
        self.script: dict[str, list[Answer | Callable[[Answer], Answer]]] = defaultdict(list)
        self.changed = threading.Condition()
        #: Asked at each send, before anything is stored: the answer to give instead, or None.
        self.instead: Callable[[], Answer | None] = lambda: None
        #: Ends the sends that are held.
        self.released = threading.Event()

    def stall(self) -> Answer:
        """Hold a send until the cluster ends, and never answer it."""
        self.released.wait()
        return Answer(hang_up=True)

    def bodies(self, queue: int = 0) -> list[bytes]:
        return [body for _, batch in self.queues[queue].batches for body in batch.column("body").to_pylist()]

    def put(self, queue: int, batch: pa.RecordBatch) -> Appended:
        log = self.queues[queue]
        with self.changed:
            placed = Appended(queue, log.max, batch.num_rows)
            log.batches.append((log.max, batch))
            log.max += batch.num_rows
            self.changed.notify_all()
        return placed

    def __call__(self, asked: Asked) -> Answer:
        parts = asked.path.split("/")
        if parts[2] == "groups":
            return self._group(asked)
        if parts[2] == "messages":
            document = calls.MessageDocument("broker:t:0:0", 0, 0, 0, body="")
            return self._scripted("message", lambda: Answer(body=calls.encode(document)))
        if asked.method == "POST":
            instead = self.instead()
            if instead is not None:
                return instead
            return self._scripted("send", lambda: self._send(asked))
        if parts[-1] == "offsets":
            return self._offsets(asked)
        return self._scripted("pull", lambda: self._pull(int(parts[5]), int(asked.query["offset"])))

    def _scripted(self, kind: str, true_answer: Callable[[], Answer]) -> Answer:
        if not self.script[kind]:
            return true_answer()
        instead = self.script[kind].pop(0)
        return instead if isinstance(instead, Answer) else instead(true_answer())

    def _send(self, asked: Asked) -> Answer:
        queues = tuple(int(q) for q in asked.query["queue"].split(","))
        self.sends.append(queues)
        number = number_from(asked.query.get(NUMBER, ""))
        if number is not None and number.slot in self.numbered:
            last, told = self.numbered[number.slot]
            if last == number.sequence:
                return Answer(body=told)
        if asked.headers.get("content-type") == calls.OCTET_STREAM:
            batches = [from_messages([read_message(asked.query, asked.body)])]
        else:
            batches = [message.batch for message in read_stream(asked.body)]
        appended = tuple(self.put(q, batch) for q, batch in zip(queues, batches, strict=True))
        told = calls.encode(SendAnswer(self.status, self.name, TOPIC, appended))
        if number is not None:
            self.numbered[number.slot] = (number.sequence, told)
        return Answer(body=told)

    def _pull(self, queue: int, offset: int) -> Answer:
        log = self.queues[queue]
        if not log.min <= offset <= log.max:
            return refusal(OffsetOutOfRange(TOPIC, self.name, queue, offset, log.min, log.max))
        found = [(at, b) for at, b in log.batches if at + b.num_rows > offset][:1]
        body = b"".join(self._frame(queue, at, batch) for at, batch in found)
        after = found[-1][0] + found[-1][1].num_rows if found else offset
        return Answer(
            body=body,
            headers={
                calls.STATUS_HEADER: "FOUND" if found else "NO_NEW_MSG",
                calls.NEXT_OFFSET_HEADER: str(after),
                calls.MIN_OFFSET_HEADER: str(log.min),
                calls.MAX_OFFSET_HEADER: str(log.max),
                calls.INCARNATION_HEADER: self.incarnation,
            },
        )

    def _frame(self, queue: int, offset: int, batch: pa.RecordBatch) -> bytes:
        parts = encode(
            kind=FrameKind.MESSAGES, topic=TOPIC.encode(), body=encapsulate(batch), queue=queue,
            queue_offset=offset, count=batch.num_rows, log_offset=0, stored_at_us=1, durable_end=0,
        )  # fmt: skip
        return b"".join(bytes(memoryview(part)) for part in parts)

    def _offsets(self, asked: Asked) -> Answer:
        wait_ms = int(asked.query.get("wait_ms", 0))
        after = int(asked.query.get("after_total", -1))
        with self.changed:
            if wait_ms:
                self.changed.wait_for(lambda: sum(q.max for q in self.queues) > after, wait_ms / 1000)
            extents = tuple(QueueOffsets(q.min, q.max) for q in self.queues)
        total = sum(extent.max for extent in extents)
        return Answer(body=calls.encode(TopicOffsets(TOPIC, self.name, self.incarnation, total, extents)))

    def _group(self, asked: Asked) -> Answer:
        if asked.method == "PUT":
            for progress in calls.decode(asked.body, CommitOffsetsRequest).offsets:
                self.group[progress.queue] = progress.offset
        offsets = tuple(GroupOffset(TOPIC, queue, offset) for queue, offset in self.group.items())
        return Answer(body=calls.encode(GroupOffsets(self.name, "g", offsets)))


class SmallCluster:
    """A NameServer and brokers broker-a, broker-b, …, each with `queues` queues of TOPIC."""

    def __init__(self, brokers: int = 2, queues: int = 1) -> None:
        self.brokers = [SmallBroker(f"broker-{letter}", queues) for letter in "abcdef"[:brokers]]
        self._servers: dict[str, SmallServer] = {}
        #: The slaves of each broker by their ids.
        self._slaves: dict[str, dict[int, SmallServer]] = {}
        self._stack = ExitStack()
        self._version = 1
        #: Names of brokers that the route leaves out, as after the end of their leases.
        self.away: set[str] = set()
        self._changed = threading.Condition()
        self._countdown, self._counted = 0, threading.Event()
        self._then: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        for broker in self.brokers:
            self._servers[broker.name] = self._stack.enter_context(SmallServer(broker))
        self._nameserver = self._stack.enter_context(SmallServer(self._name))
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.released.set()
            with broker.changed:
                for log in broker.queues:
                    log.max += 1  # Held calls end, so that the servers can.
                broker.changed.notify_all()
        self.route_changed()
        self._stack.close()

    @property
    def nameserver(self) -> str:
        return self._nameserver.address

    def add_slave(self, of: str, number: int) -> SmallBroker:
        """Give a broker a slave, which has what it is given."""
        slave = SmallBroker(of, len(self.brokers[0].queues))
        server = self._stack.enter_context(SmallServer(slave))
        self._slaves.setdefault(of, {})[number] = server
        self.route_changed()
        return slave

    def requests(self, broker: str, method: str) -> list[Asked]:
        """The calls of one method that a broker got."""
        return [asked for asked in self._servers[broker].asked if asked.method == method]

    def close_broker(self, name: str) -> None:
        """End a broker's server: connections to it are refused from then on."""
        self._servers[name].close()

    def nameserver_answers(self, times: int, then: Callable[[], object]) -> threading.Event:
        """Call `then` once the NameServer has answered so many questions for the route from now on."""
        self._countdown, self._then = times, then
        return self._counted

    def route_questions(self) -> int:
        """How often the NameServer was asked for the route."""
        return sum(asked.path.endswith(f"/{TOPIC}") for asked in self._nameserver.asked)

    def route_changed(self) -> None:
        """Tell the NameServer that the queues or brokers are others now."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _name(self, asked: Asked) -> Answer:
        if asked.path == "/v1/topics":
            return Answer(body=calls.encode(TopicList("small", 1, (TOPIC,))))
        if asked.path == "/v1/cluster":
            return Answer(body=calls.encode(self._view()))
        if not asked.path.endswith(f"/{TOPIC}"):
            return refusal(RouteNotFound(asked.path.rsplit("/", 1)[1]))
        self._count_down()
        since, wait_ms = asked.query.get("since"), int(asked.query.get("wait_ms", 0))
        with self._changed:
            if since is not None:
                self._changed.wait_for(lambda: self._version != int(since), wait_ms / 1000)
            return Answer(body=calls.encode(self._route()))

    def _count_down(self) -> None:
        if self._countdown:
            self._countdown -= 1
            if not self._countdown:
                self._then()
                self._counted.set()

    def _route(self) -> TopicRoute:
        live = [b for b in self.brokers if b.name not in self.away]
        return TopicRoute(
            TOPIC,
            self._version,
            tuple(QueueData(b.name, len(b.queues), len(b.queues), 6, b.incarnation) for b in live),
            tuple(BrokerData("default", b.name, self._addresses(b.name)) for b in live),
            "small",
        )

    def _addresses(self, name: str) -> dict[int, str]:
        slaves = self._slaves.get(name, {})
        return {0: self._servers[name].address, **{number: each.address for number, each in slaves.items()}}

    def _view(self) -> ClusterView:
        identities = [
            BrokerIdentity("default", b.name, 0, self._servers[b.name].address) for b in self.brokers
        ]
        live = tuple(LiveBroker(i, 0, 10_000, DataVersion(), 1) for i in identities)
        return ClusterView("small", {"default": tuple(b.name for b in self.brokers)}, live)
