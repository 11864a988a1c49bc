"""The exactly-once sink over HTTP: brokers that stage, decide, publish, stop and come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketq.clock import ManualClock
from rocketq.errors.sink_errors import (
    NotCoordinator,
    SinkBusy,
    SinkFenced,
    SinkNotFound,
    SinkQueryChanged,
    StageNotFound,
)
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.sinks import (
    CheckBatchRequest,
    CommitBatchRequest,
    CommitOutcome,
    Participant,
    StageName,
)
from tests.support.conditions import wait_until
from tests.support.http_client import ARROW, JSON, Http, numbered, stream
from tests.support.sink_cluster import (
    SinkCluster,
    commit,
    known_address,
    look_later,
    stage,
    stages,
)


def test_a_batch_on_two_brokers_is_published_when_it_is_committed_and_once(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"1", b"2"]), stage(b, [b"3"])]
        stage(a, [b"an attempt that failed"])
        stage(b, [b"one whose answer was lost"])
        assert cluster.bodies() == [[], []]
        answer = commit(a.api, 0, *parts)
        assert (answer.outcome, answer.unsettled) == (CommitOutcome.COMMITTED, ())
        assert cluster.bodies() == [[b"1", b"2"], [b"3"]]
        again = commit(a.api, 0, *parts)
        assert (again.outcome, again.unsettled) == (CommitOutcome.ALREADY_COMMITTED, ())
        assert cluster.bodies() == [[b"1", b"2"], [b"3"]]
        told = a.api.sink("etl")
        assert (told.decided, told.run, told.query, told.pending, told.stages) == (
            0, "run-1", "query-1", (), (),
        )  # fmt: skip


def test_a_participant_that_is_down_at_the_commit_publishes_when_it_is_back(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2, sink_commit_wait_ms=100) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        first = [stage(a, [b"a0"]), stage(b, [b"b0"])]
        second = [stage(b, [b"b1"], batch=1), stage(a, [b"a1"], batch=1)]
        b.stop()
        answer = commit(a.api, 0, *first)
        assert answer.outcome is CommitOutcome.COMMITTED
        assert "b" in answer.unsettled
        assert "b" in commit(a.api, 1, *second).unsettled

        def waits_for_b_alone() -> bool:
            pending = a.api.sink("etl").pending
            left = [(each.batch, each.brokers) for each in pending]
            return left == [(0, ("b",)), (1, ("b",))] and "b" in pending[0].problem

        wait_until(waits_for_b_alone)
        assert a.bodies("t") == [b"a0", b"a1"]
        assert commit(a.api, 0, *first).outcome is CommitOutcome.ALREADY_COMMITTED
        b.start()
        wait_until(lambda: not a.api.sink("etl").pending)
        assert cluster.bodies() == [[b"a0", b"a1"], [b"b0", b"b1"]]


def test_a_coordinator_restarted_after_its_decision_goes_on(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2, sink_commit_wait_ms=0) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a0"]), stage(b, [b"b0"])]
        b.stop()
        commit(a.api, 0, *parts)
        a.stop()
        b.start()
        assert b.bodies("t") == []
        a.start()
        wait_until(lambda: not a.api.sink("etl").pending)
        assert cluster.bodies() == [[b"a0"], [b"b0"]]
        assert commit(a.api, 0, *parts).outcome is CommitOutcome.ALREADY_COMMITTED


def test_only_the_newest_run_decides_and_a_batch_is_decided_once(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin(run="run-1")
        old = stage(a, [b"of a writer believed dead"])
        cluster.begin(run="run-2")
        new = stage(b, [b"of its successor"], run="run-2")
        with pytest.raises(SinkFenced) as raised:
            commit(a.api, 0, old)
        assert raised.value.facts["current"] == "run-2"
        with pytest.raises(SinkFenced):
            a.api.begin_run("etl", "run-1", "query-1")
        assert commit(a.api, 0, new, run="run-2").outcome is CommitOutcome.COMMITTED
        assert commit(a.api, 0, old).outcome is CommitOutcome.ALREADY_COMMITTED
        assert cluster.bodies() == [[], [b"of its successor"]]
        assert a.api.begin_run("etl", "run-2", "query-1").decided == 0
        assert a.api.abort_batch("etl", 0, "run-2").is_decided
        assert not a.api.abort_batch("etl", 1, "run-2").is_decided
        with pytest.raises(SinkFenced):
            commit(a.api, 1, stage(a, [b"after an abort"], 1, "run-2"), run="run-2")


def test_another_query_needs_another_sink_or_a_reset(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 1) as cluster:
        [a] = cluster.nodes
        cluster.begin()
        commit(a.api, 0, stage(a, [b"first"]))
        with pytest.raises(SinkQueryChanged):
            a.api.begin_run("etl", "run-2", "query-2")
        assert a.api.reset_sink("etl").decided is None
        assert a.api.begin_run("etl", "run-2", "query-2").decided is None
        commit(a.api, 0, stage(a, [b"second"], run="run-2"), run="run-2", query="query-2")
        assert cluster.bodies() == [[b"first", b"second"]]


def test_a_commit_fails_undecided_if_a_participant_lost_its_disk(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a0"]), stage(b, [b"b0"])]
        b.stop()
        shutil.rmtree(tmp_path / "b")
        b.start()
        b.api.create_topic("t", CreateTopicRequest(2, 2))
        wait_until(lambda: known_address(cluster, "b") == b.api.address)
        with pytest.raises(StageNotFound) as raised:
            commit(a.api, 0, *parts)
        assert raised.value.facts["broker"] == "b"
        assert a.api.sink("etl").decided is None
        again = [stage(a, [b"a0"]), stage(b, [b"b0"])]
        assert commit(a.api, 0, *again).outcome is CommitOutcome.COMMITTED
        assert cluster.bodies() == [[b"a0"], [b"b0"]]


def test_a_broker_that_does_not_coordinate_says_who_does(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        _, b = cluster.nodes
        with pytest.raises(SinkNotFound):
            b.api.sink("etl")
        with pytest.raises(SinkNotFound):
            b.api.begin_run("etl", "run-1")
        cluster.begin()
        # Staging teaches a broker who decides.
        part = stage(b, [b"x"])
        assert b.api.sink("etl").coordinator == "a"
        assert b.api.register_sink("etl", "b").coordinator == "a"
        for call in (
            lambda: b.api.begin_run("etl", "run-1"),
            lambda: commit(b.api, 0, part),
            lambda: b.api.abort_batch("etl", 0, "run-1"),
            lambda: b.api.check_batch("etl", 0, CheckBatchRequest("run-1", "b")),
        ):
            with pytest.raises(NotCoordinator) as raised:
                call()
            assert raised.value.coordinator == "a"


# --- stages that nobody decides ---------------------------------------------------------------


def test_a_quiet_stage_is_dropped_only_when_its_run_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    with SinkCluster(tmp_path, 2, clock) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        for node in (a, b):
            stage(node, [b"of a driver that died"])
        look_later(cluster, clock, 30_000)
        assert stages(cluster) == [1, 1]
        cluster.begin(run="run-2")
        look_later(cluster, clock, 29_000)
        assert stages(cluster) == [1, 1], "it was asked about not long ago"
        look_later(cluster, clock, 1_000)
        wait_until(lambda: stages(cluster) == [0, 0])
        assert cluster.bodies() == [[], []]


def test_a_stage_undecided_for_hours_is_dropped_and_cannot_be_decided(tmp_path: Path) -> None:
    clock = ManualClock()
    with SinkCluster(tmp_path, 2, clock) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a"]), stage(b, [b"b"])]
        look_later(cluster, clock, 6 * 3600 * 1000 - 1)
        assert stages(cluster) == [1, 1]
        look_later(cluster, clock, 30_000)
        wait_until(lambda: stages(cluster) == [0, 0])
        with pytest.raises(SinkFenced):
            commit(a.api, 0, *parts)


def test_a_clock_that_steps_forward_gives_no_stage_up(tmp_path: Path) -> None:
    clock = ManualClock()
    with SinkCluster(tmp_path, 2, clock) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a"]), stage(b, [b"b"])]
        clock.step(10 * 24 * 3600 * 1000)
        look_later(cluster, clock, 60_000)
        assert stages(cluster) == [1, 1]
        assert commit(a.api, 0, *parts).outcome is CommitOutcome.COMMITTED


def test_a_check_back_publishes_decided_frames_and_drops_late_ones(tmp_path: Path) -> None:
    clock = ManualClock()
    with SinkCluster(tmp_path, 2, clock, sink_commit_wait_ms=0, sink_retry_ms=60_000) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a"]), stage(b, [b"b"])]
        b.stop()
        commit(a.api, 0, *parts)
        wait_until(lambda: a.app.broker.publisher.calls == 0)
        b.start()
        look_later(cluster, clock, 29_999)
        assert b.bodies("t") == [], "the coordinator tries again after a minute"
        look_later(cluster, clock, 1)
        wait_until(lambda: b.bodies("t") == [b"b"])
        for node in (a, b):
            stage(node, [b"an attempt that was slower than the commit"])
        look_later(cluster, clock, 30_000)
        wait_until(lambda: stages(cluster) == [0, 0])
        assert cluster.bodies() == [[b"a"], [b"b"]]


def test_a_stage_is_kept_while_its_coordinator_cannot_be_reached(tmp_path: Path) -> None:
    clock = ManualClock()
    with SinkCluster(tmp_path, 2, clock) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        part = stage(b, [b"b"])
        a.stop()
        clock.advance(7 * 3600 * 1000)
        b.app.broker.publisher.look()
        a.start()
        assert len(b.api.sink("etl").stages) == 1
        assert commit(a.api, 0, part).outcome is CommitOutcome.COMMITTED
        assert b.bodies("t") == [b"b"]


# --- operators -----------------------------------------------------------------------------------


def test_a_sink_is_deleted_with_its_stages_unless_a_decision_is_pending(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2, sink_commit_wait_ms=0) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a"]), stage(b, [b"b"])]
        b.stop()
        commit(a.api, 0, *parts)
        for call in (a.api.reset_sink, a.api.delete_sink):
            with pytest.raises(SinkBusy):
                call("etl")
        a.api.delete_sink("etl", force=True)
        b.start()
        b.api.delete_sink("etl")
        for node in (a, b):
            assert node.api.sinks().sinks == ()
        assert b.bodies("t") == []


def test_what_is_pending_and_staged_is_among_the_metrics(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2, sink_commit_wait_ms=0) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = [stage(a, [b"a"]), stage(b, [b"b" * 100])]
        shown = Http(b.api.address).get("/metrics").body.decode()
        assert "rocketq_sink_stages 1.0" in shown
        staged = next(line for line in shown.splitlines() if line.startswith("rocketq_sink_staged_bytes "))
        assert float(staged.split()[1]) > 100
        b.stop()
        commit(a.api, 0, *parts)
        shown = Http(a.api.address).get("/metrics").body.decode()
        assert "rocketq_sink_pending_decisions 1.0" in shown


@pytest.mark.parametrize(
    ("query", "headers", "where"),
    [
        ("?queue=0&sink=s&batch=0&run=r", ARROW, "parameter coordinator"),
        ("?queue=0&sink=s&batch=-1&run=r&coordinator=a", ARROW, "parameter batch"),
        ("?queue=0&sink=s&batch=0&run=r&coordinator=a", JSON, "content-type"),
    ],
)
def test_a_staged_send_that_makes_no_sense_is_refused(
    broker: Http, query: str, headers: dict[str, str], where: str
) -> None:
    body = stream(numbered(1)) if headers is ARROW else b'{"messages": [{"body": "x"}]}'
    answer = broker.send("orders", body, query, headers)
    assert (answer.status, answer.json["facts"]["where"]) == (400, where)
    assert broker.send("orders", stream(numbered(1)), "?sink=a/b&batch=0&run=r&coordinator=a").code == (
        "INVALID_NAME"
    )
    assert broker.get("/v1/sinks").json["sinks"] == []
    assert broker.call("POST", "/v1/sinks/s/batches/x/abort", b'{"run": "r"}', JSON).code == "INVALID_REQUEST"


def test_a_batch_of_very_many_frames_is_committed_in_one_call(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        answers = [
            b.api.stage(StageName("etl", 0, "run-1", "a"), "t", [0], stream(*[numbered(1, n)] * 400))
            for n in range(3)
        ]
        # A hundred thousand strangers: more than a control call may have, and than the broker has.
        many = Participant("b", tuple(range(8, 800_008, 8)), 100_000)
        with pytest.raises(StageNotFound):
            a.api.commit_batch("etl", 0, CommitBatchRequest("run-1", (many,), "query-1"))
        assert commit(a.api, 0, *answers).outcome is CommitOutcome.COMMITTED
        assert b.bodies("t") == [b"message %d" % n for n in range(3) for _ in range(400)]
