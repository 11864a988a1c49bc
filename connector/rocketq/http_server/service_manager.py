"""What a server tells systemd: that it is ready.

A unit of `Type=notify` names a datagram socket in NOTIFY_SOCKET; the protocol is that of sd_notify(3).
Without the variable nothing is told. A message that cannot be sent is no reason for a server to end, but
systemd will end it for its silence, so the log names the reason.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import structlog

READY: Final = "READY=1"
_log = structlog.get_logger(__name__)


def tell_service_manager(state: str) -> None:
    """Send `state` to the service manager that started this process, if one did."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # An address with @ is one of Linux's abstract names, whose first byte is 0.
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.connect(target)
            notices.sendall(state.encode())
    except OSError as error:
        _log.warning("service_manager_not_told", address=address, error=str(error))
