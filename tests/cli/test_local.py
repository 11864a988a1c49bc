"""`up` goes on when a server dies; `status`, `down`, `drain`, `export` and `bench` do what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rocketq import LocalCluster, Message
from rocketq.local_cluster.up_file import find_up, kept_up
from tests.support.command_line import rocketq
from tests.support.patience import PatientClient

ROCKETQ = [sys.executable, "-m", "rocketq.cli.main"]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`rocketq up` in tmp_path/data, when it has said that it is up."""
    command = [*ROCKETQ, "up", "--data-dir", str(tmp_path / "data"), "--brokers", "2"]
    process = subprocess.Popen(
        [*command, "--nameserver-port", "0", "--broker-port", "0"], stderr=subprocess.PIPE, text=True
    )
    said_until(process, "Ctrl-C stops it.")
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)


def said_until(process: subprocess.Popen[str], end: str) -> str:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if end in line:
            return said
    raise AssertionError(said)


def server_pid(data: Path, name: str) -> int:
    """The process that locks the broker's directory is its child of that name."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(data / name).encode() in words:
                return int(entry.name)
    raise AssertionError(name)


def test_the_others_go_on_when_a_server_dies(up: subprocess.Popen[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    ready = rocketq("status", "--data-dir", str(data), "-o", "json")
    assert ready.code == 0
    assert [row["state"] for row in ready.json] == ["ready"] * 3
    os.kill(server_pid(data, "broker-a"), signal.SIGKILL)
    said = said_until(up, "To start it again")
    assert "broker-a ended with exit code -9" in said
    assert f"--data-dir {data}/broker-a" in said
    seen = rocketq("status", "--data-dir", str(data), "-o", "json")
    assert seen.code == 10
    states = {row["server"]: row["state"] for row in seen.json}
    assert states["nameserver-1"] == states["broker-b"] == "ready"
    assert states["broker-a"].startswith("does not answer")
    downed = rocketq("down", "--data-dir", str(data))
    assert downed.code == 0, downed.err
    up.communicate(timeout=120)
    assert up.returncode == 1, "a server had died"


def test_down_stops_what_up_keeps_and_nothing_else(up: subprocess.Popen[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    downed = rocketq("down", "--data-dir", str(data), "-o", "json")
    assert {row["server"] for row in downed.json} == {"nameserver-1", "broker-a", "broker-b"}
    up.communicate(timeout=120)
    assert up.returncode == 0
    for command in ("down", "status"):
        again = rocketq(command, "--data-dir", str(data))
        assert again.code == 3
        assert "nothing is up" in again.err


def test_a_leftover_of_a_killed_up_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(json.dumps({"pid": os.getpid(), "servers": {}}))
    assert find_up(tmp_path) is None
    with kept_up(tmp_path, {"broker-a": "http://a"}):
        found = find_up(tmp_path)
        assert found is not None
        assert (found.pid, found.servers) == (os.getpid(), {"broker-a": "http://a"})
    assert find_up(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def test_a_drained_broker_gets_no_sends_until_it_resumes(own: LocalCluster) -> None:
    address = ("-s", own.nameservers[0])
    with PatientClient(own.nameservers) as mq:
        mq.create_topic("drained", queues=1)
    look = rocketq("broker", "drain", "broker-a", "--dry-run", *address, "-o", "json").json
    assert look[0]["draining"] is False
    drained = rocketq("broker", "drain", "broker-a", *address, "-o", "json")
    assert drained.json[0]["draining"] is True
    rows = rocketq("broker", "list", *address, "-o", "jsonl").rows
    assert {row["broker"]: row["draining"] for row in rows} == {
        "broker-a": True,
        "broker-b": False,
    }
    sent = rocketq("produce", "drained", *address, "-o", "json", stdin="a\nb\n")
    assert sent.code == 0, sent.err
    with PatientClient(own.nameservers) as mq:
        described = mq.describe_topic("drained")
    assert {name: sum(q.max for q in each.queues) for name, each in described.items()} == {
        "broker-a": 0,
        "broker-b": 2,
    }
    resumed = rocketq("broker", "resume", "broker-a", *address, "-o", "json")
    assert resumed.json[0]["draining"] is False
    by_routes = rocketq("broker", "drain", "broker-b", "--routes", *address, "-o", "json")
    assert by_routes.json[0]["topics"] >= 1
    assert rocketq("broker", "drain", "broker-x", *address).code != 0


def test_an_export_has_what_the_topic_holds_and_comes_back(own: LocalCluster, tmp_path: Path) -> None:
    address = ("-s", own.nameservers[0])
    with PatientClient(own.nameservers) as mq, mq.producer() as producer:
        mq.create_topic("exported", queues=2)
        made = [Message(b"%d" % n, key=b"k-%d" % n, tag="odd" if n % 2 else None) for n in range(500)]
        producer.send_batch("exported", [*made, Message(b"\xff\xfe", properties={"a": "1"})])
    parquet, lines = tmp_path / "e.parquet", tmp_path / "e.jsonl"
    assert rocketq("export", "exported", parquet, *address, "-o", "json").json[0]["messages"] == 501
    table = pq.read_table(parquet)
    assert sorted(table["body"].to_pylist()) == sorted([each.body for each in made] + [b"\xff\xfe"])
    assert set(table["topic"].to_pylist()) == {"exported"}
    assert rocketq("export", "exported", tmp_path / "odd.parquet", "--tags", "odd", *address).code == 0
    assert pc.unique(pq.read_table(tmp_path / "odd.parquet")["tag"]).to_pylist() == ["odd"]
    assert rocketq("export", "exported", lines, *address).code == 0
    back = rocketq("produce", "imported", "--jsonl", "--keep-order", *address, stdin=lines.read_text())
    assert back.code == 0, back.err
    assert rocketq("export", "imported", tmp_path / "i.parquet", *address).code == 0
    copied = pq.read_table(tmp_path / "i.parquet")
    for column in ("body", "key", "tag"):
        assert sorted(map(repr, copied[column].to_pylist())) == sorted(map(repr, table[column].to_pylist()))
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_an_export_that_cannot_be_leaves_files_as_they_were(own: LocalCluster, tmp_path: Path) -> None:
    address = ("-s", own.nameservers[0])
    file = tmp_path / "old.jsonl"
    file.write_text("kept")
    assert rocketq("export", "exported", file, *address).code == 2
    assert rocketq("export", "exported", tmp_path / "x.csv", *address).code == 2
    assert rocketq("export", "no-such-topic", file, "--replace", *address).code == 3
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.jsonl", "kept")]


def test_a_bench_measures_all_three_and_leaves_no_topic(own: LocalCluster) -> None:
    address = ("-s", own.nameservers[0])
    done = rocketq("bench", "--messages", "2500", "--singles", "10", *address, "-o", "json")
    rows = {row["measure"]: row for row in done.json}
    assert [row["messages"] for row in rows.values()] == [2500, 2500, 10]
    assert rows["send one by one"]["p50_ms"] > 0
    assert rows["consume"]["p50_ms"] is None
    with PatientClient(own.nameservers) as mq:
        assert not [name for name in mq.topics() if name.startswith("bench-")]
