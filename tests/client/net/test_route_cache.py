"""The route cache: which NameServer is asked, when, and what serves when none answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rocketq.clock import ManualClock
from rocketq.config import TransportConfig
from rocketq.errors import (
    InternalError,
    InvalidConfiguration,
    InvalidName,
    NameServersUnreachable,
    RouteNotFound,
)
from rocketq.net.route_cache import RouteCache, nameserver_addresses
from rocketq.net.transport import Transport
from rocketq.protocol.documents.broker import encode
from rocketq.protocol.documents.nameserver import BrokerData, QueueData, TopicList, TopicRoute
from tests.support.small_server import Answer, Asked, SmallServer


class FakeNameServer:
    """A NameServer's answers: routes that a test sets, and calls that are held until they change."""

    def __init__(self) -> None:
        self.routes: dict[str, TopicRoute] = {}
        self.broken = False
        #: Set when a call has arrived.
        self.reached = threading.Event()
        self.changed = threading.Condition()

    def put(self, topic: str, *brokers: str, version: int = 1) -> None:
        route = TopicRoute(
            topic,
            version,
            tuple(QueueData(b, 2, 2, 6, "i") for b in brokers),
            tuple(BrokerData("default", b, {0: f"http://{b}"}) for b in brokers),
            "fake",
        )
        with self.changed:
            self.routes[topic] = route
            self.changed.notify_all()

    def __call__(self, asked: Asked) -> Answer:
        self.reached.set()
        if self.broken:
            return Answer(500, InternalError("t-1").document())
        if asked.path == "/v1/topics":
            return Answer(body=encode(TopicList("fake", 1, tuple(self.routes))))
        topic = asked.path.rsplit("/", 1)[1]
        since, wait_ms = asked.query.get("since"), int(asked.query.get("wait_ms", 0))
        with self.changed:
            if since is not None:
                self.changed.wait_for(lambda: self._version(topic) != int(since), wait_ms / 1000)
            route = self.routes.get(topic)
        return Answer(body=encode(route)) if route else Answer(404, RouteNotFound(topic).document())

    def _version(self, topic: str) -> int:
        return self.routes[topic].version if topic in self.routes else 0


class Setting:
    """Two NameServers, a clock that stands still, and the cache under test."""

    def __init__(self, stack: ExitStack) -> None:
        self.fakes = [FakeNameServer(), FakeNameServer()]
        self.servers = [stack.enter_context(SmallServer(fake)) for fake in self.fakes]
        self.clock = ManualClock()
        self.transport = stack.enter_context(Transport(TransportConfig(timeout_ms=60_000)))
        self.cache = self.made([s.address for s in self.servers])

    def made(self, addresses: list[str]) -> RouteCache:
        return RouteCache(addresses, self.transport, clock=self.clock, rng=random.Random(5))

    def put(self, topic: str, *brokers: str, version: int = 1) -> None:
        for fake in self.fakes:
            fake.put(topic, *brokers, version=version)

    @property
    def calls(self) -> int:
        return sum(len(server.asked) for server in self.servers)

    def stop(self, *indexes: int) -> None:
        for index in indexes:
            self.servers[index].close()

    def index_of(self, address: str) -> int:
        return [s.address for s in self.servers].index(address)


@pytest.fixture
def setting() -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack)


def test_a_route_is_asked_for_once_and_then_served_from_memory(setting: Setting) -> None:
    setting.put("t", "broker-a")
    assert [q.broker for q in setting.cache.route("t").write_queues()] == ["broker-a", "broker-a"]
    setting.cache.route("t")
    assert setting.calls == 1


def test_a_route_older_than_thirty_seconds_is_asked_for_again(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.cache.route("t")
    setting.put("t", "broker-a", "broker-b", version=2)
    setting.clock.advance(29_999)
    assert len(setting.cache.route("t").queues) == 1
    setting.clock.advance(1)
    assert len(setting.cache.route("t").queues) == 2


def test_a_route_declared_stale_is_asked_for_again_at_once(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.cache.route("t")
    setting.put("t", "broker-b", version=2)
    setting.cache.invalidate("t")
    assert setting.cache.route("t").queues[0].broker == "broker-b"


def test_a_nameserver_is_picked_at_random_and_kept_while_it_answers(setting: Setting) -> None:
    addresses = [f"http://n{n}:9876" for n in range(4)]
    firsts = {
        RouteCache(addresses, setting.transport, rng=random.Random(seed)).nameservers[0] for seed in range(60)
    }
    assert firsts == set(addresses)
    for topic in "abcdef":
        setting.put(topic, "broker-a")
        setting.cache.route(topic)
    assert sorted(len(server.asked) for server in setting.servers) == [0, 6]


def test_when_the_current_nameserver_is_gone_the_other_answers(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.stop(setting.index_of(setting.cache.nameservers[0]))
    assert setting.cache.route("t").queues[0].broker == "broker-a"


def test_a_restarted_nameserver_that_knows_no_topic_is_not_believed_alone(
    setting: Setting,
) -> None:
    for knowing, fake in enumerate(setting.fakes):
        topic = f"known-to-{knowing}"
        fake.put(topic, "broker-a")
        assert setting.cache.route(topic).queues[0].broker == "broker-a"


def test_a_nameserver_that_fails_inside_is_passed_over(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.fakes[setting.index_of(setting.cache.nameservers[0])].broken = True
    assert setting.cache.route("t").queues[0].broker == "broker-a"


def test_with_all_nameservers_down_cached_routes_are_used_without_a_call(
    setting: Setting,
) -> None:
    setting.put("t", "broker-a")
    setting.cache.route("t")
    setting.stop(0, 1)
    setting.clock.advance(3_600_000)
    for _ in range(3):
        assert setting.cache.route("t").queues[0].broker == "broker-a"
    setting.cache.invalidate("t")
    assert setting.cache.route("t").queues[0].broker == "broker-a"


def test_with_all_nameservers_down_an_unknown_topic_names_each_failure(setting: Setting) -> None:
    setting.stop(0, 1)
    with pytest.raises(NameServersUnreachable) as caught:
        setting.cache.route("t")
    assert caught.value.facts["tried"] == {s.address: "the connection was refused" for s in setting.servers}


def test_a_missing_topic_names_the_nearest_known_one(setting: Setting) -> None:
    setting.put("orders", "broker-a")
    setting.put("payments", "broker-a")
    with pytest.raises(RouteNotFound, match="Nearest known topic: 'orders'"):
        setting.cache.route("odrers")


def test_a_known_topic_survives_a_nameserver_that_has_forgotten_everything(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.cache.route("t")
    for fake in setting.fakes:
        fake.routes.clear()
    setting.cache.invalidate("t")
    assert setting.cache.route("t").queues[0].broker == "broker-a"


def test_a_forgotten_topic_is_gone(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.cache.route("t")
    for fake in setting.fakes:
        fake.routes.clear()
    setting.cache.forget("t")
    with pytest.raises(RouteNotFound):
        setting.cache.route("t")


def test_waiting_for_a_route_ends_when_the_topic_appears(setting: Setting) -> None:
    arriving = threading.Timer(0.05, lambda: setting.put("new", "broker-a"))
    arriving.start()
    assert setting.cache.wait_for_route("new", 30_000).queues[0].broker == "broker-a"
    arriving.join()


def test_waiting_for_a_route_goes_on_until_it_names_every_broker_asked_for(setting: Setting) -> None:
    setting.put("new", "broker-a")
    arriving = threading.Timer(0.05, lambda: setting.put("new", "broker-a", "broker-b", version=2))
    arriving.start()
    route = setting.cache.wait_for_route("new", 30_000, brokers={"broker-a", "broker-b"})
    assert {q.broker for q in route.queues} == {"broker-a", "broker-b"}
    arriving.join()


def test_waiting_for_a_route_that_never_comes_is_an_error(setting: Setting) -> None:
    with pytest.raises(RouteNotFound):
        setting.cache.wait_for_route("never", 0)


def test_the_nameserver_whose_version_is_known_holds_the_wait(setting: Setting) -> None:
    setting.put("t", "broker-a")
    known = setting.cache.route("t")
    arriving = threading.Timer(0.05, lambda: setting.put("t", "broker-b", version=2))
    arriving.start()
    assert setting.cache.wait_for_change("t", known, 30_000).queues[0].broker == "broker-b"
    arriving.join()
    current = setting.servers[setting.index_of(setting.cache.nameservers[0])]
    assert [request.query.get("since") for request in current.asked] == [None, "1"]


def test_while_one_thread_renews_a_route_others_go_on_with_the_old_one(setting: Setting) -> None:
    setting.put("t", "broker-a")
    old = setting.cache.route("t")
    fake = setting.fakes[setting.index_of(setting.cache.nameservers[0])]
    setting.clock.advance(30_000)
    fake.reached.clear()
    with fake.changed:
        # The renewal is stuck in the server for as long as this lock is held.
        renewing = threading.Thread(target=setting.cache.route, args=("t",))
        renewing.start()
        assert fake.reached.wait(60)
        assert setting.cache.route("t") == old
    renewing.join()


def test_nobody_is_given_a_stale_route_while_it_is_renewed(setting: Setting) -> None:
    setting.put("t", "broker-a")
    setting.cache.route("t")
    setting.put("t", "broker-b", version=2)
    fake = setting.fakes[setting.index_of(setting.cache.nameservers[0])]
    setting.cache.invalidate("t")
    given: list[TopicRoute] = []
    with fake.changed:
        # The renewal is stuck in the server for as long as this lock is held.
        asking = [threading.Thread(target=lambda: given.append(setting.cache.route("t"))) for _ in range(2)]
        for thread in asking:
            thread.start()
        asking[1].join(0.05)
        assert given == []
    for thread in asking:
        thread.join()
    assert [route.queues[0].broker for route in given] == ["broker-b"] * 2


def test_an_illegal_topic_name_never_reaches_a_server(setting: Setting) -> None:
    with pytest.raises(InvalidName):
        setting.cache.route("no spaces")
    assert setting.calls == 0


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("http://a:1", ("http://a:1",)),
        ("a:1;b:2", ("http://a:1", "http://b:2")),
        (" http://a:1/ , https://b:2 ", ("http://a:1", "https://b:2")),
        (["a:1", "a:1"], ("http://a:1",)),
        ("a,http://b,[::1]", ("http://a:9876", "http://b:9876", "http://[::1]:9876")),
        ("http://[::1]:1,https://c,http://d/behind", ("http://[::1]:1", "https://c", "http://d/behind")),
    ],
)
def test_addresses_come_as_text_or_list_with_or_without_a_scheme(
    given: str | list[str], addresses: tuple[str, ...]
) -> None:
    assert nameserver_addresses(given) == addresses


@pytest.mark.parametrize("given", ["", " , ", []])
def test_no_address_at_all_is_refused(given: str | list[str]) -> None:
    with pytest.raises(InvalidConfiguration):
        nameserver_addresses(given)
