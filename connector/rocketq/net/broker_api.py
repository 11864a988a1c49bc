"""Typed calls to one broker (docs/protocol.md, "Broker" and "Sinks").

One method for each endpoint; no retries, no choice of broker, no state. A call
without an answer raises BrokerUnreachable, whose `sent` says whether the broker
may have taken the request; a refusal raises the error that the broker sent.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final, Self, TypeVar

from msgspec.structs import asdict

from rocketq.errors import BrokerUnreachable, RemoteError
from rocketq.model import PullStatus, TimeBoundary, TopicConfig
from rocketq.net.group_api import GroupApi
from rocketq.net.pulled import Pulled
from rocketq.net.transport import (
    PULL_ANSWER_BYTES_MAX,
    Body,
    Query,
    Response,
    Transport,
    TransportFailure,
    path_of,
)
from rocketq.protocol.documents import broker as calls
from rocketq.protocol.documents.broker import (
    AlterTopicRequest,
    BrokerStatistics,
    ClockRequest,
    CreateTopicRequest,
    KeyQueryAnswer,
    MessageDocument,
    SendAnswer,
    TimeOffsets,
    TimeQueryAnswer,
    TimerDocument,
    TimerListing,
    TopicDescription,
    TopicListing,
    TopicOffsets,
)
from rocketq.protocol.documents.nameserver import MASTER_ID, TopicRoute
from rocketq.protocol.documents.sinks import (
    AbortBatchAnswer,
    AbortBatchRequest,
    BeginRunRequest,
    CheckBatchAnswer,
    CheckBatchRequest,
    CommitBatchAnswer,
    CommitBatchRequest,
    PublishBatchAnswer,
    PublishBatchRequest,
    RegisterSinkRequest,
    RunAnswer,
    SinkDescription,
    SinkListing,
    StagedAnswer,
    StageName,
)
from rocketq.protocol.json_codec import decode
from rocketq.protocol.send_number import NUMBER, SendNumber

T = TypeVar("T")

#: The path of a topic's messages. A client sends to few topics, many times.
_messages_path: Final = lru_cache(1_024)(lambda topic: path_of("topics", topic, "messages"))

_STREAM_BODY: Final = {"content-type": calls.ARROW_STREAM, "accept": calls.JSON}
#: Lines of the head of a request, as `Transport.post` takes them.
_PLAIN_BODY: Final = f"content-type: {calls.OCTET_STREAM}\r\n"
_ACCEPT_FRAMES: Final = {"accept": calls.FRAMES}


class BrokerApi(GroupApi):
    """One broker process. Cheap to make: the transport owns the connections."""

    def __init__(
        self, transport: Transport, broker: str, address: str, *, timeout_ms: int | None = None
    ) -> None:
        super().__init__(transport, address, f"broker {broker}", timeout_ms)
        self.broker = broker

    @classmethod
    def of(cls, broker: BrokerApi, transport: Transport) -> Self:
        """Return the calls of this class to the same broker."""
        made = cls(transport, broker.broker, broker.address)
        made.on_lost = broker.on_lost
        return made

    def __repr__(self) -> str:
        return f"BrokerApi({self.broker!r}, {self.address!r})"

    # --- messages ----------------------------------------------------------------

    def send(
        self,
        topic: str,
        queues: Sequence[int],
        stream: Body,
        *,
        number: SendNumber | None = None,
        timeout_ms: int | None = None,
    ) -> SendAnswer:
        """Append the batches of an Arrow stream: to `queues[i]` batch i, all to `queues[0]`, or as the broker
        rotates if empty. With a number a send that was stored before is answered with its first place.
        Raises InvalidBatch, TooLarge, TopicNotFound, QueueNotFound, NoPermission,
        SystemBusy, BrokerUnavailable, StoreFull, BrokerUnreachable.
        """
        query: Query = {
            "queue": ",".join(map(str, queues)) or None, NUMBER: None if number is None else number.text
        }  # fmt: skip
        return self._noted(self._post(topic, query, stream, _STREAM_BODY, SendAnswer, timeout_ms))

    def send_one(
        self, topic: str, queue: int, query: str, body: bytes, *, timeout_ms: int | None = None
    ) -> SendAnswer:
        """Append one message in its plain form: its body, and the rest as `plain_message.query_of` gives it.

        Raises as `send`.
        """
        target = f"{_messages_path(topic)}?queue={queue}" + (f"&{query}" if query else "")
        try:
            answer = self._transport.post(
                self.address, target, _PLAIN_BODY, body, timeout_ms=timeout_ms or self._timeout_ms
            )
        except TransportFailure as failure:
            raise self._unreachable(failure) from failure
        return self._noted(decode(answer, SendAnswer, f"the answer of {self._title} at {self.address}"))

    def _noted(self, answer: SendAnswer) -> SendAnswer:
        """Take the answer to a send: a master whom no slave follows may have been replaced."""
        if answer.status.is_unconfirmed:
            self._tell_lost()
        return answer

    def _post(
        self, topic: str, query: Query, body: Body, headers: dict[str, str], kind: type[T],
        timeout_ms: int | None,
    ) -> T:  # fmt: skip
        path = path_of("topics", topic, "messages")
        answer = self._call("POST", path, query=query, body=body, headers=headers, timeout_ms=timeout_ms)
        return self._decoded(answer, kind)

    def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max_bytes: int | None = None,
        max_messages: int | None = None,
        end: int | None = None,
        tag: str | None = None,
        sql: str | None = None,
        wait_ms: int = 0,
        group: str | None = None,
        client_id: str | None = None,
        epoch: int | None = None,
        master_only: bool = False,
        timeout_ms: int | None = None,
    ) -> Pulled:
        """Pull frames from `offset` on; held at most `wait_ms` while there are none.

        Through a filter, `tag` or `sql` (docs/filters.md), the frames are filtered, and an answer without
        any (NO_MATCHED_MSG) advances all the same; `end` keeps the broker from looking further.

        `group` is who asks; `client_id` and `epoch` belong to a member, which is refused a queue that it does
        not own. With `master_only` a slave refuses, which may not have the newest messages yet (NotMaster).

        Raises OffsetOutOfRange, InvalidFilter, TopicNotFound, QueueNotFound, NoPermission, GroupDisabled,
        ClaimLost, BrokerUnreachable.
        """
        answer = self._call(
            "GET",
            path_of("topics", topic, "queues", queue, "messages"),
            query={
                "offset": offset,
                "max_bytes": max_bytes,
                "max_messages": max_messages,
                "end": end,
                "tag": tag,
                "sql": sql,
                "wait_ms": wait_ms or None,
                "group": group,
                "client_id": client_id,
                "epoch": epoch,
                "master_only": "true" if master_only else None,
            },
            headers=_ACCEPT_FRAMES,
            timeout_ms=timeout_ms,
            hold_ms=wait_ms,
            answer_bytes_max=PULL_ANSWER_BYTES_MAX,
        )
        return Pulled(
            PullStatus(self._header(answer, calls.STATUS_HEADER)),
            offset,
            self._offset(answer, calls.NEXT_OFFSET_HEADER),
            self._offset(answer, calls.MIN_OFFSET_HEADER),
            self._offset(answer, calls.MAX_OFFSET_HEADER),
            answer.headers.get(calls.INCARNATION_HEADER, ""),
            answer.body,
            int(answer.headers.get(calls.SUGGESTED_BROKER_HEADER, MASTER_ID)),
        )

    def message(self, message_id: str) -> MessageDocument:
        """Return one message by its id. Raises NotFound."""
        answer = self._call("GET", path_of("messages", message_id), answer_bytes_max=PULL_ANSWER_BYTES_MAX)
        return self._decoded(answer, MessageDocument)

    def query_by_key(
        self,
        topic: str,
        key: bytes,
        *,
        begin_us: int | None,
        end_us: int | None,
        limit: int,
        page: str | None = None,
    ) -> KeyQueryAnswer:
        """Return a page of the messages with this key, newest first; its size is at most `limit`.

        Raises TopicNotFound, NoPermission.
        """
        query: Query = {
            "key_base64": base64.b64encode(key).decode("ascii"),
            "begin": begin_us,
            "end": end_us,
            "limit": limit,
            "page": page,
        }
        return self._search(topic, query, KeyQueryAnswer)

    def query_by_time(
        self, topic: str, *, begin_us: int, end_us: int | None, limit: int, page: str | None = None
    ) -> TimeQueryAnswer:
        """Return a page of the messages stored in an interval, oldest first; its size is at most `limit`.

        Raises TopicNotFound, NoPermission.
        """
        query: Query = {"begin": begin_us, "end": end_us, "limit": limit, "page": page}
        return self._search(topic, query, TimeQueryAnswer)

    def _search(self, topic: str, query: Query, kind: type[T]) -> T:
        path = path_of("topics", topic, "messages")
        answer = self._call("GET", path, query=query, answer_bytes_max=PULL_ANSWER_BYTES_MAX)
        return self._decoded(answer, kind)

    # --- delayed messages --------------------------------------------------------

    def timers(self, topic: str, *, limit: int, page: str | None = None) -> TimerListing:
        """Return a page of the delayed messages of a topic that are not delivered yet, the next first.

        Raises TopicNotFound, NoPermission.
        """
        query: Query = {"limit": limit, "page": page}
        path = path_of("topics", topic, "timers")
        answer = self._call("GET", path, query=query, answer_bytes_max=PULL_ANSWER_BYTES_MAX)
        return self._decoded(answer, TimerListing)

    def timer(self, timer_id: str) -> TimerDocument:
        """Return a delayed message, and what became of it. Raises NotFound."""
        answer = self._call("GET", path_of("timers", timer_id), answer_bytes_max=PULL_ANSWER_BYTES_MAX)
        return self._decoded(answer, TimerDocument)

    def cancel_timer(self, timer_id: str) -> TimerDocument:
        """Cancel a delayed message; safe to repeat. Raises NotFound, and Conflict if its time has passed."""
        return self._decoded(self._call("DELETE", path_of("timers", timer_id)), TimerDocument)

    # --- offsets -----------------------------------------------------------------

    def offsets(
        self, topic: str, *, after_total: int | None = None, wait_ms: int = 0, master_only: bool = False
    ) -> TopicOffsets:
        """Return min and max of every queue; held at most `wait_ms` until the total exceeds `after_total`.

        With `master_only` a slave refuses, which may know of fewer messages than its master (NotMaster).
        """
        query: Query = {
            "after_total": after_total, "wait_ms": wait_ms or None,
            "master_only": "true" if master_only else None,
        }  # fmt: skip
        return self._get(path_of("topics", topic, "offsets"), TopicOffsets, query=query, wait_ms=wait_ms)

    def offsets_at(self, topic: str, at_us: int, boundary: TimeBoundary = TimeBoundary.LOWER) -> TimeOffsets:
        """Return the offset that a time names in every queue."""
        query: Query = {"at": at_us, "boundary": boundary.value}
        return self._get(path_of("topics", topic, "offsets"), TimeOffsets, query=query)

    # --- topics ------------------------------------------------------------------

    def topics(self) -> TopicListing:
        return self._get(path_of("topics"), TopicListing)

    def topic(self, name: str) -> TopicDescription:
        return self._get(path_of("topics", name), TopicDescription)

    def create_topic(self, name: str, request: CreateTopicRequest) -> TopicConfig:
        """Create a topic here. Raises Conflict if it exists and `if_absent` is not set, NoPermission."""
        return self._send("PUT", path_of("topics", name), request, TopicConfig)

    def alter_topic(self, name: str, request: AlterTopicRequest) -> TopicConfig:
        return self._send("PATCH", path_of("topics", name), request, TopicConfig)

    def delete_topic(self, name: str) -> None:
        self._call("DELETE", path_of("topics", name))

    def statistics(self) -> BrokerStatistics:
        """Return the broker at run time: its log, what waits, what it holds, what it thinks of its clock."""
        return self._get(path_of("statistics"), BrokerStatistics)

    def drain(self, draining: bool) -> BrokerStatistics:
        """Take the broker's writes away, or give them back; reads go on either way."""
        return self._send("PUT", path_of("drain"), calls.DrainRequest(draining), calls.BrokerStatistics)

    def agree_clock(self, at_us: int) -> BrokerStatistics:
        """Agree that it is `at_us` (µs) now. Raises Conflict if the broker's clock shows another time."""
        request = ClockRequest(at_us)
        return self._send("PUT", path_of("clock"), request, BrokerStatistics)

    # --- exactly-once sinks, for their writers -----------------------------------

    def stage(
        self, stage: StageName, topic: str, queues: Sequence[int], stream: Body, *,
        timeout_ms: int | None = None,
    ) -> StagedAnswer:  # fmt: skip
        """Store the batches of an Arrow stream invisibly, to be published once their batch is decided.

        `queues` as in `send`. Raises what `send` raises, and NotCoordinator if the broker knows another
        coordinator of the sink. A call without an answer is simply made again: what is not named in
        the commit is dropped.
        """
        query: Query = {"queue": ",".join(map(str, queues)) or None, **asdict(stage)}
        return self._post(topic, query, stream, _STREAM_BODY, StagedAnswer, timeout_ms)

    def sink(self, sink: str) -> SinkDescription:
        """Return a sink as this broker knows it. Raises SinkNotFound."""
        return self._get(path_of("sinks", sink), SinkDescription)

    def sinks(self) -> SinkListing:
        """Return all sinks this broker knows."""
        return self._get(path_of("sinks"), SinkListing)

    def register_sink(self, sink: str, coordinator: str) -> SinkDescription:
        """Tell the broker who coordinates; a sink it knows is answered as it stands, unchanged."""
        return self._send("PUT", path_of("sinks", sink), RegisterSinkRequest(coordinator), SinkDescription)

    def begin_run(self, sink: str, run: str, query: str = "") -> RunAnswer:
        """Make a run the current one; idempotent. Raises SinkNotFound, SinkFenced, SinkQueryChanged,
        NotCoordinator.
        """
        return self._send("POST", path_of("sinks", sink, "runs"), BeginRunRequest(run, query), RunAnswer)

    def commit_batch(
        self, sink: str, batch: int, request: CommitBatchRequest, *, timeout_ms: int | None = None
    ) -> CommitBatchAnswer:
        """Decide a batch and have it published; safe to repeat.

        The broker waits for the participants up to 5 s, so the timeout should be longer. Raises
        SinkNotFound, SinkFenced, SinkQueryChanged, NotCoordinator, BatchAlreadyDecided, BatchDiffers,
        ParticipantUnknown, and StageNotFound if a broker has lost what was staged on it; nothing is
        decided then.
        """
        path = path_of("sinks", sink, "batches", batch, "commit")
        return self._send("POST", path, request, CommitBatchAnswer, timeout_ms=timeout_ms)

    def abort_batch(self, sink: str, batch: int, run: str) -> AbortBatchAnswer:
        """Give a batch up; its run is fenced unless the batch is decided.

        Raises SinkNotFound, NotCoordinator.
        """
        path = path_of("sinks", sink, "batches", batch, "abort")
        return self._send("POST", path, AbortBatchRequest(run), AbortBatchAnswer)

    # --- exactly-once sinks, between brokers -------------------------------------

    def check_batch(
        self, sink: str, batch: int, request: CheckBatchRequest, *, timeout_ms: int | None = None
    ) -> CheckBatchAnswer:
        """Ask the coordinator what is to become of a stage. Raises NotCoordinator."""
        path = path_of("sinks", sink, "batches", batch, "check")
        return self._send("POST", path, request, CheckBatchAnswer, timeout_ms=timeout_ms)

    def publish_batch(
        self, sink: str, request: PublishBatchRequest, *, timeout_ms: int | None = None
    ) -> PublishBatchAnswer:
        """Have a participant publish; answered when all is in its queues.

        The participant asks the sink's coordinator first. Raises StageNotFound, NotCoordinator,
        BatchNotDecided, CoordinatorUnreachable.
        """
        path = path_of("sinks", sink, "publications")
        return self._send("POST", path, request, PublishBatchAnswer, timeout_ms=timeout_ms)

    # --- exactly-once sinks, for operators ---------------------------------------

    def reset_sink(self, sink: str) -> SinkDescription:
        """Forget what was decided here, for a query with a new checkpoint. Raises SinkNotFound, SinkBusy."""
        return self._decoded(self._call("POST", path_of("sinks", sink, "reset")), SinkDescription)

    def delete_sink(self, sink: str, *, force: bool = False) -> None:
        """Drop all of a sink's stages here and forget it; `force` gives up what is decided and unpublished.

        Raises SinkNotFound, SinkBusy.
        """
        self._call("DELETE", path_of("sinks", sink), query={"force": "true" if force else None})

    # --- answers -----------------------------------------------------------------

    def _unreachable(self, failure: TransportFailure) -> BrokerUnreachable:
        return BrokerUnreachable(self.broker, self.address, failure.why, failure.sent)

    def _header(self, answer: Response, name: str) -> str:
        value = answer.headers.get(name)
        if value is None:
            raise RemoteError(
                f"Broker {self.broker} at {self.address} answered a pull without the header {name}.",
                hint="Is this address a rocketq broker?",
            )
        return value

    def _offset(self, answer: Response, name: str) -> int:
        return int(self._header(answer, name))


def master_of(
    route: TopicRoute,
    broker: str,
    transport: Transport,
    on_lost: Callable[[str], None] | None = None,
    *,
    timeout_ms: int | None = None,
) -> BrokerApi:
    """Return the master of a broker group; raise BrokerUnreachable when the route has none.

    `on_lost` is called with the route's topic when there is none, or a call finds no master at its address.
    `timeout_ms` bounds its calls, instead of the transport's timeout.
    """
    data = route.broker(broker)
    if data is None or data.master is None:
        if on_lost is not None:
            on_lost(route.topic)
        raise BrokerUnreachable(broker, "no known address", "the route names no master for it", sent=False)
    return _watched(BrokerApi(transport, broker, data.master, timeout_ms=timeout_ms), route, on_lost)


def replica_of(
    route: TopicRoute, broker: str, transport: Transport, on_lost: Callable[[str], None] | None = None
) -> BrokerApi:
    """Return the replica of a broker group to read from: its master, else the one with the lowest id.

    `on_lost` is called with the route's topic when a call finds no broker at its address.
    """
    data = route.broker(broker)
    if data is None or not data.addresses:
        raise BrokerUnreachable(broker, "no known address", "the route names no replica of it", sent=False)
    address = data.addresses.get(MASTER_ID) or data.addresses[min(data.addresses)]
    return _watched(BrokerApi(transport, broker, address), route, on_lost)


def _watched(api: BrokerApi, route: TopicRoute, on_lost: Callable[[str], None] | None) -> BrokerApi:
    if on_lost is not None:
        api.on_lost = partial(on_lost, route.topic)
    return api
