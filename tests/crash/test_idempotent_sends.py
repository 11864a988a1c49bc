"""Real processes: answers that a proxy loses, brokers that are paused and killed, and no message twice.

Each sender numbers its messages. A message that was acknowledged must be stored once, exactly where its
result says; one whose send failed is stored once or not at all.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rocketq import Client, LocalCluster, Message, RocketqError, SendFailed, SendResult
from rocketq.config import ProducerConfig
from rocketq.net.route_cache import RouteCache
from rocketq.producing.attempts.send_hooks import SendAttempt
from rocketq.producing.producer import Producer
from tests.support.conditions import wait_until
from tests.support.lossy_proxy import LossyProxy, ThroughProxy

TOPIC, QUEUES = "orders", 2
#: Attempts of 2 s each, so that a pause of the broker ends some of them.
SETTINGS = ProducerConfig(timeout_ms=6_000, retries=1_000, linger_ms=0, batch_messages=8)
WAIT_S = 120


@dataclass
class Sending:
    """What the senders did: results of acknowledged messages, and how many attempts failed."""

    acked: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    #: Acknowledged delayed messages; they have no place until they are delivered.
    delayed: set[bytes] = field(default_factory=set)
    failed_attempts: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    # A hook of the producer.
    def before_attempt(self, attempt: SendAttempt) -> None:
        return

    def after_attempt(self, attempt: SendAttempt, elapsed_ms: int, error: RocketqError | None) -> None:
        if error is not None:
            with self.changed:
                self.failed_attempts += 1
                self.changed.notify_all()

    def note(self, bodies: list[bytes], results: list[SendResult]) -> None:
        """Note where messages are that were acknowledged, in the order of their results."""
        places = [(r.queue.broker, r.queue.queue, r.offset + n) for r in results for n in range(r.count)]
        with self.changed:
            self.acked |= dict(zip(bodies, places, strict=True))
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)

    def wait_for_acks(self, more: int) -> None:
        enough = len(self.acked) + more
        self.wait_for(lambda: len(self.acked) >= enough)

    def wait_for_failed_attempts(self, more: int) -> None:
        enough = self.failed_attempts + more
        self.wait_for(lambda: self.failed_attempts >= enough)


def _singles(sending: Sending, producer: Producer, body: bytes) -> None:
    sending.note([body], [producer.send(TOPIC, body)])


def _keyed(sending: Sending, producer: Producer, body: bytes) -> None:
    sending.note([body], [producer.send(TOPIC, body, ordering_key=b"k")])


def _submitted(sending: Sending, producer: Producer, body: bytes) -> None:
    bodies = [body + b".%d" % n for n in range(5)]
    sending.sent |= set(bodies)
    futures = [producer.submit(TOPIC, each, ordering_key=b"s") for each in bodies]
    for each, future in zip(bodies, futures, strict=True):
        sending.note([each], [future.result(WAIT_S)])


def _batches(sending: Sending, producer: Producer, body: bytes) -> None:
    bodies = [body + b".%d" % n for n in range(5)]
    sending.sent |= set(bodies)
    sending.note(bodies, producer.send_batch(TOPIC, [Message(each) for each in bodies], queue=0))


def _delayed(sending: Sending, producer: Producer, body: bytes) -> None:
    producer.send(TOPIC, body, delay="300ms")
    sending.delayed.add(body)


SENDERS = {
    "single": _singles, "keyed": _keyed, "delayed": _delayed, "submitted": _submitted, "batch": _batches,
}  # fmt: skip


def _send(sending: Sending, producer: Producer, name: str) -> None:
    number = 0
    while not sending.ended.is_set():
        body = b"%s-%d" % (name.encode(), number)
        if name in ("single", "keyed", "delayed"):
            sending.sent.add(body)
        with contextlib.suppress(SendFailed):
            SENDERS[name](sending, producer, body)
        number += 1


def _trouble(cluster: LocalCluster, sending: Sending, rng: random.Random, how: str) -> None:
    """Stop the broker in the middle of sends, and let it go on when attempts have failed."""
    sending.wait_for_acks(rng.choice((1, 20, 60)))
    if how == "pause":
        cluster.pause("broker-a")
        sending.wait_for_failed_attempts(2)
        cluster.resume("broker-a")
    else:
        cluster.kill("broker-a")
        sending.wait_for_failed_attempts(1)
        cluster.restart("broker-a")
    sending.wait_for_acks(20)


def _stored(client: Client) -> dict[tuple[str, int, int], bytes]:
    found: dict[tuple[str, int, int], bytes] = {}
    wait_until(lambda: next(client.timers.list(TOPIC), None) is None)
    with client.pull_consumer(TOPIC, start="earliest") as consumer:
        while any(consumer.lag().values()) or not found:
            for message in consumer.poll(timeout_ms=60_000):
                found[message.queue.broker, message.queue.queue, message.offset] = message.body
                due_ms = (message.properties or {}).get("TIMER_DELIVER_MS")
                assert due_ms is None or message.stored_at_us >= 1000 * int(due_ms), "delivered early"
    return found


def run(
    directory: Path, seed: int, troubles: list[str]
) -> tuple[Sending, dict[tuple[str, int, int], bytes], int]:
    rng, sending = random.Random(seed), Sending()
    with (
        LocalCluster(brokers=1, data_dir=directory) as cluster,
        LossyProxy(seed, loss=0.2, upstream=cluster.brokers["broker-a"]) as proxy,
        Client(cluster.nameservers) as client,
        ThroughProxy(proxy) as transport,
    ):
        client.create_topic(TOPIC, queues=QUEUES)
        with Producer(transport, RouteCache(cluster.nameservers, transport), config=SETTINGS) as producer:
            producer.add_hook(sending)
            threads = [threading.Thread(target=_send, args=(sending, producer, name)) for name in SENDERS]
            for thread in threads:
                thread.start()
            try:
                for how in troubles:
                    _trouble(cluster, sending, rng, how)
            finally:
                sending.ended.set()
                for thread in threads:
                    thread.join()
        return sending, _stored(client), proxy.lost


def check(sending: Sending, stored: dict[tuple[str, int, int], bytes]) -> None:
    times = Counter(stored.values())
    assert not [body for body, count in times.items() if count > 1], "stored twice"
    assert set(times) <= sending.sent
    assert sending.delayed <= set(times), "delayed messages are delivered"
    for body, place in sending.acked.items():
        assert stored.get(place) == body, "it is where its result says"
    for name in (b"keyed", b"submitted"):
        places = [place for body, place in sending.acked.items() if body.startswith(name)]
        assert places == sorted(places), "acknowledged messages of a key are in the order of sending"


@pytest.mark.timeout(300)
def test_no_message_is_stored_twice_whatever_becomes_of_answers_and_the_broker(tmp_path: Path) -> None:
    sending, stored, lost = run(tmp_path, 1, ["pause", "kill"])
    assert lost, "answers were lost, so sends were repeated"
    check(sending, stored)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 6))
def test_no_message_is_stored_twice_in_a_long_life(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sending, stored, lost = run(tmp_path, seed, [rng.choice(["pause", "kill"]) for _ in range(12)])
    assert lost
    check(sending, stored)
