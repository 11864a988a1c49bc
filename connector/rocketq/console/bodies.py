"""How the bytes of a message look on a page: as JSON, as text, or as bytes.

A body comes from anybody. It is cut to a size that a page can hold, and a character that a reader would not
see, or that changes the order of what follows (Unicode: Bidi_Control), is shown by its number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

SHOWN_BYTES: Final = 64 * 1024
_HEX_BYTES: Final = 4 * 1024
_LINE: Final = 16
_PREVIEW: Final = 160


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body to be shown: `kind` is "JSON", "text", "bytes" or "empty"; `shown` of its `size` bytes."""

    kind: str
    text: str
    size: int
    shown: int

    @property
    def is_cut(self) -> bool:
        return self.shown < self.size


def body_view(body: bytes) -> BodyView:
    """Return a body in the form that tells most."""
    if not body:
        return BodyView("empty", "", 0, 0)
    text = _text(body[:SHOWN_BYTES], whole=len(body) <= SHOWN_BYTES)
    if text is None:
        return BodyView("bytes", _dump(body[:_HEX_BYTES]), len(body), min(len(body), _HEX_BYTES))
    shown = min(len(body), SHOWN_BYTES)
    if len(body) <= SHOWN_BYTES and text[:1] in "{[":
        try:
            pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return BodyView("text", visible(text), len(body), shown)
        return BodyView("JSON", visible(pretty), len(body), shown)
    return BodyView("text", visible(text), len(body), shown)


def preview(value: bytes | None) -> str:
    """Return the beginning of a body or key on one line."""
    if value is None:
        return ""
    text = _text(value[: 4 * _PREVIEW], whole=False)
    if text is None:
        return value[:24].hex(" ") + (" …" if len(value) > 24 else "")
    line = visible(" ".join(text.split()))
    return line if len(line) <= _PREVIEW else line[:_PREVIEW] + "…"


def visible(text: str) -> str:
    """Return a text in which nothing is invisible but spaces and ends of lines."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else f"\\u{{{ord(each):x}}}"
        for each in text.replace("\r\n", "\n")
    )


def _text(value: bytes, *, whole: bool) -> str | None:
    """Return what bytes say as UTF-8; None if they are no text."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        # The last character may be cut in two.
        if whole or error.start < len(value) - 3:
            return None
        text = value[: error.start].decode("utf-8")
    controls = sum(1 for each in text if not each.isprintable() and each not in "\r\n\t")
    return None if controls > len(text) // 10 else text


def _dump(value: bytes) -> str:
    lines = []
    for at in range(0, len(value), _LINE):
        row = value[at : at + _LINE]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{3 * _LINE}} {plain}")
    return "\n".join(lines)
