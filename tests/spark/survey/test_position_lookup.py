"""Resolution: what earliest, latest, a group, offsets and times mean in queues that hold something."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketq.errors import DataLost
from pyspark_rocketq.options.position_syntax import AtOffsets, AtTime, AtTimes, Edge, NoMatch, parse_per_queue
from pyspark_rocketq.survey.position_lookup import Lookups, resolve
from pyspark_rocketq.survey.subscription import Survey
from rocketq.errors import InvalidConfiguration
from rocketq.model import MessageQueue, QueueOffsets

A0 = MessageQueue("t", "broker-a", 0)
A1 = MessageQueue("t", "broker-a", 1)
B0 = MessageQueue("t", "broker-b", 0)
SURVEY = Survey(
    {A0: QueueOffsets(2, 9), A1: QueueOffsets(0, 0), B0: QueueOffsets(5, 50)},
    {("t", "broker-a"): "one", ("t", "broker-b"): "two"},
)
NOTHING = Lookups()


def offsets(document: object) -> AtOffsets:
    return AtOffsets(parse_per_queue("startingOffsets", json.dumps(document), lowest=-2))


def times(document: object, no_match: NoMatch) -> AtTimes:
    return AtTimes(parse_per_queue("startingOffsetsByTimestamp", json.dumps(document), lowest=0), no_match)


def test_the_edges() -> None:
    assert resolve(Edge.EARLIEST, "startingOffsets", SURVEY, NOTHING) == {A0: 2, A1: 0, B0: 5}
    assert resolve(Edge.LATEST, "startingOffsets", SURVEY, NOTHING) == {A0: 9, A1: 0, B0: 50}


def test_a_group_goes_on_where_it_was_and_reads_new_queues_from_the_start() -> None:
    lookups = Lookups(group={A0: 4})
    assert resolve(Edge.GROUP, "startingOffsets", SURVEY, lookups) == {A0: 4, A1: 0, B0: 5}


def test_a_group_behind_retention_is_a_loss() -> None:
    lookups = Lookups(group={B0: 3})
    with pytest.raises(DataLost, match="t/broker-b/0"):
        resolve(Edge.GROUP, "startingOffsets", SURVEY, lookups)
    assert resolve(Edge.GROUP, "startingOffsets", SURVEY, lookups, fail_on_data_loss=False)[B0] == 5


def test_offsets_are_taken_as_they_are_and_minus_two_and_one_are_the_edges() -> None:
    position = offsets({"t": {"broker-a": {"0": 4, "1": -1}, "broker-b": -2}})
    assert resolve(position, "startingOffsets", SURVEY, NOTHING) == {A0: 4, A1: 0, B0: 5}


def test_every_queue_needs_an_offset() -> None:
    with pytest.raises(InvalidConfiguration, match=r"t/broker-a/1, t/broker-b/0.*no offset is given for 2"):
        resolve(offsets({"t": {"broker-a": {"0": 4}}}), "startingOffsets", SURVEY, NOTHING)


def test_every_offset_needs_a_queue() -> None:
    position = offsets({"t": {"broker-a": {"0": 4, "7": 1}, "broker-b": -1}})
    with pytest.raises(InvalidConfiguration, match=r"t/broker-a/7.*no such queue"):
        resolve(position, "startingOffsets", SURVEY, NOTHING)
    with pytest.raises(InvalidConfiguration, match="not among the subscribed topics"):
        resolve(offsets({"t": -1, "u": -1}), "startingOffsets", SURVEY, NOTHING)


def test_an_offset_beyond_the_end_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="the queue ends at 9"):
        resolve(offsets({"t": {"broker-a": 10, "broker-b": -1}}), "startingOffsets", SURVEY, NOTHING)


def test_a_time_is_the_first_message_at_or_after_it() -> None:
    lookups = Lookups(times={(A0, 100_000): 3, (A1, 100_000): 0, (B0, 100_000): 50})
    position = AtTime(100, NoMatch.LATEST)
    assert resolve(position, "startingTimestamp", SURVEY, lookups) == {A0: 3, A1: 0, B0: 50}
    with pytest.raises(InvalidConfiguration, match="no message stored at or after"):
        resolve(AtTime(100, NoMatch.ERROR), "startingTimestamp", SURVEY, lookups)


def test_a_queue_without_a_time_is_read_from_its_first_message() -> None:
    lookups = Lookups(times={(B0, 7_000): 20})
    position = times({"t": {"broker-b": 7}}, NoMatch.ERROR)
    assert resolve(position, "startingOffsetsByTimestamp", SURVEY, lookups) == {A0: 2, A1: 0, B0: 20}


def test_a_time_for_a_topic_that_is_not_subscribed_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="not among the subscribed topics"):
        resolve(times({"u": 7}, NoMatch.LATEST), "startingOffsetsByTimestamp", SURVEY, NOTHING)
