"""The command line as scripts use it: data on stdout, the rest on stderr, and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from rocketq import LocalCluster
from rocketq.admin.live_masters import LiveMasters
from rocketq.cli.main import main
from rocketq.model import Message
from rocketq.net.route_cache import RouteCache
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.sinks import CommitBatchRequest, StageName
from rocketq.protocol.message_schema import from_messages
from tests.support.command_line import all_commands, leaves
from tests.support.patience import PatientClient, patient_transport


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left: its exit code and both of its outputs."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs `rocketq` against one cluster: in this process, or where a test wants that in one of its own."""

    def __init__(self, nameservers: list[str]) -> None:
        self._nameservers = ",".join(nameservers)

    def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        """Call the entry point with pipes for stdin, stdout and stderr."""
        given, out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(3))
        given.buffer.write(stdin.encode())
        given.seek(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROCKETQ_NAMESERVERS", self._nameservers)
            for name, stream in (("stdin", given), ("stdout", out), ("stderr", err)):
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
        written = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return Ran(int(ended.value.code or 0), *written)

    def process(self, *arguments: str) -> Ran:
        """Run the command in a process of its own."""
        command = [sys.executable, "-m", "rocketq.cli.main", *arguments]
        env = {**os.environ, "ROCKETQ_NAMESERVERS": self._nameservers}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=540, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def rocketq(cluster: LocalCluster) -> Shell:
    return Shell(cluster.nameservers)


@pytest.fixture
def nowhere() -> Shell:
    return Shell(["http://127.0.0.1:9"])


PATHS: Final = [path for path, _ in leaves(all_commands())]


@pytest.mark.parametrize("path", [path for path in PATHS if path[-1] != "run"], ids=" ".join)
def test_every_command_explains_itself_with_examples(path: tuple[str, ...]) -> None:
    done = Shell([])(*path, "--help")
    assert done.code == 0
    assert f"rocketq {' '.join(path)}" in done.out.split("Examples:", 1)[1]


def test_the_clocks_of_brokers_can_be_looked_at_and_agreed_to(rocketq: Shell, cluster: LocalCluster) -> None:
    name = next(iter(cluster.brokers))
    shown = rocketq("broker", "clock", "-o", "jsonl")
    assert {row["broker"] for row in shown.lines} == set(cluster.brokers)
    assert [row["doubt"] for row in shown.lines] == [""] * len(cluster.brokers)
    agreed = rocketq("broker", "clock", name, "--agree", "-o", "jsonl")
    assert (agreed.code, [row["broker"] for row in agreed.lines]) == (0, [name])
    assert rocketq("broker", "clock", "--agree").code == 2
    assert rocketq("broker", "clock", "nobody").code == 3


def test_a_sink_can_be_listed_described_reset_and_deleted(
    rocketq: Shell, cluster: LocalCluster, topic: str
) -> None:
    with patient_transport() as transport:
        masters = LiveMasters(transport, RouteCache(cluster.nameservers, transport)).apis()
        coordinator, other = masters
        for each in masters:
            each.register_sink(topic, coordinator.broker)
        coordinator.begin_run(topic, "run-1", "query-1")
        coordinator.commit_batch(topic, 3, CommitBatchRequest("run-1", (), "query-1"))
        stage = StageName(topic, 4, "run-1", coordinator.broker)
        other.create_topic(topic, CreateTopicRequest(1, 1))
        other.stage(stage, topic, [0], write_stream([from_messages([Message(b"x")] * 5)]))
    [listed] = [row for row in rocketq("sink", "list", "-o", "jsonl").lines if row["sink"] == topic]
    assert (listed["coordinator"], listed["decided"], listed["pending"], listed["staged"]) == (
        coordinator.broker, 3, 0, 5,
    )  # fmt: skip
    described = {row["broker"]: row for row in rocketq("sink", "describe", topic, "-o", "json").json}
    assert described[other.broker]["stages"] == ["4/run-1"]
    assert described[coordinator.broker]["query"] == "query-1"
    assert rocketq("sink", "reset", topic, stdin="another\n").code != 0
    assert rocketq("sink", "reset", topic, "--yes").code == 0
    assert rocketq("sink", "describe", topic, "-o", "json").json[0]["decided"] is None
    assert rocketq("sink", "delete", topic, stdin=f"{topic}\n").code == 0
    assert rocketq("sink", "describe", topic).code == 3


def test_a_sink_with_two_coordinators_is_forgotten_where_one_is_wrong(
    rocketq: Shell, cluster: LocalCluster, topic: str
) -> None:
    with patient_transport() as transport:
        one, other = LiveMasters(transport, RouteCache(cluster.nameservers, transport)).apis()
        for each in (one, other):
            each.register_sink(topic, each.broker)
        one.begin_run(topic, "run-1")
        one.commit_batch(topic, 3, CommitBatchRequest("run-1", ()))
        refused = rocketq("sink", "reset", topic, "--yes")
        assert refused.code != 0
        assert f"{one.broker} says {one.broker}, {other.broker} says {other.broker}" in refused.err
        assert "--broker NAME" in refused.err
        assert "name different coordinators" in rocketq("sink", "describe", topic).err
        wrong = rocketq("sink", "delete", topic, "--yes", "--broker", "nobody")
        assert wrong.code != 0
        assert f"{one.broker}, {other.broker} know it" in wrong.err
        assert rocketq("sink", "delete", topic, "--yes", "--broker", other.broker).code == 0
        assert rocketq("sink", "describe", topic, "-o", "json").json[0]["decided"] == 3
        assert rocketq("sink", "reset", topic, "--yes").code == 0
        assert rocketq("sink", "delete", topic, "--yes").code == 0


def test_a_topic_can_be_created_described_altered_listed_and_deleted(rocketq: Shell, topic: str) -> None:
    created = rocketq("topic", "create", topic, "--queues", "3", "--retention", "7d", "-o", "json")
    assert created.code == 0, created.err
    assert [(row["broker"], row["write_queues"], row["retention_ms"]) for row in created.json] == [
        ("broker-a", 3, 604_800_000),
        ("broker-b", 3, 604_800_000),
    ]
    assert len(rocketq("topic", "describe", topic, "-o", "jsonl").lines) == 6
    altered = rocketq("topic", "alter", topic, "--queues", "5", "--perm", "r", "-o", "json")
    assert {(row["read_queues"], row["perm"]) for row in altered.json} == {(5, "r")}
    assert topic in {row["topic"] for row in rocketq("topic", "list", "-o", "jsonl").lines}
    assert rocketq("topic", "delete", topic, "--yes").code == 0
    assert topic not in {row["topic"] for row in rocketq("topic", "list", "-o", "jsonl").lines}


def test_the_route_of_a_topic_shows_its_brokers_and_those_that_are_away(
    rocketq: Shell, cluster: LocalCluster, topic: str
) -> None:
    assert rocketq("topic", "create", topic, "--queues", "3", "--perm", "r").code == 0
    rows = rocketq("topic", "route", topic, "-o", "json").json
    assert [(row["broker"], row["read_queues"], row["perm"], row["state"]) for row in rows] == [
        ("broker-a", 3, "r", ""),
        ("broker-b", 3, "r", ""),
    ]
    assert [row["master"] for row in rows] == [cluster.brokers["broker-a"], cluster.brokers["broker-b"]]
    absent = rocketq("topic", "route", f"{topic}-no", "-o", "json")
    assert absent.code == 3


def test_the_brokers_of_a_topic_are_chosen_and_shown(rocketq: Shell, topic: str) -> None:
    chosen = rocketq("topic", "create", topic, "--broker", "broker-b", "--cluster", "default", "-o", "json")
    assert [(row["broker"], row["brokers"]) for row in chosen.json] == [("broker-b", ["broker-b"])]
    assert "brokers on record: broker-b\n" in rocketq("topic", "describe", topic).err
    spread = rocketq("topic", "create", topic, "--broker", "broker-a", "--if-absent", "-o", "json")
    assert {tuple(row["brokers"]) for row in spread.json} == {("broker-a", "broker-b")}
    unknown = rocketq("topic", "create", f"{topic}-2", "--broker", "broker-x")
    assert unknown.code == 2
    assert "broker-a (cluster default), broker-b (cluster default)" in unknown.err


def test_a_broker_is_taken_off_a_topic_and_queues_from_its_readers(rocketq: Shell, topic: str) -> None:
    rocketq("topic", "create", topic, "--queues", "2")
    rocketq("produce", topic, "--ordering-key", "k", stdin="a\nb\nc\n")
    [full] = [row for row in rocketq("topic", "describe", topic, "-o", "jsonl").lines if row["messages"]]
    refused = rocketq("topic", "alter", topic, "--remove-broker", full["broker"], "-o", "json")
    assert refused.code == 5
    assert json.loads(refused.err)["facts"]["messages"] == {f"{full['broker']}/{full['queue']}": 3}
    assert rocketq("topic", "alter", topic, "--remove-broker", full["broker"], "--perm", "r").code == 2
    assert rocketq("topic", "alter", topic, "--queues", "2", "--read-queues", "1").code == 2
    shrunk = rocketq("topic", "alter", topic, "--read-queues", "1", "--write-queues", "1", "--force")
    assert shrunk.code == 0
    states = {row["queue"]: row["state"] for row in rocketq("topic", "describe", topic, "-o", "jsonl").lines}
    assert states == {0: "", 1: "not read"}
    removed = rocketq("topic", "alter", topic, "--remove-broker", full["broker"], "--force", "-o", "json")
    (other,) = {"broker-a", "broker-b"} - {full["broker"]}
    assert [(row["broker"], row["brokers"]) for row in removed.json] == [(other, [other])]


def test_creating_a_topic_twice_is_a_conflict_unless_it_may_exist(rocketq: Shell, topic: str) -> None:
    assert rocketq("topic", "create", topic).code == 0
    again = rocketq("topic", "create", topic, "-o", "json")
    assert again.code == 5
    assert json.loads(again.err)["code"] == "CONFLICT"
    assert again.out == ""
    assert rocketq("topic", "create", topic, "--if-absent").code == 0


def test_deleting_a_topic_asks_for_its_name(rocketq: Shell, topic: str) -> None:
    rocketq("topic", "create", topic)
    mistyped = rocketq("topic", "delete", topic, stdin="another\n")
    assert mistyped.code == 1
    assert "'another' is not" in mistyped.err
    assert "Nothing was changed" in mistyped.err
    assert rocketq("topic", "describe", topic).code == 0
    assert rocketq("topic", "delete", topic, stdin=f"{topic}\n").code == 0


def test_what_changes_a_topic_that_is_absent_does_not_advise_to_create_it(rocketq: Shell) -> None:
    for command in (["delete", "nope", "--yes"], ["alter", "nope", "--queues", "8"]):
        refused = rocketq("topic", *command)
        assert refused.code == 3
        assert "rocketq topic list" in refused.err
        assert "Create it" not in refused.err


def test_the_address_of_a_broker_is_refused_as_that_of_a_nameserver(
    rocketq: Shell, cluster: LocalCluster
) -> None:
    broker = next(iter(cluster.brokers.values()))
    for command in (["topic", "list"], ["consume", "orders"]):
        refused = rocketq(*command, "-s", broker)
        assert refused.code == 2
        assert "is no NameServer" in refused.err
        assert "9876" in refused.err


def test_a_port_that_no_system_has_is_refused_before_anything_starts(rocketq: Shell, tmp_path: Path) -> None:
    for given in (["--broker-port", "9999999"], ["--broker-port", "65535"], ["--brokers", "0"]):
        refused = rocketq("up", "--data-dir", str(tmp_path / "data"), "--nameserver-port", "0", *given)
        assert refused.code == 2, given
        assert given[0] in refused.err
    assert not (tmp_path / "data").exists()


def test_lines_go_in_and_come_out_as_they_were(rocketq: Shell, topic: str) -> None:
    lines = ["first", "", "tab\there", "snow ☃", "last without a newline"]
    produced = rocketq("produce", topic, "--ordering-key", "same", stdin="\n".join(lines))
    assert produced.code == 0, produced.err
    assert produced.out == ""
    assert f"sent 5 message(s) to 1 queue(s) of {topic}" in produced.err
    consumed = rocketq("consume", topic)
    assert consumed.out == "\n".join(lines) + "\n"
    assert consumed.err.strip() == "5 message(s)"


def test_a_file_of_many_megabytes_passes_in_order(rocketq: Shell, topic: str) -> None:
    lines = [f"{number:06d} {'x' * 60}" for number in range(50_000)]
    produced = rocketq("produce", topic, "--ordering-key", "k", stdin="\n".join(lines) + "\n")
    assert produced.code == 0, produced.err
    assert rocketq("consume", topic).out.splitlines() == lines


def test_json_lines_carry_key_tag_and_properties(rocketq: Shell, topic: str) -> None:
    rows = [
        {"body": "plain", "key": "k-1", "tag": "paid", "properties": {"region": "eu"}},
        {"body": {"amount": 42}},
    ]
    given = "".join(json.dumps(row) + "\n" for row in rows)
    assert rocketq("produce", topic, "--jsonl", "-p", "host=a", stdin=given).code == 0
    found = {row["key"]: row for row in rocketq("consume", topic, "-o", "jsonl").lines}
    assert found["k-1"]["body"] == "plain"
    assert found["k-1"]["tag"] == "paid"
    assert found["k-1"]["topic"] == topic
    assert json.loads(found[None]["body"]) == {"amount": 42}
    assert len(rocketq("consume", topic, "-o", "json").json) == 2
    assert rocketq("consume", topic, "-o", "json", "--follow").code == 2


def test_json_lines_of_one_ordering_key_go_to_one_queue(rocketq: Shell, topic: str) -> None:
    rows = [
        {"body": str(n), "key": f"o-{n}", "ordering_key": None if n == 60 else f"c-{n % 5}"}
        for n in range(61)
    ]
    given = "".join(json.dumps(row) + "\n" for row in rows)
    assert rocketq("produce", topic, "--jsonl", stdin=given).code == 0
    found = rocketq("consume", topic, "-o", "jsonl").lines
    assert len(found) == 61
    for customer in range(5):
        mine = [row for row in found if int(row["body"]) % 5 == customer and row["body"] != "60"]
        assert len({(row["broker"], row["queue"]) for row in mine}) == 1
        assert [int(row["body"]) for row in mine] == list(range(customer, 60, 5))
    assert {row["key"] for row in found} == {f"o-{n}" for n in range(61)}


def test_selection_by_hash_is_refused_and_names_the_ordering_key(rocketq: Shell, topic: str) -> None:
    refused = rocketq("produce", topic, "-k", "k", "--selection", "hash", stdin="a\n")
    assert refused.code == 2
    assert "--ordering-key" in refused.err
    both = rocketq("produce", topic, "--ordering-key", "k", "--selection", "random", stdin="a\n")
    assert both.code == 2
    assert "--ordering-key" in both.err


@pytest.mark.parametrize("line", ["not json", '"text"', '{"key": "no body"}', '{"body": "b", "colour": 1}'])
def test_a_bad_json_line_is_named_by_its_number(rocketq: Shell, topic: str, line: str) -> None:
    done = rocketq("produce", topic, "--jsonl", stdin='{"body": "good"}\n' + line + "\n")
    assert done.code == 1
    assert "line 2" in done.err


def test_consuming_stops_at_a_count_and_formats_what_is_asked(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, "-k", "k", "-t", "t", "--ordering-key", "o", stdin="a\nb\nc\n")
    done = rocketq("consume", topic, "-n", "2", "-f", "%O|%k|%g|%s|100%%\\n")
    assert done.out == "0|k|t|a|100%\n1|k|t|b|100%\n"


def test_a_group_goes_on_where_it_was_and_its_lag_is_shown(rocketq: Shell, topic: str) -> None:
    rocketq("produce", topic, "--ordering-key", "k", stdin="a\nb\nc\n")
    group = f"group-of-{topic}"
    assert rocketq("consume", topic, "-g", group, "-n", "2").out == "a\nb\n"
    (row,) = [row for row in rocketq("group", "describe", group, "-o", "json").json if row["max"]]
    assert (row["topic"], row["committed"], row["max"], row["lag"]) == (topic, 2, 3, 1)
    assert rocketq("consume", topic, "-g", group).out == "c\n"
    assert rocketq("consume", topic, "-t", "absent", "-g", f"{group}2").out == ""
    assert rocketq("consume", topic, "-g", f"{group}2").out == ""
    assert rocketq("consume", topic, "--sql", "TAGS IS NULL", "-n", "1").out == "a\n"
    wrong = rocketq("consume", topic, "--sql", "amount LIKE 3")
    assert "position 7" in wrong.err
    assert wrong.code != 0
    assert rocketq("consume", topic, "-g", group).out == ""


def test_following_with_a_group_is_being_a_member(rocketq: Shell, cluster: LocalCluster, topic: str) -> None:
    rocketq("produce", topic, "--ordering-key", "k", stdin="a\nb\nc\nd\n")
    group = f"group-of-{topic}"
    assert rocketq("consume", topic, "-g", group, "--follow", "-n", "3").out == "a\nb\nc\n"
    with PatientClient(cluster.nameservers) as mq, mq.consumer(group, topic):
        refused = rocketq("consume", topic, "-g", group)
        assert refused.code != 0
        assert "owned by its members" in refused.err
    done = rocketq("consume", topic, "-g", group, "--follow", "-n", "1", "--sql", "TAGS IS NULL")
    assert done.out == "d\n"


def test_tables_are_plain_when_piped(rocketq: Shell) -> None:
    done = rocketq.process("cluster")
    assert done.code == 0
    header, *rows = done.out.splitlines()
    assert header.split()[:3] == ["NAMESERVER", "CLUSTER", "BROKER"]
    assert {row.split()[2] for row in rows} == {"broker-a", "broker-b"}
    assert "\x1b" not in done.out
    assert done.out.isascii()


def test_a_missing_topic_is_not_found_and_the_nearest_one_is_named(rocketq: Shell, topic: str) -> None:
    rocketq("topic", "create", topic)
    done = rocketq("topic", "describe", topic[:-1])
    assert done.code == 3
    assert topic in done.err
    assert "try:" in done.err
    assert rocketq("group", "describe", "never-seen").code == 3


def test_no_cluster_is_exit_code_4_and_says_how_to_start_one(nowhere: Shell) -> None:
    for arguments in (["cluster"], ["topic", "list"], ["consume", "t"]):
        done = nowhere(*arguments)
        assert done.code == 4, arguments
        assert "rocketq up" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume"],
        ["topic", "alter", "t"],
        ["topic", "create", "t", "--retention", "soon"],
        ["produce", "t", "-p", "novalue"],
        ["frobnicate"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2(nowhere: Shell, arguments: list[str]) -> None:
    assert nowhere(*arguments).code == 2


def test_the_doctor_finds_what_spark_needs(rocketq: Shell) -> None:
    done = rocketq.process("doctor", "-o", "json")
    found = {row["check"]: row for row in done.json}
    assert {"python", "java", "pyspark", "PYSPARK_PYTHON", "pandas", "ports", "disk"} <= set(found)
    assert found["java"]["status"] == "ok"
    assert done.code == (10 if any(row["status"] == "bad" for row in done.json) else 0)


def test_the_doctor_names_a_worker_python_that_cannot_work() -> None:
    env = {**os.environ, "PYSPARK_PYTHON": "/nonexistent/python"}
    done = subprocess.run(
        [sys.executable, "-m", "rocketq.cli.main", "doctor", "-o", "json"], env=env, capture_output=True
    )
    found = {row["check"]: row for row in json.loads(done.stdout)}
    assert found["PYSPARK_PYTHON"]["status"] == "bad"
    assert done.returncode == 10


def test_the_doctor_asks_for_spark_only_where_it_is_wanted(tmp_path: Path) -> None:
    """Run without what is installed beside rocketq's own code and the command line's packages."""
    script = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pyspark' else found(name, *rest)\n"
        "from rocketq.cli.main import main\n"
        "main(sys.argv[1:])"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, "doctor", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    servers_only = run("-o", "json")
    assert servers_only.returncode == 0, servers_only.stdout
    assert {row["status"] for row in json.loads(servers_only.stdout)} <= {"ok", "note"}
    assert "Spark jobs need PySpark" in run().stderr
    assert run("--spark").returncode == 10


def test_a_reader_that_closes_the_pipe_is_no_error(rocketq: Shell, topic: str, cluster: LocalCluster) -> None:
    rocketq("produce", topic, stdin="\n".join("x" * 1_000 for _ in range(5_000)))
    command = f"'{sys.executable}' -m rocketq.cli.main consume {topic} | head -n 1"
    env = {**os.environ, "ROCKETQ_NAMESERVERS": ",".join(cluster.nameservers)}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "x" * 1_000 + "\n"
    assert "Traceback" not in done.stderr


def test_up_shows_addresses_serves_and_ends_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rocketq.cli.main", "up", "--data-dir", str(tmp_path / "data")]
    ports = ["--nameserver-port", "0", "--broker-port", "0", "--allowed-hosts", "a.example,b.example"]
    with subprocess.Popen([*command, *ports], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "Ctrl-C" in line:
                break
        address = next(line.split()[1] for line in said if line.startswith("nameserver-1"))
        shell = Shell([address])
        named = urllib.request.Request(f"{address}/livez", headers={"host": "b.example"})
        with urllib.request.urlopen(named) as answer:
            assert answer.status == 200
        assert shell("produce", "greetings", stdin="hello\n").code == 0
        assert shell("consume", "greetings").out == "hello\n"
        process.terminate()
        rest = process.stderr.read()
        assert process.wait(60) == 0
    assert "the messages are in" in rest
    assert shell("cluster").code == 4


def test_up_refuses_a_port_that_is_taken(cluster: LocalCluster, tmp_path: Path) -> None:
    port = cluster.nameservers[0].rsplit(":", 1)[1]
    done = Shell([])("up", "--nameserver-port", port, "--data-dir", str(tmp_path / "data"))
    assert done.code == 2
    assert f"port {port} cannot be used" in done.err
