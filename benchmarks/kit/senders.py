"""Many senders of small requests in one thread: each sends its next request when it has its answer.

Threads would do as well if a load were all that is wanted. But each would take the interpreter and a
core's attention for every answer, and on a machine that the server shares, that is measured with it:
waking a thread of an idle core costs a virtual machine more than a small send costs the server.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Final

_ANSWER_BYTES: Final = 65_536
_OK: Final = b"HTTP/1.1 200"
_LENGTH: Final = b"content-length:"


class _Sender:
    """One connection and the part of an answer that it has."""

    __slots__ = ("answer", "request", "socket")

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.answer = b""

    def send(self) -> None:
        self.socket.sendall(self.request)

    def take(self) -> bool:
        """Receive what there is; return whether the answer is whole. Raise on one that is not 200."""
        got = self.socket.recv(_ANSWER_BYTES)
        if not got:
            raise ConnectionError("the server closed the connection within an answer")
        self.answer += got
        if not _is_whole(self.answer):
            return False
        if not self.answer.startswith(_OK):
            raise RuntimeError(self.answer[:500])
        self.answer = b""
        return True


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    at = head.lower().index(_LENGTH) + len(_LENGTH)
    return len(body) >= int(head[at:].split(b"\r\n", 1)[0])


def drive_small(host: str, port: int, requests: Sequence[bytes], seconds: float) -> float:
    """Send each of `requests` from a connection of its own, again and again; return answers a second."""
    senders = {}
    poll = select.epoll()
    try:
        for request in requests:
            sender = _Sender(host, port, request)
            senders[sender.socket.fileno()] = sender
            poll.register(sender.socket.fileno(), select.EPOLLIN)
        started = now = time.perf_counter()
        for sender in senders.values():
            sender.send()
        answered = 0
        while now < started + seconds:
            for number, _ in poll.poll():
                sender = senders[number]
                if sender.take():
                    answered += 1
                    sender.send()
            now = time.perf_counter()
        return answered / (now - started)
    finally:
        poll.close()
        for sender in senders.values():
            sender.socket.close()
