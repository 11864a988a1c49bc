"""What a broker asks of a register, whichever keeps it: NameServers as acceptors, or etcd.

A register holds one text and its version. Both calls are linearizable: a call sees what every call that ended
before it began has set. No call rests on clocks, leases or a leader.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Registered(NamedTuple):
    """The text of a register and its version; version 0 is that nothing was set."""

    version: int
    record: str


class MetaRegister(Protocol):
    """One register."""

    def read(self) -> Registered:
        """Return what is there; raise RegisterUnavailable."""
        ...

    def cas(self, version: int, record: str) -> Registered:
        """Replace a version; return what is there then.

        Raises RegisterChanged if another version is there: nothing was changed. Raises RegisterUnavailable
        if that is not known: the change may have taken effect, or may do so until a later version is read.
        """
        ...
