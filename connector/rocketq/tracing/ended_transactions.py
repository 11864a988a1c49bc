"""What transactions become in the trace: Pub for a half message, EndTransaction for each answer."""

from __future__ import annotations

from collections.abc import Iterable

from rocketq.clock import Clock
from rocketq.model import UNIQUE_ID_PROPERTY, Message, MessageQueue
from rocketq.producing.attempts.send_trace import TracedAttempt
from rocketq.producing.transactions.transaction_trace import TransactionAnswer
from rocketq.protocol.documents.transactions import HalfName
from rocketq.tracing.records import TraceRecord, TraceType
from rocketq.tracing.sent_messages import SentMessages
from rocketq.tracing.trace_sender import TraceSender


class EndedTransactions:
    """Records the transactions of a client's producers (`TransactionTrace`). Thread-safe."""

    def __init__(self, sent: SentMessages, sender: TraceSender, client_id: str, clock: Clock) -> None:
        self.marked = sent.marked
        self._sender, self._client_id, self._clock = sender, client_id, clock

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def attempted_half(
        self, attempt: TracedAttempt, name: HalfName, queue: MessageQueue, message: Message, is_held: bool
    ) -> None:
        begun_us = self._clock.now_us() - 1_000 * attempt.elapsed_ms
        error = attempt.error

        def making() -> Iterable[TraceRecord]:
            yield TraceRecord(
                type=TraceType.PUB,
                at_us=begun_us,
                topic=queue.topic,
                broker=attempt.broker,
                client_id=self._client_id,
                group=name.group,
                attempt=attempt.number,
                unique_id=(message.properties or {}).get(UNIQUE_ID_PROPERTY),
                transaction=name.transaction,
                elapsed_ms=attempt.elapsed_ms,
                outcome="SEND_OK" if is_held else "UNKNOWN" if error is None else error.code,
                error=None if error is None else error.message,
                key=None if message.key is None else message.key.decode(errors="replace"),
                tag=message.tag,
                body_bytes=len(message.body),
            )

        self._sender.add(1, making)

    def answered(self, answer: TransactionAnswer) -> None:
        now_us, elapsed_ms = self._clock.now_us(), self.now_ms() - answer.begun_ms

        def making() -> Iterable[TraceRecord]:
            yield TraceRecord(
                type=TraceType.END_TRANSACTION,
                at_us=now_us,
                topic=answer.topic,
                broker=answer.broker,
                client_id=self._client_id,
                group=answer.group,
                attempt=1,
                transaction=answer.transaction,
                check=answer.check,
                elapsed_ms=elapsed_ms,
                outcome=answer.state.value,
                error=None if answer.error is None else answer.error.message,
            )

        self._sender.add(1, making)
