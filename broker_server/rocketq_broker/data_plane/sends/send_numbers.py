"""Numbered sends: what the query says of a send's number (`rocketq.protocol.send_number`).

?number=SLOT-SEQUENCE      or nothing, for a send that is stored as often as it comes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketq.errors import InvalidRequest
from rocketq.protocol.send_number import NUMBER, SendNumber, number_from

NUMBER_PARAMETERS: Final = frozenset({NUMBER})


def number_of(
    parameters: Mapping[str, str], is_binary: bool = True, is_held: bool = False
) -> SendNumber | None:
    """Return the number of a send, None if it has none; raise InvalidRequest.

    `is_binary` is whether its body is an Arrow stream or one plain message; `is_held` whether it is staged,
    or part of a transaction, which know their repetitions by other names.
    """
    text = parameters.get(NUMBER)
    if text is None:
        return None
    if is_held or not is_binary:
        why = "is for sends outside of sinks and transactions" if is_held else "is not for a JSON body"
        raise InvalidRequest(f"parameter {NUMBER}", why, hint="Leave it out.")
    number = number_from(text)
    if number is None:
        raise InvalidRequest(
            f"parameter {NUMBER}", f"{text[:50]!r} is no number of a send",
            hint="Give slot and sequence, two whole numbers below 2**63, as in 5840092817465112034-17.",
        )  # fmt: skip
    return number
