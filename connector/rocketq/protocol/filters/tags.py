"""Tag expressions: `paid || refunded` (RocketMQ: FilterAPI), and what a tag may be.

A message matches if its tag is one of those named. `*`, or nothing at all, stands for
every message, those without a tag included. White space around a tag does not count. RocketMQ
skips an empty place (`A || || B`) without a word; here it is an error, since most often a tag
was lost there.

A tag is whatever an expression can name: text of 1 to 255 bytes in UTF-8, without white space and
without `|`, and not `*` alone. No message may have another one: no consumer could ask for it.
(RocketMQ stores any tag.) White space is what `str.isspace` says.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rocketq.errors import InvalidFilter
from rocketq.model import TAG_BYTES_MAX
from rocketq.protocol.filters.limits import CACHED_MAX, check_text

EVERYTHING: Final = "*"
_SEPARATOR: Final = "||"
#: For `re` and for Arrow's RE2 alike, whose \s are not the same.
NOT_IN_A_TAG: Final = "[|\t\n\v\f\r\x1c-\x1f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_NOT_IN_A_TAG: Final = re.compile(NOT_IN_A_TAG)


@lru_cache(maxsize=CACHED_MAX)
def parse_tags(expression: str) -> tuple[str, ...]:
    """Return the tags that match, each once and in order; none means that every message matches.

    Raise InvalidFilter if it is not tags separated by `||`.
    """
    check_text(expression)
    if expression.strip() in ("", EVERYTHING):
        return ()
    tags: dict[str, None] = {}
    at = 0
    for part in expression.split(_SEPARATOR):
        tag = part.strip()
        _check_tag(expression, at + len(part) - len(part.lstrip()), tag)
        tags[tag] = None
        at += len(part) + len(_SEPARATOR)
    return tuple(tags)


def why_no_tag(tag: str) -> str | None:
    """Return what is wrong with a tag, its length apart; None if it is one."""
    if tag.isalnum():
        # Nearly every tag; this is ten times as quick as a search.
        return None
    if not tag:
        return "is empty"
    if tag == EVERYTHING:
        return "stands for every tag"
    wrong = _NOT_IN_A_TAG.search(tag)
    if wrong is None:
        return None
    return "has a '|'" if wrong.group() == "|" else "has white space"


def _check_tag(expression: str, at: int, tag: str) -> None:
    """Raise InvalidFilter if what begins at `at` is not a tag."""
    if not tag:
        raise InvalidFilter(
            expression, min(at, len(expression)), "a tag is missing", hint="Write a tag on each side of ||."
        )
    if tag == EVERYTHING:
        raise InvalidFilter(expression, at, "* stands for every tag", hint="Write * alone, or only tags.")
    wrong = _NOT_IN_A_TAG.search(tag)
    if wrong:
        what = "'|'" if wrong.group() == "|" else "white space"
        raise InvalidFilter(
            expression, at + wrong.start(), f"a tag has no {what}", hint="Separate tags by ||, as in: A || B"
        )
    if len(tag.encode()) > TAG_BYTES_MAX:
        raise InvalidFilter(
            expression, at, f"this tag has {len(tag.encode())} bytes, {TAG_BYTES_MAX} are allowed"
        )
