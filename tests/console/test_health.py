"""What the first page warns of, decided from facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec.structs

from rocketq.admin.groups import GroupOverview
from rocketq.admin.survey import Answers
from rocketq.console.health import Facts, Level, problems
from rocketq.console.metric_lines import Sample
from rocketq.console.observer import Observation
from rocketq.model import GroupKind
from rocketq.protocol.documents.broker import BrokerStatistics
from rocketq.protocol.documents.groups import GroupSettings

FINE = BrokerStatistics("a", False, 0, 10, 10, 10, 10, 0, 1, 0, 1, 1, 9, 1_000, 900)
GROUP = GroupOverview("g", GroupKind.CONSUMERS, 1, ("t",), ("a",), GroupSettings())


def facts(
    *, statistics: BrokerStatistics = FINE, lag: int = 0, age_ms: float = 0, letters: int = 0,
    gauges: dict[str, int] | None = None, group: GroupOverview = GROUP,
) -> Facts:  # fmt: skip
    sample = Sample(
        gauges=gauges or {}, lags={("g", "t"): lag}, ages_ms={("g", "t"): age_ms}, letters={"g": letters}
    )
    return Facts({}, "", Answers({"a": statistics}), {}, (group,), Observation(0, 0, {"a": sample}))


def told(given: Facts) -> list[str]:
    return [each.what for each in problems(given)]


def test_a_healthy_cluster_needs_nobody() -> None:
    assert told(facts()) == []
    assert told(facts(lag=1_000, age_ms=59_999)) == [], "a group that keeps up has a lag, too"


def test_a_group_lags_by_the_age_of_its_oldest_message() -> None:
    assert told(facts(lag=1, age_ms=60_000)) == ["Group g lags"]
    without = facts(lag=1, age_ms=60_000, group=replace(GROUP, members=0))
    assert told(without) == ["Group g has no member"]
    spark = facts(lag=1, age_ms=60_000, group=replace(GROUP, members=0, kind=GroupKind.SPARK))
    assert told(spark) == ["Group g lags"], "a query of Spark has no members"


def with_changes(**changes: Any) -> BrokerStatistics:
    return msgspec.structs.replace(FINE, **changes)


def test_brokers_tell_of_their_own_troubles() -> None:
    assert told(facts(statistics=with_changes(draining=True))) == ["Broker a drains"]
    assert told(facts(statistics=with_changes(disk_free_bytes=99))) == ["The disk of a is nearly full"]
    assert told(facts(statistics=with_changes(clock_doubt="step"))) == ["Broker a doubts its wall clock"]
    assert told(facts(gauges={"troubles": 1})) == ["Background work fails on a"]
    assert told(facts(statistics=with_changes(index_holes=1))) == ["Parts of the log of a cannot be read"]


def test_what_is_stuck_is_named() -> None:
    assert told(facts(gauges={"parked_transactions": 2})) == ["2 transactions wait for a decision"]
    assert told(facts(gauges={"pending_batches": 1})) == ["1 batch of a sink is not published everywhere"]
    assert told(facts(letters=1)) == ["Group g has new dead letters"]


def test_what_stops_messages_comes_first() -> None:
    bad = replace(
        facts(lag=1, age_ms=99_999),
        statistics=Answers({"a": FINE}, {"b": "timed out"}), away={"c": 1},
        nameservers_down={"http://x": "refused"},
    )  # fmt: skip
    found = problems(bad)
    assert [each.level for each in found] == [Level.CRITICAL] * 2 + [Level.WARNING] * 2
    assert {each.what for each in found[:2]} == {"Broker b does not answer", "Broker c is away"}
    nobody = replace(facts(), nameservers="No NameServer answered.", statistics=Answers({}))
    assert told(nobody) == ["No NameServer answers", "No broker is registered"]
