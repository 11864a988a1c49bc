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
    from rocketq.client import Client
    from rocketq.config import ConsumerConfig, ProducerConfig, TransportConfig
    from rocketq.consuming.pull_consumer import Consumer
    from rocketq.consuming.records import CONSUMED_SCHEMA
    from rocketq.errors import (
        BrokerUnavailable,
        BrokerUnreachable,
        ClientError,
        Closed,
        Conflict,
        CorruptFrame,
        InternalError,
        InvalidBatch,
        InvalidConfiguration,
        InvalidFilter,
        InvalidName,
        InvalidRequest,
        MethodNotAllowed,
        NameServersUnreachable,
        NoPermission,
        NotFound,
        OffsetOutOfRange,
        QueueNotFound,
        RemoteError,
        RocketqError,
        RouteNotFound,
        SendFailed,
        StoreFull,
        SystemBusy,
        TooLarge,
        TooManyConnections,
        TooSlow,
        TopicNotFound,
        TransactionDecidedOtherwise,
        TransactionMisused,
        TransactionNotFound,
    )
    from rocketq.errors.message_errors import InvalidMessage, ReservedName
    from rocketq.local_cluster.cluster import LocalCluster
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
    from rocketq.producing.producer import Producer
    from rocketq.producing.queue_selectors import ByHash, Explicit, QueueSelector, Random, RoundRobin
    from rocketq.producing.transactions import Transaction, TransactionProducer
    from rocketq.protocol.message_schema import MESSAGE_SCHEMA
    from rocketq.query import FoundByKey, Query

__all__ = [
    "CONSUMED_SCHEMA",
    "MESSAGE_SCHEMA",
    "BrokerUnavailable",
    "BrokerUnreachable",
    "ByHash",
    "Client",
    "ClientError",
    "Closed",
    "Conflict",
    "Consumer",
    "ConsumerConfig",
    "CorruptFrame",
    "Explicit",
    "FoundByKey",
    "HalfMessage",
    "InternalError",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidFilter",
    "InvalidMessage",
    "InvalidName",
    "InvalidRequest",
    "LocalCluster",
    "Message",
    "MessageQueue",
    "MethodNotAllowed",
    "NameServersUnreachable",
    "NoPermission",
    "NotFound",
    "OffsetOutOfRange",
    "Perm",
    "Producer",
    "ProducerConfig",
    "Query",
    "QueueNotFound",
    "QueueSelector",
    "Random",
    "RemoteError",
    "ReservedName",
    "RocketqError",
    "RoundRobin",
    "RouteNotFound",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "StoreFull",
    "StoredMessage",
    "SystemBusy",
    "TooLarge",
    "TooManyConnections",
    "TooSlow",
    "TopicNotFound",
    "Transaction",
    "TransactionDecidedOtherwise",
    "TransactionMisused",
    "TransactionNotFound",
    "TransactionProducer",
    "TransactionState",
    "TransportConfig",
]

#: Where each public name lives; what is not listed is an error class.
_HOMES: Final = {
    "Client": "rocketq.client",
    "ConsumerConfig": "rocketq.config",
    "ProducerConfig": "rocketq.config",
    "TransportConfig": "rocketq.config",
    "CONSUMED_SCHEMA": "rocketq.consuming.records",
    "Consumer": "rocketq.consuming.pull_consumer",
    "InvalidMessage": "rocketq.errors.message_errors",
    "ReservedName": "rocketq.errors.message_errors",
    "LocalCluster": "rocketq.local_cluster.cluster",
    "Producer": "rocketq.producing.producer",
    "HalfMessage": "rocketq.model",
    "Message": "rocketq.model",
    "MessageQueue": "rocketq.model",
    "Perm": "rocketq.model",
    "SendResult": "rocketq.model",
    "SendStatus": "rocketq.model",
    "StoredMessage": "rocketq.model",
    "TransactionState": "rocketq.model",
    "MESSAGE_SCHEMA": "rocketq.protocol.message_schema",
    "FoundByKey": "rocketq.query",
    "Query": "rocketq.query",
    "ByHash": "rocketq.producing.queue_selectors",
    "Explicit": "rocketq.producing.queue_selectors",
    "QueueSelector": "rocketq.producing.queue_selectors",
    "Random": "rocketq.producing.queue_selectors",
    "RoundRobin": "rocketq.producing.queue_selectors",
    "Transaction": "rocketq.producing.transactions",
    "TransactionProducer": "rocketq.producing.transactions",
}


set_spark_python()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "rocketq.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
