"""What brokers refuse of a sink: wrong numbers, brokers that are unknown, and what is not decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.clock import ManualClock
from rocketq.errors.sink_errors import (
    BatchAlreadyDecided,
    BatchDiffers,
    BatchNotDecided,
    CoordinatorUnreachable,
    NotCoordinator,
    ParticipantUnknown,
)
from rocketq.model import Message
from rocketq.net.broker_api import BrokerApi
from rocketq.protocol.documents.sinks import (
    CommitBatchAnswer,
    CommitBatchRequest,
    CommitOutcome,
    OnDecided,
    Participant,
    PublishBatchRequest,
    StagedAnswer,
    StageName,
)
from tests.support.conditions import wait_until
from tests.support.http_client import Http, stream
from tests.support.sink_cluster import (
    SinkCluster,
    commit,
    look_later,
    participants,
    stage,
    stages,
)


def publication(answer: StagedAnswer, coordinator: str = "", batch: int = 0) -> PublishBatchRequest:
    """The call by which a coordinator has a participant publish what it staged."""
    [part] = participants(answer)
    return PublishBatchRequest(batch, "run-1", part.frames, part.messages, coordinator=coordinator)


def recommit(
    api: BrokerApi, batch: int, rows: dict[str, int], on_decided: OnDecided = OnDecided.FAIL
) -> CommitBatchAnswer:
    """Commit a batch of which the tasks only counted the rows, since it is decided."""
    api.begin_run("etl", "run-2", "query-1")
    request = CommitBatchRequest("run-2", (), "query-1", rows, on_decided)
    return api.commit_batch("etl", batch, request)


# --- numbers that went back ----------------------------------------------------------------------


def test_a_repeated_batch_succeeds_only_with_the_rows_that_were_decided(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        parts = participants(stage(a, [b"1", b"2"]), stage(b, [b"3"]))
        request = CommitBatchRequest("run-1", parts, "query-1", {"t": 3})
        assert a.api.commit_batch("etl", 0, request).decided == 0
        a.stop()
        a.start()
        assert recommit(a.api, 0, {"t": 3}).outcome is CommitOutcome.ALREADY_COMMITTED
        with pytest.raises(BatchDiffers, match="by topic: t 3 then and 4 now"):
            recommit(a.api, 0, {"t": 4})
        assert cluster.bodies() == [[b"1", b"2"], [b"3"]]


def test_rows_that_were_staged_for_a_refused_batch_are_never_seen(tmp_path: Path) -> None:
    clock = ManualClock()
    with SinkCluster(tmp_path, 1, clock) as cluster:
        [a] = cluster.nodes
        cluster.begin()
        for batch in range(4):
            commit(a.api, batch, stage(a, [b"%d" % batch], batch))
        # The checkpoint is set back to batch 1, whose rows are others now.
        a.api.begin_run("etl", "run-2", "query-1")
        late = stage(a, [b"new"], 1, run="run-2")
        with pytest.raises(BatchAlreadyDecided, match="decided batches up to 3"):
            commit(a.api, 1, late, run="run-2")
        assert stages(cluster) == [1]
        look_later(cluster, clock, 30_000)
        wait_until(lambda: stages(cluster) == [0])
        assert a.bodies("t") == [b"0", b"1", b"2", b"3"]
        assert a.api.sink("etl").decided == 3


def test_what_is_skipped_is_answered_and_counted(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 1) as cluster:
        [a] = cluster.nodes
        cluster.begin()
        commit(a.api, 7, stage(a, [b"7"], 7))
        for batch, rows in ((2, 10), (7, 5)):
            answer = recommit(a.api, batch, {"t": rows}, OnDecided.SKIP)
            assert (answer.outcome, answer.decided) == (CommitOutcome.SKIPPED, 7)
        shown = Http(a.api.address).get("/metrics").body.decode()
        assert "rocketq_sink_batches_skipped_total 2.0" in shown
        assert "rocketq_sink_rows_skipped_total 15.0" in shown
        assert a.bodies("t") == [b"7"]


# --- brokers that do not exist -------------------------------------------------------------------


def test_a_commit_that_names_an_unknown_broker_decides_nothing(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 1) as cluster:
        [a] = cluster.nodes
        cluster.begin()
        answer = stage(a, [b"x"])
        parts = (*participants(answer), Participant("nobody", (8,), 1))
        with pytest.raises(ParticipantUnknown, match="no NameServer lists it as alive") as raised:
            a.api.commit_batch("etl", 0, CommitBatchRequest("run-1", parts, "query-1"))
        assert raised.value.facts["broker"] == "nobody"
        assert a.api.sink("etl").decided is None
        assert a.bodies("t") == []
        assert commit(a.api, 0, answer).outcome is CommitOutcome.COMMITTED


def test_a_restarted_coordinator_knows_the_brokers_of_earlier_batches(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2, sink_commit_wait_ms=0) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        commit(a.api, 0, stage(b, [b"0"]))
        wait_until(lambda: not a.api.sink("etl").pending)
        part = stage(b, [b"1"], 1)
        b.stop()
        a.stop()
        a.start()
        assert commit(a.api, 1, part).unsettled == ("b",)
        b.start()
        wait_until(lambda: b.bodies("t") == [b"0", b"1"])


# --- publications that nobody decided ---------------------------------------------------------------


def test_a_frame_is_published_only_when_its_coordinator_has_decided_it(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        answers = [stage(a, [b"a0"]), stage(b, [b"b0"])]
        for node, answer in zip((a, b), answers, strict=True):
            for named in ("", "a"):
                with pytest.raises(BatchNotDecided, match="a, which coordinates the sink, has not decided"):
                    node.api.publish_batch("etl", publication(answer, named))
        assert cluster.bodies() == [[], []]
        commit(a.api, 0, *answers)
        for node, answer in zip((a, b), answers, strict=True):
            node.api.publish_batch("etl", publication(answer))
        assert cluster.bodies() == [[b"a0"], [b"b0"]]


def test_a_participant_publishes_nothing_that_it_cannot_ask_about(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        answer = stage(b, [b"b0"])
        a.stop()
        with pytest.raises(CoordinatorUnreachable, match="Broker a, which coordinates sink 'etl'"):
            b.api.publish_batch("etl", publication(answer, "a"))
        assert b.bodies("t") == []
        a.start()
        assert commit(a.api, 0, answer).unsettled == ()
        assert b.bodies("t") == [b"b0"]


# --- two coordinators ----------------------------------------------------------------------------


def test_a_broker_takes_part_for_one_coordinator_of_a_sink_only(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        for node in (a, b):
            node.api.register_sink("etl", node.config.name)
            node.api.begin_run("etl", "run-1", "query-1")
        body = stream([Message(b"b0")])
        with pytest.raises(NotCoordinator) as raised:
            b.api.stage(StageName("etl", 0, "run-1", "a"), "t", [0], body)
        assert raised.value.coordinator == "b"
        answer = b.api.stage(StageName("etl", 0, "run-1", "b"), "t", [0], body)
        # What is staged for one of them the other can neither decide nor have published.
        with pytest.raises(NotCoordinator) as raised:
            commit(a.api, 0, stage(a, [b"a0"]), answer)
        assert (raised.value.facts["broker"], raised.value.coordinator) == ("b", "b")
        assert a.api.sink("etl").decided is None
        with pytest.raises(NotCoordinator):
            b.api.publish_batch("etl", publication(answer, "a"))
        assert cluster.bodies() == [[], []]


def test_an_operator_who_keeps_one_coordinator_loses_nothing_of_it(tmp_path: Path) -> None:
    with SinkCluster(tmp_path, 2) as cluster:
        a, b = cluster.nodes
        cluster.begin()
        b.api.register_sink("etl", "b")
        commit(a.api, 0, stage(a, [b"a0"]))
        with pytest.raises(NotCoordinator):
            stage(b, [b"b1"], 1)
        b.api.delete_sink("etl")
        commit(a.api, 1, stage(a, [b"a1"], 1), stage(b, [b"b1"], 1))
        assert cluster.bodies() == [[b"a0", b"a1"], [b"b1"]]
        assert b.api.sink("etl").coordinator == "a"
