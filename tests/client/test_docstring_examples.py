"""The examples in docstrings of public classes run against a real cluster that has a topic `orders`."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

import rocketq
from rocketq import TransactionState
from rocketq.testing import EmbeddedCluster

#: A line of the servers' readable log.
LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[\w+ *\]")
#: Classes whose docstring shows how they are used.
SHOWN: Final = (
    rocketq.Client,
    rocketq.Message,
    rocketq.MessageQueue,
    rocketq.Producer,
    rocketq.Consumer,
    rocketq.SendResult,
    rocketq.Listener,
    rocketq.PullConsumer,
    rocketq.SimpleConsumer,
    rocketq.TransactionProducer,
    rocketq.Query,
    rocketq.DeadLetters,
    rocketq.AsyncClient,
    EmbeddedCluster,
)


class WithoutLogs(doctest.OutputChecker):
    """Compares what an example prints; another test of this process may have servers log to stdout."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        printed = "".join(line for line in got.splitlines(keepends=True) if not LOG_LINE.match(line))
        return super().check_output(want, printed, optionflags)


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """What every example may use besides the names of `rocketq`."""
    public = {name: getattr(rocketq, name) for name in rocketq.__all__}
    with EmbeddedCluster() as cluster, rocketq.Client(cluster.nameservers) as client:
        with client.producer() as producer:
            producer.send("orders", "first")
        yield {
            **public,
            "asyncio": asyncio,
            "threading": threading,
            "EmbeddedCluster": EmbeddedCluster,
            "nameservers": cluster.nameservers,
            "client": client,
            "state_of": lambda half: TransactionState.COMMIT,
            "save": lambda transaction: None,
        }


@pytest.mark.parametrize("shown", SHOWN, ids=lambda kind: str(kind.__name__))
def test_the_example_of_a_class_does_what_it_says(shown: type, names: dict[str, Any]) -> None:
    text = inspect.getdoc(shown) or ""
    example = doctest.DocTestParser().get_doctest(text, dict(names), shown.__name__, None, None)
    assert example.examples, f"{shown.__name__} has no example"
    told: list[str] = []
    doctest.DocTestRunner(WithoutLogs()).run(example, out=told.append)
    assert not told, "".join(told)
