"""A NameServer and brokers on threads of this process, on free ports of 127.0.0.1, with a clock to move.

    with EmbeddedCluster() as cluster, cluster.client() as client:
        with client.producer() as producer:
            producer.send("orders", b"later", delay="1h")
        cluster.advance("1h")       # the message is due

These are the servers themselves, spoken to over HTTP, with a store on disk in a temporary directory: a test
meets the behaviour of production and not that of a double. They start in a fraction of the time that
processes need. What threads cannot do is crash: for `kill -9` there is `rocketq.LocalCluster`.
"""

from __future__ import annotations

import string
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from rocketq.errors import InvalidConfiguration
from rocketq.protocol.rules.delivery_time import duration_ms
from rocketq.system.extras import need
from rocketq.testing.movable_clock import MovableClock

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from rocketq.client import Client
    from rocketq.clock import Clock
    from rocketq.config import TraceConfig, TransportConfig
    from rocketq.http_server.runner import ServerThread

BROKERS_MAX: Final = len(string.ascii_lowercase)
#: A busy machine is no reason for a broker of a test to refuse a call, or for the route to lose it.
_PATIENT: Final = {
    "queue_wait_ms_max": 60_000,
    "decoded_wait_ms_max": 60_000,
    "flush_timeout_ms": 60_000,
    "lease_ms": 600_000,
}


class EmbeddedCluster:
    """One NameServer and some brokers; a context manager, or `start` and `close`.

    >>> with EmbeddedCluster() as cluster, cluster.client() as client, client.producer() as producer:
    ...     later = producer.send("orders", "later", delay="1h")
    ...     cluster.advance("1h")  # the message is due
    ...     with client.pull_consumer("orders", start="earliest") as consumer:
    ...         [message.body for message in consumer.poll(timeout_ms=30_000)]
    [b'later']
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        data_dir: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the cluster; nothing runs before `start`.

        A broker group has one replica here; `rocketq.LocalCluster(replicas=3)` has several.
        `settings` are those of every broker, as docs/configuration.md names them: {"default_queues": 1}.
        Without `data_dir` the messages are in a temporary directory, which `close` removes.
        """
        if not 1 <= brokers <= BROKERS_MAX:
            raise InvalidConfiguration("brokers", brokers, f"an embedded cluster has 1 to {BROKERS_MAX}")
        #: The clock of the brokers, and of the clients that `client` makes.
        self.clock = MovableClock()
        self._names = [f"broker-{letter}" for letter in string.ascii_lowercase[:brokers]]
        self._given_dir = data_dir
        self._settings = {**_PATIENT, **(settings or {})}
        self._addresses: dict[str, str] = {}
        self._running: dict[str, ServerThread] = {}
        self._resources = ExitStack()

    def start(self) -> Self:
        """Start the servers; each broker is registered when this returns. Raises ExtraMissing."""
        need("EmbeddedCluster", "server")
        from rocketq.http_server.runner import ServerThread
        from rocketq_nameserver.app import create_app
        from rocketq_nameserver.config import NameServerConfig

        _log_to_the_logging_module()
        with ExitStack() as begun:
            self._data_dir = Path(
                self._given_dir or begun.enter_context(tempfile.TemporaryDirectory(prefix="rocketq-"))
            )
            self._nameserver = begun.enter_context(ServerThread(create_app(NameServerConfig())))
            begun.callback(self._stop_brokers)
            for name in self._names:
                self._start_broker(name)
            self._resources = begun.pop_all()
        return self

    def close(self) -> None:
        """Stop the brokers and the NameServer; remove the messages if their directory was temporary."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nameservers(self) -> str:
        """The address that clients, the command line (`-s`) and Spark (`nameservers`) are given."""
        return self._nameserver.address

    @property
    def brokers(self) -> dict[str, str]:
        """Broker name to address, stopped ones included."""
        return dict(self._addresses)

    def client(
        self,
        *,
        transport: TransportConfig | None = None,
        clock: Clock | None = None,
        trace: TraceConfig | float | bool | None = None,
        opentelemetry: TracerProvider | bool = False,
    ) -> Client:
        """Return a client of this cluster, with its clock if no other is given; the rest as for `Client`."""
        from rocketq.client import Client

        return Client(
            self.nameservers,
            transport=transport,
            clock=clock or self.clock,
            trace=trace,
            opentelemetry=opentelemetry,
        )

    def advance(self, by: str | timedelta) -> None:
        """Move the clock forward, by "90s", "10m", "1h" or a timedelta.

        Delayed and retried messages that are due then are delivered within a second, leases of messages that
        have run out are seen by the next call, and transactions are checked at the next look (1 s at most).
        """
        self.clock.advance(duration_ms(by))

    def stop(self, name: str) -> None:
        """Stop a broker in good order; its messages are away until `restart`."""
        running = self._running.pop(self._known(name), None)
        if running is not None:
            running.__exit__(None, None, None)

    def restart(self, name: str) -> None:
        """Start a broker again, on its data and its port; stop it first if it runs."""
        self.stop(name)
        self._start_broker(name)

    def _known(self, name: str) -> str:
        if name not in self._names:
            raise InvalidConfiguration("name", name, f"the brokers are {', '.join(self._names)}")
        return name

    def _start_broker(self, name: str) -> None:
        from rocketq.http_server.runner import Binding, ServerThread
        from rocketq_broker.app import create_app
        from rocketq_broker.config import BrokerConfig

        settings = {
            "data_dir": self._data_dir / name,
            "nameservers": (self.nameservers,),
            "port": urlsplit(self._addresses.get(name, "")).port or 0,
            **self._settings,
        }
        config = BrokerConfig(name=name, **settings)
        app = create_app(config, clock=self.clock)
        server = ServerThread(app, binding=Binding(config.host, config.port))
        server.__enter__()
        self._running[name], self._addresses[name] = server, server.address

    def _stop_brokers(self) -> None:
        for name in list(self._running):
            self.stop(name)


def _log_to_the_logging_module() -> None:
    """Have servers log as libraries do, unless the program has configured structlog; it would print them."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.add_log_level,
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
        )
