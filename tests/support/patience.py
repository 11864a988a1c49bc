"""Clients that wait as long as a test does.

RocketMQ's 3 s are too short for a machine that runs four tests at a time: a call fails that would have been
answered, or a send is repeated elsewhere, and its message is there twice. Tests of deadlines and of brokers
that hang choose their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rocketq import Client, Producer, TransportConfig
from rocketq.clock import Clock
from rocketq.net.transport import Transport
from rocketq.producing.transactions.transactions import TransactionProducer
from tests.support.conditions import WAIT_MS

PATIENT: Final = TransportConfig(timeout_ms=WAIT_MS, connect_timeout_ms=WAIT_MS)


def patient_transport() -> Transport:
    return Transport(PATIENT)


class PatientClient(Client):
    """A Client whose calls and sends take as long as a test waits, unless the test says otherwise."""

    def __init__(self, nameservers: str | Sequence[str], *, clock: Clock | None = None) -> None:
        super().__init__(nameservers, transport=PATIENT, clock=clock)

    def producer(self, **settings: Any) -> Producer:
        return super().producer(**{"timeout_ms": WAIT_MS, **settings})

    def transactions(self, group: str, check: Any = None, **settings: Any) -> TransactionProducer:
        return super().transactions(group, check, **{"timeout_ms": WAIT_MS, **settings})
