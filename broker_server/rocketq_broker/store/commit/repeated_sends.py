"""Which numbered sends are repetitions: a decision of the plan of a commit group (`commit_plan`).

Pure. What was stored before is in the state (`slot_table`); what waits for its frame in the same commit group
is held against the same rule.
"""

from __future__ import annotations

from rocketq.errors.sending_errors import SendNumberReused, SendOutdated
from rocketq.protocol.send_number import SendNumber


def is_repetition(number: SendNumber, messages: int, last: int, stored: int) -> bool:
    """Whether a send of so many messages is the last one of its slot, which had `stored` messages, again.

    Raises SendOutdated if the slot has gone on behind it, and SendNumberReused if it is another send.
    """
    if number.sequence > last:
        return False
    if number.sequence < last:
        raise SendOutdated(number.slot, number.sequence, last)
    if messages != stored:
        raise SendNumberReused(number.slot, number.sequence, messages, stored)
    return True
