"""A setting that does not exist is refused with the nearest name, and a type checker knows all that do."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest

import rocketq
from rocketq import (
    AsyncClient,
    Client,
    ConsumerConfig,
    InvalidConfiguration,
    ProducerConfig,
    PullConsumerConfig,
    SimpleConsumerConfig,
    TraceConfig,
    TransportConfig,
)
from rocketq import settings_types as kinds
from rocketq.protocol.documents.broker import AlterTopicRequest
from rocketq.testing import EmbeddedCluster

TYPES: Final = [
    (ProducerConfig, kinds.ProducerSettings),
    (PullConsumerConfig, kinds.PullConsumerSettings),
    (SimpleConsumerConfig, kinds.SimpleConsumerSettings),
    (ConsumerConfig, kinds.ConsumerSettings),
    (AlterTopicRequest, kinds.TopicChanges),
]
OPENINGS: Final = {
    "producer": "ProducerSettings",
    "transactions": "ProducerSettings",
    "consumer": "ConsumerSettings",
    "listener": "ConsumerSettings",
    "pull_consumer": "PullConsumerSettings",
    "simple_consumer": "SimpleConsumerSettings",
}
ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize(("config", "settings"), TYPES, ids=lambda kind: str(kind.__name__))
def test_the_types_of_settings_are_those_of_the_configuration(config: type, settings: type) -> None:
    # Int64 is an int with the bounds of the wire.
    assert get_type_hints(config) == get_type_hints(settings)


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(("opening", "settings"), OPENINGS.items())
def test_each_opening_takes_the_settings_of_its_configuration(
    client: type, opening: str, settings: str
) -> None:
    assert (
        inspect.signature(getattr(client, opening)).parameters["settings"].annotation == f"Unpack[{settings}]"
    )


REFUSED: Final[list[tuple[str, Callable[[Any], object], str]]] = [
    ("linger_mss", lambda mq: mq.producer(linger_mss=5), "linger_ms"),
    ("retry", lambda mq: mq.transactions("g", lambda half: None, retry=5), "retries"),
    ("orderd", lambda mq: mq.consumer("g", "orders", orderd=True), "ordered"),
    ("worker", lambda mq: mq.listener("orders", print, group="g", worker=8), "workers"),
    ("tagz", lambda mq: mq.pull_consumer("orders", tagz="a"), "tags"),
    ("invisible", lambda mq: mq.simple_consumer("g", "orders", invisible=5), "invisible_ms"),
]


def told(name: str, near: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{name}=.* has no such setting") as refused:
        call()
    assert refused.value.hint == f"Did you mean {near}?"


@pytest.mark.parametrize(("name", "opening", "near"), REFUSED, ids=lambda value: str(value)[:12])
def test_a_misspelt_setting_is_refused_with_the_nearest_name(
    name: str, opening: Callable[[Any], object], near: str
) -> None:
    async def asynchronously() -> None:
        async with AsyncClient() as mq:
            told(name, near, lambda: opening(mq))

    with Client() as mq:
        told(name, near, lambda: opening(mq))
    asyncio.run(asynchronously())


def test_a_misspelt_change_of_a_topic_is_refused() -> None:
    with Client() as mq:
        told("retention", "retention_ms", lambda: mq.alter_topic("orders", retention=5))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "kind",
    [config for config, _ in TYPES[:-1]] + [TransportConfig, TraceConfig],
    ids=lambda kind: kind.__name__,
)
def test_a_configuration_refuses_a_name_that_is_like_no_other(kind: Any) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        kind(xyzzy=1)
    assert all(field.name in refused.value.hint for field in fields(kind))


def test_a_configuration_given_together_with_settings_is_refused() -> None:
    with Client() as mq, pytest.raises(InvalidConfiguration, match="given together with config"):
        mq.transactions("g", lambda half: rocketq.TransactionState.COMMIT, config=ProducerConfig(), retries=1)


def test_the_package_says_its_version() -> None:
    assert rocketq.__version__ == version("rocketq")
    assert "__version__" in dir(rocketq)


PROGRAM: Final = """
from rocketq import AsyncClient, Client, ProducerConfig, Tag
mq, aio = Client(), AsyncClient()
mq.producer(linger_ms=5)
mq.listener("t", print, group="g", workers=2, filter=Tag("a"), ordered=True)
ProducerConfig(linger_mss=5)
mq.producer(linger_mss=5)
mq.consumer("g", "t", tagz="a")
mq.listener("t", print, group="g", worker=2)
mq.pull_consumer("t", hold="a")
mq.alter_topic("t", nonsense=1)
mq.producer(linger_ms="5")
aio.producer(linger_mss=5)
aio.simple_consumer("g", "t", invisible=5)
"""


@pytest.mark.slow
def test_a_type_checker_refuses_a_misspelt_setting(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    done = subprocess.run(
        [*command, "--follow-imports=silent", str(tmp_path / "program.py")],
        cwd=ROOT / "connector", capture_output=True, text=True, check=False,
    )  # fmt: skip
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert wrong == set(range(6, 15)), done.stdout


def test_a_client_of_an_embedded_cluster_takes_what_any_client_takes() -> None:
    own = dict(inspect.signature(Client).parameters)
    del own["nameservers"]
    embedded = dict(inspect.signature(EmbeddedCluster.client).parameters)
    del embedded["self"]
    assert embedded == own
