"""A send's plain form: one message, its body as the request's body (`rocketq.protocol.plain_message`).

    curl --data-binary @body -H 'Content-Type: application/octet-stream' \
        'http://…/v1/topics/orders/messages?queue=0&key=o-17&tag=paid&property.region=eu'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketq.model import Message
from rocketq.protocol.plain_message import BORN_AT, KEY, KEY_BASE64, PROPERTY_PREFIX, TAG
from rocketq_broker.data_plane.query_parameters import INT64_MIN, NUMBER_MAX, key_of, whole_number

#: The parameters of this form, beside those that begin with `PROPERTY_PREFIX`.
PLAIN_PARAMETERS: Final = frozenset({KEY, KEY_BASE64, TAG, BORN_AT})
_PREFIX_CHARACTERS: Final = len(PROPERTY_PREFIX)


def read_message(given: Mapping[str, str], body: bytes) -> Message:
    """Return the message that parameters and body make; raise InvalidRequest."""
    properties = {
        name[_PREFIX_CHARACTERS:]: value for name, value in given.items() if name.startswith(PROPERTY_PREFIX)
    }
    born_at_us = whole_number(given, BORN_AT, INT64_MIN, NUMBER_MAX) if BORN_AT in given else None
    return Message(body, key_of(given), given.get(TAG), properties or None, born_at_us)
