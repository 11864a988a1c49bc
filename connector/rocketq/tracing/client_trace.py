"""The trace of one client: what its producers and consumers record, and one sender for all of it."""

from __future__ import annotations

from rocketq.clock import Clock
from rocketq.config import ProducerConfig, TraceConfig
from rocketq.net.client_id import new_client_id
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from rocketq.producing.producer import Producer
from rocketq.producing.selection.fault_avoidance import FaultTolerance
from rocketq.tracing.ended_transactions import EndedTransactions
from rocketq.tracing.received_messages import ReceivedMessages
from rocketq.tracing.sent_messages import SentMessages
from rocketq.tracing.trace_sender import TraceCounts, TraceSender


class ClientTrace:
    """Records the way of messages for one client; made by `Client(trace=...)`."""

    def __init__(
        self,
        config: TraceConfig,
        transport: Transport,
        routes: RouteCache,
        fault: FaultTolerance,
        clock: Clock,
    ) -> None:
        self.config = config
        #: What the records call the client; a consumer has a client id of its own.
        self.client_id = new_client_id()
        # Records that are stored twice are recognised as such, so an attempt is repeated once.
        settings = ProducerConfig(
            timeout_ms=config.timeout_ms, retries=1, auto_create_queues=1, unique_ids=False
        )
        producer = Producer(transport, routes, config=settings, clock=clock, fault=fault)
        self._sender = TraceSender(producer, config, clock)
        self.sent = SentMessages(config, self._sender, self.client_id, clock)
        self.transactions = EndedTransactions(self.sent, self._sender, self.client_id, clock)
        self.received = ReceivedMessages(config, self._sender, clock)

    def counts(self) -> TraceCounts:
        """Return how many records were stored, and how many were dropped."""
        return self._sender.counts()

    def flush(self, timeout_ms: int | None = None) -> bool:
        """Send what was recorded; return whether all of it has its outcome, False after `timeout_ms`."""
        return self._sender.flush(timeout_ms)

    def close(self) -> None:
        """Send what was recorded, for at most `timeout_ms` of the configuration, and record nothing more."""
        self._sender.close()


def trace_config(trace: TraceConfig | float | bool | None) -> TraceConfig | None:
    """Return what `Client(trace=...)` means: True all messages, a number a share of them, 0 no trace."""
    if trace is None or trace is False or trace == 0:
        return None
    if trace is True:
        return TraceConfig()
    return trace if isinstance(trace, TraceConfig) else TraceConfig(rate=trace)
