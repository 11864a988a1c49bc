"""A real NameServer over HTTP, as brokers, clients and operators meet it."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketq.clock import SystemClock
from rocketq.errors import (
    Conflict,
    InvalidName,
    InvalidRequest,
    NotFound,
    RouteNotFound,
    SystemBusy,
    TooLarge,
)
from rocketq.http_server.permissions import undeclared
from rocketq.model import TopicConfig
from rocketq.protocol.documents.broker import encode
from rocketq.protocol.documents.nameserver import TopicList, TopicRoute
from rocketq_nameserver.app import create_app
from rocketq_nameserver.config import NameServerConfig
from tests.nameserver.conftest import Running, StartNameServer
from tests.support.registrations import farewell_of, heartbeat_of, registration

HOLD_MS = 60_000


@pytest.fixture
def beside() -> Any:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


# --- registration and routes ----------------------------------------------------------------


def test_a_registered_broker_is_found_by_topic(nameserver: Running) -> None:
    answer = nameserver.api.register(registration("broker-a", ["orders"]))
    assert answer.server == nameserver.address.removeprefix("http://")
    route = nameserver.api.route("orders")
    assert [broker.addresses for broker in route.brokers] == [{0: "http://broker-a-0:1"}]
    assert route.server == answer.server
    assert nameserver.api.topics().topics == ("orders",)
    assert nameserver.api.cluster().clusters == {"default": ("broker-a",)}


def test_a_topic_that_nobody_serves_is_not_found(nameserver: Running) -> None:
    with pytest.raises(RouteNotFound, match="orders"):
        nameserver.api.route("orders")


def test_names_with_percent_and_bar_are_found_as_they_were_registered(nameserver: Running) -> None:
    nameserver.api.register(registration("broker-a", ["%RETRY%billing", "a|b", "%41"]))
    for topic in ("%RETRY%billing", "a|b", "%41"):
        assert nameserver.api.route(topic).topic == topic


def test_two_nameservers_that_never_talk_give_the_same_routes(start_nameserver: StartNameServer) -> None:
    first, second = start_nameserver(), start_nameserver()
    for each in (first, second):
        each.api.register(registration("broker-a", ["orders", "bills"]))
        each.api.register(registration("broker-b", ["orders"]))
    for topic in ("orders", "bills"):
        one, other = first.api.route(topic), second.api.route(topic)
        assert (one.queues, one.brokers) == (other.queues, other.brokers)
    assert first.api.topics().topics == second.api.topics().topics
    assert first.api.topics().server != second.api.topics().server


def test_a_nameserver_that_restarts_is_filled_again_by_the_next_heartbeat(
    start_nameserver: StartNameServer,
) -> None:
    request = registration()
    before = start_nameserver()
    before.api.register(request)
    version = before.api.route("orders").version
    after = start_nameserver(clock=None)
    assert not after.api.heartbeat(heartbeat_of(request)).registered
    after.api.register(request)
    assert after.api.heartbeat(heartbeat_of(request)).registered
    assert after.api.route("orders").queues == before.api.route("orders").queues
    assert version > 0


def test_an_expired_broker_leaves_the_routes(nameserver: Running) -> None:
    nameserver.api.register(registration("broker-a", ["orders"], lease_ms=1_000))
    nameserver.api.register(registration("broker-b", ["orders"], lease_ms=5_000))
    nameserver.clock.advance(1_000)
    assert nameserver.scan() == []
    nameserver.clock.advance(1)
    assert nameserver.scan() == ["http://broker-a-0:1"]
    assert [queue.broker for queue in nameserver.api.route("orders").queues] == ["broker-b"]


def test_the_nameserver_scans_by_itself(start_nameserver: StartNameServer) -> None:
    nameserver = start_nameserver(clock=SystemClock(), scan_interval_ms=10)
    nameserver.api.register(registration(lease_ms=1))
    known = nameserver.api.topics()
    gone = nameserver.api.topics(since=known.version, wait_ms=HOLD_MS) if known.topics else known
    assert gone.topics == ()


def test_a_heartbeat_renews_the_lease(nameserver: Running) -> None:
    request = registration(lease_ms=1_000)
    nameserver.api.register(request)
    nameserver.clock.advance(900)
    assert nameserver.api.heartbeat(heartbeat_of(request)).registered
    nameserver.clock.advance(900)
    assert nameserver.scan() == []
    assert nameserver.api.cluster().brokers[0].age_ms == 900


def test_an_unregistered_broker_is_gone_at_once(nameserver: Running) -> None:
    nameserver.api.register(registration())
    nameserver.api.unregister(farewell_of(registration()))
    assert nameserver.api.topics().topics == ()
    nameserver.api.unregister(farewell_of(registration()))


def test_a_registration_of_ten_thousand_topics_is_taken(nameserver: Running) -> None:
    topics = [TopicConfig(f"topic-{n:05}", incarnation="0123456789abcdef") for n in range(10_000)]
    nameserver.api.register(registration(topics=topics))
    assert len(nameserver.api.topics().topics) == 10_000
    assert nameserver.api.route("topic-09999").incarnation("broker-a") == "0123456789abcdef"


def test_producers_lose_queues_whose_write_permission_is_wiped(
    nameserver: Running,
) -> None:
    nameserver.api.register(registration(topics=["orders", "bills"]))
    assert nameserver.api.set_write_permission("broker-a", False).topics == 2
    route = nameserver.api.route("orders")
    assert route.write_queues() == []
    assert len(route.read_queues()) == 4
    assert nameserver.api.set_write_permission("broker-a", True).topics == 2
    assert len(nameserver.api.route("orders").write_queues()) == 4
    with pytest.raises(NotFound):
        nameserver.api.set_write_permission("broker-z", True)


# --- held calls -----------------------------------------------------------------------------


def test_who_waits_for_a_topic_that_is_not_there_has_it_the_moment_it_is(
    nameserver: Running, beside: Any
) -> None:
    waiting: Future[TopicRoute] = beside(nameserver.api.route, "orders", since=0, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    nameserver.api.register(registration("broker-a", ["bills"]))
    assert nameserver.held() == 1
    nameserver.api.register(registration("broker-b", ["orders"]))
    assert waiting.result(60).queues[0].broker == "broker-b"
    assert nameserver.held() == 0


def test_who_waits_for_a_change_hears_of_an_expiry(nameserver: Running, beside: Any) -> None:
    nameserver.api.register(registration("broker-a", ["orders"], lease_ms=1_000))
    nameserver.api.register(registration("broker-b", ["orders"], lease_ms=9_000))
    known = nameserver.api.route("orders")
    waiting: Future[TopicRoute] = beside(nameserver.api.route, "orders", since=known.version, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    nameserver.clock.advance(1_001)
    nameserver.scan()
    changed = waiting.result(60)
    assert changed.version > known.version
    assert [queue.broker for queue in changed.queues] == ["broker-b"]


def test_who_waits_for_a_change_hears_that_the_topic_is_gone(nameserver: Running, beside: Any) -> None:
    nameserver.api.register(registration())
    known = nameserver.api.route("orders")
    waiting: Future[TopicRoute] = beside(nameserver.api.route, "orders", since=known.version, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    nameserver.api.unregister(farewell_of(registration()))
    with pytest.raises(RouteNotFound):
        waiting.result(60)


def test_who_waits_for_the_topic_list_hears_of_a_new_topic(nameserver: Running, beside: Any) -> None:
    known = nameserver.api.topics()
    waiting: Future[TopicList] = beside(nameserver.api.topics, since=known.version, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    nameserver.api.register(registration())
    assert waiting.result(60).topics == ("orders",)


def test_a_call_is_not_held_when_the_version_is_another_already(nameserver: Running) -> None:
    nameserver.api.register(registration())
    known = nameserver.api.route("orders").version
    assert nameserver.api.route("orders", since=known - 1, wait_ms=HOLD_MS).version == known
    assert nameserver.api.topics(since=0, wait_ms=HOLD_MS).topics == ("orders",)


def test_a_held_call_is_answered_as_things_stand_when_its_time_is_up(
    start_nameserver: StartNameServer,
) -> None:
    nameserver = start_nameserver(clock=SystemClock())
    nameserver.api.register(registration(lease_ms=3_600_000))
    known = nameserver.api.route("orders")
    assert nameserver.api.route("orders", since=known.version, wait_ms=20) == known
    with pytest.raises(RouteNotFound):
        nameserver.api.route("bills", since=0, wait_ms=20)


def test_a_caller_that_hangs_up_keeps_no_place(nameserver: Running) -> None:
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(nameserver.address)
    with socket.create_connection((parts.hostname, parts.port)) as caller:
        caller.sendall(b"GET /v1/routes/orders?since=0&wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        nameserver.wait_until_held(1)
    nameserver.wait_until_held(0)


def test_no_more_calls_are_held_than_there_are_places(start_nameserver: StartNameServer, beside: Any) -> None:
    nameserver = start_nameserver(held_watches_max=1)
    waiting = beside(nameserver.api.route, "orders", since=0, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    with pytest.raises(SystemBusy):
        nameserver.api.route("orders", since=0, wait_ms=HOLD_MS)
    nameserver.api.register(registration())
    assert waiting.result(60).topic == "orders"


def test_held_calls_are_answered_when_the_nameserver_stops(
    start_nameserver: StartNameServer, beside: Any
) -> None:
    nameserver = start_nameserver()
    known = nameserver.api.topics()
    waiting: Future[TopicList] = beside(nameserver.api.topics, since=known.version, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    stopping = threading.Thread(target=nameserver.server.__exit__, args=(None, None, None))
    stopping.start()
    assert waiting.result(60) == known
    stopping.join(60)
    assert not stopping.is_alive()


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "where"),
    [
        ("POST", "/v1/brokers/register", b"{", 400, "INVALID_REQUEST", "JSON"),
        ("POST", "/v1/brokers/register", b"\xff\xfe", 400, "INVALID_REQUEST", "JSON"),
        ("POST", "/v1/brokers/register", {"identity": {"cluster": 1}}, 400, "INVALID_REQUEST", "cluster"),
        ("POST", "/v1/brokers/heartbeat", {}, 400, "INVALID_REQUEST", "identity"),
        ("POST", "/v1/brokers/unregister", [], 400, "INVALID_REQUEST", "UnregisterRequest"),
        ("PUT", "/v1/brokers/broker-a/write-permission", {"writable": 1}, 400, "INVALID_REQUEST", "writable"),
        ("PUT", "/v1/brokers/a%20b/write-permission", {"writable": True}, 400, "INVALID_NAME", "a b"),
        ("GET", "/v1/routes/bad%20name", None, 400, "INVALID_NAME", "bad name"),
        ("GET", "/v1/routes/" + "x" * 128, None, 400, "INVALID_NAME", "xxx"),
        ("GET", "/v1/routes/orders?since=x&wait_ms=1", None, 400, "INVALID_REQUEST", "since"),
        ("GET", "/v1/routes/orders?since=-1", None, 400, "INVALID_REQUEST", "since"),
        ("GET", "/v1/routes/orders?since=1&wait_ms=1e3", None, 400, "INVALID_REQUEST", "wait_ms"),
        ("GET", "/v1/routes/orders?since=99999999999999999999", None, 400, "INVALID_REQUEST", "since"),
        ("GET", "/v1/routes/orders?wait_ms=1", None, 400, "INVALID_REQUEST", "since"),
        ("GET", "/v1/routes/orders?sinse=1", None, 400, "INVALID_REQUEST", "sinse"),
        ("GET", "/v1/topics?since=1&since=2", None, 400, "INVALID_REQUEST", "twice"),
        ("GET", "/v1/nothing", None, 404, "NOT_FOUND", "/v1/nothing"),
        ("GET", "/v1/routes/a%2Fb", None, 404, "NOT_FOUND", "a/b"),
        ("DELETE", "/v1/topics", None, 405, "METHOD_NOT_ALLOWED", "DELETE"),
        ("GET", "/v1/brokers/register", None, 405, "METHOD_NOT_ALLOWED", "GET"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused_with_the_place_of_the_error(
    nameserver: Running, method: str, path: str, body: Any, status: int, code: str, where: str
) -> None:
    answer = nameserver.call(method, path, body)
    assert (answer.status, answer.json["code"]) == (status, code)
    assert where in answer.json["message"]
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (registration("bad name"), InvalidName),
        (registration(cluster=""), InvalidName),
        (registration(topics=["bad/topic"]), InvalidName),
        (registration(topics=["orders", "orders"]), InvalidRequest),
        (registration(topics=[TopicConfig("orders", read_queues=-1)]), InvalidRequest),
        (registration(topics=[TopicConfig("orders", write_queues=1 << 20)]), InvalidRequest),
        (registration(topics=[TopicConfig("orders", perm=7)]), InvalidRequest),
        (registration(topics=[TopicConfig("orders", perm=-2)]), InvalidRequest),
        (registration(broker_id=-1), InvalidRequest),
        (registration(lease_ms=0), InvalidRequest),
        (registration(lease_ms=3_600_001), InvalidRequest),
        (registration(at="host/path"), InvalidRequest),
        (registration(at="user@host"), InvalidRequest),
        (registration(at="ho st"), InvalidRequest),
        (registration(ha="ftp://x:1"), InvalidRequest),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_a_registration_that_clients_could_not_use_is_refused_whole(
    nameserver: Running, request_: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        nameserver.api.register(request_)
    assert nameserver.api.topics().topics == ()
    assert nameserver.api.cluster().clusters == {}


def test_a_name_of_another_cluster_is_a_conflict(nameserver: Running) -> None:
    nameserver.api.register(registration(cluster="east"))
    with pytest.raises(Conflict, match="east"):
        nameserver.api.register(registration(cluster="west", at="y"))


def test_a_registration_over_the_limit_is_refused_unread(start_nameserver: StartNameServer) -> None:
    nameserver = start_nameserver(registration_bytes_max=2_000)
    nameserver.api.register(registration())
    with pytest.raises(TooLarge, match="2000"):
        nameserver.api.register(registration(topics=[f"topic-{n}" for n in range(100)], version=2))
    body = encode(registration(topics=[f"topic-{n}" for n in range(100)]))
    chunked = nameserver.call(
        "POST", "/v1/brokers/register", iter_of(body), **{"transfer-encoding": "chunked"}
    )
    assert chunked.status == 413
    assert nameserver.api.topics().topics == ("orders",)


def iter_of(body: bytes) -> bytes:
    """The body as chunks of HTTP/1.1, written by hand."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:900], body[900:])) + b"0\r\n\r\n"


# --- key-value configuration ----------------------------------------------------------------


def test_a_value_is_put_read_listed_and_deleted(nameserver: Running) -> None:
    nameserver.api.put_config("ORDER_TOPIC_CONFIG", "orders", "broker-a:4;broker-b:4")
    nameserver.api.put_config("ORDER_TOPIC_CONFIG", "bills", "ü")
    assert nameserver.api.config("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4;broker-b:4"
    listed = nameserver.call("GET", "/v1/kv/ORDER_TOPIC_CONFIG").json
    assert listed == {"orders": "broker-a:4;broker-b:4", "bills": "ü"}
    nameserver.api.delete_config("ORDER_TOPIC_CONFIG", "orders")
    with pytest.raises(NotFound):
        nameserver.api.config("ORDER_TOPIC_CONFIG", "orders")
    with pytest.raises(NotFound):
        nameserver.api.delete_config("ORDER_TOPIC_CONFIG", "orders")


def test_values_outlive_a_restart_with_a_data_directory_and_routes_do_not(
    start_nameserver: StartNameServer, tmp_path: Path
) -> None:
    before = start_nameserver(data_dir=tmp_path)
    before.api.put_config("settings", "colour", "blue")
    before.api.register(registration())
    before.server.__exit__(None, None, None)
    after = start_nameserver(data_dir=tmp_path)
    assert after.api.config("settings", "colour") == "blue"
    assert after.api.topics().topics == ()


def test_many_puts_at_once_lose_none(start_nameserver: StartNameServer, tmp_path: Path, beside: Any) -> None:
    nameserver = start_nameserver(data_dir=tmp_path)
    puts = [beside(nameserver.api.put_config, "settings", f"key-{n}", str(n)) for n in range(40)]
    for put in puts:
        put.result(60)
    assert nameserver.call("GET", "/v1/kv/settings").json == {f"key-{n}": str(n) for n in range(40)}


# --- operations -----------------------------------------------------------------------------


def test_every_route_declares_a_permission() -> None:
    app = create_app(NameServerConfig(port=0))
    assert undeclared(app.api.routes) == []
    assert len(app.api.routes) > 15


def test_the_metrics_count_what_happened(nameserver: Running, beside: Any) -> None:
    nameserver.api.register(registration("broker-a", ["orders", "bills"], lease_ms=1_000))
    nameserver.api.register(registration("broker-b", ["orders"]))
    waiting = beside(nameserver.api.route, "late", since=0, wait_ms=HOLD_MS)
    nameserver.wait_until_held(1)
    assert "rocketq_nameserver_held_watches 1.0" in metrics(nameserver)
    nameserver.clock.advance(1_001)
    nameserver.scan()
    nameserver.api.register(registration("broker-b", ["orders", "late"], version=2))
    waiting.result(60)
    shown = metrics(nameserver)
    for line in (
        "rocketq_nameserver_brokers 1.0",
        "rocketq_nameserver_topics 2.0",
        "rocketq_nameserver_registrations_total 3.0",
        "rocketq_nameserver_expiries_total 1.0",
        "rocketq_nameserver_held_watches 0.0",
    ):
        assert line in shown
    assert re.search(r"^rocketq_connections \d", shown, re.MULTILINE)
    assert "process_resident_memory_bytes" in shown


def metrics(nameserver: Running) -> str:
    return nameserver.call("GET", "/metrics").body.decode()


def test_it_says_that_it_is_alive_ready_and_what_it_is(nameserver: Running) -> None:
    assert nameserver.call("GET", "/livez").status == 200
    assert nameserver.call("GET", "/readyz").json["status"] == "ready"
    version = nameserver.api.version()
    assert (version.service, version.protocol) == ("nameserver", 1)
    nameserver.server.call(nameserver.app.begin_shutdown)
    assert nameserver.call("GET", "/readyz").status == 503


def test_the_documentation_refers_to_nothing_outside(nameserver: Running) -> None:
    page = nameserver.call("GET", "/docs")
    assert page.status == 200
    assert "://" not in page.body.decode()
    own = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert len(own) == 4
    for path in own:
        assert path.startswith("/docs/")
        assert nameserver.call("GET", path).status == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert nameserver.call("GET", "/docs/index.html").status == 404


def test_the_contract_describes_every_call_and_its_body(nameserver: Running) -> None:
    document = nameserver.call("GET", "/docs/openapi.json").json
    assert document["openapi"].startswith("3.0")
    assert nameserver.call("GET", "/openapi.json").json["paths"].keys() == document["paths"].keys()
    paths = document["paths"]
    assert "/v1/routes/{topic}" in paths
    body = paths["/v1/brokers/register"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/RegisterRequest"}
    assert '"type": "null"' not in str(document).replace("'", '"')
    wanted = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert wanted <= set(document["components"]["schemas"])
