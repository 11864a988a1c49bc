"""What a replica does before it stops in good order, so that the group does not wait for it.

A master hands its office over, and leaves the in-sync set. It is the handover of `rocketq broker handover`,
which refuses no send and loses none; the broker serves on meanwhile. Without it the group has no master until
the others notice that nobody answers. If no other replica is in sync, or the handover takes longer than its
bound, the broker stops as master: nothing confirmed is lost by that, and the others elect one if they can.

A slave ends its fetches and says goodbye, and its master takes it out of the in-sync set. Without it sends
wait for the slave until the master finds out that it is behind.

Neither leaves the in-sync set where fewer than `min_in_sync` replicas would remain.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from rocketq.errors import RocketqError
from rocketq_broker.replication.master_role import MasterRole
from rocketq_broker.replication.slave_role import SlaveRole
from rocketq_broker.replication_service.service import ReplicationService
from rocketq_broker.runtime.loop_bridge import Completions

log = structlog.get_logger()

#: Longer than a handover may take (`times`): a replica's thread may be busy with something long.
HANDOVER_BOUND_S: Final = 3.0
GOODBYE_BOUND_S: Final = 1.0


async def prepare_to_stop(replica: ReplicationService, completions: Completions) -> None:
    """Hand over, or say goodbye; return soon, whatever comes of it."""
    role = replica.status.replica.role
    if isinstance(role, MasterRole) and len(role.registered) > 1:
        await _hand_over(replica, completions)
    elif isinstance(role, SlaveRole):
        try:
            await asyncio.wait_for(completions.outcome(replica.leave), GOODBYE_BOUND_S)
        except TimeoutError:
            log.info("goodbye_failed", why="the master did not answer in time")


async def _hand_over(replica: ReplicationService, completions: Completions) -> None:
    hand_over = completions.outcome(partial(replica.hand_over, 0, leaves=True))
    try:
        epoch = await asyncio.wait_for(hand_over, HANDOVER_BOUND_S)
    except TimeoutError:
        log.warning("handover_failed", why="the replica's thread did not answer in time")
    except RocketqError as error:
        log.warning("handover_failed", why=str(error))
    else:
        log.info("handed_over", epoch=epoch)
