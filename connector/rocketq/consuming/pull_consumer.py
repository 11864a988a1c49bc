"""Reading messages: a pull consumer over all queues of some topics, or over queues that the program chose.

`poll` and `poll_arrow` hand out what threads have fetched ahead (`fetching.fetch_threads`), queue by
queue in order, each queue getting its share; they return as soon as there is anything, and
nothing at all after `timeout_ms`. `commit` stores the positions of what poll has
*returned*, never of what is only fetched; nothing is committed by itself, so a message is read
again, not lost, when its consumer dies before the commit.

    with client.pull_consumer(["orders"], group="billing") as consumer:
        for message in consumer.poll(timeout_ms=2_000):
            ...
        consumer.commit()

This consumer shares its queues with nobody; the members of a group share theirs
(`rocketq.consuming.group_consumer`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

import pyarrow as pa

from rocketq.clock import Clock, SystemClock
from rocketq.config import PullConsumerConfig
from rocketq.consuming.fetching.changes import Changes
from rocketq.consuming.fetching.fetch_buffer import Prefetch
from rocketq.consuming.fetching.fetch_threads import Fetching, FetchSettings
from rocketq.consuming.fetching.process_queue import ProcessQueue
from rocketq.consuming.fetching.route_threads import ReadQueues
from rocketq.consuming.fetching.subscriptions import MessageFilter
from rocketq.consuming.records import Fetched, as_arrow, as_messages
from rocketq.errors import BrokerUnavailable, BrokerUnreachable, Closed, InvalidConfiguration, NotMaster
from rocketq.model import MessageQueue, StoredMessage
from rocketq.net.broker_api import master_of
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import CommitOffsetsRequest, GroupOffset
from rocketq.protocol.rules.reserved_names import check_name, check_user_group


class PullConsumer:
    """Reads topics from all their queues, or from chosen ones. Thread-safe; made by `Client.pull_consumer`.

    >>> with client.pull_consumer("orders", start="earliest") as consumer:
    ...     batch = consumer.poll_arrow(timeout_ms=30_000)
    >>> batch.num_rows > 0, batch.schema.names[:3]
    (True, ['key', 'tag', 'body'])

    It owns its transport, whose closing cuts the calls that brokers hold for it.
    """

    def __init__(
        self,
        transport: Transport,
        routes: RouteCache,
        topics: Sequence[str],
        *,
        group: str | None = None,
        queues: Collection[MessageQueue] | None = None,
        config: PullConsumerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config or PullConsumerConfig()
        self.topics = _checked_topics(topics)
        self.group = _checked_group(group, self.config)
        self._transport, self._routes = transport, routes
        self._closed = False
        self._closing = threading.Lock()
        config = self.config
        self._fetching = Fetching(
            transport,
            routes,
            dict.fromkeys(self.topics, MessageFilter(config.tags, config.sql)),
            self.group,
            FetchSettings(config.pull_bytes, config.hold_ms, config.retry_ms, config.offset_reset),
            Prefetch(config.prefetch_bytes),
            clock or SystemClock(),
        )
        try:
            chosen = None if queues is None else self._chosen(queues)
            self._queues = ReadQueues(
                transport, routes, self.topics, self.group, config, self._fetching, chosen
            )
            self._queues.start()
        except BaseException:
            self.close()
            raise

    # --- reading -----------------------------------------------------------------

    def poll(self, max_messages: int = 500, timeout_ms: int = 1_000) -> list[StoredMessage]:
        """Return the next messages, as soon as there are any; an empty list after `timeout_ms`.

        Raises CorruptFrame, OffsetOutOfRange (with offset_reset="error"), TopicNotFound or NoPermission
        for a queue that cannot go on, until it is sought elsewhere; Closed.
        """
        return as_messages(self._taken(max_messages, timeout_ms))

    def poll_arrow(self, max_messages: int = 50_000, timeout_ms: int = 1_000) -> pa.RecordBatch:
        """Return the next messages as one batch of CONSUMED_SCHEMA; raises as `poll`."""
        return as_arrow(self._taken(max_messages, timeout_ms))

    # --- positions ---------------------------------------------------------------

    def positions(self) -> dict[MessageQueue, int]:
        """Return for each queue the offset that poll hands out next."""
        with self._fetching.changed:
            return {state.queue: state.position for state in self._fetching.prefetch.states()}

    def lag(self) -> dict[MessageQueue, int]:
        """Return how many messages of each queue are not handed out yet, as far as is known."""
        with self._fetching.changed:
            states = self._fetching.prefetch.states()
            return {state.queue: max(0, state.known_max - state.position) for state in states}

    @property
    def buffered_bytes(self) -> int:
        """The bytes of the messages that were fetched ahead of `poll`; about `prefetch_bytes` at most."""
        with self._fetching.changed:
            return self._fetching.prefetch.buffered_bytes

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on in a queue at `offset`; what was fetched ahead of it is dropped."""
        self._check_open()
        if offset < 0:
            raise InvalidConfiguration("offset", offset, "offsets begin at 0")
        with self._fetching.changed:
            self._read(queue)
            self._fetching.prefetch.seek(queue, offset)
            self._fetching.changed.notify_all()

    def assign(self, queues: Collection[MessageQueue] | None) -> None:
        """Read exactly these queues from now on; None: all of the topics, also those that appear later.

        A queue that was read before goes on where it stands. Another begins where `start` says, as at first.
        A queue that is left out is forgotten: commit before, if what was returned of it is handled. Raises
        InvalidConfiguration for a queue that does not exist; then nothing has changed.
        """
        self._check_open()
        self._queues.choose(None if queues is None else self._chosen(queues))

    def pause(self, *queues: MessageQueue) -> None:
        """Return and fetch nothing of these queues until `resume`."""
        self._set_paused(queues, True)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues."""
        self._set_paused(queues, False)

    def commit(self) -> None:
        """Store the group's progress: for each queue, the position behind what poll has returned.

        Raises BrokerUnreachable for the first broker that did not take it; the others have.
        """
        self._check_open()
        if self.group is None:
            raise InvalidConfiguration(
                "group", None, "there is no group to commit for", hint="Make the consumer with group=..."
            )
        by_master: dict[tuple[str, str, bool], list[GroupOffset]] = {}
        sought: dict[MessageQueue, int] = {}
        with self._fetching.changed:
            for state in self._fetching.prefetch.states():
                queue = state.queue
                progress = GroupOffset(queue.topic, queue.queue, state.position)
                by_master.setdefault((queue.broker, queue.topic, state.sought), []).append(progress)
                if state.sought:
                    sought[queue] = state.generation
        failed: Exception | None = None
        for (broker, topic, reset), offsets in by_master.items():
            try:
                route = self._routes.route(topic)
                master = master_of(route, broker, self._transport, self._routes.invalidate)
                master.commit_offsets(self.group, CommitOffsetsRequest(tuple(offsets), reset))
            except (BrokerUnreachable, BrokerUnavailable, NotMaster) as error:
                failed = failed or error
        if failed is not None:
            raise failed
        with self._fetching.changed:
            for queue, generation in sought.items():
                current = self._fetching.prefetch.state(queue)
                if current is not None and current.generation == generation:
                    current.sought = False

    # --- life --------------------------------------------------------------------

    @property
    def changes(self) -> Changes:
        """What tells of messages that arrive, and of everything else that may end a wait."""
        return self._fetching.changed

    def close(self) -> None:
        """Stop fetching at once. Commits nothing. Closing twice is no error."""
        with self._closing:
            self._closed = True
            self._transport.close()
            self._fetching.stop()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("The consumer")

    def _chosen(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        if not queues:
            hint = "Pause queues to wait, or close the consumer."
            raise InvalidConfiguration("queues", [], "a consumer of no queue would read nothing", hint=hint)
        for queue in queues:
            if queue.topic not in self.topics:
                why = f"this consumer reads {', '.join(self.topics)}"
                raise InvalidConfiguration("queues", str(queue), why, hint="Name its topic as well.")
        return queues

    def _read(self, queue: MessageQueue) -> ProcessQueue:
        """Return a queue that is read; the caller holds the lock."""
        state = self._fetching.prefetch.state(queue)
        if state is None:
            why = "this consumer does not read it"
            raise InvalidConfiguration("queue", str(queue), why, hint="See positions().")
        return state

    def _set_paused(self, queues: Collection[MessageQueue], paused: bool) -> None:
        self._check_open()
        with self._fetching.changed:
            for state in [self._read(queue) for queue in queues]:
                state.is_paused = paused
            self._fetching.changed.notify_all()

    def _error(self) -> Exception | None:
        return self._fetching.defect or self._fetching.prefetch.error()

    def _taken(self, max_messages: int, timeout_ms: int) -> list[Fetched]:
        if max_messages < 1:
            raise InvalidConfiguration("max_messages", max_messages, "it must be at least 1")
        prefetch, changed = self._fetching.prefetch, self._fetching.changed
        with changed:
            changed.wait_for(
                lambda: self._closed or prefetch.has_messages() or self._error() is not None,
                max(0, timeout_ms) / 1000,
            )
            self._check_open()
            error = self._error()
            if error is not None:
                raise error
            fetched = prefetch.take(max_messages)
            if fetched:
                # There is room now, and perhaps a watcher's turn.
                changed.notify_all()
            return fetched


def _checked_topics(topics: Sequence[str]) -> tuple[str, ...]:
    listed = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not listed:
        raise InvalidConfiguration("topics", list(topics), "it names no topic")
    for topic in listed:
        check_name("topic", topic)
    return listed


def _checked_group(group: str | None, config: PullConsumerConfig) -> str | None:
    if group is not None:
        check_user_group(group)
    if group is None and config.start == "group":
        raise InvalidConfiguration(
            "start",
            config.start,
            "without a group there is no committed offset to start at",
            hint="Give group=..., or start='earliest' or 'latest'.",
        )
    return group
