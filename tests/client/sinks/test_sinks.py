"""Sinks against real brokers: staged messages are seen once they are committed, once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from rocketq import LocalCluster
from rocketq.admin.live_masters import LiveMasters
from rocketq.client import Client
from rocketq.errors.sink_errors import (
    BatchAlreadyDecided,
    BatchDiffers,
    CommitUnanswered,
    CoordinatorUnreachable,
    SinkFenced,
    SinkNotFound,
    SinkQueryChanged,
)
from rocketq.model import MessageQueue
from rocketq.net.broker_api import BrokerApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Response, Transport
from rocketq.producing.producer import Producer
from rocketq.producing.staged_send import StagedSlice, participants, rows_by_topic
from rocketq.protocol.documents.sinks import CommitOutcome, OnDecided
from rocketq.sinks.coordinator_lookup import Coordinators
from rocketq.sinks.sink import Sink
from tests.support.patience import PatientClient, patient_transport


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with PatientClient(cluster.nameservers) as made:
        yield made


@pytest.fixture(scope="module")
def producer(client: Client) -> Producer:
    return client.producer(timeout_ms=60_000)


@pytest.fixture
def sink(client: Client, topic: str) -> Sink:
    """A sink of the test's own, and a topic of its name with a queue on each broker."""
    client.create_topic(topic, queues=1)
    return client.sink(topic)


def table(*bodies: str) -> pa.Table:
    return pa.table({"body": pa.array(bodies, pa.binary())})


def on_both(producer: Producer, sink: Sink, client: Client, batch: int, run: str) -> list[StagedSlice]:
    """Stage one message for each queue of the sink's topic: one on each broker."""
    return [
        piece
        for queue in client.route(sink.name).write_queues()
        for piece in producer.stage_batch(
            sink.stage(batch, run), sink.name, table(f"{batch}/{run}/{queue.broker}"), queue=queue
        )
    ]


def bodies(client: Client, topic: str) -> list[str]:
    """All messages of a topic, by broker and offset."""
    with client.pull_consumer(topic, start="earliest") as consumer:
        found = []
        while len(found) < sum(q.max for one in client.describe_topic(topic).values() for q in one.queues):
            found += consumer.poll(timeout_ms=60_000)
    return [m.body.decode() for m in sorted(found, key=lambda m: (m.queue, m.offset))]


def test_a_batch_is_seen_when_it_is_committed_and_once(
    client: Client, producer: Producer, sink: Sink
) -> None:
    assert sink.begin("run-1") is None
    staged = on_both(producer, sink, client, 0, "run-1")
    # As after an answer that was lost: stored as well, and named by nobody.
    on_both(producer, sink, client, 0, "run-1")
    assert bodies(client, sink.name) == []
    assert sink.commit(0, "run-1", participants(staged)).outcome is CommitOutcome.COMMITTED
    once = ["0/run-1/broker-a", "0/run-1/broker-b"]
    assert bodies(client, sink.name) == once
    again = on_both(producer, sink, client, 0, "run-1")
    assert sink.commit(0, "run-1", participants(again)).outcome is CommitOutcome.ALREADY_COMMITTED
    assert bodies(client, sink.name) == once
    # Another process asks again, and learns it.
    assert client.sink(sink.name).begin("run-2") == 0


def test_a_decided_number_is_a_repetition_only_with_the_same_rows(
    client: Client, producer: Producer, sink: Sink
) -> None:
    sink.begin("run-1")
    for batch in (4, 5):
        staged = on_both(producer, sink, client, batch, "run-1")
        sink.commit(batch, "run-1", participants(staged), rows=rows_by_topic(staged))
    assert rows_by_topic(staged) == {sink.name: 2}
    sink.begin("run-2")
    assert sink.commit(5, "run-2", (), rows={sink.name: 2}).outcome is CommitOutcome.ALREADY_COMMITTED
    with pytest.raises(BatchDiffers, match="decided with 2 rows and comes again with 3"):
        sink.commit(5, "run-2", (), rows={sink.name: 3})
    with pytest.raises(BatchAlreadyDecided, match="up to 5"):
        sink.commit(4, "run-2", (), rows={sink.name: 2})
    skipped = sink.commit(4, "run-2", (), rows={sink.name: 2}, on_decided=OnDecided.SKIP)
    assert (skipped.outcome, skipped.decided) == (CommitOutcome.SKIPPED, 5)
    assert len(bodies(client, sink.name)) == 4


def test_a_run_that_was_followed_by_another_commits_nothing(
    client: Client, producer: Producer, sink: Sink
) -> None:
    sink.begin("run-1")
    staged = on_both(producer, sink, client, 0, "run-1")
    client.sink(sink.name).begin("run-2")
    with pytest.raises(SinkFenced, match="run-2"):
        sink.commit(0, "run-1", participants(staged))
    with pytest.raises(SinkFenced):
        client.sink(sink.name).begin("run-1")
    assert bodies(client, sink.name) == []


def test_an_aborted_batch_cannot_be_committed_nor_a_committed_one_aborted(
    client: Client, producer: Producer, sink: Sink
) -> None:
    sink.begin("run-1")
    sink.commit(0, "run-1", participants(on_both(producer, sink, client, 0, "run-1")))
    assert sink.abort(0, "run-1").is_decided
    staged = on_both(producer, sink, client, 1, "run-1")
    assert not sink.abort(1, "run-1").is_decided
    with pytest.raises(SinkFenced):
        sink.commit(1, "run-1", participants(staged))
    assert bodies(client, sink.name) == ["0/run-1/broker-a", "0/run-1/broker-b"]


def test_another_querys_numbers_are_refused(client: Client, producer: Producer, sink: Sink) -> None:
    sink.begin("run-1", "query-1")
    sink.commit(4, "run-1", participants(on_both(producer, sink, client, 4, "run-1")), "query-1")
    with pytest.raises(SinkQueryChanged, match="batches up to 4 of query 'query-1'"):
        client.sink(sink.name).begin("run-2", "query-2")
    assert sink.describe().decided == 4


def test_a_deleted_sink_is_known_to_no_broker_and_begins_anew(
    client: Client, producer: Producer, sink: Sink, cluster: LocalCluster
) -> None:
    sink.begin("run-1")
    sink.commit(0, "run-1", participants(on_both(producer, sink, client, 0, "run-1")))
    sink.delete()
    with pytest.raises(SinkNotFound, match="broker-a, broker-b"):
        client.sink(sink.name).describe()
    assert sink.begin("run-2") is None


def test_queue_selection_is_that_of_a_send(client: Client, producer: Producer, sink: Sink) -> None:
    sink.begin("run-1")
    keys = [f"k{n % 7}" for n in range(700)]
    rows = pa.table({"body": pa.array(keys, pa.binary()), "key": pa.array(keys, pa.binary())})
    sent = producer.send_batch(sink.name, rows, ordering_key="key")
    staged = producer.stage_batch(sink.stage(0, "run-1"), sink.name, rows, ordering_key="key")
    assert [(s.queue, s.count) for s in staged] == [(s.queue, s.count) for s in sent]


class Dying(Transport):
    """A writer's calls, until it dies behind its first registration."""

    def call(self, method: str, *where: Any, **what: Any) -> Response:
        answer = super().call(method, *where, **what)
        if method == "PUT":
            raise KeyboardInterrupt
        return answer


def test_others_learn_who_coordinates_a_sink_before_the_coordinator_does(
    client: Client, cluster: LocalCluster, topic: str
) -> None:
    with Dying() as transport, pytest.raises(KeyboardInterrupt):
        Coordinators(transport, RouteCache(cluster.nameservers, transport)).find(topic, elect=True)
    with patient_transport() as transport:
        found = Coordinators(transport, RouteCache(cluster.nameservers, transport))
        [told] = [each for each in found.brokers() if knows(each, topic)]
        chosen = told.sink(topic).coordinator
        assert chosen != told.broker
        assert found.find(topic).broker == chosen
        assert all(knows(each, topic) for each in found.brokers())


def knows(broker: BrokerApi, sink: str) -> bool:
    return any(each.sink == sink for each in broker.sinks().sinks)


# --- when brokers are away -------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def brokers_of(cluster: LocalCluster, client: Client, sink: Sink) -> tuple[str, str]:
    """The sink's coordinator, and the other broker."""
    first = sink.coordinator()
    return first, next(name for name in cluster.brokers if name != first)


def test_a_participant_that_is_away_publishes_when_it_is_back(fragile: LocalCluster, topic: str) -> None:
    with PatientClient(fragile.nameservers) as client, client.producer(timeout_ms=60_000) as producer:
        client.create_topic(topic, queues=1)
        sink = client.sink(topic)
        sink.begin("run-1")
        _, other = brokers_of(fragile, client, sink)
        staged = on_both(producer, sink, client, 0, "run-1")
        fragile.kill(other)
        answer = sink.commit(0, "run-1", participants(staged))
        assert (answer.outcome, answer.unsettled) == (CommitOutcome.COMMITTED, (other,))
        fragile.restart(other)
        broker = LiveMasters(patient_transport(), RouteCache(fragile.nameservers, patient_transport())).named(
            other
        )
        # Held until it is there.
        pulled = broker.pull(topic, 0, 0, wait_ms=60_000)
        assert [piece.batch.num_rows for piece in pulled.slices()] == [1]
        assert len(bodies(client, topic)) == 2


def test_a_coordinator_that_is_away_is_named_and_waited_for(fragile: LocalCluster, topic: str) -> None:
    with PatientClient(fragile.nameservers) as client, client.producer(timeout_ms=60_000) as producer:
        client.create_topic(topic, queues=1)
        sink = client.sink(topic)
        sink.begin("run-1")
        coordinator, other = brokers_of(fragile, client, sink)
        staged = on_both(producer, sink, client, 0, "run-1")
        fragile.kill(coordinator)
        address = fragile.brokers[coordinator]
        with pytest.raises(CommitUnanswered, match=f"{coordinator}, which coordinates .* {address}"):
            sink.commit(0, "run-1", participants(staged), timeout_ms=400)
        with pytest.raises(CoordinatorUnreachable, match=coordinator):
            client.sink(topic, timeout_ms=400).begin("run-2")
        # Staging goes on meanwhile: it does not need the coordinator.
        queue = MessageQueue(topic, other, 0)
        assert producer.stage_batch(sink.stage(1, "run-1"), topic, table("more"), queue=queue)
        with ThreadPoolExecutor(1) as beside:
            committing = beside.submit(sink.commit, 0, "run-1", participants(staged), timeout_ms=60_000)
            fragile.restart(coordinator)
            assert committing.result().outcome is CommitOutcome.COMMITTED
        assert len(bodies(client, topic)) == 2
