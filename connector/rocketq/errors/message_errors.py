"""Errors about what a message says of itself, and about the names that topics and groups may have."""

from __future__ import annotations

from rocketq.errors.base import RemoteError
from rocketq.errors.remote_errors import InvalidBatch


class ReservedName(RemoteError):
    """The system keeps this topic or group name for itself (RocketMQ: TopicValidator)."""

    code = "RESERVED_NAME"
    status = 403

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"The {kind} name {name[:200]!r} is reserved for the system.",
            hint="Choose another name; docs/protocol.md lists the reserved ones.",
            facts={"kind": kind, "name": name[:200]},
        )


class InvalidMessage(InvalidBatch):
    """A message has a tag or a property that it may not have; nothing of its batch was stored.

    `field` is "tag" or "property", `value` the tag or the property's name, `row` the message's
    place in what was sent, from 0; None if the message was sent alone.
    """

    code = "INVALID_MESSAGE"
    status = 400

    def __init__(self, field: str, value: str, why: str, hint: str = "", row: int | None = None) -> None:
        place = "" if row is None else f" in row {row}"
        super().__init__(f"the {field} {value[:200]!r}{place} {why}", hint)
        self.facts = {"field": field, "value": value[:200], "why": why, "row": row}
