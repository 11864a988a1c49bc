"""kill -9 of a real broker while delayed messages are scheduled and delivered: each once, and none early."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rocketq import Client, LocalCluster, StoredMessage
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient

MESSAGES_A_LIFE = 60


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_after_kills_each_acknowledged_message_is_delivered_once(seed: int, topic: str) -> None:
    rng = random.Random(seed)
    acknowledged: set[bytes] = set()
    arguments = ["--heartbeat-ms", "200", "--lease-ms", "60000"]
    with (
        LocalCluster(brokers=1, broker_arguments=arguments) as cluster,
        PatientClient(cluster.nameservers) as mq,
    ):
        mq.create_topic(topic, queues=2)
        for life in range(4):
            with mq.producer(retries=0, timeout_ms=60_000) as producer:
                for number in range(rng.randrange(MESSAGES_A_LIFE // 2, MESSAGES_A_LIFE)):
                    body = b"%d.%d" % (life, number)
                    result = producer.send(topic, body, delay=f"{rng.randrange(0, 1500)}ms")
                    assert result.is_delayed
                    acknowledged.add(body)
            # Some are delivered by now, some are on their way, some are not due yet.
            cluster.kill("broker-a")
            cluster.restart("broker-a")
        found = _delivered(mq, topic, acknowledged)
    counts = Counter(message.body for message in found)
    assert counts.keys() == acknowledged
    assert set(counts.values()) == {1}
    for message in found:
        assert message.properties is not None
        assert message.stored_at_us >= 1000 * int(message.properties["TIMER_DELIVER_MS"])


def _delivered(mq: Client, topic: str, wanted: set[bytes]) -> list[StoredMessage]:
    """Everything that comes until nothing wanted is missing and nothing is outstanding."""
    found: list[StoredMessage] = []
    with mq.pull_consumer(topic, start="earliest") as consumer:
        while wanted - {message.body for message in found}:
            polled = consumer.poll(timeout_ms=WAIT_MS)
            assert polled, "the rest never came"
            found += polled
        wait_until(lambda: next(mq.timers.list(topic), None) is None)
        # A message that is delivered twice would come behind these.
        found += consumer.poll(timeout_ms=500)
    return found
