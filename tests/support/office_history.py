"""Which broker acknowledged what, and in whose epoch that lies: a checker of offices. Pure.

two masters      two brokers have acknowledged messages of one epoch
late             a message of an older epoch was acknowledged whose send began when a newer epoch had already
                 acknowledged one: the former master went on
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Place = tuple[int, int]


class Acknowledged(NamedTuple):
    """A broker acknowledged the message at a place, a queue and an offset; times of one clock, in ns."""

    broker: str
    place: Place
    begun_ns: int
    answered_ns: int


def violations(acks: Iterable[Acknowledged], epochs: Mapping[Place, int]) -> list[str]:
    """Return what may not be; `epochs` has the epoch of each place in the log."""
    by_epoch: dict[int, list[Acknowledged]] = {}
    for each in acks:
        by_epoch.setdefault(epochs[each.place], []).append(each)
    found = []
    for epoch, given in by_epoch.items():
        if len(brokers := sorted({each.broker for each in given})) > 1:
            found.append(f"epoch {epoch} has two masters: {', '.join(brokers)}")
    for older, newer in itertools.combinations(sorted(by_epoch), 2):
        first_ns = min(each.answered_ns for each in by_epoch[newer])
        found += [
            f"late: {each} lies in epoch {older}, and {newer} had begun"
            for each in by_epoch[older]
            if each.begun_ns > first_ns
        ]
    return found
