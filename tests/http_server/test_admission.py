"""What a page on the web can have a browser send is refused; what else calls a server is not."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketq.errors import InvalidConfiguration, InvalidRequest
from rocketq.errors.admission_errors import ForeignOrigin, MisdirectedRequest, UnsupportedMediaType
from rocketq.http_server.admission import Admission, Head, accepted_hosts, hosts_given
from rocketq.http_server.permissions import CLUSTER, NO_ROUTE, NamedResource, Permission, Resource, Rule
from rocketq.http_server.runner import ServerThread
from rocketq.model import Message
from rocketq.protocol.arrow.stream_writer import write_stream
from rocketq.protocol.documents.broker import ARROW_STREAM, OCTET_STREAM
from rocketq.protocol.message_schema import from_messages
from rocketq_broker import app as broker_app
from rocketq_broker import broker_options
from rocketq_broker.app import DATA_ROUTES, BrokerApp
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.sends.small_send import SmallSends
from rocketq_nameserver import app as nameserver_app
from rocketq_nameserver.app import NameServerApp
from rocketq_nameserver.config import NameServerConfig
from tests.support.http_client import Http

RULE = Rule(Permission.ADMIN, Resource.TOPIC)
TOPIC = NamedResource(Resource.TOPIC, "orders")
ADMISSION = Admission(
    accepted_hosts("192.0.2.1", "http://broker.example:8080", ["other.example", "2001:db8::1"])
)
LOCAL = "10.1.2.3"


def check(host: str | None = "localhost", version: str = "1.1", **headers: str) -> None:
    given = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    if host is not None:
        given.append((b"host", host.encode("latin-1")))
    ADMISSION.admit(Head(given, LOCAL, version), RULE, TOPIC)


# --- the decision -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("192.0.2.1", "192.0.2.1:1", "broker.example", "Broker.Example.:80", "other.example:10911"),
        *("[2001:db8::1]:80", "[2001:DB8:0::1]", "localhost", "LOCALHOST:8080", "127.0.0.1", "127.9.9.9:5"),
        *("[::1]", "[::1]:9876", "[::ffff:127.0.0.1]:1", LOCAL, f"{LOCAL}:5", f"[::ffff:{LOCAL}]"),
    ],
)
def test_a_server_answers_to_its_own_names_whatever_the_port(host: str) -> None:
    check(host)


@pytest.mark.parametrize(
    "host",
    [
        *("attacker.example", "192.0.2.2", "localhost.attacker.example", "127.0.0.1.attacker.example"),
        *("attacker.example:10911", "localhost@attacker.example", "127.0.0.1:80@attacker", "localhost:x"),
        *("xlocalhost", "127.1", "0x7f000001", "[::2]", "[::1", "::1", "a b", "\xff", ":80", "[localhost]"),
    ],
)
def test_a_server_answers_to_no_other_host(host: str) -> None:
    with pytest.raises(MisdirectedRequest) as caught:
        check(host)
    assert caught.value.facts == {"host": host}
    assert "--allowed-hosts" in caught.value.hint


def test_a_request_has_one_host_unless_it_is_older_than_hosts() -> None:
    with pytest.raises(InvalidRequest, match="missing"):
        check(None)
    check(None, version="1.0")
    with pytest.raises(InvalidRequest, match="twice"):
        ADMISSION.admit(Head([(b"host", b"localhost"), (b"host", b"localhost")], LOCAL), RULE, TOPIC)


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "null",
            "http://attacker.example",
            "http://localhost:8888",
            "http://127.0.0.1:10911",
            "localhost:10911",
        ),
        *("file://", "chrome-extension://localhost:10911", "http://localhost:109110", "http://localhost"),
    ],
)
def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    with pytest.raises(ForeignOrigin):
        check("localhost:10911", origin=origin)
    with pytest.raises(ForeignOrigin):
        check(None, version="1.0", origin=origin)


def test_a_page_of_the_server_itself_may_call_it_by_any_of_its_names() -> None:
    check("localhost:10911", origin="http://localhost:10911")
    check("Broker.example", origin="https://broker.example")
    check("[::1]:9", origin="http://[::1]:9")


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "text/plain; x=application/json", "application/jsonx", ARROW_STREAM]
)
def test_a_body_of_another_kind_than_the_call_takes_is_refused(kind: str) -> None:
    for length in ({"content_length": "2"}, {"transfer_encoding": "chunked"}):
        with pytest.raises(UnsupportedMediaType) as caught:
            check(**length, content_type=kind)
        assert caught.value.facts["wanted"] == "application/json"


def test_json_bodies_and_calls_without_a_body_pass() -> None:
    check(content_length="2", content_type="application/json")
    check(content_length="2", content_type="Application/JSON ; charset=utf-8")
    check(content_length="0", content_type="text/plain")
    check(content_type="text/plain")


def test_a_compressed_body_is_refused_whatever_it_holds() -> None:
    check(content_length="2", content_type="application/json", content_encoding="identity")
    with pytest.raises(UnsupportedMediaType, match="gzip"):
        check(content_length="2", content_type="application/json", content_encoding="gzip")


def test_the_media_type_of_an_unread_body_is_not_checked() -> None:
    head = [(b"host", b"localhost"), (b"content-length", b"2"), (b"content-type", b"text/plain")]
    ADMISSION.admit(Head(head, LOCAL), NO_ROUTE, CLUSTER)


@pytest.mark.parametrize("host", ["http://a", "a:80", "a/b", "", "a b", "[::1]:9", "*", "*.a", "user@a"])
def test_an_allowed_host_that_is_not_a_host_alone_is_refused_at_the_start(host: str) -> None:
    for config in (
        lambda: BrokerConfig(name="a", data_dir=Path(), allowed_hosts=(host,)),
        lambda: NameServerConfig(allowed_hosts=(host,)),
    ):
        with pytest.raises(InvalidConfiguration, match="allowed_hosts"):
            config()


def test_allowed_hosts_come_one_by_one_or_with_commas() -> None:
    assert hosts_given(["a.example, b.example", "::1", ""]) == ("a.example", "b.example", "::1")
    given = ["--allowed-hosts", "a.example,b.example", "--allowed-hosts=::1"]
    read = broker_options.COMMAND.read(["--name", "a", "--data-dir", ".", *given])
    assert broker_options.config_of(read.values).hosts().names >= {"a.example", "b.example", "::1"}


# --- every call of both servers ----------------------------------------------------------------


@pytest.fixture(params=["broker", "nameserver"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerApp | NameServerApp:
    if request.param == "nameserver":
        return nameserver_app.create_app(NameServerConfig(allowed_hosts=("known.example",)))
    config = BrokerConfig(name="broker-a", data_dir=tmp_path, port=0, allowed_hosts=("known.example",))
    return broker_app.create_app(config)


@pytest.fixture
def server(app: BrokerApp | NameServerApp) -> Iterator[Http]:
    with ServerThread(app) as running:
        yield Http(running.address)


def calls_of(app: BrokerApp | NameServerApp) -> list[tuple[str, str]]:
    """Every method and path of a server, the short path of sends, and some that it does not have."""
    routes = app.control.routes if isinstance(app, BrokerApp) else app.api.routes
    found = [(method, route.path) for route in routes for method in route.methods]  # type: ignore[attr-defined]
    if isinstance(app, BrokerApp):
        found += [(route.method, route.path) for route in DATA_ROUTES]
        found.append(("POST", "/v1/topics/{topic}/messages?queue=0"))
    found += [("GET", "/nowhere"), ("GET", "/v1/nowhere"), ("POST", "/livez"), ("DELETE", "/v1/topics")]
    return [(method, re.sub(r"{\w+}", "0", path)) for method, path in found]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "attacker.example"}, 421, "MISDIRECTED_REQUEST"),
        ({"origin": "http://attacker.example"}, 403, "FOREIGN_ORIGIN"),
        ({"origin": "null"}, 403, "FOREIGN_ORIGIN"),
    ],
)
def test_no_call_can_be_made_by_a_page(
    app: BrokerApp | NameServerApp, server: Http, headers: dict[str, str], status: int, code: str
) -> None:
    body = write_stream([from_messages([Message(b"x")])]).to_pybytes()
    for method, path in calls_of(app):
        given = body if method == "POST" and "messages" in path else None
        kind = {} if given is None else {"content-type": ARROW_STREAM}
        answer = server.call(method, path, given, kind | headers)
        assert (answer.status, answer.code) == (status, code), (method, path, answer.body)


def test_no_call_takes_the_text_that_a_page_may_send(app: BrokerApp | NameServerApp, server: Http) -> None:
    for method, path in calls_of(app):
        answer = server.call(method, path, b"{}", {"content-type": "text/plain"})
        assert answer.status in (415, 404, 405), (method, path, answer.body)
        assert answer.status == 415 or method not in ("POST", "PUT", "PATCH") or "/v1" not in path, path


def test_pages_of_the_server_and_known_hosts_are_answered(server: Http) -> None:
    own = {"host": f"known.example:{server.port}", "origin": f"http://known.example:{server.port}"}
    for headers in (own, {"host": "localhost"}, {"host": f"127.0.0.1:{server.port}"}):
        for path in ("/docs", "/docs/openapi.json", "/metrics", "/livez", "/v1/topics"):
            assert server.call("GET", path, headers=headers).status == 200, path


#: What a path names; a path parameter of another name has no resource of its own.
NAMES = {
    "topic": "a.topic",
    "group": "a.group",
    "sink": "a.sink",
    "message_id": "broker-a:a.topic:0:0",
    "timer_id": "broker-a:a.topic:0:@0.0",
}
#: Paths that name a topic.
TOPIC_PATHS = (
    "/v1/topics/{topic}",
    "/v1/routes/{topic}",
    "/v1/messages/{message_id}",
    "/v1/timers/{timer_id}",
)


def resource_of(method: str, path: str) -> NamedResource:
    """What `admit` must be given for a call, by the words of its path alone."""
    if path.startswith(TOPIC_PATHS):
        return NamedResource(Resource.TOPIC, "a.topic")
    if path.startswith(("/v1/groups/{group}", "/v1/producers/{group}")):
        return NamedResource(Resource.GROUP, "a.group")
    if path.startswith("/v1/sinks/{sink}") and not path.endswith(("/check", "/publications")):
        return NamedResource(Resource.SINK, "a.sink")
    return CLUSTER


def test_every_route_gives_admission_the_resource_that_it_names(
    app: BrokerApp | NameServerApp, server: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[NamedResource] = []
    admit = Admission.admit

    def recorded(self: Admission, head: Head, rule: Rule, resource: NamedResource) -> None:
        assert rule is NO_ROUTE or rule.resource is resource.kind
        given.append(resource)
        admit(self, head, rule, resource)

    monkeypatch.setattr(Admission, "admit", recorded)
    routes = app.control.routes if isinstance(app, BrokerApp) else app.api.routes
    paths = [(method, route.path) for route in routes for method in route.methods]  # type: ignore[attr-defined]
    if isinstance(app, BrokerApp):
        paths += [(route.method, route.path) for route in DATA_ROUTES]
    # A page's origin: every call is refused at the door, so none of them changes or stops anything.
    for method, path in paths:
        named = re.sub(r"{(\w+)}", lambda found: NAMES.get(found[1], "0"), path)
        for escaped in (named, named.replace("a.", "%61.")):
            given.clear()
            assert server.call(method, escaped, headers={"origin": "null"}).code == "FOREIGN_ORIGIN"
            assert given == [resource_of(method, path)], (method, escaped)


def test_a_short_send_gives_admission_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[NamedResource] = []
    admit = Admission.admit

    def recorded(self: Admission, head: Head, rule: Rule, resource: NamedResource) -> None:
        given.append(resource)
        admit(self, head, rule, resource)

    body = write_stream([from_messages([Message(b"x")])]).to_pybytes()
    with ServerThread(broker_app.create_app(BrokerConfig(name="a", data_dir=tmp_path, port=0))) as running:
        broker = Http(running.address)
        broker.create("orders")
        monkeypatch.setattr(Admission, "admit", recorded)
        assert broker.send("orders", body, "?queue=0", {"content-type": ARROW_STREAM}).status == 200
    # One call of `admit`: the send took the short path, and did not come through the other door.
    assert given == [TOPIC]


def test_a_name_with_an_escaped_slash_passes_admission_too(
    app: BrokerApp | NameServerApp, server: Http
) -> None:
    path = "/v1/topics/a%2Fb/statistics" if isinstance(app, BrokerApp) else "/v1/routes/a%2Fb"
    assert server.call("GET", path, headers={"origin": "null"}).code == "FOREIGN_ORIGIN"


def test_a_send_from_a_page_stores_nothing_and_takes_no_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    take = SmallSends.take

    def counted(self: SmallSends, call: Any) -> bool:
        taken.append(take(self, call))
        return taken[-1]

    monkeypatch.setattr(SmallSends, "take", counted)
    body = b"x"
    with ServerThread(broker_app.create_app(BrokerConfig(name="a", data_dir=tmp_path, port=0))) as running:
        broker = Http(running.address)
        broker.create("orders")
        plain = {"content-type": OCTET_STREAM}
        for headers in ({"host": "attacker.example"}, {"origin": "null"}):
            assert broker.send("orders", body, "?queue=0", plain | headers).status in (403, 421)
        assert broker.send("orders", body, "?queue=0", plain).status == 200
        assert broker.total("orders") == 1
    assert taken == [False, False, True]


def test_a_connection_goes_on_after_a_call_that_was_refused(server: Http) -> None:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.request("GET", "/livez", headers={"origin": "null"})
    refused = connection.getresponse()
    assert (refused.status, json.loads(refused.read())["code"]) == (403, "FOREIGN_ORIGIN")
    connection.request("GET", "/livez")
    assert connection.getresponse().status == 200
    connection.close()
