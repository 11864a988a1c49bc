"""`python -m rocketq_broker`: one broker process.

stdout carries the one line that says where it listens; logs go to stderr. Exit codes:
0 after a stop in good order, 1 if the store could not be opened or failed, 2 for
arguments that make no sense.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from rocketq.errors import InvalidConfiguration
from rocketq.protocol.model import DEFAULT_QUEUES, FlushMode
from rocketq.service.guard import ServerLimits
from rocketq.service.runner import Binding, address_of, configure_logging, listen, serve
from rocketq_broker.config import DEFAULT_PORT, BrokerConfig
from rocketq_broker.heap import keep_freed_memory, leave_out_pandas

log = structlog.get_logger("rocketq.broker")


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    made = argparse.ArgumentParser(prog="rocketq_broker", description="Run one rocketq broker.")
    made.add_argument("--name", required=True, help="the broker group's name")
    made.add_argument("--data-dir", required=True, type=Path, help="where messages are kept")
    made.add_argument("--cluster", default="default")
    made.add_argument("--broker-id", type=int, default=0, help="0 is the master")
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    made.add_argument("--insecure", action="store_true", help="allow an address that others can reach")
    made.add_argument("--advertise", default="", help="base URL for others, if not the address itself")
    made.add_argument("--nameservers", default="", help="base URLs, separated by commas")
    made.add_argument(
        "--flush", choices=[str(mode) for mode in FlushMode], default=str(FlushMode.ASYNC),
        help="acknowledge after the page cache (async) or after the disk (sync)",
    )  # fmt: skip
    made.add_argument("--segment-bytes", type=int, default=1 << 30, help="size of a log file")
    made.add_argument("--auto-create-topics", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--default-queues", type=int, default=DEFAULT_QUEUES)
    made.add_argument("--heartbeat-ms", type=int, default=3_000)
    made.add_argument("--lease-ms", type=int, default=12_000)
    made.add_argument("--parent-pid", type=int, default=0, help="end when this process is gone")
    return made


def config_of(arguments: argparse.Namespace) -> BrokerConfig:
    """Return the configuration that the command line asks for; raise InvalidConfiguration."""
    given = [address.strip().rstrip("/") for address in arguments.nameservers.split(",")]
    return BrokerConfig(
        name=arguments.name,
        data_dir=arguments.data_dir,
        cluster=arguments.cluster,
        broker_id=arguments.broker_id,
        host=arguments.host,
        port=arguments.port,
        advertise=arguments.advertise,
        nameservers=tuple(address for address in given if address),
        flush=FlushMode(arguments.flush),
        segment_bytes=arguments.segment_bytes,
        auto_create_topics=arguments.auto_create_topics,
        default_queues=arguments.default_queues,
        heartbeat_ms=arguments.heartbeat_ms,
        lease_ms=arguments.lease_ms,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the broker until it is told to stop; return the exit code."""
    arguments = parser().parse_args(argv)
    configure_logging()
    keep_freed_memory()
    leave_out_pandas()
    # Only now: modules of the app make Arrow arrays when they are imported.
    from rocketq_broker.app import create_app

    limits = ServerLimits()
    try:
        config = config_of(arguments)
        binding = Binding(config.host, config.port, insecure=arguments.insecure, limits=limits)
        listener = listen(binding)
    except InvalidConfiguration as error:
        print(f"rocketq_broker: {error}", file=sys.stderr)
        return 2
    app = create_app(config)
    app.bound(address_of(listener))
    # A fault ends the process the way an operator would: in good order, only with another exit code.
    app.broker.on_failure = lambda: os.kill(os.getpid(), signal.SIGTERM)
    code = serve(
        app, service="broker", name=config.name, listener=listener, limits=limits,
        parent_pid=arguments.parent_pid,
    )  # fmt: skip
    if app.broker.failure is not None:
        print(f"rocketq_broker: {app.broker.failure}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
