"""Outages: said when they begin and end, and borne for as long as was asked."""

from __future__ import annotations

import logging

import pytest

from pyspark_rocketq.errors import BrokersAway
from pyspark_rocketq.survey.outages import Outages
from pyspark_rocketq.survey.subscription import Survey

A, B = ("orders", "broker-a"), ("orders", "broker-b")


def answering(*places: tuple[str, str]) -> Survey:
    return Survey({}, dict.fromkeys(places, "one"))


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outages = Outages(wait_ms=1_000)
    for second in range(5):
        outages.see({B: "refused"}, answering(A), second)
    assert outages.away == {B: "refused"}
    outages.see({}, answering(A, B), 7.5)
    outages.see({}, answering(A, B), 8)
    assert outages.away == {}
    said = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert said[0].startswith("Broker broker-b is away")
    assert said[1].startswith("Broker broker-b is back after 7.5 s")


def test_a_broker_that_was_taken_off_is_not_said_to_be_back(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages(wait_ms=1_000)
    outages.see({B: "refused"}, answering(A), 0)
    outages.see({}, answering(A), 1)
    assert "broker-b is back" not in caplog.text


def test_silence_is_counted_from_when_the_last_broker_went_away() -> None:
    outages = Outages(wait_ms=1_000)
    outages.see({B: "refused"}, answering(A), 0)
    outages.see({A: "refused", B: "refused"}, answering(), 5)
    outages.see({A: "refused", B: "refused"}, answering(), 5.9)
    with pytest.raises(BrokersAway) as caught:
        outages.see({A: "refused", B: "refused"}, answering(), 6)
    assert caught.value.facts["waited_ms"] == 1_000


def test_a_needed_broker_is_waited_for_and_the_others_are_not() -> None:
    outages = Outages(wait_ms=1_000)
    outages.see({B: "refused"}, answering(A), 0)
    outages.endure({A}, 100)
    outages.endure({A, B}, 0.9)
    with pytest.raises(BrokersAway, match="topic orders on broker-b"):
        outages.endure({A, B}, 1)
