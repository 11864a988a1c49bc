"""What a broker group knows after its master was killed: all of it is in the log that the slaves have.

Everything is begun by one client at the master, which then dies; each test ends it with the same client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pytest

from rocketq import Client, Consumer, LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.consuming.simple_consumer import LeasedMessage, SimpleConsumer
from rocketq.model import MessageQueue, StoredMessage, TransactionState
from rocketq.net.retry import persist
from rocketq.producing.producer import Producer
from rocketq.producing.staged_send import StagedSlice, participants
from rocketq.producing.transactions.transactions import Transaction
from rocketq.sinks.sink import Sink
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient

GROUP = "broker-a"
Made = TypeVar("Made")
LONG_MS = 3_600_000


@dataclass
class Begun:
    """What is under way when the master dies."""

    client: Client
    admin: ClusterAdmin
    producer: Producer
    receiver: SimpleConsumer
    leased: list[LeasedMessage]
    transaction: Transaction
    sink: Sink
    member: Consumer
    staged: list[StagedSlice]
    delayed: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The state of a client whose group has lost the master it was begun at."""
    with LocalCluster(1, 1, tmp_path_factory.mktemp("group"), replicas=3) as cluster, ExitStack() as stack:
        client = stack.enter_context(PatientClient(cluster.nameservers))
        admin = stack.enter_context(ClusterAdmin(cluster.nameservers))
        made = begin(client, admin, stack)
        before = admin.replicas.status(GROUP)
        cluster.kill(next(name for name, each in cluster.brokers.items() if each == before.master))
        yield made


def begin(client: Client, admin: ClusterAdmin, stack: ExitStack) -> Begun:
    for topic in ("read", "later", "paid", "leased", "copy", "shared"):
        client.create_topic(topic, queues=1)
    producer = client.producer()
    for topic in ("read", "leased"):
        for body in (b"one", b"two", b"three"):
            producer.send(topic, body)
    with client.pull_consumer("read", group="readers", start="earliest") as consumer:
        taken: list[StoredMessage] = []
        while len(taken) < 2:
            taken += consumer.poll(2 - len(taken), timeout_ms=WAIT_MS)
        consumer.commit()
    receiver = stack.enter_context(client.simple_consumer("workers", "leased", invisible_ms=LONG_MS))
    leased: list[LeasedMessage] = []
    while len(leased) < 2:
        leased += receiver.receive(2 - len(leased), wait_ms=WAIT_MS)
    transactions = stack.enter_context(client.transactions("payers", lambda _: TransactionState.UNKNOWN))
    transaction = transactions.transaction("paid", b"order")
    # In a context of its own: its block stays open, and a test that runs later may begin another one.
    copy_context().run(transaction.__enter__)
    sink = client.sink("copier", timeout_ms=WAIT_MS)
    sink.begin("run-1")
    staged = producer.stage_batch(sink.stage(0, "run-1"), "copy", pa.table({"body": [b"a", b"b"]}))
    member = stack.enter_context(client.consumer("members", "shared", start="earliest"))
    producer.send("shared", b"before")
    assert taken_by(member) == b"before"
    made = Begun(client, admin, producer, receiver, leased, transaction, sink, member, staged)
    for body, delay in ((b"far", "1h"), (b"never", "1h"), (b"soon", "3s")):
        producer.send("later", body, delay=delay)
    for each in client.timers.list("later"):
        made.delayed[client.timers.show(each.timer_id).body.decode()] = each.timer_id
    return made


def taken_by(member: Consumer) -> bytes:
    """The next message that a member of a group gets."""
    while True:
        for message in member.poll(1, timeout_ms=WAIT_MS):
            return message.body


def bodies(client: Client, topic: str, count: int) -> list[bytes]:
    """The first messages of a topic, as soon as there are so many."""
    with again(lambda: client.pull_consumer(topic, start="earliest")) as consumer:
        found: list[StoredMessage] = []
        while len(found) < count:
            found += consumer.poll(timeout_ms=WAIT_MS)
        return [message.body for message in found]


def again(call: Callable[[], Made]) -> Made:
    """Make a call that is refused while there is no master until it is answered, as a program does."""
    return persist(call, "the test's call", WAIT_MS)


def test_a_consumer_group_goes_on_where_it_has_committed(begun: Begun) -> None:
    with again(lambda: begun.client.pull_consumer("read", group="readers")) as consumer:
        assert [message.body for message in consumer.poll(1, timeout_ms=WAIT_MS)] == [b"three"]


def test_a_member_of_a_group_joins_the_new_master_and_goes_on(begun: Begun) -> None:
    begun.producer.send("shared", b"after")
    while taken_by(begun.member) != b"after":
        # What it had not committed comes again.
        continue


def test_a_delayed_message_comes_and_one_that_was_cancelled_does_not(begun: Begun) -> None:
    again(lambda: begun.client.timers.cancel(begun.delayed["never"]))
    assert bodies(begun.client, "later", 1) == [b"soon"]
    left = [begun.client.timers.show(each.timer_id).body for each in begun.client.timers.list("later")]
    assert left == [b"far"]


def test_a_transaction_commits_what_it_sent_before(begun: Begun) -> None:
    assert sum(each.total for each in again(lambda: begun.client.describe_topic("paid")).values()) == 0
    begun.transaction.commit()
    assert bodies(begun.client, "paid", 1) == [b"order"]


def test_a_leased_message_is_still_leased_and_can_be_acknowledged(begun: Begun) -> None:
    first, second = begun.leased
    (other,) = begun.receiver.receive(10, wait_ms=WAIT_MS)
    assert other.offset not in {first.offset, second.offset}
    again(first.ack)
    second.change_invisible(0)
    (repeated,) = begun.receiver.receive(10, wait_ms=WAIT_MS)
    assert (repeated.offset, repeated.attempt) == (second.offset, 2)


def test_a_sink_commits_what_was_staged_at_the_master_that_died(begun: Begun) -> None:
    begun.sink.commit(0, "run-1", participants(begun.staged))
    assert bodies(begun.client, "copy", 2) == [b"a", b"b"]
    assert begun.sink.begin("run-2") == 0


def test_a_producer_goes_on_in_the_same_queue(begun: Begun) -> None:
    result = begun.producer.send("read", b"four", queue=MessageQueue("read", GROUP, 0))
    assert result.offset == 3


def test_a_sink_and_a_member_follow_handovers_to_another_replica_and_back(begun: Begun) -> None:
    begun.sink.begin("run-3")
    (client_id,) = (each.client_id for each in begun.admin.groups.members("members"))
    for body in (b"there", b"back"):
        again(lambda: begun.admin.replicas.hand_over(GROUP))
        begun.sink.begin(f"run-{body.decode()}")
        wait_until(lambda: client_id in [each.client_id for each in begun.admin.groups.members("members")])
        begun.producer.send("shared", body)
        while taken_by(begun.member) != body:
            continue
