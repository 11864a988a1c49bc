"""Damage on the disk of one real broker of a group is healed with the bytes of another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketq import LocalCluster
from rocketq.admin.cluster import ClusterAdmin
from rocketq.errors import CorruptFrame, RocketqError
from rocketq.local_cluster.server_process import ServerNotStarted
from rocketq.model import Message, MessageQueue
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import CreateTopicRequest
from rocketq.protocol.documents.replication import RANGE_PATH, ReplicationStatus
from rocketq_broker import salvage
from tests.support.conditions import WAIT_MS, wait_until
from tests.support.patience import PatientClient, patient_transport

GROUP, TOPIC = "broker-a", "orders"
ARGUMENTS = ("--segment-bytes", "20000")


@pytest.fixture(scope="module")
def transport() -> Iterator[Transport]:
    made = patient_transport()
    yield made
    made.close()


@pytest.fixture(scope="module")
def scrubbing() -> Iterator[LocalCluster]:
    """A group whose replicas read their logs again and again."""
    with LocalCluster(1, replicas=2, broker_arguments=[*ARGUMENTS, "--scrub-ms", "300"]) as running:
        fill(running)
        yield running


@pytest.fixture(scope="module")
def resting() -> Iterator[LocalCluster]:
    """A group without a scrub."""
    with LocalCluster(1, replicas=2, broker_arguments=[*ARGUMENTS, "--scrub-ms", "0"]) as running:
        fill(running)
        yield running


def fill(group: LocalCluster) -> None:
    """Store some segments of messages, and wait until both logs are equal."""
    with ClusterAdmin(group.nameservers) as admin:
        admin.topics.create(TOPIC, CreateTopicRequest(1, 1), wait_ms=WAIT_MS)
    with PatientClient(group.nameservers) as client:
        producer, queue = client.producer(), MessageQueue(TOPIC, GROUP, 0)
        for number in range(12):
            producer.send_batch(TOPIC, [Message(b"%d" % number * 3000)], queue=queue)
    with patient_transport() as transport:
        wait_until(lambda: len({each.confirmed for each in statuses(group, transport).values()}) == 1)


def statuses(group: LocalCluster, transport: Transport) -> dict[str, ReplicationStatus]:
    return {
        name: ReplicationApi(transport, GROUP, address).status() for name, address in group.brokers.items()
    }


def of_role(group: LocalCluster, transport: Transport, role: str) -> str:
    """The name of the process with a role."""
    return next(name for name, each in statuses(group, transport).items() if each.role == role)


def segment(group: LocalCluster, name: str, number: int) -> Path:
    return sorted((group.data_dir / name / "commitlog").iterdir())[number]


def rot(path: Path) -> bytes:
    """Flip a bit in the midst of a closed segment; return what it had."""
    sound = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(len(sound) // 2)
        file.write(bytes([sound[len(sound) // 2] ^ 1]))
    return sound


@pytest.mark.parametrize("role", ["slave", "master"])
def test_what_nobody_reads_is_found_by_the_scrub_and_healed(
    scrubbing: LocalCluster, transport: Transport, role: str
) -> None:
    name = of_role(scrubbing, transport, role)
    before = statuses(scrubbing, transport)[name].healed
    path = segment(scrubbing, name, 1)
    sound = rot(path)
    wait_until(lambda: statuses(scrubbing, transport)[name].healed > before)
    assert path.read_bytes() == sound
    assert statuses(scrubbing, transport)[name].damaged == 0
    assert "log_healed" in scrubbing.log(name).read_text()


def test_a_consumer_that_meets_damage_gets_every_message(resting: LocalCluster, transport: Transport) -> None:
    name = of_role(resting, transport, "master")
    path = segment(resting, name, 1)
    sound = rot(path)
    with PatientClient(resting.nameservers) as client:
        consumer, offsets = client.pull_consumer([TOPIC], start="earliest"), list[int]()
        while len(offsets) < 12:
            offsets += [each.offset for each in consumer.poll(timeout_ms=1_000)]
    assert offsets == list(range(12))
    assert path.read_bytes() == sound
    assert statuses(resting, transport)[name].healed == 1


def test_a_reader_of_json_that_meets_damage_waits_until_it_is_healed(
    resting: LocalCluster, transport: Transport
) -> None:
    name = of_role(resting, transport, "slave")
    path = segment(resting, name, 1)
    sound = rot(path)
    read_json(resting, transport, name)
    assert path.read_bytes() == sound


def test_a_log_that_does_not_open_is_healed_when_its_broker_starts(
    resting: LocalCluster, transport: Transport
) -> None:
    name = of_role(resting, transport, "slave")
    resting.kill(name)
    path = segment(resting, name, 2)
    sound = rot(path)
    resting.restart(name)
    assert path.read_bytes() == sound


def test_what_no_member_has_sound_stays_and_is_counted(resting: LocalCluster, transport: Transport) -> None:
    damaged = [segment(resting, name, 3) for name in resting.brokers]
    sound = [rot(path) for path in damaged]
    name = of_role(resting, transport, "master")
    with pytest.raises(CorruptFrame):
        read_json(resting, transport, name)
    wait_until(lambda: statuses(resting, transport)[name].damaged == 1)
    metrics = bytes(transport.call("GET", resting.brokers[name], "/metrics").body).decode()
    assert "rocketq_replica_damaged_parts{" in metrics
    for path, data in zip(damaged, sound, strict=True):
        if path.parts[-3] != name:
            with path.open("r+b") as file:
                file.write(data)
    wait_until(lambda: statuses(resting, transport)[name].damaged == 0)


def read_json(group: LocalCluster, transport: Transport, name: str) -> None:
    offset = 0
    while offset < 12:
        answer = transport.call(
            "GET", group.brokers[name], f"/v1/topics/{TOPIC}/queues/0/messages",
            query={"offset": offset, "max_messages": 1}, headers={"accept": "application/json"},
        )  # fmt: skip
        assert answer.status == 200
        offset += 1


def test_a_range_is_given_to_members_of_the_group_only(resting: LocalCluster, transport: Transport) -> None:
    address = next(iter(resting.brokers.values()))
    with pytest.raises(RocketqError, match="another"):
        transport.call("GET", address, RANGE_PATH, query={"group": "another", "begin": 0, "max_bytes": 1000})


def test_a_replica_is_not_salvaged_unless_it_leaves_its_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalCluster(1, data_dir=tmp_path, replicas=2, broker_arguments=ARGUMENTS) as group:
        fill(group)
    directory = tmp_path / "broker-a.1"
    rot(sorted((directory / "commitlog").iterdir())[1])
    command = ["--data-dir", str(directory), "--yes"]
    assert salvage.main(command) == 1
    assert "--leave-group" in capsys.readouterr().err
    assert salvage.main([*command, "--leave-group"]) == 0
    assert not (directory / "state" / "standing").exists()
    with pytest.raises(ServerNotStarted, match="of a log of no group"):
        LocalCluster(1, data_dir=tmp_path, replicas=2, broker_arguments=ARGUMENTS).start()
