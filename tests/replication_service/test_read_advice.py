"""Whom a replica suggests to a consumer, from how far it is behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketq.system.memory import memory_bytes
from rocketq_broker.replication.group_record import Member, ReplicaId
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.replica import Replica
from rocketq_broker.replication.slave_role import SlaveRole
from rocketq_broker.replication_service.read_advice import ReadAdvice
from rocketq_broker.replication_service.service import Status

ONE, TWO, THREE = (ReplicaId(number, "first") for number in (1, 2, 3))
MASTER = 0
#: Of 1,000 bytes of memory 40 % are near.
NEAR, FAR = 400, 401


def advice(role: MasterRole | SlaveRole | None, *, is_enabled: bool = True) -> ReadAdvice:
    replica = Replica(Member(TWO, "http://two"), role=role)
    return ReadAdvice(is_enabled, 40, 1_000, lambda: Status(replica))


def master(*in_sync: ReplicaId) -> MasterRole:
    return MasterRole(TWO, 1, 0, 0, 1, frozenset(in_sync))


def test_a_master_keeps_who_reads_what_memory_has_and_sends_others_to_its_slaves() -> None:
    told = advice(master(ONE, TWO, THREE))
    assert told.broker_id(0, NEAR) == MASTER
    assert [told.broker_id(queue, FAR) for queue in range(4)] == [1, 3, 1, 3]


def test_only_slaves_in_sync_are_suggested() -> None:
    assert advice(master(TWO, THREE)).broker_id(0, FAR) == 3
    assert advice(master(TWO)).broker_id(0, FAR) == MASTER


def test_a_slave_keeps_who_lags_and_sends_others_back() -> None:
    told = advice(SlaveRole(1, ONE, 0))
    assert told.is_slave
    assert told.broker_id(5, FAR) == 2
    assert told.broker_id(5, NEAR) == MASTER


@pytest.mark.parametrize(
    "told",
    [
        advice(None),
        advice(master(ONE, TWO, THREE), is_enabled=False),
        advice(SlaveRole(1, ONE, 0), is_enabled=False),
        ReadAdvice(True, 40, 1_000, None),
    ],
    ids=["no role yet", "master, switched off", "slave, switched off", "no replica"],
)
def test_otherwise_the_master_is_suggested(told: ReadAdvice) -> None:
    assert told.broker_id(0, FAR) == MASTER


def test_a_container_has_as_much_memory_as_its_limit(tmp_path: Path) -> None:
    whole = memory_bytes(())
    assert whole > 1 << 20
    limit, none = tmp_path / "limit", tmp_path / "none"
    limit.write_text("4096\n")
    none.write_text("max\n")
    assert memory_bytes((tmp_path / "absent", none)) == whole
    assert memory_bytes((none, limit)) == 4_096
    limit.write_text(str(2 * whole))
    assert memory_bytes((limit,)) == whole
