"""Numbered sends: what the query says of a send's number (`rocketq.protocol.send_number`).

?slot=N&sequence=N      both, or none for a send that is stored as often as it comes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketq.errors import InvalidRequest
from rocketq.protocol.send_number import SEQUENCE, SLOT, SendNumber
from rocketq_broker.data_plane.query_parameters import NUMBER_MAX, whole_number

NUMBER_PARAMETERS: Final = frozenset({SLOT, SEQUENCE})


def number_of(
    parameters: Mapping[str, str], is_binary: bool = True, is_held: bool = False
) -> SendNumber | None:
    """Return the number of a send, None if it has none; raise InvalidRequest.

    `is_binary` is whether its body is an Arrow stream or one plain message; `is_held` whether it is staged,
    or part of a transaction, which know their repetitions by other names.
    """
    if SLOT not in parameters and SEQUENCE not in parameters:
        return None
    if is_held or not is_binary:
        why = (
            "is for sends that are no part of a sink or transaction" if is_held else "is not for a JSON body"
        )
        raise InvalidRequest(f"parameter {SLOT}", why, hint="Leave slot and sequence out.")
    return SendNumber(
        whole_number(parameters, SLOT, 0, NUMBER_MAX), whole_number(parameters, SEQUENCE, 0, NUMBER_MAX)
    )
