"""Fetch: a slave asks its master for the frames behind its own end (RocketMQ: HAService). Range: a member
whose log is damaged asks another one for the same bytes.

The fetch is the acknowledgement, so it goes to the replica's thread first, which answers with how the two
logs compare. A slave that has everything is held until more is written. If the master has confirmed more than
the slave knows, it is held for a moment only: mostly the next frames bring that, and else it learns it soon.

Frames are read on a thread. They may go out only if the epoch is still that of the fetch when they have been
read: before a replica cuts its log, it shows its new epoch (`replication_service.service`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from rocketq.errors import EpochAhead, InvalidRequest, RocketqError, StaleEpoch
from rocketq.errors.replication_errors import ForeignReplica
from rocketq.http_server.error_answers import Disconnected
from rocketq.http_server.longpoll.long_poll import LongPoll
from rocketq.protocol.documents.broker import FRAMES, encode
from rocketq.protocol.documents.replication import FETCH_HEADER, FetchHead
from rocketq_broker.data_plane.data_call import Answer, DataRequest, Outgoing
from rocketq_broker.data_plane.query_parameters import parse
from rocketq_broker.replication.fetching import Fetch, FetchAnswer, Shipment
from rocketq_broker.replication_service.fetch_wire import (
    PARAMETERS,
    RANGE_PARAMETERS,
    fetch_of,
    head_of,
    number_of,
)
from rocketq_broker.replication_service.service import ReplicationService
from rocketq_broker.runtime import wait_keys
from rocketq_broker.runtime.loop_bridge import Completions
from rocketq_broker.store.replica.operations import ReplicaOperations
from rocketq_broker.store.replica.raw_frames import RawFrames

#: How long a slave is held that has all frames and does not know how much of them is confirmed.
CONFIRMED_WAIT_MS: Final = 50
BYTES_MAX: Final = 64 * 1024 * 1024
HOLD_MS_MAX: Final = 10_000


class FetchProcessor:
    """Handles `GET /v1/replication/frames`, on the loop's thread."""

    def __init__(
        self,
        service: ReplicationService,
        log: ReplicaOperations,
        held: LongPoll[wait_keys.Key],
        outgoing: Outgoing,
        completions: Completions,
        readers: Executor,
        suspect: Callable[[int, str], None],
    ) -> None:
        """`suspect` is told where a slave got a damaged frame."""
        self._service = service
        self._suspect = suspect
        self._log = log
        self._held = held
        self._outgoing = outgoing
        self._completions = completions
        self._readers = readers

    async def handle(self, request: DataRequest) -> Answer | None:
        """Answer a slave; None if it has hung up. Raises what `replication_errors` has, and SystemBusy."""
        given = parse(request.query_string, PARAMETERS)
        fetch = fetch_of(given)
        known, most = number_of(given, "confirmed"), min(number_of(given, "max_bytes"), BYTES_MAX)
        hold_ms = number_of(given, "wait_ms")
        if hold_ms > HOLD_MS_MAX:
            raise InvalidRequest("parameter wait_ms", f"{hold_ms} is above {HOLD_MS_MAX}")
        if "damaged" in given:
            self._suspect(number_of(given, "damaged"), f"replica {fetch.replica.number} got it damaged")
        answer: FetchAnswer = await self._completions.outcome(partial(self._service.fetched, fetch))
        if not isinstance(answer, Shipment):
            return _answered(answer, None)
        if "leaving" in given:
            await self._completions.outcome(partial(self._service.departed, fetch.replica))
            return _answered(answer, None)
        if answer.end == fetch.place.end:
            try:
                await self._wait(fetch, hold_ms if answer.confirmed <= known else CONFIRMED_WAIT_MS, request)
            except Disconnected:
                return None
        end = self._log.view().end
        frames = None
        if end > fetch.place.end:
            self._outgoing.check()
            read = partial(self._log.frames, fetch.place.end, most, end)
            frames = await asyncio.get_running_loop().run_in_executor(self._readers, read)
        self._check(fetch)
        return _answered(Shipment(fetch.place, end, self._service.status.replica.confirmed.end), frames)

    async def _wait(self, fetch: Fetch, hold_ms: int, request: DataRequest) -> None:
        """Wait for more frames, or for another epoch; raise Disconnected."""

        def is_new() -> bool:
            status = self._service.status
            return status.epoch != fetch.place.epoch or self._log.view().end > fetch.place.end

        await self._held.until(is_new, wait_keys.OF_LOG, hold_ms, request.receive)

    def _check(self, fetch: Fetch) -> None:
        """Raise unless this broker is still the master of the fetch's epoch."""
        status, epoch = self._service.status, fetch.place.epoch
        error: RocketqError | None = None
        if status.epoch != epoch:
            error = (
                StaleEpoch(epoch, status.epoch) if epoch < status.epoch else EpochAhead(epoch, status.epoch)
            )
        elif not status.is_master:
            error = status.not_master()
        if error is not None:
            raise error


class RangeProcessor:
    """Handles `GET /v1/replication/range`, on the loop's thread; any member answers, whoever is master.

    Only what is confirmed is given: that is the same on each member, and never cut but after an unclean
    election, which the epoch betrays.
    """

    def __init__(
        self, service: ReplicationService, log: ReplicaOperations, outgoing: Outgoing, readers: Executor
    ) -> None:
        self._service = service
        self._log = log
        self._outgoing = outgoing
        self._readers = readers

    async def handle(self, request: DataRequest) -> Answer | None:
        """Answer with frames; raises ForeignReplica, SegmentGone, CorruptFrame, SystemBusy."""
        given = parse(request.query_string, RANGE_PARAMETERS)
        begin, most = number_of(given, "begin"), min(number_of(given, "max_bytes"), BYTES_MAX)
        status, group = self._service.status, given.get("group", "")
        if group != status.group:
            raise ForeignReplica(status.group, group)
        self._outgoing.check()
        read = partial(self._log.frames, begin, most, self._log.confirmed)
        frames = await asyncio.get_running_loop().run_in_executor(self._readers, read)
        if self._service.status.epoch != status.epoch:
            raise StaleEpoch(status.epoch, self._service.status.epoch)
        head = FetchHead("range", 0, begin, 0, end=frames.end, segments=frames.segments)
        return _frames_answer(head, frames)


def _answered(answer: FetchAnswer, frames: RawFrames | None) -> Answer:
    return _frames_answer(head_of(answer, frames.segments if frames is not None else ()), frames)


def _frames_answer(head: FetchHead, frames: RawFrames | None) -> Answer:
    headers = [(b"content-type", FRAMES.encode()), (FETCH_HEADER.encode(), encode(head))]
    return Answer(200, headers, () if frames is None else frames.parts)
