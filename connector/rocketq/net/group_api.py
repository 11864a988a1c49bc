"""Typed calls about consumer groups to one broker (docs/protocol.md, "Consumer groups").

`BrokerApi` has them. One method for each endpoint; no retries, no state. Refusals raise the error that the
broker sent. Any call may raise GroupNotFound, InvalidName, ReservedName, BrokerUnavailable and
BrokerUnreachable.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketq.net.server_api import ServerApi
from rocketq.net.transport import path_of
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffsets
from rocketq.protocol.documents.groups import (
    ClaimAnswer,
    ClaimRequest,
    CloneRequest,
    GroupDescription,
    GroupListing,
    GroupMembers,
    Heartbeat,
    HeartbeatAnswer,
    MemberCommit,
    OffsetMoves,
    ProducerHeartbeat,
    ProducerMembers,
    QueueOfTopic,
    ReleaseRequest,
    ResetRequest,
    SetGroupRequest,
)
from rocketq.protocol.documents.send_backs import (
    DeadLetterMarks,
    ResendAnswer,
    ResendRequest,
    SendBackAnswer,
    SendBackRequest,
)


class GroupApi(ServerApi):
    """What a broker answers about consumer groups, their members, and producers."""

    # --- members -----------------------------------------------------------------

    def heartbeat(self, group: str, client_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Join a group, or stay in it; an unknown group is created where the broker allows that.

        Raises GroupDisabled, InvalidFilter, InvalidRequest, and Conflict if another live member has the
        client id.
        """
        path = path_of("groups", group, "members", client_id)
        return self._decoded(self._call_json("PUT", path, beat), HeartbeatAnswer)

    def leave_group(self, group: str, client_id: str) -> None:
        """Leave a group at once: the broker releases the member's queues. May be repeated."""
        self._call("DELETE", path_of("groups", group, "members", client_id))

    def members(
        self, group: str, *, client_id: str | None = None, known: str | None = None, wait_ms: int = 0
    ) -> GroupMembers:
        """Return the members; held at most `wait_ms` while their version is `known`.

        With `client_id` the call is that member's watch: it renews its session, and when its connection
        breaks the broker takes the member for gone after a short grace. Raises GroupDisabled, and
        MemberUnknown if the session has ended (a held call is then answered at once).
        """
        answer = self._call(
            "GET",
            path_of("groups", group, "members"),
            query={"client_id": client_id, "known": known, "wait_ms": wait_ms or None},
            hold_ms=wait_ms,
        )
        return self._decoded(answer, GroupMembers)

    # --- claims ------------------------------------------------------------------

    def claim_queues(self, group: str, client_id: str, queues: Sequence[QueueOfTopic]) -> ClaimAnswer:
        """Ask for queues of this broker; each is granted or refused by itself. May be repeated.

        Raises MemberUnknown, GroupDisabled, and Conflict in a broadcasting group.
        """
        request = ClaimRequest(client_id, tuple(queues))
        answer = self._call_json("POST", path_of("groups", group, "claims"), request)
        return self._decoded(answer, ClaimAnswer)

    def release_queues(self, group: str, client_id: str, queues: Sequence[QueueOfTopic]) -> None:
        """Give queues back; those that the member does not own are passed over."""
        request = ReleaseRequest(client_id, tuple(queues))
        self._call_json("POST", path_of("groups", group, "releases"), request)

    def commit_claimed(self, group: str, commit: MemberCommit) -> GroupOffsets:
        """Store a member's progress, all or nothing, and with `release` release the queues.

        Raises ClaimLost if the member does not own all of the queues under the epochs it names,
        TopicNotFound, QueueNotFound, OffsetOutOfRange.
        """
        answer = self._call_json("POST", path_of("groups", group, "commits"), commit)
        return self._decoded(answer, GroupOffsets)

    # --- progress of those who are no members ------------------------------------

    def group_offsets(self, group: str, topic: str | None = None) -> GroupOffsets:
        """Return a group's progress on this broker; what it never committed is absent."""
        path = path_of("groups", group, "offsets")
        return self._decoded(self._call("GET", path, query={"topic": topic}), GroupOffsets)

    def commit_offsets(self, group: str, request: CommitOffsetsRequest) -> GroupOffsets:
        """Store a group's progress, not as a member. Raises QueuesOwned unless the request forces it,
        TopicNotFound, QueueNotFound, OffsetOutOfRange.
        """
        path = path_of("groups", group, "offsets")
        return self._decoded(self._call_json("PUT", path, request), GroupOffsets)

    # --- for operators -----------------------------------------------------------

    def groups(self) -> GroupListing:
        return self._decoded(self._call("GET", path_of("groups")), GroupListing)

    def group(self, group: str) -> GroupDescription:
        """Return a group with its settings, members and progress. Raises GroupNotFound."""
        return self._decoded(self._call("GET", path_of("groups", group)), GroupDescription)

    def set_group(self, group: str, request: SetGroupRequest) -> GroupDescription:
        """Create a group, or change its settings; disabling ends its members. Raises InvalidRequest."""
        return self._decoded(self._call_json("PUT", path_of("groups", group), request), GroupDescription)

    def delete_group(self, group: str, *, force: bool = False) -> None:
        """Forget a group with its progress. Raises GroupNotFound, and MembersActive unless `force`."""
        self._call("DELETE", path_of("groups", group), query={"force": "true" if force else None})

    def reset_group(self, group: str, request: ResetRequest) -> OffsetMoves:
        """Put a group's progress elsewhere. Raises MembersActive, TopicNotFound, QueueNotFound,
        OffsetOutOfRange.
        """
        return self._decoded(self._call_json("POST", path_of("groups", group, "reset"), request), OffsetMoves)

    def clone_group(self, group: str, request: CloneRequest) -> OffsetMoves:
        """Give a group the progress of another. Raises GroupNotFound for the source, MembersActive."""
        return self._decoded(self._call_json("POST", path_of("groups", group, "clone"), request), OffsetMoves)

    # --- messages that failed ----------------------------------------------------

    def send_back(self, group: str, request: SendBackRequest) -> SendBackAnswer:
        """Send back messages that failed. Raises ClaimLost, GroupDisabled, InvalidRequest, SystemBusy."""
        path = path_of("groups", group, "send-backs")
        return self._decoded(self._call_json("POST", path, request), SendBackAnswer)

    def dead_letters(self, group: str) -> DeadLetterMarks:
        """Return where the dead letters of a group lie here, and which were sent again."""
        return self._decoded(self._call("GET", path_of("groups", group, "dead-letters")), DeadLetterMarks)

    def resend_letters(self, group: str, request: ResendRequest) -> ResendAnswer:
        """Send dead letters to their original topics again; safe to repeat, unless `again`."""
        path = path_of("groups", group, "dead-letters", "resend")
        return self._decoded(self._call_json("POST", path, request), ResendAnswer)

    # --- producers ---------------------------------------------------------------

    def producer_heartbeat(self, group: str, client_id: str, beat: ProducerHeartbeat) -> None:
        """Join a producer group, or stay in it."""
        self._call_json("PUT", path_of("producers", group, "members", client_id), beat)

    def producer_leaves(self, group: str, client_id: str) -> None:
        """Leave a producer group at once."""
        self._call("DELETE", path_of("producers", group, "members", client_id))

    def producers(self, group: str) -> ProducerMembers:
        """Return the producers of a group that are connected to this broker; none is no error."""
        return self._decoded(self._call("GET", path_of("producers", group, "members")), ProducerMembers)
