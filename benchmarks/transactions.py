"""Transactions of one message of 100 bytes, against small sends, each one after the other from one program.

A transaction is two calls, the half message and the commit, and the broker writes four frames for it. It may
cost as much as three sends. Asynchronous flush.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.kit import data
from benchmarks.kit.instrument import Contestant, Options, alternate, compare, introduce, options, report
from rocketq import Client, LocalCluster, TransactionState

TARGET: Final = 1 / 3
TOPIC: Final = "bench"


@contextmanager
def _client() -> Iterator[Client]:
    with LocalCluster(brokers=1) as cluster, Client(cluster.nameservers) as client:
        client.create_topic(TOPIC, queues=4)
        yield client


def _rate(seconds: float, call: Callable[[], object]) -> float:
    """Return calls a second."""
    for _ in range(50):
        call()
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        call()
        count += 1
    return count / passed


def _sends(chosen: Options, body: bytes) -> float:
    with _client() as client, client.producer() as producer:
        return _rate(chosen.seconds, lambda: producer.send(TOPIC, body))


def _transactions(chosen: Options, body: bytes) -> float:
    with _client() as client, client.transactions("bench", check=_unknown) as producer:

        def one() -> None:
            with producer.transaction(TOPIC, body):
                pass

        return _rate(chosen.seconds, one)


def _unknown(message: object) -> TransactionState:
    return TransactionState.UNKNOWN


def main() -> None:
    chosen = options("transactions", "Transactions of one message, against small sends.", seconds=4)
    introduce("transactions")
    body = data.bodies(1, chosen.seed)[0].as_py()
    transactions = Contestant("transactions", partial(_transactions, chosen, body))
    sends = Contestant("sends", partial(_sends, chosen, body))
    alternate([transactions, sends], chosen.turns)
    report("transactions", chosen, {"one message": compare(transactions, sends, "calls", TARGET)})


if __name__ == "__main__":
    main()
