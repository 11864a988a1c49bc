"""What goes wrong with a consumer group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocketq.errors.base import RemoteError


class GroupNotFound(RemoteError):
    """The broker knows no such group, and does not create groups on first use."""

    code = "GROUP_NOT_FOUND"
    status = 404

    def __init__(self, group: str, broker: str) -> None:
        super().__init__(
            f"Group {group[:200]!r} does not exist on broker {broker}.",
            hint=f"Create it: rocketq group set {group[:200]}",
            facts={"group": group[:200], "broker": broker},
        )


class GroupDisabled(RemoteError):
    """An operator has disabled the group: its members get nothing (RocketMQ: consumeEnable)."""

    code = "GROUP_DISABLED"
    status = 403

    def __init__(self, group: str, broker: str) -> None:
        super().__init__(
            f"Group {group!r} is disabled on broker {broker}.",
            hint=f"Enable it again: rocketq group set {group} --enabled",
            facts={"group": group, "broker": broker},
        )


class MemberUnknown(RemoteError):
    """The broker has no heartbeat of the member: it sent none, its session ended, or the broker restarted."""

    code = "MEMBER_UNKNOWN"
    status = 404

    def __init__(self, group: str, client_id: str, broker: str) -> None:
        super().__init__(
            f"Broker {broker} knows no member {client_id!r} of group {group!r}.",
            hint="Send a heartbeat: its answer lists the queues that the member still owns.",
            facts={"group": group, "client_id": client_id, "broker": broker},
        )


class ClaimLost(RemoteError):
    """A member acts for queues that it does not own any more; nothing was stored.

    `lost` has for each such queue its topic, queue, the epoch that the member named (`epoch`), and the owner
    and epoch there are now (`owner` "" and `owner_epoch` null if nobody owns it).
    """

    code = "CLAIM_LOST"
    status = 409

    lost: list[dict[str, Any]]

    def __init__(self, group: str, client_id: str, broker: str, lost: Sequence[Mapping[str, Any]]) -> None:
        self.lost = [dict(each) for each in lost]
        shown = ", ".join(
            f"{each['topic']}/{broker}/{each['queue']} (now {each['owner'] or 'without owner'})"
            for each in self.lost[:10]
        )
        super().__init__(
            f"Member {client_id!r} of group {group!r} does not own {len(self.lost)} of the queues it names: "
            f"{shown}.",
            hint="Drop what was fetched from these queues, and make the call again without them.",
            facts={"group": group, "client_id": client_id, "broker": broker, "lost": self.lost},
        )


class QueuesOwned(RemoteError):
    """Somebody who is no member commits offsets of queues that members own; nothing was stored."""

    code = "QUEUES_OWNED"
    status = 409

    def __init__(self, group: str, broker: str, owners: Mapping[str, str]) -> None:
        shown = ", ".join(f"{queue} by {client_id}" for queue, client_id in list(owners.items())[:10])
        super().__init__(
            f"Queues of group {group!r} on broker {broker} are owned by its members: {shown}.",
            hint="Use another group, stop the members, or force it: the owners then lose the queues.",
            facts={"group": group, "broker": broker, "owners": dict(owners)},
        )


class MembersActive(RemoteError):
    """An operator's call would move the progress under active members; nothing was changed."""

    code = "MEMBERS_ACTIVE"
    status = 409

    def __init__(self, group: str, broker: str, action: str, client_ids: list[str]) -> None:
        shown = ", ".join(client_ids[:10]) + (", …" if len(client_ids) > 10 else "")
        super().__init__(
            f"Group {group!r} cannot be {action} on broker {broker}: {len(client_ids)} members are active: "
            f"{shown}.",
            hint="Stop them first, or pass --force.",
            facts={"group": group, "broker": broker, "action": action, "client_ids": client_ids},
        )
