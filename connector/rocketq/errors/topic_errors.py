"""What can be wrong with a change of a topic."""

from __future__ import annotations

from collections.abc import Mapping

from rocketq.errors.base import RemoteError


class UnreadMessages(RemoteError):
    """The change would leave stored messages that no reader gets any more; nothing was changed.

    `messages` is how many, by `broker/queue`.
    """

    code = "UNREAD_MESSAGES"
    status = 409

    def __init__(self, topic: str, change: str, messages: Mapping[str, int]) -> None:
        listed = ", ".join(f"{queue}: {count}" for queue, count in list(messages.items())[:20])
        more = f", … ({len(messages)} queues)" if len(messages) > 20 else ""
        super().__init__(
            f"Changing topic {topic!r} {change} would leave {sum(messages.values())} messages that can no "
            f"longer be read ({listed}{more}).",
            hint="Wait until retention has removed them; or force the change (--force, force=true) if every "
            "reader is through.",
            facts={"topic": topic, "change": change, "messages": dict(messages)},
        )
