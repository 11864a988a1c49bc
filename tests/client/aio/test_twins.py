"""Each class of the client for threads has a twin for asyncio: the same methods with the same parameters."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

import pytest

import rocketq
from rocketq import AsyncClient, Client, HalfMessage, LocalCluster, TransactionState
from rocketq.admin.groups import GroupAdmin
from rocketq.aio.administration import AsyncDeadLetters, AsyncGroupAdmin, AsyncQuery, AsyncSink, AsyncTimers
from rocketq.aio.opening import Opening
from rocketq.aio.producing.batch_sender import AsyncBatchSender
from rocketq.dead_letters import DeadLetters
from rocketq.message_query import Query
from rocketq.producing.batch_sender import BatchSender
from rocketq.sinks.sink import Sink
from rocketq.timers import Timers

#: Methods that are no coroutine functions in the twin either, because they make no call; and those that only
#: the client's own machinery uses.
NO_CALL: Final = {
    "Client.producer", "Client.transactions", "Client.sink", "Client.invalidate_route",
    # Opened by `async with` or `await`:
    "Client.consumer", "Client.listener", "Client.pull_consumer", "Client.simple_consumer",
    "Client.dead_letters", "Consumer.add_hook", "Listener.add_hook", "SimpleConsumer.raise_refused",
    "DeadLetters.list",
    "Producer.batch_sender", "Producer.batch_stager", "Producer.faults", "Producer.add_hook",
    "Consumer.arrow", "Consumer.owned", "Consumer.lag", "Consumer.seek", "Consumer.pause", "Consumer.resume",
    "Listener.owned", "Listener.lag", "Consumer.stopped", "Listener.stopped",
    "PullConsumer.positions", "PullConsumer.lag", "PullConsumer.seek", "PullConsumer.pause",
    "PullConsumer.resume",
    "TransactionProducer.transaction", "Transaction.leave_to_check",
    "Query.by_time", "Timers.list",  # iterators for `async for`
    "Sink.stage",
}  # fmt: skip
INTERNAL: Final = {
    "PullConsumer.changes": "tells event loops of news",
    "TransactionProducer.first_half": "what both kinds of transactions begin with",
}
#: Attributes of the client that have methods themselves.
PARTS: Final = {"groups", "query", "timers"}


def client_twins() -> list[tuple[type, type]]:
    names = (
        "Client", "Producer", "Consumer", "Listener", "PullConsumer", "Transaction", "TransactionProducer",
        "SendFuture", "ConsumedMessage", "SimpleConsumer", "LeasedMessage",
    )  # fmt: skip
    public = [(getattr(rocketq, name), getattr(rocketq, f"Async{name}")) for name in names]
    return [
        *public, (GroupAdmin, AsyncGroupAdmin), (Query, AsyncQuery), (Timers, AsyncTimers), (Sink, AsyncSink),
        (DeadLetters, AsyncDeadLetters),
        (BatchSender, AsyncBatchSender),
    ]  # fmt: skip


def unknown(message: HalfMessage) -> TransactionState:
    return TransactionState.UNKNOWN


def made(kind: type, mq: AsyncClient) -> Any:
    """Return what has a twin's methods: an object where the constructor makes them, else the class."""
    objects: dict[type, Any] = {
        rocketq.AsyncClient: mq, AsyncGroupAdmin: mq.groups, AsyncQuery: mq.query, AsyncTimers: mq.timers,
        AsyncDeadLetters: mq.dead_letters("g"),
        AsyncSink: mq.sink("s"), rocketq.AsyncProducer: mq.producer(),
        rocketq.AsyncTransactionProducer: mq.transactions("g", check=unknown),
    }  # fmt: skip
    return objects.get(kind, kind)


def parameters(function: Callable[..., Any]) -> dict[str, tuple[object, object]]:
    """The parameters of a method by name, each with its kind and default."""
    found = inspect.signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in found if each.name != "self"}


def public_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


#: Where a twin differs on purpose.
DIFFERENT: Final = {
    "SendFuture.result": "an outcome is awaited, so there is no timeout",
    "SendFuture.exception": "an outcome is awaited, so there is no timeout",
    "SendFuture.to_future": "the twin is awaitable itself",
    "SendFuture.place": "for the twin itself",
    "LeasedMessage.receipt": "the twin has `receipt_handle`, and makes its calls by the core's",
}


@pytest.mark.parametrize("twins", client_twins(), ids=lambda twins: twins[0].__name__)
def test_a_twin_has_each_method_with_the_same_parameters(
    twins: tuple[type, type], cluster: LocalCluster
) -> None:
    sync, twin = twins

    async def compare() -> list[str]:
        wrong = []
        async with AsyncClient(cluster.nameservers) as mq, await _pull(mq) as pull:
            has = pull if twin is rocketq.AsyncPullConsumer else made(twin, mq)
            for name in public_names(sync):
                label = f"{sync.__name__}.{name}"
                member = inspect.getattr_static(sync, name)
                if label in INTERNAL or label in DIFFERENT or not inspect.isfunction(member):
                    if label not in INTERNAL and label not in DIFFERENT and not hasattr(has, name):
                        wrong.append(f"{label} is missing")
                    continue
                other = getattr(has, name)
                if parameters(other) != parameters(member):
                    wrong.append(f"{label}: {inspect.signature(other)} is not {inspect.signature(member)}")
                no_call = label in NO_CALL or sync is rocketq.SendFuture
                if inspect.iscoroutinefunction(other) is no_call:
                    wrong.append(f"{label} is {'' if no_call else 'no '}coroutine function")
        return wrong

    async def _pull(mq: AsyncClient) -> Opening[rocketq.AsyncPullConsumer]:
        await mq.create_topic("twins", if_absent=True)
        return mq.pull_consumer("twins", start="latest")

    assert asyncio.run(compare()) == []


def test_the_lists_of_this_test_name_what_exists() -> None:
    classes = {sync.__name__: sync for sync, _ in client_twins()}
    for label in {*NO_CALL, *INTERNAL, *DIFFERENT}:
        kind, name = label.split(".")
        assert hasattr(classes[kind], name), label


def test_a_client_has_the_same_parts() -> None:
    with Client() as sync:
        parts = {name for name, part in vars(sync).items() if isinstance(part, GroupAdmin | Query | Timers)}
    assert parts == PARTS
    assert vars(AsyncClient()).keys() >= PARTS
