"""rocketq: messages in topics and queues, kept by brokers, found through NameServers.

`Client` is where to begin; docs/client.md is the guide. Spark users import
`pyspark_rocketq`, or nothing at all: Spark finds the data source "rocketq" itself.

Names are loaded when they are first used: the command line and the servers import from this
package too, and have no use for Arrow or for a client. The import has one effect: Spark, if it is
started later, starts the same Python (`rocketq.system.spark_python`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rocketq.system.spark_python import set_spark_python

if TYPE_CHECKING:
    #: The version of the installed package.
    __version__: str
    from rocketq.aio.client import AsyncClient
    from rocketq.aio.consuming.consumed_message import AsyncConsumedMessage
    from rocketq.aio.consuming.group_consumer import AsyncConsumer
    from rocketq.aio.consuming.listener import AsyncListener
    from rocketq.aio.consuming.pull_consumer import AsyncPullConsumer
    from rocketq.aio.consuming.simple_consumer import AsyncLeasedMessage, AsyncSimpleConsumer
    from rocketq.aio.producing.producer import AsyncProducer
    from rocketq.aio.producing.send_future import AsyncSendFuture
    from rocketq.aio.producing.transactions import AsyncTransaction, AsyncTransactionProducer
    from rocketq.client import Client
    from rocketq.config import (
        ConsumerConfig,
        ProducerConfig,
        PullConsumerConfig,
        SimpleConsumerConfig,
        TraceConfig,
        TransportConfig,
    )
    from rocketq.consuming.allocation.machine_rooms import MachineRoom, MachineRoomNearby
    from rocketq.consuming.allocation.strategies import Configured
    from rocketq.consuming.consumed_message import ConsumedMessage
    from rocketq.consuming.fetching.subscriptions import Sql, Tag
    from rocketq.consuming.group_consumer import Consumer
    from rocketq.consuming.listener import Listener
    from rocketq.consuming.pull_consumer import PullConsumer
    from rocketq.consuming.records import CONSUMED_SCHEMA
    from rocketq.consuming.simple_consumer import LeasedMessage, SimpleConsumer
    from rocketq.dead_letters import DeadLetter, DeadLetters
    from rocketq.errors import (
        BrokerUnavailable,
        BrokerUnreachable,
        ClientError,
        Closed,
        Conflict,
        CorruptFrame,
        GroupDisabled,
        GroupNotFound,
        InternalError,
        InvalidBatch,
        InvalidConfiguration,
        InvalidFilter,
        InvalidName,
        InvalidRequest,
        LeaseExpired,
        MethodNotAllowed,
        NameServersUnreachable,
        NoPermission,
        NotFound,
        OffsetOutOfRange,
        QueueNotFound,
        RemoteError,
        RetriesExhausted,
        RocketqError,
        RouteNotFound,
        SendFailed,
        StoreFull,
        SystemBusy,
        TooLarge,
        TooManyConnections,
        TooSlow,
        TopicNotFound,
        TraceNotFound,
        TransactionDamaged,
        TransactionDecidedOtherwise,
        TransactionMisused,
        TransactionNotFound,
        WrongEventLoop,
    )
    from rocketq.errors.message_errors import InvalidMessage, ReservedName
    from rocketq.local_cluster.cluster import LocalCluster
    from rocketq.message_query import FoundByKey, Query
    from rocketq.model import (
        HalfMessage,
        Message,
        MessageQueue,
        Perm,
        SendResult,
        SendStatus,
        StoredMessage,
        TransactionState,
    )
    from rocketq.producing.accumulation.send_future import SendFuture
    from rocketq.producing.producer import Producer
    from rocketq.producing.selection.queue_selectors import (
        ByHash,
        Explicit,
        QueueSelector,
        Random,
        RoundRobin,
    )
    from rocketq.producing.transactions.transactions import Transaction, TransactionProducer
    from rocketq.protocol.message_schema import MESSAGE_SCHEMA
    from rocketq.tracing.message_trace import Handling, MessageTrace
    from rocketq.tracing.records import TraceRecord

__all__ = [
    "CONSUMED_SCHEMA",
    "MESSAGE_SCHEMA",
    "AsyncClient",
    "AsyncConsumedMessage",
    "AsyncConsumer",
    "AsyncLeasedMessage",
    "AsyncListener",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncSendFuture",
    "AsyncSimpleConsumer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "ByHash",
    "Client",
    "ClientError",
    "Closed",
    "Configured",
    "Conflict",
    "ConsumedMessage",
    "Consumer",
    "ConsumerConfig",
    "CorruptFrame",
    "DeadLetter",
    "DeadLetters",
    "Explicit",
    "FoundByKey",
    "GroupDisabled",
    "GroupNotFound",
    "HalfMessage",
    "Handling",
    "InternalError",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidFilter",
    "InvalidMessage",
    "InvalidName",
    "InvalidRequest",
    "LeaseExpired",
    "LeasedMessage",
    "Listener",
    "LocalCluster",
    "MachineRoom",
    "MachineRoomNearby",
    "Message",
    "MessageQueue",
    "MessageTrace",
    "MethodNotAllowed",
    "NameServersUnreachable",
    "NoPermission",
    "NotFound",
    "OffsetOutOfRange",
    "Perm",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "Query",
    "QueueNotFound",
    "QueueSelector",
    "Random",
    "RemoteError",
    "ReservedName",
    "RetriesExhausted",
    "RocketqError",
    "RoundRobin",
    "RouteNotFound",
    "SendFailed",
    "SendFuture",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "Sql",
    "StoreFull",
    "StoredMessage",
    "SystemBusy",
    "Tag",
    "TooLarge",
    "TooManyConnections",
    "TooSlow",
    "TopicNotFound",
    "TraceConfig",
    "TraceNotFound",
    "TraceRecord",
    "Transaction",
    "TransactionDamaged",
    "TransactionDecidedOtherwise",
    "TransactionMisused",
    "TransactionNotFound",
    "TransactionProducer",
    "TransactionState",
    "TransportConfig",
    "WrongEventLoop",
]

#: The public names of each module; a name that is not listed is an error class of `rocketq.errors`.
_NAMES: Final = {
    "rocketq.aio.client": ("AsyncClient",),
    "rocketq.aio.consuming.consumed_message": ("AsyncConsumedMessage",),
    "rocketq.aio.consuming.group_consumer": ("AsyncConsumer",),
    "rocketq.aio.consuming.listener": ("AsyncListener",),
    "rocketq.aio.producing.producer": ("AsyncProducer",),
    "rocketq.aio.consuming.pull_consumer": ("AsyncPullConsumer",),
    "rocketq.aio.consuming.simple_consumer": ("AsyncLeasedMessage", "AsyncSimpleConsumer"),
    "rocketq.aio.producing.send_future": ("AsyncSendFuture",),
    "rocketq.aio.producing.transactions": (
        "AsyncTransaction",
        "AsyncTransactionProducer",
    ),
    "rocketq.client": ("Client",),
    "rocketq.config": (
        "ConsumerConfig",
        "ProducerConfig",
        "PullConsumerConfig",
        "SimpleConsumerConfig",
        "TraceConfig",
        "TransportConfig",
    ),
    "rocketq.consuming.allocation.machine_rooms": ("MachineRoom", "MachineRoomNearby"),
    "rocketq.consuming.allocation.strategies": ("Configured",),
    "rocketq.consuming.consumed_message": ("ConsumedMessage",),
    "rocketq.consuming.group_consumer": ("Consumer",),
    "rocketq.consuming.listener": ("Listener",),
    "rocketq.consuming.pull_consumer": ("PullConsumer",),
    "rocketq.consuming.records": ("CONSUMED_SCHEMA",),
    "rocketq.consuming.simple_consumer": ("LeasedMessage", "SimpleConsumer"),
    "rocketq.consuming.fetching.subscriptions": ("Sql", "Tag"),
    "rocketq.dead_letters": ("DeadLetter", "DeadLetters"),
    "rocketq.local_cluster.cluster": ("LocalCluster",),
    "rocketq.model": (
        "HalfMessage",
        "Message",
        "MessageQueue",
        "Perm",
        "SendResult",
        "SendStatus",
        "StoredMessage",
        "TransactionState",
    ),
    "rocketq.producing.transactions.transactions": ("Transaction", "TransactionProducer"),
    "rocketq.producing.producer": ("Producer",),
    "rocketq.producing.accumulation.send_future": ("SendFuture",),
    "rocketq.producing.selection.queue_selectors": (
        "ByHash",
        "Explicit",
        "QueueSelector",
        "Random",
        "RoundRobin",
    ),
    "rocketq.protocol.message_schema": ("MESSAGE_SCHEMA",),
    "rocketq.message_query": ("FoundByKey", "Query"),
    "rocketq.tracing.message_trace": ("Handling", "MessageTrace"),
    "rocketq.tracing.records": ("TraceRecord",),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}

set_spark_python()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "rocketq.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _installed_version() -> str:
    from importlib.metadata import version

    return version("rocketq")
