"""The examples in every `--help`: all of them are understood, and all that a cluster can answer run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import pytest

from rocketq import Client, GroupNotFound, LocalCluster, Message, MessageQueue, TransactionState
from rocketq.admin.cluster import ClusterAdmin
from rocketq.admin.live_masters import LiveMasters
from rocketq.net.route_cache import RouteCache
from rocketq.net.transport import Transport
from tests.support.command_line import all_commands, leaves
from tests.support.conditions import wait_until

#: Ids in the examples, which a test replaces by those of its own.
TIMER_ID: Final = "broker-a:orders:0:@40960.0"
TRANSACTION: Final = "5f0c7b1e2d3a4c5b8e9f0a1b2c3d4e5f"
RECEIPT: Final = "broker-a:orders:0:17:4"
LETTER: Final = "broker-a:%DLQ%billing:0:17"
UNIQUE_ID: Final = "9B1F00C4000A5F19A7E3B1C2D00000000001"
#: What starts servers, or asks for what this machine does not have: it is only understood.
NOT_RUN: Final = re.compile(
    r"rocketq (up|down|status|demo|doctor|console|nameserver|broker (run|replicas|handover|promote))"
    r"|10\.0\.0\.1|broker-c"
)
#: The contexts that the examples use and forget.
CONTEXTS: Final = '[contexts]\nlocal.nameservers = "http://a"\nold.nameservers = "http://b"\n'
#: What a command that asks before it acts is answered.
ANSWERS: Final = {"topic delete": "orders", "group delete": "billing", "group reset": "billing",
                  "group clone": "billing-2", "dlq resend": "billing", "sink": "orders-copy",
                  "tx": TRANSACTION}  # fmt: skip


COMMANDS: Final = all_commands()
ALL: Final = [
    line.strip()
    for _, command in leaves(COMMANDS)
    for line in str(command.help).split("Examples:")[1].splitlines()
    if line.strip()
]


@pytest.mark.parametrize("example", ALL)
def test_every_example_is_understood(example: str) -> None:
    """The command line reads each call of rocketq in it; nothing is done."""
    calls = re.findall(r"(?:^|[|] (xargs )?)rocketq ([^|<]*)", re.sub(r"'[^']*'", "'x'", example))
    for more, call in calls:
        command: click.Command = COMMANDS
        words = shlex.split(call)
        context = click.Context(command, info_name="rocketq", obj={})
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        if more:
            words.append(TIMER_ID)
        if "--help" not in words:
            command.make_context(command.name, words, parent=context)


@pytest.fixture(scope="module")
def orders() -> Iterator[LocalCluster]:
    """A cluster of its own, since the examples name a topic and brokers."""
    with LocalCluster(brokers=2) as running:
        yield running


def dead_letter(mq: Client) -> str:
    """Have a message of the group fail for good; return the id of its letter."""
    letters = mq.dead_letters("billing")
    with mq.consumer("billing", "orders", ack="manual", max_attempts=1) as consumer:
        [message, *_] = consumer.poll(max_messages=1, timeout_ms=60_000)
        message.nack(reason="no stock")
        wait_until(lambda: sum(letters.count().values()) > 0)
    return next(iter(letters.list())).letter_id


def receipt(mq: Client) -> str:
    """Lease a message to the group; return its receipt handle."""
    with mq.simple_consumer("billing", "orders") as consumer:
        [message, *_] = consumer.receive(max_messages=1)
        return message.receipt_handle


def prepared(cluster: LocalCluster, example: str) -> str:
    """Make what the examples speak of; return the example with the ids that things have here."""
    with Client(cluster.nameservers, trace=True) as mq, mq.producer() as producer:
        if "orders" in mq.topics():
            mq.delete_topic("orders")
        for group in ("billing", "billing-2"):
            with suppress(GroupNotFound):
                mq.groups.delete(group, force=True)
        if example.startswith("rocketq topic create") and "--if-absent" not in example:
            return example
        mq.create_topic("orders", 4)
        paid = Message(b'{"amount": 120}', b"o-1", "paid", {"amount": "120", "region": "eu"})
        for queue in (0, 3):
            producer.send_batch("orders", [paid] * 20, queue=MessageQueue("orders", "broker-a", queue))
        with mq.pull_consumer("orders", group="billing") as consumer:
            # Some messages are left for examples that read as the group.
            consumer.poll(max_messages=5)
            consumer.commit()
        if "rocketq dlq" in example:
            example = example.replace(LETTER, dead_letter(mq))
        if RECEIPT in example:
            example = example.replace(RECEIPT, receipt(mq))
        if "timer" in example:
            delayed = producer.send("orders", b"later", delay="1h")
            example = example.replace(TIMER_ID, delayed.message_id)
        if "rocketq tx" in example:
            with (
                mq.transactions("orders-tx", lambda _: TransactionState.UNKNOWN) as transactions,
                transactions.transaction("orders", b"half") as begun,
            ):
                begun.leave_to_check()
            example = example.replace(TRANSACTION, begun.id)
        if "rocketq sink" in example:
            with Transport() as transport:
                for each in LiveMasters(transport, RouteCache(cluster.nameservers, transport)).apis():
                    each.register_sink("orders-copy", "broker-a")
                    if each.broker == "broker-a":
                        each.begin_run("orders-copy", f"run-{uuid.uuid4().hex}", "query-1")
        if UNIQUE_ID in example or "rocketq trace" in example:
            sent = producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 3))
            assert mq.tracing is not None
            mq.tracing.flush()
            while not mq.query.by_key("RMQ_SYS_TRACE_TOPIC", str(sent.unique_id)).messages:
                continue
            example = example.replace(UNIQUE_ID, str(sent.unique_id))
            if "rocketq trace" in example:
                example = example.replace("broker-a:orders:3:17", sent.message_id)
    return example


def give_writes_back(cluster: LocalCluster) -> None:
    """Undo what the example drained, so that the next one finds every broker."""
    with ClusterAdmin(cluster.nameservers) as admin:
        for broker in admin.masters.apis():
            broker.drain(False)
            admin.set_write_permission(broker.broker, writable=True)
    writable: set[str] = set()
    while writable != set(cluster.brokers):
        with Client(cluster.nameservers) as mq:
            writable = {queue.broker for queue in mq.route("orders").write_queues()}


@pytest.mark.slow
@pytest.mark.parametrize("example", [example for example in ALL if not NOT_RUN.search(example)])
def test_every_example_runs(orders: LocalCluster, tmp_path: Path, example: str) -> None:
    (tmp_path / "access.log").write_text("GET /\n")
    (tmp_path / "orders.json").write_text('{"id": "o-1", "customer": "c-1"}\n')
    (tmp_path / "rocketq").mkdir()
    (tmp_path / "rocketq" / "contexts.toml").write_text(CONTEXTS)
    line = prepared(orders, example)
    if "--follow" in line:
        line += " -n 1"
    answer = next((text for name, text in ANSWERS.items() if example.startswith(f"rocketq {name}")), "")
    if example.startswith("rocketq tx"):
        answer = line.split()[3] if len(line.split()) > 3 else ""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "ROCKETQ_NAMESERVERS": ",".join(orders.nameservers)}
    env["XDG_CONFIG_HOME"] = str(tmp_path)
    done = subprocess.run(
        ["bash", "-uo", "pipefail", "-c", line], cwd=tmp_path, env=env, input=f"{answer}\n",
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if " drain " in example:
        give_writes_back(orders)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
