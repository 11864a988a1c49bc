"""The producers of this broker, by producer group (RocketMQ: ProducerManager).

In memory, on the event loop's thread. A producer has no watch: its session ends with its goodbye, or with its
timeout. Sessions whose time is over are dropped when somebody looks, and at heartbeats now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rocketq.clock import Clock
from rocketq.errors import InvalidName
from rocketq.model import is_legal_client_id
from rocketq.protocol.documents.groups import (
    SESSION_TIMEOUT_MS_MIN,
    ProducerHeartbeat,
    ProducerMember,
    ProducerMembers,
)
from rocketq.protocol.rules.reserved_names import check_name, check_user_group
from rocketq_broker.config import BrokerConfig
from rocketq_broker.groups.sessions import EXPIRY_CHECK_MS, Sessions, session_timeout_ms
from rocketq_broker.metrics.group_metrics import Connected


class Producers:
    """Who sends for which producer group on this broker."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._sessions: Sessions[ProducerHeartbeat] = Sessions(config.held_calls_max)
        self._look_at_ms = 0

    def heartbeat(self, group: str, client_id: str, beat: ProducerHeartbeat, address: str) -> None:
        """Take a producer's heartbeat. Raises InvalidName, ReservedName, InvalidRequest."""
        check_user_group(group)
        if not is_legal_client_id(client_id):
            raise InvalidName("client", client_id)
        timeout_ms = session_timeout_ms(
            beat.session_timeout_ms, SESSION_TIMEOUT_MS_MIN, self._config.session_timeout_ms
        )
        now_ms = self._clock.monotonic_ms()
        self._sessions.beat(group, client_id, beat, address, timeout_ms, now_ms)
        if now_ms >= self._look_at_ms:
            self._end_due(now_ms)

    def leave(self, group: str, client_id: str) -> None:
        """End a producer's session; one that is gone is no error."""
        check_name("group", group)
        self._sessions.end(group, client_id)

    def members(self, group: str) -> ProducerMembers:
        """Return the producers of a group at this moment."""
        check_name("group", group)
        now_ms = self._clock.monotonic_ms()
        self._end_due(now_ms)
        found = (
            ProducerMember(
                each.client_id, each.beat.started_at_us, max(0, now_ms - each.heard_ms),
                each.beat.language, each.beat.version, each.address,
            )
            for each in self._sessions.of(group)
            if each.beat is not None
        )  # fmt: skip
        return ProducerMembers(self._config.name, group, self._config.session_timeout_ms, tuple(found))

    def connected(self) -> Mapping[Connected, int]:
        """Return how many producers there are of each group, language and version."""
        self._end_due(self._clock.monotonic_ms())
        return Counter(
            Connected(group, each.beat.language, each.beat.version)
            for group in self._sessions
            for each in self._sessions.of(group)
            if each.beat is not None
        )

    def _end_due(self, now_ms: int) -> None:
        self._look_at_ms = now_ms + EXPIRY_CHECK_MS
        for place in self._sessions.due(now_ms):
            self._sessions.end(*place)
