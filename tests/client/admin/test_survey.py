"""A survey asks all brokers side by side, and waits once for one that does not answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.admin.survey import SILENT_MS, Survey
from rocketq.clock import ManualClock
from rocketq.errors import BrokerUnreachable, Conflict, NameServersUnreachable
from rocketq.net.broker_api import BrokerApi


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def survey(cluster: LocalCluster, clock: ManualClock) -> Iterator[Survey]:
    with ClusterAdmin(cluster.nameservers) as admin:
        made = Survey(admin.masters, clock)
        yield made
        made.close()


class Questions:
    """A question that broker-b does not answer while it is frozen; counts who was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.frozen = True

    def __call__(self, master: BrokerApi) -> str:
        self.asked.append(master.broker)
        if self.frozen and master.broker == "broker-b":
            raise BrokerUnreachable(master.broker, master.address, "timed out")
        return master.broker.upper()


def test_what_the_others_said_is_there_and_who_is_missing(survey: Survey) -> None:
    answers = survey.ask(Questions())
    assert answers.found == {"broker-a": "BROKER-A"}
    assert answers.unreachable == {"broker-b": "timed out"}
    assert not answers.complete


def test_a_silent_broker_is_asked_again_later_or_by_a_probe(survey: Survey, clock: ManualClock) -> None:
    question = Questions()
    survey.ask(question)
    assert survey.ask(question).unreachable == {"broker-b": "timed out"}
    assert question.asked.count("broker-b") == 1, "the second page does not wait for it"
    clock.advance(SILENT_MS)
    survey.ask(question)
    assert question.asked.count("broker-b") == 2
    question.frozen = False
    assert survey.ask(question, probe=True).complete
    assert survey.ask(question).found == {"broker-a": "BROKER-A", "broker-b": "BROKER-B"}


def test_a_refusal_is_an_answer(survey: Survey) -> None:
    def refuse(master: BrokerApi) -> str:
        raise Conflict(master.broker, "no", "")

    answers = survey.ask(refuse)
    assert set(answers.refused) == {"broker-a", "broker-b"}
    assert answers.complete


def test_nothing_is_known_before_a_name_server_answered() -> None:
    with ClusterAdmin("http://127.0.0.1:9") as admin:
        survey = Survey(admin.masters)
        with pytest.raises(NameServersUnreachable):
            survey.ask(lambda master: master.broker)
        survey.close()
