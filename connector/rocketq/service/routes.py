"""What each route needs to be allowed, declared as data beside it.

Nothing enforces it yet; the declaration is there so that enforcement can be added
in one place, and so that a test can walk every route of a service and fail on one
that nobody thought about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

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
    """The permission that a route needs, and on what; any of `alternatives` will do as well."""

    permission: Permission
    resource: Resource
    alternatives: tuple[Permission, ...] = ()


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
