"""What each route needs to be allowed and which bodies it takes, declared as data beside it.

The media types are enforced by `admission.admit`, which every call passes with the rule of its route. The
permission is not enforced yet. It is declared so that it can be enforced there, and so that a test can walk
all routes of a service and fail on one without a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from rocketq.protocol.broker_documents import JSON

_RULE: Final = "__rocketq_rule__"

F = TypeVar("F", bound=Callable[..., Any])


class Permission(StrEnum):
    """What a caller must be allowed to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    REPLICATE = "replicate"
    METRICS = "metrics"


class Resource(StrEnum):
    """What the permission is held on."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Rule:
    """The permission that a route needs, and on what; any of `alternatives` will do as well.

    `media_types` are those of the bodies that it takes, in lower case; none: nobody reads the body.
    """

    permission: Permission
    resource: Resource
    alternatives: tuple[Permission, ...] = ()
    media_types: tuple[bytes, ...] = (JSON.encode(),)


#: For a path that has no route: the caller may learn that.
NO_ROUTE: Final = Rule(Permission.METRICS, Resource.CLUSTER, media_types=())


def declare(permission: Permission, resource: Resource, *alternatives: Permission) -> Callable[[F], F]:
    """Mark a handler with the rule of its route."""

    def mark(handler: F) -> F:
        # A bound method has no attributes of its own; its function has.
        setattr(getattr(handler, "__func__", handler), _RULE, Rule(permission, resource, alternatives))
        return handler

    return mark


def rule_of(handler: Callable[..., Any]) -> Rule | None:
    """Return what a handler was declared with."""
    return getattr(handler, _RULE, None)


def undeclared(routes: Iterable[Any]) -> list[str]:
    """Return the paths of FastAPI or Starlette routes whose handler has no rule."""
    missing = []
    for route in routes:
        endpoint = getattr(route, "endpoint", None)
        if endpoint is not None and rule_of(endpoint) is None:
            missing.append(route.path)
    return missing
