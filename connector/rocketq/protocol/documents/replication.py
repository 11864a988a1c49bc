"""What replicas of a broker group say to each other, and to operators (docs/protocol.md, "Replication").

A fetch is a GET with everything in its query. The answer's body is frames as they lie in the master's log.
What else the master says is one JSON document in a header.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rocketq.model import Int64
from rocketq.protocol.json_codec import prepare_documents

FETCH_PATH: Final = "/v1/replication/frames"
#: A part of a member's log below its confirmed end, for one whose own is damaged there.
RANGE_PATH: Final = "/v1/replication/range"
#: Has a `FetchHead`.
FETCH_HEADER: Final = "x-rocketq-fetch"


class FetchHead(msgspec.Struct, frozen=True):
    """The answer to a fetch, beside its frames.

    `kind` is "shipment", "diverged", "begins-later" or "range"; `epoch`, `at` and `last_epoch` are the place
    that it answers to; a range has none of the epochs. `end` and `confirmed` are a shipment's, `keep` and
    `keep_epoch` those of a log that differs, `begin` and `before` say where the master's log begins.
    `segments` are the log offsets at which a segment begins within the frames.
    """

    kind: str
    epoch: Int64
    at: Int64
    last_epoch: Int64
    end: Int64 = 0
    confirmed: Int64 = 0
    keep: Int64 = 0
    keep_epoch: Int64 = 0
    begin: Int64 = 0
    before: Int64 = 0
    segments: tuple[Int64, ...] = ()


class ReplicaState(msgspec.Struct, frozen=True):
    """One replica, as the broker that was asked knows it.

    A slave knows of no other replica how far it is, and a new master of none before its first fetch.
    """

    number: Int64
    incarnation: str
    address: str
    is_in_sync: bool
    is_eligible: bool
    #: How far it holds the master's log; -1: not known.
    held: Int64 = -1
    #: How long it has not caught up with the master; 0 if it has, None if that is not known.
    behind_ms: Int64 | None = None


class ReplicationStatus(msgspec.Struct, frozen=True):
    """A broker group as one broker of it sees it. `role` is "master", "slave", or "none" before it knows."""

    broker: str
    group: str
    number: Int64
    incarnation: str
    role: str
    epoch: Int64
    master: str
    min_in_sync: Int64
    begin: Int64
    end: Int64
    held: Int64
    confirmed: Int64
    replicas: tuple[ReplicaState, ...] = ()
    #: Parts of this broker's log that are damaged, and could not be healed yet.
    damaged: Int64 = 0
    #: Parts that were healed from other members since its start, and their bytes.
    healed: Int64 = 0
    healed_bytes: Int64 = 0
    #: Bytes that were read to look for damage, since its start.
    scrubbed_bytes: Int64 = 0
    #: "sync", or "async" for a group whose master waits for no slave.
    replication: str = "sync"
    #: Bytes of frames that this broker has got from masters since its start.
    fetched_bytes: Int64 = 0


class PromoteRequest(msgspec.Struct, frozen=True):
    """Make the broker that is asked master; `unclean` although it may lack what is confirmed."""

    unclean: bool = False


class HandOverRequest(msgspec.Struct, frozen=True):
    """Have the master that is asked give its office to another in-sync replica; 0: to any."""

    successor: Int64 = 0


class OfficeAnswer(msgspec.Struct, frozen=True):
    """The epoch that has begun."""

    epoch: Int64


prepare_documents(__name__)
