"""Options: what is refused is refused early, in words that say what to write instead."""

from __future__ import annotations

import pytest

from pyspark_rocketq.errors import UnknownOption
from pyspark_rocketq.options.message_filter import Filter
from pyspark_rocketq.options.options import (
    Assigned,
    BatchLimits,
    DeliveryGuarantee,
    Subscribed,
    SubscribedPattern,
    Transaction,
    sink_options,
    source_options,
)
from pyspark_rocketq.options.position_syntax import AtOffsets, AtTime, AtTimes, Edge, NoMatch
from pyspark_rocketq.options.table import OPTIONS, Use
from rocketq.errors import InvalidConfiguration, InvalidFilter
from rocketq.model import MessageQueue
from rocketq.protocol.documents.sinks import OnDecided

BASE = {"nameservers": "http://127.0.0.1:9876", "subscribe": "orders"}
SINK = {"nameservers": "http://127.0.0.1:9876", "topic": "orders"}


def stream(**options: str):
    return source_options(BASE | options, Use.STREAM_READ)


def batch(**options: str):
    return source_options(BASE | options, Use.BATCH_READ)


def sink(**options: str):
    return sink_options(SINK | options, Use.STREAM_WRITE)


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in BASE.items() if name not in names}


def test_the_defaults_are_kafkas() -> None:
    assert stream().starting is Edge.LATEST
    assert batch().starting is Edge.EARLIEST
    assert batch().ending is Edge.LATEST
    assert stream().fail_on_data_loss is True
    assert stream().limits == BatchLimits(None, None, None, 15 * 60 * 1000)
    assert stream().group is None
    assert stream().commit_group_offsets is False
    assert sink().selection == "round_robin"
    assert sink().delivery is DeliveryGuarantee.EXACTLY_ONCE
    assert sink().compression is None


def test_option_names_are_matched_without_case() -> None:
    given = {"NAMESERVERS": "http://a:1, http://b:2/", "SubscribePattern": "or.*"}
    options = source_options(given, Use.STREAM_READ)
    assert options.nameservers == ("http://a:1", "http://b:2")
    assert options.subscription == SubscribedPattern("or.*")


def test_topics_are_separated_by_commas() -> None:
    options = source_options(without("subscribe") | {"subscribe": "a, b,a"}, Use.BATCH_READ)
    assert options.subscription == Subscribed(("a", "b"))


def test_an_assignment_names_queues_of_one_or_of_every_broker() -> None:
    text = '{"orders": {"broker-a": [0, 2]}, "paid": [1]}'
    options = source_options(without("subscribe") | {"assign": text}, Use.BATCH_READ)
    assert options.subscription == Assigned(
        {"orders": {"broker-a": frozenset({0, 2})}, "paid": {None: frozenset({1})}}
    )


def test_a_group_is_reported_to_unless_that_is_switched_off() -> None:
    assert stream(groupId="billing").commit_group_offsets is True
    assert stream(groupId="billing", commitGroupOffsets="false").commit_group_offsets is False


def test_sizes_and_durations_may_have_units() -> None:
    options = stream(
        maxBytesPerTrigger="64m", minOffsetsPerTrigger="10", maxTriggerDelay="30s", maxOffsetsPerTrigger="20"
    )
    assert options.limits == BatchLimits(20, 10, 64 * 2**20, 30_000)
    assert batch(maxBytesPerPartition="512K").splitting.max_bytes == 512 * 1024


def test_a_number_may_stand_for_all_queues_below_a_broker_or_a_topic() -> None:
    position = stream(startingOffsets='{"orders": {"broker-a": {"0": 7}, "broker-b": -1}, "x": -2}').starting
    assert isinstance(position, AtOffsets)
    assert position.offsets.get(MessageQueue("orders", "broker-a", 0)) == 7
    assert position.offsets.get(MessageQueue("orders", "broker-a", 1)) is None
    assert position.offsets.get(MessageQueue("orders", "broker-b", 3)) == -1
    assert position.offsets.get(MessageQueue("x", "any", 3)) == -2


def test_times_are_milliseconds_for_all_or_for_each_queue() -> None:
    assert stream(startingTimestamp="1700000000000").starting == AtTime(1_700_000_000_000, NoMatch.ERROR)
    position = stream(
        startingOffsetsByTimestamp='{"orders": 5}', startingOffsetsByTimestampStrategy="Latest"
    ).starting
    assert isinstance(position, AtTimes)
    assert position.no_match is NoMatch.LATEST
    assert batch(endingTimestamp="5").ending == AtTime(5, NoMatch.LATEST)


def test_the_group_is_a_place_to_begin() -> None:
    assert stream(startingOffsets="group", groupId="billing").starting is Edge.GROUP


def test_sparks_own_options_are_left_to_spark() -> None:
    assert sink(checkpointLocation="/tmp/x", queryName="q") == sink()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (without("nameservers"), "nameservers=None: required"),
        (BASE | {"nameservers": " , "}, "required"),
        (BASE | {"nameservers": "127.0.0.1:9876"}, "http://127.0.0.1:9876"),
        (BASE | {"nameservers": "http://user:secret@host:1"}, "not the base URL"),
        (without("subscribe"), "exactly one of subscribe"),
        (BASE | {"subscribePattern": ".*"}, "given together with subscribePattern"),
        (BASE | {"subscribe": "a b"}, "'a b' is not a legal topic name"),
        (BASE | {"subscribe": ""}, "'' is not a legal topic name"),
        (without("subscribe") | {"subscribePattern": "("}, "not a regular expression"),
        (without("subscribe") | {"assign": "[1]"}, "not a JSON object"),
        (without("subscribe") | {"assign": '{"a": {"b": 3}}'}, "needs a list of queue numbers"),
        (without("subscribe") | {"assign": '{"a": [-1]}'}, "-1 is no queue number"),
        (without("subscribe") | {"assign": '{"a": [true]}'}, "True is no queue number"),
        (BASE | {"startingOffsets": "newest"}, "Use earliest, latest, group, or JSON"),
        (BASE | {"startingOffsets": '{"a": {"b": {"0": -3}}}'}, "a/b/0 is -3"),
        (BASE | {"startingOffsets": '{"a": 1, "a": 2}'}, "a name appears twice"),
        (BASE | {"startingOffsets": "{"}, "not valid JSON"),
        (BASE | {"startingOffsets": "group"}, "Set groupId too"),
        (BASE | {"startingTimestamp": "-1"}, "at least 0"),
        (BASE | {"startingTimestamp": "5", "startingOffsets": "earliest"}, "given together with"),
        (BASE | {"startingOffsetsByTimestampStrategy": "latest"}, "no starting time is given"),
        (
            BASE | {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "skip"},
            "Legal: error, latest",
        ),
        (BASE | {"maxOffsetsPerTrigger": "0"}, "at least 1"),
        (BASE | {"maxOffsetsPerTrigger": "many"}, "not an integer"),
        (BASE | {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "above maxOffsetsPerTrigger, 5"),
        (BASE | {"maxTriggerDelay": "5s"}, "goes with minOffsetsPerTrigger"),
        (BASE | {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "5 weeks"}, "not a duration like"),
        (BASE | {"maxBytesPerTrigger": "1.5g"}, "not a size like"),
        (BASE | {"failOnDataLoss": "yes"}, "neither true nor false"),
        (BASE | {"groupId": "a group"}, "not a legal group name"),
        (BASE | {"commitGroupOffsets": "true"}, "Set groupId too"),
        (BASE | {"longPollMs": "60001"}, "at most 60000"),
        (BASE | {"tags": "a", "sql": "b = 1"}, "Write TAGS IN ('a', 'b') AND … in sql"),
    ],
)
def test_a_stream_says_what_is_wrong(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        source_options(given, Use.STREAM_READ)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_filter_is_tags_or_sql_and_a_star_is_none() -> None:
    assert stream().filter == stream(tags=" * ").filter == Filter()
    assert stream(tags="a||b").filter == Filter(tags="a||b")
    assert batch(sql="amount > 5 -- large").filter == Filter(sql="amount > 5 -- large")


@pytest.mark.parametrize(
    ("given", "position", "said"),
    [
        ({"tags": "paid || || open"}, 8, "\n          ^ Write a tag on each side"),
        ({"sql": "amount > 100 AND zone LIKE 'eu%'"}, 22, "There is no LIKE"),
        ({"sql": " "}, 0, "it is empty"),
    ],
)
def test_a_filter_that_does_not_parse_is_refused_and_pointed_at(
    given: dict[str, str], position: int, said: str
) -> None:
    with pytest.raises(InvalidFilter, match=f"position {position}: ") as caught:
        stream(**given)
    assert said in str(caught.value)
    assert caught.value.facts["option"] in given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "latest"}, "a batch that begins at the end is empty"),
        ({"startingOffsets": '{"a": -1}'}, "-1 means latest: a batch that begins"),
        ({"endingOffsets": "earliest"}, "a batch that ends at its beginning is empty"),
        ({"endingOffsets": '{"a": -2}'}, "-2 means earliest"),
        ({"endingOffsets": "group"}, "a group's offset is where reading goes on"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "given together with"),
    ],
)
def test_a_batch_says_what_is_wrong(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        source_options(BASE | given, Use.BATCH_READ)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delivery": "exactly-thrice"}, "Legal: exactly-once, at-least-once"),
        ({"queueSelection": "sticky"}, "Legal: roundRobin, hash, random"),
        ({"compression": "gzip"}, "Legal: none, lz4, zstd"),
        ({"topic": "a/b"}, "not a legal topic name"),
        ({"maxRequestBytes": "1g"}, "at most"),
        ({"sendTimeoutMs": "0"}, "at least 1"),
        ({"onDecidedBatch": "ignore"}, "Legal: fail, skip"),
        ({"onDecidedBatch": "skip", "delivery": "at-least-once"}, "it is for delivery=exactly-once"),
    ],
)
def test_a_sink_says_what_is_wrong(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        sink(**given)
    assert said in str(caught.value)


def test_a_named_transaction_is_written_exactly_once() -> None:
    options = sink_options(SINK | {"txnAppId": "billing", "txnVersion": "7"}, Use.BATCH_WRITE)
    assert (options.delivery, options.transaction) == (
        DeliveryGuarantee.EXACTLY_ONCE,
        Transaction("billing", 7),
    )
    assert sink_options(SINK, Use.BATCH_WRITE).delivery is DeliveryGuarantee.AT_LEAST_ONCE
    assert sink(sinkId="copies").sink == "copies"


def test_a_decided_number_fails_a_stream_by_default_and_skips_a_transaction() -> None:
    assert sink().on_decided is OnDecided.FAIL
    assert sink(onDecidedBatch="Skip").on_decided is OnDecided.SKIP
    options = sink_options(SINK | {"txnAppId": "billing", "txnVersion": "7"}, Use.BATCH_WRITE)
    assert options.on_decided is OnDecided.SKIP
    with pytest.raises(UnknownOption, match=r"belongs to df.writeStream"):
        sink_options(SINK | {"onDecidedBatch": "skip"}, Use.BATCH_WRITE)


def test_names_that_the_system_keeps_for_itself_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="topic='%RETRY%billing': this name is reserved"):
        sink(topic="%RETRY%billing")
    with pytest.raises(InvalidConfiguration, match="groupId='CID_RMQ_SYS_x': this name is reserved"):
        stream(groupId="CID_RMQ_SYS_x")
    # What brokers write there may be read.
    assert stream(subscribe="%DLQ%billing")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"txnAppId": "billing"}, "txnVersion=None: missing beside the other half"),
        ({"txnVersion": "7"}, "txnAppId=None: missing beside the other half"),
        ({"txnAppId": "a b", "txnVersion": "7"}, "not a legal sink name"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "at least 0"),
        (
            {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"},
            "it is for delivery=exactly-once",
        ),
        ({"commitTimeoutMs": "5"}, "it is for delivery=exactly-once"),
        ({"sinkId": "a"}, "it belongs to df.writeStream, not to df.write"),
    ],
)
def test_a_transaction_says_what_is_wrong(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        sink_options(SINK | given, Use.BATCH_WRITE)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("use", "key", "said"),
    [
        (Use.STREAM_READ, "startingOfsets", "Did you mean startingOffsets?"),
        (Use.STREAM_READ, "maxRowsPerTrigger", "Did you mean maxOffsetsPerTrigger?"),
        (Use.STREAM_READ, "zzz", "Known: assign, brokerWaitMs, commitGroupOffsets"),
        (Use.STREAM_READ, "endingOffsets", "it belongs to spark.read, not to spark.readStream"),
        (Use.BATCH_READ, "maxOffsetsPerTrigger", "it belongs to spark.readStream, not to spark.read"),
        (Use.BATCH_READ, "topic", "it belongs to df.write and df.writeStream"),
        (Use.STREAM_WRITE, "subscribe", "it belongs to spark.read and spark.readStream"),
        (Use.BATCH_READ, "path", "rocketq has no paths"),
        (Use.BATCH_WRITE, "checkpointLocation", "there is no such option"),
        (Use.STREAM_READ, "kafka.bootstrap.servers", '.option("nameservers"'),
        (Use.STREAM_READ, "kafka.group.id", "Kafka's clients are not used here"),
        (Use.STREAM_READ, "includeHeaders", '.option("includeProperties", "true")'),
        (Use.STREAM_READ, "groupIdPrefix", '.option("groupId"'),
        (Use.STREAM_READ, "filter", "there is no such option"),
        (Use.STREAM_WRITE, "tags", "it belongs to spark.read and spark.readStream"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_known(use: Use, key: str, said: str) -> None:
    parse, base = (source_options, BASE) if use & Use.READ else (sink_options, SINK)
    with pytest.raises(UnknownOption) as caught:
        parse(base | {key: "secret"}, use)
    assert said in str(caught.value)


def test_when_only_the_schema_is_asked_for_options_of_both_reads_are_legal() -> None:
    given = BASE | {"endingOffsets": "latest"}
    assert source_options(given, Use.READ).ending is Edge.LATEST
    assert source_options(BASE | {"maxOffsetsPerTrigger": "5"}, Use.READ).limits.max_rows == 5


def test_no_two_options_differ_in_case_only() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
