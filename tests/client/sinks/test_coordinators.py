"""Who coordinates a sink, decided from what the brokers say."""

from __future__ import annotations

from collections import Counter

import pytest

from rocketq.errors.sink_errors import CoordinatorConflict, CoordinatorUnknown
from rocketq.sinks.coordinator_lookup import elected_coordinator, named_coordinator

AWAY = {"broker-b": "http://b: the connection was refused"}


def test_every_writer_elects_the_same_broker_and_sinks_are_spread() -> None:
    names = [f"sink-{n}" for n in range(300)]
    picked = [elected_coordinator(name, ["a", "b", "c"]) for name in names]
    assert picked == [elected_coordinator(name, ["c", "a", "b"]) for name in names]
    assert min(Counter(picked).values()) > 50


def test_one_broker_that_names_the_coordinator_is_enough() -> None:
    assert named_coordinator("s", {"broker-a": "broker-b"}, ["broker-c"], AWAY) == "broker-b"


def test_a_new_sink_waits_for_every_broker() -> None:
    assert named_coordinator("s", {}, ["broker-a", "broker-b"], {}) is None
    with pytest.raises(CoordinatorUnknown, match=r"broker-b \(http://b: the connection was refused\)"):
        named_coordinator("s", {}, ["broker-a"], AWAY)
    with pytest.raises(CoordinatorUnknown, match="no broker is registered"):
        named_coordinator("s", {}, [], {})


def test_brokers_that_disagree_are_both_named() -> None:
    with pytest.raises(CoordinatorConflict, match="broker-a says broker-a, broker-b says broker-b"):
        named_coordinator("s", {"broker-a": "broker-a", "broker-b": "broker-b"}, [], {})
