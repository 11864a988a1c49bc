"""What holds for the whole HTTP surface: permissions, documents, metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rocketq.http_server.permissions import Permission, Resource, Rule, rule_of, undeclared
from rocketq.http_server.runner import ServerThread
from rocketq.protocol.message_schema import from_messages
from rocketq_broker.app import DATA_ROUTES, create_app
from rocketq_broker.config import BrokerConfig
from rocketq_broker.data_plane.described_calls import DESCRIBED_CALLS
from tests.broker.conftest import StartBroker
from tests.support.http_client import Http, numbered, stream

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_every_route_declares_the_permission_it_needs(tmp_path: Path) -> None:
    app = create_app(BrokerConfig(name="broker-a", data_dir=tmp_path))
    with ServerThread(app):
        routes = app.control.routes
    assert undeclared(routes) == []
    assert all(isinstance(route.rule, Rule) for route in DATA_ROUTES)
    rules = {
        (method, route.path): rule_of(route.endpoint)  # type: ignore[attr-defined]
        for route in routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    assert rules["DELETE", "/v1/topics/{topic}"] == Rule(Permission.ADMIN, Resource.TOPIC)
    assert rules["PUT", "/v1/groups/{group}/offsets"] == Rule(Permission.CONSUME, Resource.GROUP)


def test_every_route_is_in_the_protocol_document(tmp_path: Path) -> None:
    app = create_app(BrokerConfig(name="broker-a", data_dir=tmp_path))
    with ServerThread(app):
        routes = app.control.routes
    paths = {route.path for route in DATA_ROUTES}
    paths |= {route.path for route in routes if route.path.startswith("/v1/")}  # type: ignore[attr-defined]
    document = PROTOCOL.read_text()
    for path in paths:
        assert path.replace("{message_id}", "{id}") in document, path


def test_docs_are_served_without_a_foreign_host(broker: Http) -> None:
    page = broker.get("/docs")
    assert page.status == 200
    foreign = set(re.findall(r"(?:src|href)=[\"'](?:https?:)?//[^\"']+", page.body.decode()))
    assert foreign == set()
    document = broker.get("/openapi.json").json
    assert "/v1/topics/{topic}" in document["paths"]
    assert "requestBody" in document["paths"]["/v1/topics/{topic}"]["put"]


def test_the_root_says_what_answers_and_where_its_documents_are(broker: Http) -> None:
    root = broker.get("/").json
    assert root.pop("service") == "rocketq broker"
    assert root.pop("version") == broker.get("/version").json["version"]
    assert {broker.get(path).status for path in root.values()} == {200}


def test_each_call_of_the_data_plane_is_described(broker: Http) -> None:
    described = {(method.upper(), path) for path, calls in DESCRIBED_CALLS.items() for method in calls}
    assert described == {(route.method, route.path) for route in DATA_ROUTES}
    paths = broker.get("/openapi.json").json["paths"]
    assert all(method.lower() in paths[path] for method, path in described)


def test_the_examples_and_parameters_of_described_calls_are_known(broker: Http) -> None:
    names = {"topic": "orders", "queue": "0", "group": "g", "client_id": "a@1"}
    plain = {"content-type": "application/octet-stream"}
    member = DESCRIBED_CALLS["/v1/groups/{group}/members/{client_id}"]["put"]["requestBody"]["content"]
    assert broker.put("/v1/groups/g/members/a@1", member["application/json"]["example"]).status == 200
    for path, calls in DESCRIBED_CALLS.items():
        for method, call in calls.items():
            queries = [each for each in call["parameters"] if each["in"] == "query"]
            query = urlencode({each["name"]: each["example"] for each in queries if "example" in each})
            content = call.get("requestBody", {}).get("content", {})
            body = json.dumps(content["application/json"]["example"]) if content else None
            headers = {"accept": "application/json"} | ({"content-type": "application/json"} if body else {})
            address = path.format(**names)
            answer = broker.call(method.upper(), f"{address}?{query}".rstrip("?"), body, headers)
            assert answer.status == 200, (method, path, answer.body)
            for each in queries:
                asked = broker.call(method.upper(), f"{address}?{each['name']}=x", None, plain)
                assert b"unknown parameter" not in asked.body, (method, path, each["name"])


def metric(broker: Http, name: str, **labels: str) -> float:
    for line in broker.get("/metrics").body.decode().splitlines():
        if line.startswith(name) and all(f'{label}="{value}"' in line for label, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{name} {labels} is missing")


def test_traffic_is_counted_under_rocketmq_s_names(broker: Http) -> None:
    broker.send("orders", stream(numbered(3), numbered(2)), "?queue=0")
    broker.pull("orders", 0, 1, group="billing")
    broker.pull("orders", 0, 5, group="billing")
    total = sum(from_messages(numbered(count))["body"].nbytes for count in (3, 2))
    bodies = sum(len(b"message 0") for _ in range(5))
    assert bodies < total
    assert metric(broker, "rocketmq_messages_in_total", topic="orders", node_id="broker-0") == 5
    assert metric(broker, "rocketmq_throughput_in_total", topic="orders") == bodies
    assert metric(broker, "rocketmq_messages_out_total", topic="orders", consumer_group="billing") == 4
    assert metric(broker, "rocketmq_throughput_out_total", topic="orders") > bodies
    assert metric(broker, "rocketmq_message_size_count") == 5
    assert metric(broker, "rocketq_append_seconds_count") == 1
    assert metric(broker, "rocketmq_broker_permission") == 6


def test_a_group_s_lag_is_shown_and_unknown_is_not_zero(broker: Http) -> None:
    broker.send("orders", stream(numbered(9)), "?queue=0")
    broker.send("orders", stream(numbered(4)), "?queue=1")
    assert "rocketmq_consumer_lag_messages{" not in broker.get("/metrics").body.decode()
    place = {"topic": "orders", "queue": 0, "offset": 2}
    assert broker.put("/v1/groups/billing/offsets", {"offsets": [place]}).status == 200
    assert metric(broker, "rocketmq_consumer_lag_messages", topic="orders", consumer_group="billing") == 7


def test_members_and_the_age_of_what_a_group_has_not_read_are_shown(broker: Http) -> None:
    beat = {"started_at_us": 1, "subscriptions": [{"topic": "orders"}], "language": "python", "version": "1"}
    assert broker.put("/v1/groups/billing/members/a@1", beat).status == 200
    assert broker.put("/v1/groups/billing/members/b@2", beat).status == 200
    producer = {"started_at_us": 1, "language": "go"}
    assert broker.put("/v1/producers/web/members/p@1", producer).status == 200
    labels = {"consumer_group": "billing", "language": "python", "version": "1"}
    assert metric(broker, "rocketmq_consumer_connections", **labels) == 2
    assert metric(broker, "rocketmq_producer_connections", producer_group="web", language="go") == 1
    broker.send("orders", stream(numbered(9)), "?queue=0")
    place = {"topic": "orders", "queue": 0, "offset": 9}
    assert broker.put("/v1/groups/ready/offsets", {"offsets": [place]}).status == 200
    assert broker.put("/v1/groups/late/offsets", {"offsets": [{**place, "offset": 8}]}).status == 200
    # A scrape is given what the one before had read.
    while "rocketmq_consumer_lag_latency{" not in broker.get("/metrics").body.decode():
        pass
    assert metric(broker, "rocketmq_consumer_lag_latency", topic="orders", consumer_group="ready") == 0
    assert metric(broker, "rocketmq_consumer_lag_latency", topic="orders", consumer_group="late") >= 0


def test_a_filtered_pull_counts_what_it_gave(broker: Http) -> None:
    broker.send_json("orders", *[{"body": "x", "tag": tag} for tag in ("a", "b", "a")], query="?queue=0")
    broker.pull("orders", 0, 0, tag="a", group="billing")
    assert metric(broker, "rocketmq_messages_out_total", consumer_group="billing") == 2


def test_sizes_are_counted_in_their_buckets(broker: Http) -> None:
    broker.send_json(
        "orders", {"body": "x" * 10}, {"body": "x" * 1024}, {"body": "x" * 1025}, query="?queue=0"
    )
    assert metric(broker, "rocketmq_message_size_bucket", le="1024.0") == 2
    assert metric(broker, "rocketmq_message_size_bucket", le="4096.0") == 3


def test_refusals_are_counted_by_code(broker: Http) -> None:
    broker.pull("orders", 0, 77)
    broker.send("orders", b"bad")
    assert metric(broker, "rocketq_refusals_total", code="OFFSET_OUT_OF_RANGE") == 1
    assert metric(broker, "rocketq_refusals_total", code="INVALID_BATCH") == 1


def test_the_series_of_a_deleted_topic_are_dropped(broker: Http) -> None:
    broker.send("orders", stream(numbered(3)), "?queue=0")
    broker.pull("orders", 0, 0)
    broker.call("DELETE", "/v1/topics/orders")
    assert 'topic="orders"' not in broker.get("/metrics").body.decode()


@pytest.mark.parametrize("path", ["/livez?x=1", "/v1/topics?page=2", "/readyz?a=b&c=d"])
def test_parameters_that_a_route_does_not_take_are_refused(broker: Http, path: str) -> None:
    answer = broker.get(path)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")


def test_version_and_unknown_paths(broker: Http, start_broker: StartBroker) -> None:
    assert broker.get("/version").json["service"] == "broker"
    for path in ("/v1", "/v1/", "/v1/nothing", "/v2/topics", "/v1/topics/orders/queues/0"):
        answer = broker.get(path)
        assert (answer.status, answer.code) == (404, "NOT_FOUND"), path
