"""Who owns a broker's name: when a registration may take the name that a live process holds.

A name is a cluster, a broker name and a broker id. While the lease of its holder lives, another process
gets it in three cases only, and is refused in all others:

  * **The same store.** A broker keeps a file of its data directory open and locked as long as it lives. The
    registration says which file that is (machine, device, inode). If another process has the same file
    locked, then the holder has let go of it: it ended, and its lease is what a crash left behind. A copy of
    the directory is another file, and a clone of the machine is another machine, so a copy is refused.
  * **An older claim.** The process has held the name since a time before the holder did, so it was the
    holder that came later: to this NameServer, which forgets all names when it restarts, or to one that
    the process could not reach. Of two live processes every NameServer prefers the same one, whoever
    registers first, so they cannot alternate. A process whose lease this NameServer saw end has no such
    claim: it was silent for too long, and its successor has the name rightly.
  * **A newer state version** (RocketMQ: DLedger and controller mode): an election chose this replica.

The same address proves nothing: two processes may stand behind one advertised address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketq.protocol.documents.nameserver import BrokerIdentity, DataVersion, RegisterRequest

LAPSED_MAX: Final = 10_000


@dataclass(slots=True)
class Holder:
    """A live broker process, as it registered itself; `heard_ms` is when it was last heard of."""

    identity: BrokerIdentity
    store: str
    held_since_us: int
    heard_ms: int
    lease_ms: int
    data_version: DataVersion
    ha_address: str

    @classmethod
    def of(cls, request: RegisterRequest, now_ms: int) -> Holder:
        return cls(
            request.identity, request.store, request.held_since_us, now_ms, request.lease_ms,
            request.data_version, request.ha_address,
        )  # fmt: skip

    def has_expired(self, now_ms: int) -> bool:
        """Whether the lease has ended: nothing was heard for longer than it."""
        return self.heard_ms + self.lease_ms < now_ms


def is_same_process(one: BrokerIdentity, other: BrokerIdentity) -> bool:
    """Whether two identities are of one process; those that name no process are told apart by address."""
    return one.process == other.process and (bool(one.process) or one.address == other.address)


class LapsedProcesses:
    """The processes whose lease one NameServer saw end; of more than `LAPSED_MAX` the oldest is forgotten."""

    def __init__(self) -> None:
        self._processes: dict[str, None] = {}

    def __contains__(self, process: str) -> bool:
        return process in self._processes

    def add(self, process: str) -> None:
        self._processes.pop(process, None)
        self._processes[process] = None
        if len(self._processes) > LAPSED_MAX:
            del self._processes[next(iter(self._processes))]


def may_take(request: RegisterRequest, holder: Holder, lapsed: LapsedProcesses) -> bool:
    """Whether a registration may have the name that `holder` holds with a lease that lives."""
    same_store = bool(request.store) and request.store == holder.store
    # 0 means that a process has held the name since now, at the earliest.
    older = request.held_since_us > 0 and (
        not holder.held_since_us or request.held_since_us < holder.held_since_us
    )
    older = older and request.identity.process not in lapsed
    elected = request.data_version.state_version > holder.data_version.state_version
    return is_same_process(request.identity, holder.identity) or same_store or older or elected
