"""The replicas of broker groups: how they are, and who of them is master."""

from __future__ import annotations

from dataclasses import dataclass

from rocketq.errors import NotFound, RocketqError
from rocketq.net.replication_api import ReplicationApi
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.nameserver import MASTER_ID
from rocketq.protocol.documents.replication import ReplicaState, ReplicationStatus

#: An election or a handover waits for the register, and for the slaves.
COMMAND_TIMEOUT_MS = 10_000
#: How a group is, a broker says at once or not at all.
STATUS_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """How one replica of a group is. What is None is not known: the master has not heard of it yet.

    `in_sync` is "yes", "eligible" or "no"; `held` is the end of what it holds of the master's log,
    `held_percent` how much of that log this is, `lag_bytes` what it lacks, and `lag_s` how long it has
    not caught up.
    """

    number: int
    role: str
    in_sync: str
    address: str
    held: int | None
    held_percent: float | None
    lag_bytes: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class GroupStandings:
    """How the replicas of a group are, as the broker that was asked knows it; by id."""

    status: ReplicationStatus
    replicas: tuple[ReplicaStanding, ...]

    @property
    def in_sync(self) -> int:
        """How many replicas are in sync."""
        return sum(each.in_sync == "yes" for each in self.replicas)

    @property
    def takes_writes(self) -> bool:
        """Whether enough replicas are in sync."""
        return self.in_sync >= self.status.min_in_sync

    @property
    def is_whole(self) -> bool:
        """Whether there is a master, and all replicas are in sync."""
        return self.status.role == "master" and self.in_sync == len(self.replicas)


def standings(status: ReplicationStatus) -> GroupStandings:
    """Return how the replicas of a group are, from what a broker of it says."""
    replicas = sorted((_standing(each, status) for each in status.replicas), key=lambda each: each.number)
    return GroupStandings(status, tuple(replicas))


def _standing(state: ReplicaState, status: ReplicationStatus) -> ReplicaStanding:
    held = state.held if state.held >= 0 else None
    return ReplicaStanding(
        state.number,
        "master" if state.address == status.master else "slave",
        "yes" if state.is_in_sync else "eligible" if state.is_eligible else "no",
        state.address,
        held,
        None if held is None else _percent(held, status),
        None if held is None else max(0, status.end - held),
        None if state.behind_ms is None else round(state.behind_ms / 1000, 1),
    )


def _percent(held: int, status: ReplicationStatus) -> float:
    """Return how much of the master's log is held: what a new replica has copied so far."""
    size = status.end - status.begin
    return 100.0 if size <= 0 else round(max(0, held - status.begin) * 100 / size, 1)


class ReplicaAdmin:
    """What an operator asks of replicas. Thread-safe. Every method raises NameServersUnreachable."""

    def __init__(self, transport: Transport, routes: RouteCache) -> None:
        self._transport = transport
        self._routes = routes

    def addresses(self, broker: str) -> dict[int, str]:
        """Return the live processes of a group by id, the master's being 0; raise NotFound."""
        found = {
            live.identity.broker_id: live.identity.address
            for live in self._routes.cluster().brokers
            if live.identity.broker == broker
        }
        if not found:
            raise NotFound("broker", broker)
        return found

    def status(self, broker: str) -> ReplicationStatus:
        """Return a group as its master sees it, else as a slave does. Raises NotFound, BrokerUnreachable."""
        addresses = self.addresses(broker)
        return self._api(broker, addresses[min(addresses)], STATUS_TIMEOUT_MS).status()

    def status_of(self, broker: str, number: int) -> ReplicationStatus:
        """Return a group as one process of it sees it, the master's number being 0. Raises NotFound."""
        return self._api(broker, self._address(broker, number), STATUS_TIMEOUT_MS).status()

    def standings(self, broker: str) -> GroupStandings:
        """Return how a group's replicas are. Raises BrokerUnreachable, and NotFound for a lone broker."""
        return standings(self.status(broker))

    def known_standings(self, broker: str) -> GroupStandings | RocketqError:
        """Return how a group's replicas are, or why that is not known."""
        try:
            return self.standings(broker)
        except RocketqError as error:
            return error

    def promote(self, broker: str, number: int, *, unclean: bool = False) -> int:
        """Make a replica master; return the epoch that has begun. Raises ElectionRefused.

        With `unclean` it becomes master although it may lack messages that are confirmed: those are lost.
        """
        return self._api(broker, self._address(broker, number)).promote(unclean=unclean)

    def hand_over(self, broker: str, successor: int = 0) -> int:
        """Have the master give its office to a replica that is in sync, or to any; return the next epoch."""
        return self._api(broker, self._address(broker, MASTER_ID)).hand_over(successor)

    def _address(self, broker: str, number: int) -> str:
        addresses = self.addresses(broker)
        if number not in addresses:
            what = "its master" if number == MASTER_ID else f"slave {number}"
            raise NotFound("replica", f"{broker}: {what}")
        return addresses[number]

    def _api(self, broker: str, address: str, timeout_ms: int = COMMAND_TIMEOUT_MS) -> ReplicationApi:
        return ReplicationApi(self._transport, broker, address, timeout_ms=timeout_ms)
