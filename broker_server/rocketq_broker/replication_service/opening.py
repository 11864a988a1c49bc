"""Opens the store of a replica, and has a log that is too damaged to open healed from other members first.

Recovery stops at damage in what it has to read. Another member has the same bytes. The register says where
the members are, so nothing has to run here for it.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from rocketq_broker.config import BrokerConfig
from rocketq_broker.meta_register.meta_register import Registered
from rocketq_broker.replication.group_record import decode
from rocketq_broker.replication_service.assembly import RegisterOfGroup
from rocketq_broker.replication_service.member_ranges import MemberRanges, others
from rocketq_broker.store.disk import replica_standing as standing
from rocketq_broker.store.disk.files import OSFiles
from rocketq_broker.store.errors import CorruptLog, MissingSegment, StoreError
from rocketq_broker.store.replica.healing import closed_log
from rocketq_broker.store.store import MessageStore

log = structlog.get_logger("rocketq.broker.replica")


def opened_or_healed(config: BrokerConfig, open_store: Callable[[], MessageStore]) -> MessageStore:
    """Return the opened store; raise what opening it raises, if it cannot be healed."""
    try:
        return open_store()
    except (CorruptLog, MissingSegment) as error:
        log.error("log_does_not_open", broker=config.name, why=str(error), facts=error.facts)
        _heal(config, error)
    return open_store()


def _heal(config: BrokerConfig, damage: StoreError) -> None:
    """Heal every damaged part; raise `damage` if one is left, or RegisterUnavailable."""
    registered = _read_register(config)
    kept = standing.read(OSFiles(config.data_dir))
    if not registered.version or not kept.group:
        raise damage
    record = decode(registered.record.encode())
    if record.group != kept.group:
        raise damage
    ranges, addresses = MemberRanges(), others(record, config.broker_id)
    try:
        with closed_log(config.data_dir) as closed:
            found = closed.damages()
            healed = [ranges.heal(kept.group, addresses, each, closed.heal) for each in found]
    finally:
        ranges.close()
    if not found or not all(healed):
        raise damage


def _read_register(config: BrokerConfig) -> Registered:
    register = RegisterOfGroup(config)
    try:
        return register.register.read()
    finally:
        register.close()
