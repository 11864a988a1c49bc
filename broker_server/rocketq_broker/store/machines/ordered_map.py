"""A map in the order of insertion that is never changed, for state machines (`machine`).

`with_entry` and `without` return a new map and cost the same however many entries there are. So do a look at
the first entry, a lookup, and the step from one entry to the next: nothing is left of an entry that was
removed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from rpds import HashTrieMap

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Link(NamedTuple, Generic[K, V]):
    """An entry's value, and the keys before and behind it."""

    value: V
    before: K | None
    behind: K | None


@dataclass(frozen=True, slots=True)
class OrderedMap(Generic[K, V]):
    """Entries by key; None is no key."""

    _links: HashTrieMap[K, _Link[K, V]] = field(default_factory=HashTrieMap)
    _first: K | None = None
    _last: K | None = None

    @staticmethod
    def of(entries: Iterable[tuple[K, V]]) -> OrderedMap[K, V]:
        made: OrderedMap[K, V] = OrderedMap()
        for key, value in entries:
            made = made.with_entry(key, value)
        return made

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, key: object) -> bool:
        return key in self._links

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderedMap) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self))

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield keys and values in order."""
        key = self._first
        while key is not None:
            value, _, behind = self._links[key]
            yield key, value
            key = behind

    def values(self) -> Iterator[V]:
        """Yield values in order."""
        return (value for _, value in self.items())

    def get(self, key: K) -> V | None:
        link = self._links.get(key)
        return None if link is None else link.value

    @property
    def first(self) -> K | None:
        """The key that was inserted before all others; None if there is none."""
        return self._first

    def with_entry(self, key: K, value: V) -> OrderedMap[K, V]:
        """Return the map with this entry as the last; an entry of this key that was there is gone."""
        if key in self._links:
            return self.without(key).with_entry(key, value)
        links = self._links
        if self._last is not None:
            links = links.insert(self._last, links[self._last]._replace(behind=key))
        links = links.insert(key, _Link(value, self._last, None))
        return OrderedMap(links, key if self._first is None else self._first, key)

    def without(self, key: K) -> OrderedMap[K, V]:
        """Return the map without an entry; raise KeyError if it is not there."""
        _, before, behind = self._links[key]
        links = self._links.remove(key)
        if before is not None:
            links = links.insert(before, links[before]._replace(behind=behind))
        if behind is not None:
            links = links.insert(behind, links[behind]._replace(before=before))
        return OrderedMap(
            links, behind if before is None else self._first, before if behind is None else self._last
        )
