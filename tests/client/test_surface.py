"""The public surface: what `import rocketq` gives, what it loads, and what configurations refuse."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rocketq
from rocketq import LocalCluster, errors
from rocketq.config import ConsumerConfig, ProducerConfig, PullConsumerConfig, TransportConfig
from rocketq.errors import Closed, InvalidConfiguration


def test_all_names_what_type_checkers_see_and_all_of_it_can_be_had() -> None:
    tree = ast.parse(Path(rocketq.__file__).read_text())
    (typing_only,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [
        alias.name for node in typing_only.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(imported) == sorted(rocketq.__all__)
    for name in rocketq.__all__:
        assert getattr(rocketq, name) is not None
    assert set(rocketq.__all__) <= set(dir(rocketq))


def test_every_error_of_the_tree_can_be_caught_by_name() -> None:
    drawn = {cls.__name__ for cls in errors.by_code().values() if cls.__module__ == errors.__name__}
    assert drawn <= {*rocketq.__all__, "StoreError"}


def test_import_loads_no_server_and_no_dataframe_library() -> None:
    program = (
        "import sys, rocketq\n"
        "heavy = {'fastapi', 'uvicorn', 'pydantic', 'starlette', 'pandas', 'pyspark', 'asyncio'}\n"
        "loaded = heavy & {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_program_that_sends_and_consumes_loads_no_dataframe_library(
    cluster: LocalCluster, topic: str
) -> None:
    """Arrow imports pandas with the first value that it converts, where pandas is installed."""
    program = """
import sys
import pyarrow as pa
from rocketq import Client, Message

nameserver, topic = sys.argv[1:]
with Client(nameserver, trace=0.5) as mq:
    mq.create_topic(topic, queues=1, brokers=["broker-a"])
    with mq.producer() as producer:
        producer.send(topic, b"a", key="k", tag="t", properties={"p": "1"})
        producer.send(topic, b"b", delay="1ms")
        producer.submit(topic, b"c", key="k", tag="t", properties={"p": "1"}, ordering_key="o").result()
        producer.submit(topic, b"d").result()
        body = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])
        producer.send_batch(topic, pa.table([body], names=["body"]), unique_ids=True, delay="1ms")
        producer.send_batch(topic, [Message(b"e", properties={"p": "1"}), Message(b"f")])
    for read in ("poll", "poll_arrow"):
        with mq.pull_consumer(topic, start="earliest") as consumer:
            found = 0
            while found < 7:
                found += len(getattr(consumer, read)(timeout_ms=30_000))
    with mq.consumer("no-pandas", topic, start="earliest") as consumer:
        taken = 0
        for message in consumer:
            message.ack()
            taken += 1
            if taken == 7:
                break
    assert mq.tracing.flush(30_000)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, cluster.nameservers[0], topic], check=True)


def test_the_environment_is_read_when_a_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETQ_NAMESERVERS", "one:1;two:2")
    assert rocketq.Client().nameservers == ("http://one:1", "http://two:2")
    assert rocketq.Client("three:3").nameservers == ("http://three:3",)
    monkeypatch.delenv("ROCKETQ_NAMESERVERS")
    assert rocketq.Client().nameservers == ("http://127.0.0.1:9876",)


def test_a_closed_client_refuses_and_closes_what_it_made() -> None:
    client = rocketq.Client()
    producer = client.producer()
    client.close()
    client.close()
    with pytest.raises(Closed):
        producer.send("t", b"x")
    with pytest.raises(Closed):
        client.producer()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ProducerConfig, {"timeout_ms": 0}),
        (ProducerConfig, {"retries": -1}),
        (ProducerConfig, {"compression": "gzip"}),
        (ProducerConfig, {"batch_bytes": 2, "buffer_bytes": 1}),
        (ProducerConfig, {"batch_messages": 1 << 30}),
        (ProducerConfig, {"request_bytes": 1 << 30}),
        (ProducerConfig, {"batch_bytes": 1 << 24}),
        (PullConsumerConfig, {"start": "somewhere"}),
        (PullConsumerConfig, {"start": "time"}),
        (PullConsumerConfig, {"start_timestamp_us": 5}),
        (PullConsumerConfig, {"offset_reset": "guess"}),
        (PullConsumerConfig, {"pull_bytes": 1 << 40}),
        (ConsumerConfig, {"start": "group"}),
        (ConsumerConfig, {"start": "time"}),
        (ConsumerConfig, {"ack": "sometimes"}),
        (ConsumerConfig, {"broadcasting": True}),
        (ConsumerConfig, {"offsets_file": "offsets"}),
        (ConsumerConfig, {"session_timeout_ms": 10}),
        (ConsumerConfig, {"queue_span": 0}),
        (ConsumerConfig, {"suspend_ms": 50}),
        (ConsumerConfig, {"suspend_ms": 5, "ordered": True}),
        (ConsumerConfig, {"suspend_ms": 30_001, "ordered": True}),
        (ConsumerConfig, {"max_attempts": 0}),
        (TransportConfig, {"pool_size": 0}),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration):
        kind(**settings)


def test_a_consumer_without_a_group_must_say_where_it_starts() -> None:
    with rocketq.Client() as client, pytest.raises(InvalidConfiguration, match="without a group"):
        client.pull_consumer("t")
