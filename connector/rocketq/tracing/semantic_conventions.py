"""The names that OpenTelemetry gives to what spans of messages say: its semantic conventions for messaging.

They are in development there, so all of them stand here, and nothing else in the project spells one.
"""

from __future__ import annotations

from typing import Final

#: The conventions for RocketMQ's messages, whose terms these are.
SYSTEM: Final = "rocketmq"

MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
PARTITION_ID: Final = "messaging.destination.partition.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
BODY_SIZE: Final = "messaging.message.body.size"
MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGE_KEYS: Final = "messaging.rocketmq.message.keys"
ERROR_TYPE: Final = "error.type"

#: Operations: `create` makes a message that a later `send` carries, `receive` hands out, `process` handles.
CREATE: Final = "create"
SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"

#: The properties of a message that carry its context (W3C Trace Context).
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
