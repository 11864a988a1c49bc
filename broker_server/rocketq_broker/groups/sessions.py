"""The sessions of a broker's clients: who is a member of which group, and until when.

Pure: no clock and no event loop. The caller hands in `now_ms` of a monotonic clock and acts on what it gets
back (RocketMQ: ConsumerManager, ProducerManager). A session is renewed by heartbeats and watches. It ends

  * when the client says goodbye;
  * WATCH_BROKEN_GRACE_MS after the connection of its last watch broke, or WATCH_RETURN_GRACE_MS after its
    last watch was answered, if no new one has come: a process that was killed is found out so;
  * `timeout_ms` after its last heartbeat or watch: a process that hangs is found out so.

A client that never had a watch (a producer, a member that is written with curl) has the timeout alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from rocketq.errors import InvalidRequest, SystemBusy

#: For a connection that breaks and is made again.
WATCH_BROKEN_GRACE_MS: Final = 3_000
#: For a client that is slow to make its next watch.
WATCH_RETURN_GRACE_MS: Final = 15_000
#: How often it is looked whose session is over.
EXPIRY_CHECK_MS: Final = 500
#: A look at the sessions that is so much later than planned is not trusted.
LATE_MS: Final = 2_000
#: What a client that finds no place is told to wait.
RETRY_AFTER_MS: Final = 1_000

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Session(Generic[B]):
    """One client in one group, and the last thing it said of itself.

    `beat` is None after a restart of the broker, until the client says it again; `topics` are then those in
    which it owns queues.
    """

    client_id: str
    beat: B | None
    topics: tuple[str, ...]
    address: str
    timeout_ms: int
    heard_ms: int
    watches: int = 0
    #: When the session ends unless a watch comes; None while there is one, and for a client that had none.
    unwatched_until_ms: int | None = None

    @property
    def ends_ms(self) -> int:
        """When the session ends if nothing more is heard of the client."""
        silent = self.heard_ms + self.timeout_ms
        return silent if self.unwatched_until_ms is None else min(silent, self.unwatched_until_ms)


@dataclass(frozen=True, slots=True)
class Joined:
    """What a heartbeat did: whether it was the first of the session, and whether the others must be told."""

    is_new: bool
    is_change: bool


class Sessions(Generic[B]):
    """The sessions of all groups of one broker, by group and client id."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._groups: dict[str, dict[str, Session[B]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Yield the groups that have members."""
        return iter(self._groups)

    def of(self, group: str) -> tuple[Session[B], ...]:
        """Return the members of a group, by client id."""
        return tuple(session for _, session in sorted(self._groups.get(group, {}).items()))

    def count(self, group: str) -> int:
        return len(self._groups.get(group, ()))

    def get(self, group: str, client_id: str) -> Session[B] | None:
        return self._groups.get(group, {}).get(client_id)

    def beat(self, group: str, client_id: str, beat: B, address: str, timeout_ms: int, now_ms: int) -> Joined:
        """Take a heartbeat: it begins a session, or renews it. Raises SystemBusy if there are too many."""
        old = self.get(group, client_id)
        if old is None:
            if self._count >= self._sessions_max:
                raise SystemBusy(f"{self._count} clients have a session", RETRY_AFTER_MS)
            self._put(group, Session(client_id, beat, (), address, timeout_ms, now_ms))
            return Joined(True, True)
        # A client that has lost its watch and sends heartbeats is alive.
        until_ms = None if old.unwatched_until_ms is None else now_ms + WATCH_RETURN_GRACE_MS
        renewed = replace(
            old, beat=beat, topics=(), address=address, timeout_ms=timeout_ms, heard_ms=now_ms,
            unwatched_until_ms=until_ms,
        )  # fmt: skip
        self._put(group, renewed)
        return Joined(old.beat is None, beat != old.beat)

    def recover(
        self, group: str, client_id: str, topics: tuple[str, ...], timeout_ms: int, now_ms: int
    ) -> None:
        """Begin the session of a client that owned queues of these topics when the broker stopped."""
        self._put(group, Session(client_id, None, topics, "", timeout_ms, now_ms))

    def end(self, group: str, client_id: str) -> Session[B] | None:
        """End a session; return what it was, None if there was none."""
        members = self._groups.get(group, {})
        ended = members.pop(client_id, None)
        if ended is not None:
            self._count -= 1
            if not members:
                del self._groups[group]
        return ended

    def end_again(self, group: str, session: Session[B], now_ms: int) -> None:
        """Put back a session that could not be ended; it is due at once."""
        self._put(group, replace(session, watches=0, unwatched_until_ms=now_ms))

    def watch_begins(self, group: str, client_id: str, now_ms: int) -> bool:
        """Take a watch, which renews the session; return False if there is none, or no heartbeat yet."""
        old = self.get(group, client_id)
        if old is None or old.beat is None:
            return False
        self._put(group, replace(old, heard_ms=now_ms, watches=old.watches + 1, unwatched_until_ms=None))
        return True

    def watch_ends(self, group: str, client_id: str, is_broken: bool, now_ms: int) -> None:
        """Note that a watch was answered, or that its connection broke."""
        old = self.get(group, client_id)
        # A session that ended and began again meanwhile knows nothing of the watch.
        if old is None or not old.watches:
            return
        left = old.watches - 1
        grace_ms = WATCH_BROKEN_GRACE_MS if is_broken else WATCH_RETURN_GRACE_MS
        until_ms = None if left else now_ms + grace_ms
        self._put(group, replace(old, watches=left, unwatched_until_ms=until_ms))

    def due(self, now_ms: int, planned_ms: int | None = None) -> list[tuple[str, str]]:
        """Return the group and client id of each session whose time is over; they are still there.

        `planned_ms` is when the look was planned. If it comes LATE_MS later the broker itself was stopped,
        and calls of its clients wait to be read: then no session is over before the next look.
        """
        if planned_ms is not None and now_ms - planned_ms >= LATE_MS:
            return []
        return [
            (group, session.client_id)
            for group, members in self._groups.items()
            for session in members.values()
            if session.ends_ms <= now_ms
        ]

    def _put(self, group: str, session: Session[B]) -> None:
        members = self._groups.setdefault(group, {})
        self._count += session.client_id not in members
        members[session.client_id] = session


def session_timeout_ms(asked: int | None, low: int, high: int) -> int:
    """Return the timeout of a session that asks for one; raise InvalidRequest outside [low, high]."""
    if asked is None:
        return high
    if not low <= asked <= high:
        raise InvalidRequest("session_timeout_ms", f"{asked} is not from {low} to {high}")
    return asked
