"""A broker that failed is asked in the background until it answers, and what is known of it can be read."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocketq import SendFailed
from rocketq.errors import RocketqError
from rocketq.producing.attempts.send_hooks import SendAttempt
from rocketq.producing.selection.broker_probe import BrokerProbe
from rocketq.producing.selection.fault_avoidance import BrokerFault, FaultTolerance
from tests.support.conditions import WAIT_S
from tests.support.patience import PatientClient
from tests.support.small_cluster import TOPIC, SmallCluster
from tests.support.small_server import Answer


class Questions:
    """Answers each question of the probe as the test says, when the test says it."""

    def __init__(self) -> None:
        self.asked: queue.Queue[str] = queue.Queue()
        self.answers: queue.Queue[bool | None] = queue.Queue()

    def __call__(self, broker: str, address: str) -> bool | None:
        self.asked.put(f"{broker} at {address}")
        return self.answers.get(timeout=WAIT_S)

    def next(self, answer: bool | None) -> str:
        """Answer the next question; return it."""
        asked = self.asked.get(timeout=WAIT_S)
        self.answers.put(answer)
        return asked


@contextmanager
def probing(fault: FaultTolerance) -> Iterator[tuple[BrokerProbe, Questions]]:
    questions = Questions()
    probe = BrokerProbe(fault, questions, interval_ms=1)
    try:
        yield probe, questions
    finally:
        questions.answers.put(False)
        probe.close()


def probe_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rocketq-probe"]


def failed(*brokers: str) -> FaultTolerance:
    fault = FaultTolerance()
    for broker in brokers:
        fault.record(broker, 0, now_ms=0, isolation=True)
    return fault


def test_a_failed_broker_is_asked_until_it_answers_and_stays_avoided() -> None:
    fault = failed("a")
    with probing(fault) as (probe, questions):
        probe.watch("a", "http://a")
        (thread,) = probe_threads()
        assert [questions.next(False), questions.next(True)] == ["a at http://a"] * 2
        thread.join(WAIT_S)
        assert not thread.is_alive(), "nobody is left to ask"
        assert fault.faults(1_000) == {"a": BrokerFault(avoided_ms=9_000, is_reachable=True)}
        probe.watch("b", "http://b")
        fault.record("b", 0, now_ms=0, isolation=True)
        assert questions.next(True) == "b at http://b", "a later failure starts it again"


def test_a_broker_that_answered_a_send_is_asked_no_more() -> None:
    fault = failed("a", "b")
    with probing(fault) as (probe, questions):
        fault.record("a", 3, now_ms=0)
        probe.watch("a", "http://a")
        probe.watch("b", "http://b")
        assert questions.next(True) == "b at http://b"


def test_a_broker_that_left_is_asked_no_more() -> None:
    fault = failed("a")
    with probing(fault) as (probe, questions):
        probe.watch("a", "http://a")
        (thread,) = probe_threads()
        questions.next(None)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert not fault.is_reachable("a")


def test_close_ends_the_probe_and_nothing_starts_it_again() -> None:
    fault = failed("a")
    with probing(fault) as (probe, questions):
        probe.watch("a", "http://a")
        questions.next(False)
        questions.answers.put(False)
        probe.close()
        probe.watch("a", "http://a")
        assert not probe_threads()


def test_the_state_of_avoidance_can_be_read() -> None:
    fault = FaultTolerance()
    assert fault.is_untroubled
    fault.record("slow", 600, now_ms=0)
    fault.record("dead", 0, now_ms=0, isolation=True)
    fault.record("fine", 3, now_ms=0)
    assert not fault.is_untroubled
    assert fault.faults(500) == {"dead": BrokerFault(9_500, False), "slow": BrokerFault(1_500, True)}
    assert fault.faults(5_000) == {"dead": BrokerFault(5_000, False)}
    assert fault.faults(50_000) == {"dead": BrokerFault(0, False)}
    fault.answered("dead")
    assert fault.faults(50_000) == {}


class Seen:
    """A hook that keeps what it saw."""

    def __init__(self) -> None:
        self.attempts: list[SendAttempt] = []
        self.errors: list[RocketqError | None] = []

    def before_attempt(self, attempt: SendAttempt) -> None:
        self.attempts.append(attempt)

    def after_attempt(self, attempt: SendAttempt, elapsed_ms: int, error: RocketqError | None) -> None:
        assert attempt is self.attempts[-1]
        assert elapsed_ms >= 0
        self.errors.append(error)


class Broken:
    """A hook that raises."""

    def before_attempt(self, attempt: SendAttempt) -> None:
        raise ZeroDivisionError

    def after_attempt(self, attempt: SendAttempt, elapsed_ms: int, error: RocketqError | None) -> None:
        raise ZeroDivisionError


def test_a_producer_tells_of_a_broker_that_failed_and_asks_it() -> None:
    with (
        SmallCluster(brokers=1) as small,
        PatientClient(small.nameserver) as mq,
        mq.producer(retries=0) as producer,
    ):
        assert producer.faults() == {}
        small.brokers[0].script["send"] = [Answer(hang_up=True)]
        with pytest.raises(SendFailed):
            producer.send(TOPIC, b"x")
        fault = producer.faults()["broker-a"]
        assert 0 < fault.avoided_ms <= 10_000
        assert len(probe_threads()) == 1
    assert not probe_threads()


def test_hooks_see_every_attempt_and_cannot_harm_it() -> None:
    seen = Seen()
    with (
        SmallCluster(brokers=1) as small,
        PatientClient(small.nameserver) as mq,
        mq.producer(linger_ms=60_000) as producer,
    ):
        producer.add_hook(Broken())
        producer.add_hook(seen)
        small.brokers[0].script["send"] = [Answer(hang_up=True)]
        producer.send(TOPIC, b"x")
        producer.submit(TOPIC, b"x")
        producer.submit(TOPIC, b"x")
        producer.flush()
    assert seen.attempts == [
        SendAttempt(TOPIC, "broker-a", 1, 1),
        SendAttempt(TOPIC, "broker-a", 1, 2),
        SendAttempt(TOPIC, "broker-a", 2, 1),
    ]
    assert [error is None for error in seen.errors] == [False, True, True]
