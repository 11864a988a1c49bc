"""Which replica of the group a consumer should pull from next (RocketMQ: suggestWhichBrokerId).

A master keeps the end of its log in the page cache, and a consumer that lags far behind would push it out. So
each answer to a pull names a replica. It is the master for whoever reads what the memory has, and an in-sync
slave for whoever is behind by more than a share of the memory. A slave decides in the same way: it keeps a
consumer that lags, and sends one that has caught up back. The queues of a broker are spread over its slaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.slave_role import SlaveRole
from rocketq_broker.replication_service.service import Status


class ReadAdvice:
    """What one broker suggests."""

    def __init__(
        self, is_enabled: bool, memory_percent: int, memory_bytes: int, status: Callable[[], Status] | None
    ) -> None:
        """`status` is that of this replica; None for a group of one broker, which has no slaves."""
        self._is_enabled = is_enabled
        self._status = status
        self._near_bytes: Final = memory_bytes * memory_percent // 100

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master."""
        return self._status is not None and isinstance(self._status().replica.role, SlaveRole)

    def broker_id(self, queue: int, behind: int) -> int:
        """Return the id of whom a consumer of a queue should ask next, from how many bytes it is behind."""
        if self._status is None or not self._is_enabled or behind <= self._near_bytes:
            return MASTER_ID
        replica = self._status().replica
        match replica.role:
            case MasterRole(registered=in_sync):
                slaves = sorted(each.number for each in in_sync if each != replica.id)
                return slaves[queue % len(slaves)] if slaves else MASTER_ID
            case SlaveRole():
                return replica.id.number
        return MASTER_ID
