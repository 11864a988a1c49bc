"""What a master does before it stops in good order: it hands its office over, and leaves the in-sync set.

Without it the group has no master until the others notice that nobody answers, some seconds later, and sends
wait for this broker until the next master takes it out of the set. While the office changes hands this broker
serves on. It is the handover of `rocketq broker handover`, which refuses no send and loses none. If no other
replica is in sync, or the handover takes longer than its bound, the broker stops as master: nothing confirmed
is lost by that, and the group elects another one if it can.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from rocketq.errors import RocketqError
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication_service.service import ReplicationService
from rocketq_broker.runtime.loop_bridge import Completions

log = structlog.get_logger()

#: Longer than a handover may take (`times`): a replica's thread may be busy with something long.
BOUND_S: Final = 3.0


async def leave_office(replica: ReplicationService, completions: Completions) -> None:
    """As master, hand over to any replica that is in sync; return soon, whatever comes of it."""
    role = replica.status.replica.role
    if not isinstance(role, MasterRole) or len(role.registered) < 2:
        return
    hand_over = completions.outcome(partial(replica.hand_over, 0, leaves=True))
    try:
        epoch = await asyncio.wait_for(hand_over, BOUND_S)
    except TimeoutError:
        log.warning("handover_failed", why="the replica's thread did not answer in time")
    except RocketqError as error:
        log.warning("handover_failed", why=str(error))
    else:
        log.info("handed_over", epoch=epoch)
