"""The rule of each route: the permission that it needs, the resource that it names, the bodies that it takes.

A route declares its rule beside its handler. Every call passes `Admission.admit` with the rule of its route
and with the resource that the call names. The media types are enforced there. The permission is not enforced
yet: that will be a further step of `admit`. Tests walk all routes of a server and fail on one without a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from rocketq.protocol.documents.broker import JSON

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
    """The kind of thing that a permission is held on; the value is the path parameter that has its name."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    SINK = "sink"


class NamedResource(NamedTuple):
    """One thing that a call is about: its kind and its name. The cluster has no name."""

    kind: Resource
    name: str = ""


CLUSTER: Final = NamedResource(Resource.CLUSTER)


@dataclass(frozen=True, slots=True)
class Rule:
    """The permission that a route needs, and on what; any of `alternatives` will do as well.

    A change that the route makes is in the audit log if the permission is ADMIN, or if `is_audited` says so.
    `media_types` are those of the bodies that it takes, in lower case; none: nobody reads the body.
    The name of the resource is the path parameter of its kind (`{topic}`, `{group}`, `{sink}`), or what
    `name_of` makes of the path parameters.
    """

    permission: Permission
    resource: Resource
    alternatives: tuple[Permission, ...] = ()
    media_types: tuple[bytes, ...] = (JSON.encode(),)
    name_of: Callable[[Mapping[str, str]], str] | None = None
    is_audited: bool = False

    def named(self, path_parameters: Mapping[str, str]) -> NamedResource:
        """Return the resource that a call with these path parameters, unescaped, is about."""
        if self.resource is Resource.CLUSTER:
            return CLUSTER
        if self.name_of is not None:
            return NamedResource(self.resource, self.name_of(path_parameters))
        return NamedResource(self.resource, path_parameters[self.resource.value])


#: For a path that has no route: the caller may learn that.
NO_ROUTE: Final = Rule(Permission.METRICS, Resource.CLUSTER, media_types=())


def declare(
    permission: Permission,
    resource: Resource,
    *alternatives: Permission,
    name_of: Callable[[Mapping[str, str]], str] | None = None,
    is_audited: bool = False,
) -> Callable[[F], F]:
    """Mark a handler with the rule of its route."""

    def mark(handler: F) -> F:
        # A bound method has no attributes of its own; its function has.
        rule = Rule(permission, resource, alternatives, name_of=name_of, is_audited=is_audited)
        setattr(getattr(handler, "__func__", handler), _RULE, rule)
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
