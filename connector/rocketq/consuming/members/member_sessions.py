"""A member's sessions with the brokers of its topics: heartbeats, and the watches that tell of changes.

Each broker that has a queue of the member's topics is told of the member, at the start and every
`heartbeat_ms`. One thread for each broker (`watch BROKER`) asks for the members and is held by the broker
until they change. A session lasts as long as one of the two kinds of calls is answered often enough; when
it ends, the member owns no queue of that broker any more.

One thread makes a member's calls to all its brokers, so a broker that hangs holds up the queues of the
others. Therefore no call waits longer than a session lasts, also if the transport would: after such a
silence the member gives up the broker's queues anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rocketq.clock import Clock
from rocketq.config import ConsumerConfig
from rocketq.consuming.fetching.fetch_threads import Fetching
from rocketq.errors import BrokerUnreachable, ClientError, GroupDisabled, MemberUnknown, RocketqError
from rocketq.net.broker_api import BrokerApi, master_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.groups import SESSION_TIMEOUT_MS, GroupMembers, Heartbeat, HeartbeatAnswer

#: So many heartbeats, and so many watches, come in a session timeout at least. Heartbeats alone keep it.
HEARTBEATS_IN_A_SESSION: Final = 3
WATCHES_IN_A_SESSION: Final = 2


@dataclass(slots=True)
class Session:
    """What the member knows of itself at one broker; `topic` is one whose route names the broker."""

    broker: str
    topic: str
    is_joined: bool = False
    timeout_ms: int = SESSION_TIMEOUT_MS
    #: When the last call that was answered was made.
    renewed_ms: int = 0
    beat_due_ms: int = 0
    members: GroupMembers | None = None
    #: Why the broker does not take the member, if it does not.
    refusal: RocketqError | None = None

    @property
    def ends_ms(self) -> int:
        return self.renewed_ms + self.timeout_ms


class Sessions:
    """The sessions of one member. The member's thread calls all methods; watches only note what they hear."""

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        group: str,
        client_id: str,
        beat: Heartbeat,
        config: ConsumerConfig,
        clock: Clock,
        fetching: Fetching,
        changed: Callable[[], None],
    ) -> None:
        self._transport, self._routes, self._group, self._client_id = transport, routes, group, client_id
        self._beat, self._config, self._clock = beat, config, clock
        self._fetching, self._changed = fetching, changed
        self._sessions: dict[str, Session] = {}
        #: The last heartbeat that failed.
        self.failure: RocketqError | None = None

    @property
    def refusal(self) -> RocketqError | None:
        """Why a broker does not take the member, if one does not."""
        return next((session.refusal for session in self if session.refusal is not None), None)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def api(self, broker: str) -> BrokerApi:
        """Return the calls to a broker; raise BrokerUnreachable if no route names it."""
        session = self._sessions.get(broker)
        if session is None:
            raise BrokerUnreachable(broker, "no known address", "no route names it any more", sent=False)
        return master_of(
            self._routes.route(session.topic), broker, self._transport, self._routes.invalidate,
            timeout_ms=min(self._transport.config.timeout_ms, session.timeout_ms),
        )  # fmt: skip

    def keep(self, topic_of: Mapping[str, str]) -> None:
        """Have sessions with these brokers and no others; each comes with a topic that it has."""
        for broker in self._sessions.keys() - topic_of.keys():
            del self._sessions[broker]
        for broker, topic in topic_of.items():
            if broker not in self._sessions:
                wanted_ms = self._config.session_timeout_ms or SESSION_TIMEOUT_MS
                self._sessions[broker] = Session(broker, topic, timeout_ms=wanted_ms)
        self._fetching.stand_ins = dict(topic_of)

    def known(self) -> dict[str, GroupMembers]:
        """Return the members as each broker that the member has joined names them."""
        return {s.broker: s.members for s in self if s.is_joined and s.members is not None}

    def has_joined(self, broker: str) -> bool:
        return broker in self._sessions and self._sessions[broker].is_joined

    def forget(self, broker: str) -> None:
        """Note that a broker does not know the member: the next heartbeat is due at once."""
        session = self._sessions.get(broker)
        if session is not None:
            session.is_joined, session.beat_due_ms = False, 0
            self._changed()

    def look_again(self, broker: str) -> None:
        """Have the next heartbeat made at once: its answer says which queues of a broker the member owns."""
        session = self._sessions.get(broker)
        if session is not None:
            session.beat_due_ms = 0
            self._changed()

    def invalidate(self, broker: str) -> None:
        """Have a broker's address looked up again: it did not answer."""
        session = self._sessions.get(broker)
        if session is not None:
            self._routes.invalidate(session.topic)

    def next_beat_ms(self) -> int:
        """Return when the next heartbeat is due."""
        return min((session.beat_due_ms for session in self), default=self._clock.monotonic_ms())

    def beat(self) -> list[HeartbeatAnswer]:
        """Send the heartbeats that are due; return the answers. A broker that gives none is asked again."""
        answers = []
        for session in self:
            if session.beat_due_ms <= self._clock.monotonic_ms():
                answer = self._beaten(session)
                if answer is not None:
                    answers.append(answer)
        return answers

    def leave(self) -> None:
        """Say goodbye to every broker that took the member; one that gives no answer finds it out itself."""
        for session in self:
            if not session.is_joined:
                continue
            try:
                self.api(session.broker).leave_group(self._group, self._client_id)
            except RocketqError as error:
                self._fetching.log_once(("goodbye", session.broker), error)

    def _beaten(self, session: Session) -> HeartbeatAnswer | None:
        now_ms = self._clock.monotonic_ms()
        session.beat_due_ms = now_ms + self._config.retry_ms
        try:
            api = self.api(session.broker)
            answer = api.heartbeat(self._group, self._client_id, self._beat)
            if not session.is_joined or session.members is None:
                session.members = api.members(self._group)
        except RocketqError as error:
            self._note_failure(session, error)
            return None
        session.refusal = None
        session.is_joined, session.timeout_ms = True, answer.session_timeout_ms
        self._renewed(session, now_ms)
        interval = min(self._config.heartbeat_ms, session.timeout_ms // HEARTBEATS_IN_A_SESSION)
        session.beat_due_ms = now_ms + interval
        self._fetching.is_well(("heartbeat", session.broker))
        self._fetching.start_thread(("watch", session.broker), partial(self._watch, session.broker))
        return answer

    def _note_failure(self, session: Session, error: RocketqError) -> None:
        if isinstance(error, BrokerUnreachable):
            self._routes.invalidate(session.topic)
        self.failure = error
        passing = isinstance(error, ClientError | MemberUnknown) or error.retryable
        if not passing:
            session.is_joined, session.refusal = False, error
        self._fetching.log_once(("heartbeat", session.broker), error)

    def _renewed(self, session: Session, at_ms: int) -> None:
        """Note that the broker heard of the member: its queues stay its own for another session timeout."""
        session.renewed_ms = max(session.renewed_ms, at_ms)
        with self._fetching.changed:
            for state in self._fetching.prefetch.states():
                if state.queue.broker == session.broker:
                    state.owned_until_ms = session.ends_ms
            self._fetching.changed.notify_all()

    # --- watches -----------------------------------------------------------------

    def _watch(self, broker: str) -> None:
        """Ask for the members again and again; runs in a thread of its own, until the consumer stops."""
        while not self._fetching.is_stopping:
            session = self._sessions.get(broker)
            if session is None or not session.is_joined:
                self._fetching.wait(self._config.retry_ms)
                continue
            now_ms = self._clock.monotonic_ms()
            known = None if session.members is None else session.members.version
            hold_ms = min(self._config.watch_ms, session.timeout_ms // WATCHES_IN_A_SESSION)
            try:
                members = self.api(broker).members(
                    self._group, client_id=self._client_id, known=known, wait_ms=hold_ms
                )
            except (MemberUnknown, GroupDisabled):
                self.forget(broker)
                continue
            except BrokerUnreachable:
                self._routes.invalidate(session.topic)
                raise
            self._renewed(session, now_ms)
            self._fetching.is_well(("watch", broker))
            if members.version != known:
                before, session.members = session.members, members
                if before is not None and before.queues_taken != members.queues_taken:
                    session.beat_due_ms = 0
                self._changed()
