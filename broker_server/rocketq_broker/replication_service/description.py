"""A group as one of its brokers sees it, for operators and metrics."""

from __future__ import annotations

from rocketq.protocol.documents.replication import ReplicaState, ReplicationStatus
from rocketq_broker.epoch_lineage import LogView
from rocketq_broker.replication.group_record import GroupRecord, Member
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.replica import Replica
from rocketq_broker.replication.slave_role import SlaveRole
from rocketq_broker.replication_service.log_healer import Health
from rocketq_broker.replication_service.service import Status


def described(
    broker: str, status: Status, view: LogView, health: Health, fetched_bytes: int, now_ms: int
) -> ReplicationStatus:
    """Return what one broker knows of its group."""
    replica, known = status.replica, status.replica.known
    record = known.record if known is not None else None
    master = status.master
    return ReplicationStatus(
        broker, status.group, *replica.id, _role(replica), status.epoch,
        master.address if master is not None else "", record.min_in_sync if record is not None else 0,
        view.begin, view.end, view.held, replica.confirmed.end,
        _states(replica, record, view, now_ms) if record is not None else (),
        len(health.damaged), health.healed, health.healed_bytes, health.scrubbed_bytes,
        record.replication if record is not None else "sync", fetched_bytes,
    )  # fmt: skip


def _role(replica: Replica) -> str:
    match replica.role:
        case MasterRole():
            return "master"
        case SlaveRole():
            return "slave"
    return "none"


def _states(replica: Replica, record: GroupRecord, view: LogView, now_ms: int) -> tuple[ReplicaState, ...]:
    return tuple(_state(replica, record, each, view, now_ms) for each in record.members)


def _state(replica: Replica, record: GroupRecord, member: Member, view: LogView, now_ms: int) -> ReplicaState:
    held, behind_ms = -1, None
    role = replica.role
    is_master = isinstance(role, MasterRole)
    if member.replica == replica.id:
        held, behind_ms = view.held, 0 if is_master else None
    elif isinstance(role, MasterRole) and member.replica in role.replicas:
        held = role.held_by(member.replica)
        behind_ms = role.behind_ms(member.replica, now_ms) if held < view.end else 0
    return ReplicaState(
        member.replica.number, member.replica.incarnation, member.address,
        member.replica in record.in_sync, member.replica in record.eligible, held, behind_ms,
    )  # fmt: skip
