"""rocketq: messages in topics and queues, kept by brokers, found through NameServers.

`Client` is where to begin; docs/client.md is the guide. Spark users import
`pyspark_rocketq`, or nothing at all: Spark finds the data source "rocketq" itself.
"""

from __future__ import annotations

from rocketq.client import Client
from rocketq.config import ConsumerConfig, ProducerConfig, TransportConfig
from rocketq.consumed import CONSUMED_SCHEMA
from rocketq.consumer import Consumer
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
    InvalidName,
    InvalidRequest,
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
    TooSlow,
    TopicNotFound,
)
from rocketq.producer import Producer
from rocketq.protocol.model import (
    Message,
    MessageQueue,
    Perm,
    SendResult,
    SendStatus,
    StoredMessage,
)
from rocketq.protocol.schema import MESSAGE_SCHEMA
from rocketq.selector import ByHash, Explicit, QueueSelector, Random, RoundRobin

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
    "InternalError",
    "InvalidBatch",
    "InvalidConfiguration",
    "InvalidName",
    "InvalidRequest",
    "Message",
    "MessageQueue",
    "NameServersUnreachable",
    "NoPermission",
    "NotFound",
    "OffsetOutOfRange",
    "Perm",
    "Producer",
    "ProducerConfig",
    "QueueNotFound",
    "QueueSelector",
    "Random",
    "RemoteError",
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
    "TooSlow",
    "TopicNotFound",
    "TransportConfig",
]
