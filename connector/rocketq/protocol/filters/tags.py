"""Tag expressions: `paid || refunded` (RocketMQ: FilterAPI).

A message matches if its tag is one of those named. `*`, or nothing at all, stands for
every message, those without a tag included. White space around a tag does not count;
a tag itself has none, and no `|`. RocketMQ skips an empty place (`A || || B`) without a word;
here it is an error, since most often a tag was lost there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from rocketq.errors import InvalidFilter
from rocketq.protocol.filters.bounds import CACHED_MAX, check_text
from rocketq.protocol.model import TAG_BYTES_MAX

EVERYTHING: Final = "*"
_SEPARATOR: Final = "||"
_NOT_IN_A_TAG: Final = re.compile(r"[\s|]")


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
