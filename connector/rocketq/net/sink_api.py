"""Typed calls to one broker about exactly-once sinks (docs/protocol.md, "Sinks").

As `broker_api`: one method for one endpoint, no retries, no state. Every method raises
BrokerUnreachable, or the broker's refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketq.net.broker_api import BrokerApi
from rocketq.net.transport import Body, Response, path_of
from rocketq.protocol import broker_documents as calls
from rocketq.protocol.sink_documents import (
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

_JSON_BODY: Final = {"content-type": calls.JSON}
_STREAM_BODY: Final = {"content-type": calls.ARROW_STREAM, "accept": calls.JSON}


class SinkApi(BrokerApi):
    """One broker process, and what it does for sinks."""

    # --- writers -----------------------------------------------------------------

    def stage(
        self, stage: StageName, topic: str, queues: Sequence[int], stream: Body, *,
        timeout_ms: int | None = None,
    ) -> StagedAnswer:  # fmt: skip
        """Store the batches of an Arrow stream invisibly, to be published once their batch is decided.

        `queues` as in `send`. Raises what `send` raises, and NotCoordinator if the broker knows another
        coordinator of the sink. A call without an answer is simply made again: what is not named in
        the commit is dropped.
        """
        answer = self._call(
            "POST",
            path_of("topics", topic, "messages"),
            query={
                "queue": ",".join(map(str, queues)) or None,
                "sink": stage.sink,
                "batch": stage.batch,
                "run": stage.run,
                "coordinator": stage.coordinator,
            },
            body=stream,
            headers=_STREAM_BODY,
            timeout_ms=timeout_ms,
        )
        return self._decoded(answer, StagedAnswer)

    def sink(self, sink: str) -> SinkDescription:
        """Return a sink as this broker knows it. Raises SinkNotFound."""
        return self._decoded(self._call("GET", path_of("sinks", sink)), SinkDescription)

    def sinks(self) -> SinkListing:
        """Return all sinks this broker knows."""
        return self._decoded(self._call("GET", path_of("sinks")), SinkListing)

    def register_sink(self, sink: str, coordinator: str) -> SinkDescription:
        """Tell the broker who coordinates; a sink it knows is answered as it stands, unchanged."""
        answer = self._call_json("PUT", path_of("sinks", sink), RegisterSinkRequest(coordinator))
        return self._decoded(answer, SinkDescription)

    def begin_run(self, sink: str, run: str, query: str = "") -> RunAnswer:
        """Make a run the current one; idempotent. Raises SinkNotFound, SinkFenced, SinkQueryChanged,
        NotCoordinator.
        """
        answer = self._call_json("POST", path_of("sinks", sink, "runs"), BeginRunRequest(run, query))
        return self._decoded(answer, RunAnswer)

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
        return self._decoded(self._call_json("POST", path, request, timeout_ms), CommitBatchAnswer)

    def abort_batch(self, sink: str, batch: int, run: str) -> AbortBatchAnswer:
        """Give a batch up; its run is fenced unless the batch is decided.

        Raises SinkNotFound, NotCoordinator.
        """
        path = path_of("sinks", sink, "batches", batch, "abort")
        return self._decoded(self._call_json("POST", path, AbortBatchRequest(run)), AbortBatchAnswer)

    # --- between brokers ---------------------------------------------------------

    def check_batch(
        self, sink: str, batch: int, request: CheckBatchRequest, *, timeout_ms: int | None = None
    ) -> CheckBatchAnswer:
        """Ask the coordinator what is to become of a stage. Raises NotCoordinator."""
        path = path_of("sinks", sink, "batches", batch, "check")
        return self._decoded(self._call_json("POST", path, request, timeout_ms), CheckBatchAnswer)

    def publish_batch(
        self, sink: str, request: PublishBatchRequest, *, timeout_ms: int | None = None
    ) -> PublishBatchAnswer:
        """Have a participant publish; answered when all is in its queues.

        The participant asks the sink's coordinator first. Raises StageNotFound, NotCoordinator,
        BatchNotDecided, CoordinatorUnreachable.
        """
        path = path_of("sinks", sink, "publications")
        return self._decoded(self._call_json("POST", path, request, timeout_ms), PublishBatchAnswer)

    # --- operators ---------------------------------------------------------------

    def reset_sink(self, sink: str) -> SinkDescription:
        """Forget what was decided here, for a query with a new checkpoint. Raises SinkNotFound, SinkBusy."""
        return self._decoded(self._call("POST", path_of("sinks", sink, "reset")), SinkDescription)

    def delete_sink(self, sink: str, *, force: bool = False) -> None:
        """Drop all of a sink's stages here and forget it; `force` gives up what is decided and unpublished.

        Raises SinkNotFound, SinkBusy.
        """
        self._call("DELETE", path_of("sinks", sink), query={"force": "true" if force else None})

    # --- the shared way ----------------------------------------------------------

    def _call_json(self, method: str, path: str, request: object, timeout_ms: int | None = None) -> Response:
        return self._call(method, path, body=calls.encode(request), headers=_JSON_BODY, timeout_ms=timeout_ms)
