"""Names that the system keeps for itself (RocketMQ: TopicValidator, MixAll, NamespaceUtil).

A user neither creates a topic of a reserved name nor sends to one, and commits no offsets for a
group of a reserved name: brokers will write there themselves, and would mix their records with
the user's. Topics that bear such a name already can be read, altered and deleted.

    system topics       names beginning with RMQ_SYS_ or SCHEDULE_TOPIC_XXXX, and those listed below
    topics of a group   %RETRY%group, %DLQ%group
    light queues        %LMQ%…
    groups              names beginning with CID_RMQ_SYS_ or like a topic's prefix, and those listed below;
                        a group has at most 120 characters, since its topics have 127

One system topic is open, since clients write it: RMQ_SYS_TRACE_TOPIC, which has their trace records. It can
be created and sent to, and is a system topic otherwise.

Beginnings are compared without regard to case, so that no name looks like a system's; listed
names are compared as they are written.
"""

from __future__ import annotations

from typing import Final

from rocketq.errors import InvalidName
from rocketq.errors.message_errors import ReservedName
from rocketq.model import is_legal_name

#: The topic of trace records (RocketMQ: TopicValidator.RMQ_SYS_TRACE_TOPIC).
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

_RETRY_PREFIX: Final = "%RETRY%"
_DEAD_LETTER_PREFIX: Final = "%DLQ%"
#: So that the names of a group's own topics are legal, too (RocketMQ: Validators.CHARACTER_MAX_LENGTH).
GROUP_NAME_MAX: Final = 120
_SYSTEM_TOPIC_PREFIXES: Final = ("RMQ_SYS_", "SCHEDULE_TOPIC_XXXX")
_SYSTEM_TOPICS: Final = frozenset(
    {
        *("TBW102", "BenchmarkTest", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC"),
        *("OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC"),
    }
)
_TOPIC_PREFIXES: Final = (*_SYSTEM_TOPIC_PREFIXES, _RETRY_PREFIX, _DEAD_LETTER_PREFIX, "%LMQ%")

_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", *_TOPIC_PREFIXES)
_GROUPS: Final = frozenset(
    {
        *("DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "CLIENT_INNER_PRODUCER", "TOOLS_CONSUMER"),
        *("SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_P_GROUP"),
        *("SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
        *("CID_ONSAPI_PULL", "CID_SYS_RMQ_TRANS"),
    }
)


def retry_topic(group: str) -> str:
    """Return the topic in which messages of a group wait for their next attempt."""
    return _RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic in which messages of a group lie that have had their last attempt."""
    return _DEAD_LETTER_PREFIX + group


def is_retry_topic(name: str) -> bool:
    """Whether it is the name of a group's retry topic."""
    return name.upper().startswith(_RETRY_PREFIX)


def is_system_topic(name: str) -> bool:
    """Whether a broker may keep records of its own under this name (RocketMQ: isSystemTopic)."""
    return name in _SYSTEM_TOPICS or name.upper().startswith(_SYSTEM_TOPIC_PREFIXES)


def is_reserved_topic(name: str) -> bool:
    """Whether the system keeps a name for itself: users do not create such a topic, nor send to it."""
    return name in _SYSTEM_TOPICS or name.upper().startswith(_TOPIC_PREFIXES)


def is_reserved_group(name: str) -> bool:
    """Whether users may not commit offsets for a group of this name."""
    return name in _GROUPS or name.upper().startswith(_GROUP_PREFIXES)


def check_name(kind: str, name: str) -> None:
    """Raise InvalidName unless `name` may name a topic, group, broker or cluster; `kind` says which it is."""
    if not is_legal_name(name):
        raise InvalidName(kind, name)


def check_user_topic(name: str) -> None:
    """Raise InvalidName or ReservedName unless users may create a topic of this name and send to it."""
    check_name("topic", name)
    if is_reserved_topic(name) and name != TRACE_TOPIC:
        raise ReservedName("topic", name)


def check_user_group(name: str) -> None:
    """Raise InvalidName or ReservedName unless users may commit offsets for a group of this name."""
    check_name("group", name)
    if len(name) > GROUP_NAME_MAX:
        raise InvalidName("group", name)
    if is_reserved_group(name):
        raise ReservedName("group", name)
