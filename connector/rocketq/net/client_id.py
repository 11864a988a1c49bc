"""The id under which a broker knows a member of a group, a consumer or a producer."""

from __future__ import annotations

import os
import socket
from itertools import count
from uuid import uuid4

_numbers = count(1)


def new_client_id() -> str:
    """Return an id that no other member has: host, process, a number, and a random part."""
    host = "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "-" for c in socket.gethostname())
    return f"{host[:64]}@{os.getpid()}-{next(_numbers)}-{uuid4().hex[:8]}"
