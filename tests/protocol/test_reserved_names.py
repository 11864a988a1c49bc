"""Which names the system keeps for itself."""

from __future__ import annotations

import pytest

from rocketq.errors import InvalidName
from rocketq.errors.message_errors import ReservedName
from rocketq.protocol.rules.reserved_names import (
    check_user_group,
    check_user_topic,
    is_reserved_topic,
    is_retry_topic,
    is_system_topic,
)

SYSTEM_TOPICS = [
    *("TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC"),
    *("CHECKPOINT_TOPIC", "SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX_V2", "RMQ_SYS_TRANS_HALF_TOPIC"),
    *("RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_trace_topic", "rmq_sys_wheel_timer", "Rmq_Sys_x"),
]
GROUP_TOPICS = ["%RETRY%billing", "%retry%billing", "%DLQ%billing", "%LMQ%device", "%RETRY%"]
FREE = ["orders", "TBW1020", "benchmarktest", "RETRY%x", "a%RETRY%x", "SCHEDULE_TOPIC", "rmq_orders", "%41"]


@pytest.mark.parametrize("name", SYSTEM_TOPICS + GROUP_TOPICS)
def test_a_name_of_the_system_s_is_reserved_as_a_topic(name: str) -> None:
    assert is_reserved_topic(name)
    with pytest.raises(ReservedName) as raised:
        check_user_topic(name)
    assert raised.value.facts == {"kind": "topic", "name": name}
    assert (raised.value.code, raised.value.status) == ("RESERVED_NAME", 403)


@pytest.mark.parametrize("name", FREE)
def test_a_name_that_only_resembles_one_is_free(name: str) -> None:
    assert not is_reserved_topic(name)
    check_user_topic(name)
    check_user_group(name)


@pytest.mark.parametrize(
    "name",
    [
        *("CID_RMQ_SYS_TRANS", "cid_rmq_sys_x", "DEFAULT_CONSUMER", "TOOLS_CONSUMER", "CID_ONSAPI_PULL"),
        *("%RETRY%billing", "%DLQ%x", "rmq_sys_x"),
    ],
)
def test_a_name_of_the_system_s_is_reserved_as_a_group(name: str) -> None:
    with pytest.raises(ReservedName, match=f"The group name '{name}' is reserved"):
        check_user_group(name)


def test_a_name_that_is_not_legal_is_refused_as_such() -> None:
    for check in (check_user_topic, check_user_group):
        with pytest.raises(InvalidName):
            check("no spaces")


def test_retry_topics_and_system_topics_are_told_apart() -> None:
    assert [is_retry_topic(name) for name in ("%RETRY%a", "%DLQ%a", "TBW102", "a")] == [True] + [False] * 3
    assert all(is_system_topic(name) for name in SYSTEM_TOPICS)
    assert not any(is_system_topic(name) for name in GROUP_TOPICS + FREE)


def test_the_topic_of_traces_is_a_system_topic_that_clients_write() -> None:
    assert is_system_topic("RMQ_SYS_TRACE_TOPIC")
    assert is_reserved_topic("RMQ_SYS_TRACE_TOPIC")
    check_user_topic("RMQ_SYS_TRACE_TOPIC")
