"""What was stored, after sends whose answers were refusals, were lost, or came too late."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketq import Client, LocalCluster, RocketqError, SystemBusy
from rocketq.producing.accumulation.send_future import SendFuture
from rocketq.producing.producer import Producer
from tests.support.small_cluster import TOPIC, SmallBroker, SmallCluster, refusal
from tests.support.small_server import Answer

BUSY = refusal(SystemBusy("full", 1))
#: What a broker does with a send: it takes it, refuses it, drops it, or takes it and loses the answer.
FATES: dict[str, list[Answer | Callable[[Answer], Answer]]] = {
    "taken": [lambda answer: answer],
    "refused": [BUSY],
    "dropped": [Answer(hang_up=True)],
    "answer lost": [lambda _: Answer(hang_up=True)],
}


def stored_keys(broker: SmallBroker, queue: int) -> list[tuple[bytes, int]]:
    """Return the key and the number of each message of a queue, in order."""
    return [
        (key, int(body))
        for _, batch in broker.queues[queue].batches
        for key, body in zip(batch["key"].to_pylist(), batch["body"].to_pylist(), strict=True)
    ]


def outcome_of(future: SendFuture) -> str:
    error = future.exception(60)
    if error is None:
        return "stored"
    assert isinstance(error, RocketqError)
    return "unknown" if error.facts.get("may_be_stored") else "failed"


@settings(max_examples=15, deadline=None)
@given(
    fates=st.lists(st.sampled_from(sorted(FATES)), max_size=14),
    keys=st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30),
    batch_messages=st.integers(1, 5),
)
def test_messages_of_a_key_keep_their_order_whatever_becomes_of_requests(
    fates: list[str], keys: list[bytes], batch_messages: int
) -> None:
    with SmallCluster(brokers=1, queues=2) as small, Client(small.nameserver) as mq:
        (broker,) = small.brokers
        broker.script["send"] = [each for fate in fates for each in FATES[fate]]
        with mq.producer(retries=2, linger_ms=0, batch_messages=batch_messages) as producer:
            futures = [
                producer.submit(TOPIC, b"%d" % number, key=key, ordering_key=key)
                for number, key in enumerate(keys)
            ]
            outcomes = [outcome_of(future) for future in futures]
        stored = [stored_keys(broker, queue) for queue in range(2)]
    times: Counter[int] = Counter(number for queue in stored for _, number in queue)
    for number, outcome in enumerate(outcomes):
        # A message with an order is never sent again when it may have been stored.
        assert times[number] in {"stored": (1,), "failed": (0,), "unknown": (0, 1)}[outcome]
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for queue in stored:
        for key, number in queue:
            numbers[key].append(number)
    assert all(each == sorted(each) for each in numbers.values())


def send_until_one_moved(producer: Producer, topic: str) -> dict[str, bytes]:
    """Send messages until one was acknowledged by broker-b; return the body of each id."""
    sent: dict[str, bytes] = {}
    while True:
        body = b"%d" % len(sent)
        result = producer.send(topic, body)
        sent[result.unique_id or ""] = body
        if result.queue.broker == "broker-b" and len(sent) > 1:
            return sent


def id_of(row: dict[str, Any]) -> str:
    return str(dict(row["properties"])["UNIQ_KEY"])


def read(mq: Client, topic: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with mq.pull_consumer(topic, start="earliest") as consumer:
        while not enough(rows):
            batch: pa.RecordBatch = consumer.poll_arrow(timeout_ms=60_000)
            assert batch.num_rows, "the rest never came"
            rows += batch.to_pylist()
    return rows


def test_copies_of_a_message_whose_answer_came_too_late_share_its_id(topic: str) -> None:
    with LocalCluster(brokers=2) as own, Client(own.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        with mq.producer(fault_avoidance=False, timeout_ms=6_000) as producer:
            sent = send_until_one_moved(producer, topic)
            own.pause("broker-a")
            # Its attempt at broker-a has no answer; broker-a takes it from its socket when it goes on.
            moved = send_until_one_moved(producer, topic)
            own.resume("broker-a")
        sent |= moved

        def enough(rows: list[dict[str, Any]]) -> bool:
            return len(rows) > len(sent) and {id_of(row) for row in rows} == set(sent)

        rows = read(mq, topic, enough)
    bodies = defaultdict(set)
    for row in rows:
        bodies[id_of(row)].add(row["body"])
    assert bodies == {unique_id: {body} for unique_id, body in sent.items()}
    places = {(row["broker"], row["queue"], row["offset"]) for row in rows}
    assert len(places) == len(rows) > len(sent), "a message is there twice, and only its id says so"
