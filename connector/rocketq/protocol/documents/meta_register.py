"""What a proposer and the acceptors of a register say to each other (CASPaxos; docs/design.md, "The
register").

A register is one text with a version. Acceptors keep it, on a few NameServers that do not know each other.
A proposer, in a broker, changes it in two rounds of calls: it has a majority promise its ballot, and has a
majority accept a value in it.
"""

from __future__ import annotations

import msgspec

from rocketq.model import Int64
from rocketq.protocol.json_codec import prepare_documents

#: A record is a few hundred bytes for each replica.
RECORD_CHARS_MAX = 64 * 1024


class Ballot(msgspec.Struct, frozen=True, order=True):
    """The number of one attempt; `proposer` makes it unlike every other one. The lowest is in no attempt."""

    number: Int64 = 0
    proposer: str = ""


NO_BALLOT = Ballot()


class RegisterValue(msgspec.Struct, frozen=True):
    """A value of the register. `author` names the call that set it; version 0 is that nothing was set."""

    version: Int64 = 0
    author: str = ""
    record: str = ""


NO_VALUE = RegisterValue()


class PrepareRequest(msgspec.Struct, frozen=True):
    """Promise to accept nothing below this ballot."""

    ballot: Ballot


class AcceptRequest(msgspec.Struct, frozen=True):
    """Accept this value in this ballot."""

    ballot: Ballot
    value: RegisterValue


class AcceptorAnswer(msgspec.Struct, frozen=True):
    """What an acceptor has on disk after a call, and whether it did as asked.

    `acceptor` names the acceptor itself: two addresses may lead to one, and it counts once.
    """

    acceptor: str
    is_granted: bool
    promised: Ballot
    accepted: Ballot
    value: RegisterValue


prepare_documents(__name__)
