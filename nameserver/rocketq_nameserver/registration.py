"""The checks that a broker's registration must pass before the route table takes it.

A NameServer passes registrations on to every client, so it refuses what a client could not use: illegal
names, an address that is no HTTP base URL, queue counts beyond the limit, one topic twice.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from rocketq.errors import InvalidRequest
from rocketq.model import (
    QUEUE_COUNT_MAX,
    TOPIC_BROKERS_MAX,
    Perm,
    TopicConfig,
    is_legal_name,
)
from rocketq.protocol.documents.nameserver import BrokerIdentity, RegisterRequest
from rocketq.protocol.rules.reserved_names import check_name

LEASE_MS_MAX: Final = 3_600_000
ADDRESS_CHARACTERS_MAX: Final = 512
#: Topics that one broker may register; each costs this process some 500 bytes.
TOPICS_MAX: Final = 200_000


def check_registration(request: RegisterRequest) -> None:
    """Raise InvalidName or InvalidRequest for a registration that must not be taken."""
    check_identity(request.identity)
    if not 1 <= request.lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest("lease_ms", f"{request.lease_ms} is not from 1 to {LEASE_MS_MAX}")
    if request.ha_address:
        _check_address("ha_address", request.ha_address)
    _check_mark("store", request.store)
    if request.held_since_us < 0:
        raise InvalidRequest("held_since_us", f"{request.held_since_us} is below 0")
    if len(request.topics) > TOPICS_MAX:
        raise InvalidRequest("topics", f"there are {len(request.topics)}; the limit is {TOPICS_MAX}")
    for topic in request.topics:
        _check_topic(topic)
    if len({topic.name for topic in request.topics}) < len(request.topics):
        raise InvalidRequest("topics", "one of them is given twice")


def check_identity(identity: BrokerIdentity) -> None:
    """Raise InvalidName or InvalidRequest for an identity that no broker can have."""
    for kind, name in (("cluster", identity.cluster), ("broker", identity.broker)):
        check_name(kind, name)
    if identity.broker_id < 0:
        raise InvalidRequest("identity.broker_id", f"{identity.broker_id} is below 0")
    _check_address("identity.address", identity.address)
    _check_mark("identity.process", identity.process)


def _check_mark(where: str, mark: str) -> None:
    """A mark is compared and shown, never read: it is short, and its characters are those of names."""
    if mark and not is_legal_name(mark):
        raise InvalidRequest(where, f"{mark[:80]!r} is not of 1 to 127 of A-Z a-z 0-9 _ - % |")


def _check_topic(topic: TopicConfig) -> None:
    check_name("topic", topic.name)
    if not (0 <= topic.read_queues <= QUEUE_COUNT_MAX and 0 <= topic.write_queues <= QUEUE_COUNT_MAX):
        raise InvalidRequest(
            f"topic {topic.name}",
            f"{topic.read_queues} read, {topic.write_queues} write queues: not from 0 to {QUEUE_COUNT_MAX}",
        )
    if not 0 <= topic.perm <= Perm.READ_WRITE or topic.perm & 1:
        raise InvalidRequest(f"topic {topic.name}", f"{topic.perm} is no permission: it is 0, 2, 4 or 6")
    if len(topic.brokers) > TOPIC_BROKERS_MAX:
        raise InvalidRequest(
            f"topic {topic.name}", f"its record names {len(topic.brokers)} brokers, over {TOPIC_BROKERS_MAX}"
        )
    for broker in topic.brokers:
        check_name("broker", broker)


def _check_address(where: str, address: str) -> None:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.path or parts.query or parts.fragment or parts.username)
    except ValueError:
        usable = False
    if not usable or len(address) > ADDRESS_CHARACTERS_MAX or not address.isprintable() or " " in address:
        raise InvalidRequest(
            where, f"{address[:80]!r} is not an HTTP base URL", hint="Write it as http://HOST:PORT."
        )
