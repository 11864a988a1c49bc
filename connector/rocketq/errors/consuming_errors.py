"""What stops a member of a consumer group from going on with a queue."""

from __future__ import annotations

from rocketq.errors.base import ClientError


class RetriesExhausted(ClientError):
    """A message has failed as often as it may be tried; its queue stands still."""

    code = "RETRIES_EXHAUSTED"
    status = 409

    def __init__(self, message_id: str, attempts: int) -> None:
        super().__init__(
            f"Message {message_id} failed {attempts} time(s), the last attempt that max_attempts allows.",
            hint="Its queue stands still and the group's offset stays before it. Mend what fails and start "
            "again, or skip the message: consumer.seek(message.queue, message.offset + 1).",
            facts={"message_id": message_id, "attempts": attempts},
        )
