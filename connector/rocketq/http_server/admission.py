"""The one door of a server: `Admission.admit` decides about every call before its body is read.

It is given the head of the call, the rule of its route, and the resource that the call names. Authentication
and authorization will be further steps of it; until then whoever reaches a server may use it. A page on the
web also reaches a server, through the browser of a user who does. `admit` refuses such calls, without any
configuration:

    Host           421    A page can have a name of its own point to this server's address (DNS rebinding).
                          The browser then takes page and server for one origin, but it sends that name.
                          The server answers to its own names only.
    Origin         403    A browser tells which page makes a request that could change something, or
                          whose answer a script reads. Only pages of the server itself (/docs) may do that.
    Content-Type   415    What a page may send without asking first is text and forms (Fetch standard,
                          "CORS-safelisted request-header"). No call takes these.

Host names are compared, ports are not: a port can be mapped on the way. A page on another port of the same
host is still refused, because its `Origin` differs from the `Host` of the request.

A request without `Origin` comes from no script, or is a plain GET (a link, an image), which changes nothing
and whose answer no page can read. So curl, Prometheus, Spark and the address bar of a browser are not
concerned. A POST or DELETE without a body needs no content type: browsers send `Origin` with both.

Sources: RFC 9110 (15.5.16, 15.5.20), RFC 9112 (3.2), the Fetch standard ("`Origin` header").
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rocketq.errors import InvalidConfiguration, InvalidRequest
from rocketq.errors.admission_errors import ForeignOrigin, MisdirectedRequest, UnsupportedMediaType
from rocketq.http_server.permissions import NamedResource, Rule

Headers = Sequence[tuple[bytes, bytes]]

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]*)?")
_NAME: Final = re.compile(r"[a-z0-9_.-]+")


class Head(NamedTuple):
    """What is known of a request before its body: its headers, by lower-case name, and how it came here."""

    headers: Headers
    #: The address of this machine that the connection was made to.
    local: str
    http_version: str = "1.1"


@dataclass(frozen=True, slots=True)
class AcceptedHosts:
    """The names and addresses that a server answers to.

    Any loopback address, and the address that the connection was made to, count as well.
    """

    names: frozenset[str]

    def accept(self, host: bytes, local: str) -> bool:
        """Whether the `Host` header of a request that came to the address `local` names this server."""
        name = host_name(host)
        return name in self.names or (name != "" and (_is_loopback(name) or name == usual_form(local)))


def accepted_hosts(bound: str, advertised: str = "", allowed: Iterable[str] = ()) -> AcceptedHosts:
    """Return the hosts of a server: where it is bound, the host of its advertised URL, and `allowed`.

    Raises InvalidConfiguration for an allowed host that is not a name or an address alone.
    """
    names = {usual_form(bound), usual_form(urlsplit(advertised).hostname or "")} - {""}
    for host in allowed:
        name = usual_form(host.removeprefix("[").removesuffix("]"))
        if not _NAME.fullmatch(name) and not _is_address(name):
            raise InvalidConfiguration(
                "allowed_hosts", host, "is not the name or the address of a host",
                hint="Write it without scheme and port: broker.example, or 192.0.2.7.",
            )  # fmt: skip
        names.add(name)
    return AcceptedHosts(frozenset(names | _LOOPBACK))


def hosts_given(values: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts that a repeatable option names, each time one or several with commas between."""
    return tuple(host.strip() for value in values for host in value.split(",") if host.strip())


@dataclass(frozen=True, slots=True)
class Admission:
    """What a server decides by; one object, which all its ways in share."""

    hosts: AcceptedHosts

    def admit(self, head: Head, rule: Rule, resource: NamedResource) -> None:
        """Return if the call may go on.

        Raises MisdirectedRequest, ForeignOrigin, UnsupportedMediaType, or InvalidRequest without one Host.
        No rule is about `resource` yet.
        """
        fields = dict(head.headers)
        _check_page(head, fields, self.hosts)
        _check_media_type(fields, rule)


def _check_page(head: Head, fields: Mapping[bytes, bytes], hosts: AcceptedHosts) -> None:
    """Refuse what a page of another site has a browser send; `fields` are the headers by name."""
    if len(fields) < len(head.headers) and [name for name, _ in head.headers].count(b"host") > 1:
        raise InvalidRequest("Host", "it is given twice", hint="Send it once.")
    host = fields.get(b"host", b"")
    # Only HTTP/1.0 has requests without Host, and no browser speaks that: it is a load balancer's probe.
    if not host and head.http_version != "1.0":
        raise InvalidRequest("Host", "it is missing", hint="HTTP/1.1 has it in every request.")
    if host and not hosts.accept(host, head.local):
        raise MisdirectedRequest(_shown(host))
    origin = fields.get(b"origin")
    if origin is not None and not _is_same_origin(origin, host):
        raise ForeignOrigin(_shown(origin), _shown(host))


def _check_media_type(fields: Mapping[bytes, bytes], rule: Rule) -> None:
    """Refuse a body that the route does not take."""
    encoding = fields.get(b"content-encoding", b"identity")
    if encoding.lower() != b"identity":
        raise UnsupportedMediaType("Content-Encoding", _shown(encoding), "no encoding")
    kind = fields.get(b"content-type", b"")
    if kind in rule.media_types or not rule.media_types:
        return
    if fields.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in fields:
        given = kind.partition(b";")[0].strip().lower()
        if given not in rule.media_types:
            wanted = " or ".join(each.decode("ascii") for each in rule.media_types)
            raise UnsupportedMediaType("Content-Type", _shown(given), wanted)


@lru_cache(maxsize=1_024)
def host_name(host: bytes) -> str:
    """Return the host that a `Host` header names, without its port and in its usual form; "" if none."""
    found = _HOST.fullmatch(host.decode("latin-1"))
    return usual_form(found[1] or found[2]) if found else ""


@lru_cache(maxsize=1_024)
def usual_form(name: str) -> str:
    """Return a host in the form in which hosts are compared: an IPv4 address never as an IPv6 one."""
    name = name.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    return str(getattr(address, "ipv4_mapped", None) or address)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1_024)
def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_same_origin(origin: bytes, host: bytes) -> bool:
    """Whether an `Origin` is that of a page which this server itself gave under the name `host`.

    The scheme is not compared: a proxy may speak TLS for the server.
    """
    scheme, separator, authority = origin.lower().partition(b"://")
    return separator != b"" and scheme in (b"http", b"https") and authority == host.lower()


def _shown(value: bytes) -> str:
    return value.decode("latin-1")[:200]
