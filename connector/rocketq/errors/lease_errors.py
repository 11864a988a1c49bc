"""What goes wrong with messages that are leased one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocketq.errors.base import RemoteError


class LeaseExpired(RemoteError):
    """None of the receipt handles is good any more; nothing was changed.

    `refused` has for each its `receipt_handle` and the `reason`: "expired" (its time is over), "replaced"
    (the message was leased again, or its time was changed: another handle is good), "unknown" (this broker
    has no such lease), or "settled" (of a change of the time: the message is acknowledged or a dead letter).
    """

    code = "LEASE_EXPIRED"
    status = 409

    refused: list[dict[str, Any]]

    def __init__(self, group: str, broker: str, refused: Sequence[Mapping[str, Any]]) -> None:
        self.refused = [dict(each) for each in refused]
        shown = ", ".join(f"{each['receipt_handle']} ({each['reason']})" for each in self.refused[:10])
        super().__init__(
            f"None of {len(self.refused)} receipt handles of group {group!r} is good on broker {broker}: "
            f"{shown}.",
            hint="Drop the work: the messages come again, or came to another receiver. Ask for a longer "
            "invisible time, or change it while the work goes on.",
            facts={"group": group, "broker": broker, "refused": self.refused},
        )


class TooManyLeases(RemoteError):
    """Every queue that has messages has its limit of leased ones; nothing was leased."""

    code = "TOO_MANY_LEASES"
    status = 429

    def __init__(self, group: str, topic: str, broker: str, leases_max: int) -> None:
        super().__init__(
            f"Group {group!r} has {leases_max} leased messages, the limit, in each queue of topic {topic!r} "
            f"on broker {broker} that has more.",
            hint="Acknowledge what is done, or wait until leases run out. The limit is the broker's setting "
            "--leased-messages-max.",
            facts={"group": group, "topic": topic, "broker": broker, "leases_max": leases_max},
        )


class LeasesOutstanding(RemoteError):
    """Messages of these queues are leased one by one, so nobody else may move the progress there."""

    code = "LEASES_OUTSTANDING"
    status = 409

    def __init__(self, group: str, broker: str, action: str, leased: Mapping[str, int]) -> None:
        shown = ", ".join(f"{queue}: {count}" for queue, count in list(leased.items())[:10])
        super().__init__(
            f"Queues of group {group!r} on broker {broker} cannot be {action}: messages of them are leased "
            f"one by one ({shown}).",
            hint="Use another group, wait until the messages are acknowledged, or force a reset: the leases "
            "then end.",
            facts={"group": group, "broker": broker, "action": action, "leased": dict(leased)},
        )


class ReceiveFilterDiffers(RemoteError):
    """Receivers of one group want different messages of a topic; nothing was leased.

    What does not match is passed over for the whole group, so one would take the other's messages away.
    """

    code = "RECEIVE_FILTER_DIFFERS"
    status = 409

    def __init__(self, group: str, topic: str, broker: str, wanted: str, counts: str) -> None:
        super().__init__(
            f"Group {group!r} receives {counts or 'every message'} of topic {topic!r} on broker {broker}, "
            f"not {wanted or 'every message'}.",
            hint="Receive with the filter of the group, use another group, or send new_filter=true: then the "
            "new filter counts for all receivers.",
            facts={"group": group, "topic": topic, "broker": broker, "wanted": wanted, "counts": counts},
        )
