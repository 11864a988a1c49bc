"""kill -9 of a producer at each step of the program on the page about transactions, and of its broker.

Whatever the moment: an order is in the table if, and only if, its message is seen, and it is seen once.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from rocketq import Client, LocalCluster, RocketqError
from rocketq.net.transaction_api import TransactionApi
from tests.support.order_victim import GROUP, STEPS, program
from tests.support.patience import PatientClient, patient_transport

QUICK = ("--transaction-timeout-ms", "100", "--transaction-check-interval-ms", "100")
BROKER, TOPIC = "broker-a", "orders"


@pytest.fixture
def own() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, broker_arguments=QUICK) as running:
        with PatientClient(running.nameservers) as mq:
            mq.create_topic(TOPIC, queues=2)
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    with closing(sqlite3.connect(path)) as made:
        program()["create_tables"](made)
    return path


def placed(path: Path) -> list[str]:
    """The orders in the table, sorted."""
    with closing(sqlite3.connect(path, timeout=60)) as database:
        return [order for (order,) in database.execute("SELECT id FROM orders ORDER BY id")]


def seen(mq: Client) -> list[str]:
    """All messages that consumers see, sorted."""
    found: list[str] = []
    total = sum(each.total for each in mq.describe_topic(TOPIC).values())
    with mq.pull_consumer(TOPIC, start="earliest") as consumer:
        while len(found) < total:
            found += [message.body.decode() for message in consumer.poll(timeout_ms=60_000)]
    return sorted(found)


def settle(own: LocalCluster, path: Path) -> None:
    """Have a live producer of the group answer checks until nothing is undecided."""
    check = partial(program()["check_with"], str(path))
    with (
        PatientClient(own.nameservers) as mq,
        mq.transactions(GROUP, check=check),
        patient_transport() as transport,
    ):
        while True:
            api = TransactionApi(transport, BROKER, own.brokers[BROKER])
            if not api.transactions().transactions:
                return
            # A held call instead of a sleep: nobody begins a transaction of this group.
            api.take_checks("nobody", wait_ms=50)


def run_victim(own: LocalCluster, path: Path, order: str, step: str) -> int:
    command = [sys.executable, "-m", "tests.support.order_victim"]
    return subprocess.run(
        [*command, ",".join(own.nameservers), str(path), order, step], check=False, timeout=540
    ).returncode


def test_a_producer_killed_at_any_step_leaves_order_and_message_or_neither(
    own: LocalCluster, database: Path
) -> None:
    for number, step in enumerate(STEPS):
        assert run_victim(own, database, f"o-{number}", step) == -signal.SIGKILL, step
    assert run_victim(own, database, "o-whole", "none") == 0
    settle(own, database)
    with PatientClient(own.nameservers) as mq:
        assert seen(mq) == placed(database)
    saved = [
        f"o-{number}" for number, step in enumerate(STEPS) if number >= STEPS.index("database committed")
    ]
    assert placed(database) == sorted([*saved, "o-whole"])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_a_broker_killed_at_any_time_leaves_order_and_message_or_neither(
    own: LocalCluster, database: Path, seed: int
) -> None:
    rng, ended, failed = random.Random(seed), threading.Event(), 0
    begun = threading.Semaphore(0)

    def kill_now_and_then() -> None:
        for _ in range(6):
            for _ in range(rng.randrange(1, 20)):
                begun.acquire()
            if ended.is_set():
                return
            own.kill(BROKER)
            own.restart(BROKER)

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    names = program()
    check = partial(names["check_with"], str(database))
    with (
        PatientClient(own.nameservers) as mq,
        mq.transactions(GROUP, check=check, timeout_ms=500) as tp,
        closing(sqlite3.connect(database, timeout=60)) as connection,
    ):
        for number in range(150):
            begun.release()
            try:
                names["place_order"](tp, connection, f"o-{number:04d}", number)
            except (RocketqError, sqlite3.IntegrityError):
                # The half message had no answer, or a check was quicker than the local transaction.
                failed += 1
        ended.set()
        begun.release(1000)
        killer.join()
        settle(own, database)
        orders = placed(database)
        assert seen(mq) == orders
        assert len(orders) + failed == 150
        assert len(orders) > 0
