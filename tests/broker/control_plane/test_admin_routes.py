"""Draining a broker, and what it says of itself at run time."""

from __future__ import annotations

from pathlib import Path

from rocketq.clock import ManualClock
from rocketq.http_server.runner import ServerThread
from rocketq.model import Message
from rocketq.net.nameserver_api import NameServerApi
from rocketq_broker.app import create_app
from rocketq_broker.config import BrokerConfig
from rocketq_nameserver.app import create_app as create_nameserver
from rocketq_nameserver.config import NameServerConfig
from tests.broker.conftest import StartBroker
from tests.support.http_client import Http, numbered, stream
from tests.support.patience import patient_transport


def test_a_drained_broker_refuses_writes_and_serves_reads(broker: Http) -> None:
    broker.send("orders", stream(numbered(3)), "?queue=0")
    assert broker.put("/v1/drain", {"draining": True}).json["draining"] is True
    refused = broker.send("orders", stream(numbered(1)), "?queue=0")
    assert (refused.status, refused.code) == (503, "BROKER_UNAVAILABLE")
    assert "retry-after" in refused.headers
    assert broker.pull("orders", 0, 0).header("x-rocketq-next-offset") == "3"
    committed = broker.put(
        "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "queue": 0, "offset": 3}]}
    )
    assert committed.status == 200
    broker.put("/v1/drain", {"draining": False})
    assert broker.send("orders", stream(numbered(1)), "?queue=0").status == 200
    assert broker.total("orders") == 4


def test_producers_are_routed_around_a_drained_broker_and_readers_are_not(start_broker: StartBroker) -> None:
    with ServerThread(create_nameserver(NameServerConfig(port=0))) as nameserver:
        api = NameServerApi(patient_transport(), nameserver.address)
        started = start_broker(name="broker-a", nameservers=(nameserver.address,))
        started.create("orders", read_queues=2, write_queues=2)
        route = api.route("orders", since=0, wait_ms=10_000)
        assert len(route.write_queues()) == 2
        started.put("/v1/drain", {"draining": True})
        drained = api.route("orders", since=route.version, wait_ms=10_000)
        assert drained.write_queues() == []
        assert len(drained.read_queues()) == 2
        started.put("/v1/drain", {"draining": False})
        again = api.route("orders", since=drained.version, wait_ms=10_000)
        assert len(again.write_queues()) == 2


def test_statistics_show_a_topics_offsets_and_the_lag_of_each_group(broker: Http) -> None:
    broker.send("orders", stream(numbered(10)), "?queue=1")
    broker.send("orders", stream([Message(b"later")]), "?queue=1")
    broker.put("/v1/groups/billing/offsets", {"offsets": [{"topic": "orders", "queue": 1, "offset": 4}]})
    answer = broker.get("/v1/topics/orders/statistics").json
    queue = answer["queues"][1]
    assert (queue["min"], queue["max"]) == (0, 11)
    assert 0 < queue["oldest_at_us"] <= queue["newest_at_us"]
    assert answer["queues"][0]["oldest_at_us"] is None
    assert answer["groups"] == [{"group": "billing", "queue": 1, "offset": 4, "lag": 7}]
    assert broker.get("/v1/topics/absent/statistics").code == "TOPIC_NOT_FOUND"


def test_statistics_say_what_the_broker_holds(broker: Http) -> None:
    broker.send("orders", stream(numbered(10)), "?queue=1")
    answer = broker.get("/v1/statistics").json
    assert answer["topics"] == 1
    assert answer["log_end"] >= answer["durable_end"] >= 0
    assert answer["disk_total_bytes"] > answer["disk_free_bytes"] > 0
    assert answer["draining"] is False


def test_an_operator_agrees_to_a_clock_that_stepped(tmp_path: Path) -> None:
    clock = ManualClock()
    app = create_app(BrokerConfig(name="broker-a", data_dir=tmp_path, port=0), clock)
    with ServerThread(app) as server:
        broker = Http(server.address)
        assert broker.get("/v1/statistics").json["clock_doubt"] == ""
        clock.step(10 * 86_400_000)
        app.broker.store.retain()
        told = broker.get("/v1/statistics").json
        assert (told["clock_doubt"], told["clock_ahead_us"]) == ("step", 10 * 86_400_000_000)
        metrics = broker.get("/metrics").body.decode()
        assert "rocketq_clock_doubted 1.0" in metrics
        assert "rocketq_clock_ahead_seconds 864000.0" in metrics
        wrong = broker.put("/v1/clock", {"at_us": clock.now_us() - 7_200_000_000})
        assert (wrong.status, wrong.code) == (409, "CONFLICT")
        assert broker.put("/v1/clock", {}).status == 400
        agreed = broker.put("/v1/clock", {"at_us": clock.now_us() - 1_800_000_000})
        assert (agreed.status, agreed.json["clock_doubt"]) == (200, "")
        assert "rocketq_clock_doubted 0.0" in broker.get("/metrics").body.decode()
