"""The exactly-once sink over HTTP: brokers that stage, decide, publish, stop and come back."""

from __future__ import annotations

from pathlib import Path

import pytest  # noqa: F401

from rocketq.protocol.sinks import CommitOutcome
from tests.broker.sink_cluster import SinkCluster, commit, stage


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
