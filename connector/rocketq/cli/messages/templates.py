"""How `consume -f` writes a message: letters behind a `%`, as kcat has them.

    %s  body       %S  its length, -1 without one       %t  topic       %p  queue (kcat: partition)
    %k  key        %K  its length, -1 without one       %o  offset      %T  stored at, in ms since 1970
    %h  properties, as name=value, with commas          %%  a percent sign

and some that kcat has no word for: `%g` tag, `%b` broker, `%i` id of the message. `%v` is the body as well,
`%O` the offset and `%q` the queue. `\\n`, `\\r`, `\\t`, `\\0`, `\\\\` and `\\x41` are what they are in C.
Bodies and keys stay bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import rich_click as click

if TYPE_CHECKING:
    from rocketq.cli.messages.json_lines import Shown

_ESCAPE: Final = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else str(len(value)).encode()


def _headers(message: Shown) -> bytes:
    return ",".join(f"{name}={value}" for name, value in (message.properties or {}).items()).encode()


_LETTERS: Final[dict[str, Callable[[Shown], bytes]]] = {
    **dict.fromkeys("sv", lambda message: message.body),
    "S": lambda message: _length(message.body),
    "k": lambda message: message.key or b"",
    "K": lambda message: _length(message.key),
    "t": lambda message: message.queue.topic.encode(),
    **dict.fromkeys("pq", lambda message: str(message.queue.queue).encode()),
    **dict.fromkeys("oO", lambda message: str(message.offset).encode()),
    "T": lambda message: str(message.stored_at_us // 1000).encode(),
    "h": _headers,
    "g": lambda message: (message.tag or "").encode(),
    "b": lambda message: message.queue.broker.encode(),
    "i": lambda message: message.message_id.encode(),
}


class Template:
    """A format that was checked once, to be filled for each message."""

    def __init__(self, text: str) -> None:
        """Raises click.BadParameter for a letter that means nothing."""
        self._parts: list[Callable[[Shown], bytes] | bytes] = []
        for number, part in enumerate(re.split(r"%(.|$)", text, flags=re.DOTALL)):
            if number % 2 == 0 or part == "%":
                self._parts.append(_unescaped(part))
            elif part in _LETTERS:
                self._parts.append(_LETTERS[part])
            else:
                known = " ".join(f"%{letter}" for letter in _LETTERS)
                raise click.BadParameter(f"%{part} is unknown; there are {known} %%", param_hint="--format")

    def fill(self, message: Shown) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in self._parts)


def _unescaped(text: str) -> bytes:
    parts = _ESCAPE.split(text)
    return b"".join(_escaped(part) if number % 2 else part.encode() for number, part in enumerate(parts))


def _escaped(name: str) -> bytes:
    if name[0] == "x" and len(name) == 3:
        return bytes([int(name[1:], 16)])
    return _ESCAPES.get(name, f"\\{name}".encode())
