"""What goes wrong with the numbers of sends (`rocketq.protocol.send_number`)."""

from __future__ import annotations

from rocketq.errors.base import RemoteError


class SendOutdated(RemoteError):
    """A send comes after a later one of its slot: its producer has given it up. Nothing was stored by it."""

    code = "SEND_OUTDATED"
    status = 409

    def __init__(self, slot: int, sequence: int, last: int) -> None:
        super().__init__(
            f"Send {sequence} of the producer's slot {slot} came after send {last} of the same slot; "
            "it was not stored.",
            hint="A producer makes one send of a slot after the other. Do two processes use the same slot, "
            "such as two copies of one virtual machine? Then make new producers there.",
            facts={"slot": slot, "sequence": sequence, "last": last},
        )


class SendNumberReused(RemoteError):
    """A send has the number of another send; nothing was stored."""

    code = "SEND_NUMBER_REUSED"
    status = 409

    def __init__(self, slot: int, sequence: int, messages: int, stored: int) -> None:
        super().__init__(
            f"Send {sequence} of slot {slot} has {messages} messages, and the send that was stored under "
            f"this number has {stored}.",
            hint="Give each send a sequence of its own, and the same one to its repetitions only.",
            facts={"slot": slot, "sequence": sequence, "messages": messages, "stored": stored},
        )
