"""`python -m rocketq_broker`: one broker process.

stdout carries the one line that says where it listens; logs go to stderr. Exit codes:
0 after a stop in good order, 1 if the store could not be opened or failed, 2 for
arguments that make no sense, 5 if another live process has the broker's name.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

import structlog

from rocketq.errors import InvalidConfiguration
from rocketq.http_server.admission import hosts_given
from rocketq.http_server.connection.limits import ServerLimits
from rocketq.model import DEFAULT_QUEUES, FlushMode
from rocketq.system.platforms import check_servers_run_here
from rocketq_broker.config import DEFAULT_PORT, ROLES, BrokerConfig
from rocketq_broker.runtime.memory_settings import collect_rarely, keep_freed_memory, leave_out_pandas
from rocketq_broker.store.config import RetentionPolicy, TransactionPolicy

log = structlog.get_logger("rocketq.broker")


#: Settings of BrokerConfig that are options of the same name, and their help.
_STORE_SETTINGS: Final = (
    ("delay_ms_max", "how far away the delivery time of a delayed message may be"),
    ("topics_max", "topics the broker takes"),
    ("queues_max", "queues over all topics"),
    ("leased_messages_max", "messages of one queue that a group may have leased one by one"),
    ("open_files_max", "files of the store open at once"),
    ("decoded_bytes_max", "what may be inflated at once for decoded answers and compressed sends"),
    ("decoded_wait_ms_max", "how long a call waits for room among these before it is told SYSTEM_BUSY"),
    ("queued_bytes_max", "what may wait for the log before senders are told SYSTEM_BUSY"),
    ("queue_wait_ms_max", "how long a send may wait for the log"),
    ("flush_timeout_ms", "a slower sync is answered FLUSH_DISK_TIMEOUT"),
    ("session_timeout_ms", "a member of a group that was silent for so long is gone"),
    ("sink_check_ms", "staged messages that were quiet this long are asked about"),
    ("stage_ttl_ms", "staged messages that stay undecided this long are given up"),
)
#: Further settings that are options of the same name.
_SAME_NAME: Final = (
    "name", "data_dir", "cluster", "broker_id", "role", "min_in_sync", "host", "port", "advertise",
    "segment_bytes",
    "auto_create_topics", "auto_create_groups", "default_queues", "heartbeat_ms", "lease_ms", "wait_for_name",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    made = argparse.ArgumentParser(prog="rocketq_broker", description="Run one rocketq broker.")
    made.add_argument("--name", required=True, help="the broker group's name")
    made.add_argument("--data-dir", required=True, type=Path, help="where messages are kept")
    made.add_argument("--cluster", default="default")
    made.add_argument(
        "--broker-id", type=int, default=0,
        help="0: a group of one broker; from 1 on: the number of this replica of the group",
    )  # fmt: skip
    made.add_argument(
        "--role", choices=ROLES, default="auto",
        help="a replica takes part in elections (auto), or is made master by a command only (slave)",
    )  # fmt: skip
    made.add_argument(
        "--min-in-sync", type=int, default=2,
        help="replicas, the master included, that hold a message before it is confirmed",
    )  # fmt: skip
    made.add_argument(
        "--etcd", default="", metavar="URL[,URL…]",
        help="an etcd cluster that keeps the record of the group; default: the NameServers keep it",
    )  # fmt: skip
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    made.add_argument("--insecure", action="store_true", help="allow an address that others can reach")
    made.add_argument("--advertise", default="", help="base URL for others, if not the address itself")
    made.add_argument(
        "--allowed-hosts", action="append", default=[], metavar="HOST[,HOST…]",
        help="further names that clients call it by; may be given several times",
    )  # fmt: skip
    made.add_argument("--nameservers", default="", help="base URLs, separated by commas")
    made.add_argument(
        "--flush", choices=[str(mode) for mode in FlushMode], default=str(FlushMode.ASYNC),
        help="acknowledge after the page cache (async) or after the disk (sync)",
    )  # fmt: skip
    made.add_argument("--segment-bytes", type=int, default=1 << 30, help="size of a log file")
    made.add_argument("--auto-create-topics", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--auto-create-groups", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--default-queues", type=int, default=DEFAULT_QUEUES)
    _add_store_arguments(made)
    made.add_argument("--heartbeat-ms", type=int, default=3_000)
    made.add_argument("--lease-ms", type=int, default=12_000)
    made.add_argument(
        "--wait-for-name", action="store_true",
        help="while another live process has this broker's name, wait and serve nothing, instead of ending",
    )  # fmt: skip
    made.add_argument("--parent-pid", type=int, default=0, help="end when this process is gone")
    return made


def _add_store_arguments(made: argparse.ArgumentParser) -> None:
    store, kept = BrokerConfig.__dataclass_fields__, RetentionPolicy()
    made.add_argument(
        "--retention-ms", type=int, default=kept.retention_ms, help="messages older than this go"
    )
    made.add_argument(
        "--retention-bytes", type=int, help="the oldest segment goes if at least so many bytes of log remain"
    )
    made.add_argument(
        "--watermarks", default=f"{kept.clean_percent},{kept.force_percent},{kept.refuse_percent}",
        help="percent of the disk at which to clean at once, to clean whatever the age, to refuse writes",
    )  # fmt: skip
    made.add_argument(
        "--free-bytes-enough", type=int, default=kept.free_bytes_enough,
        help="no watermark counts while this much is free",
    )  # fmt: skip
    for name, about in _STORE_SETTINGS:
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=store[name].default, help=about)

    checks = TransactionPolicy()
    for name, about in (
        ("timeout_ms", "a transaction that is undecided for so long is checked"),
        ("check_interval_ms", "and again after this, until it is decided"),
        ("checks_max", "so many times at most; then it is parked for an operator"),
        ("kept_ms", "a parked transaction is rolled back after this, and one nobody asks to check is parked"),
        ("group_max", "open transactions of one producer group before SYSTEM_BUSY"),
    ):
        option = f"--transaction-{name.replace('_', '-')}"
        made.add_argument(option, type=int, default=getattr(checks, name), help=about)


def _transactions_of(arguments: argparse.Namespace) -> TransactionPolicy:
    return TransactionPolicy(
        **{each.name: getattr(arguments, f"transaction_{each.name}") for each in fields(TransactionPolicy)}
    )


def _retention_of(arguments: argparse.Namespace) -> RetentionPolicy:
    try:
        clean, force, refuse = (int(part) for part in arguments.watermarks.split(","))
    except ValueError:
        raise InvalidConfiguration(
            "watermarks", arguments.watermarks, "is not three percentages", hint="Write them as 75,85,90."
        ) from None
    return RetentionPolicy(
        arguments.retention_ms,
        arguments.retention_bytes,
        clean,
        force,
        refuse,
        arguments.free_bytes_enough,
    )


def config_of(arguments: argparse.Namespace) -> BrokerConfig:
    """Return the configuration that the command line asks for; raise InvalidConfiguration."""
    same = [*_SAME_NAME, *(name for name, _ in _STORE_SETTINGS)]
    return BrokerConfig(
        **{name: getattr(arguments, name) for name in same},
        allowed_hosts=hosts_given(arguments.allowed_hosts),
        nameservers=_addresses(arguments.nameservers),
        etcd=_addresses(arguments.etcd),
        flush=FlushMode(arguments.flush),
        retention=_retention_of(arguments),
        transactions=_transactions_of(arguments),
    )


def _addresses(given: str) -> tuple[str, ...]:
    parts = (part.strip().rstrip("/") for part in given.split(","))
    return tuple(part for part in parts if part)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the broker until it is told to stop; return the exit code."""
    arguments = parser().parse_args(argv)
    try:
        check_servers_run_here()
    except InvalidConfiguration as error:
        print(f"rocketq_broker: {error}", file=sys.stderr)
        return 2
    # Only now: it needs a POSIX system.
    from rocketq.http_server.runner import Binding, address_of, configure_logging, listen, serve

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
    # A fault ends the process the way an operator would: in good order, only with another exit code.
    app = create_app(config, on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM))
    collect_rarely()
    app.bound(address_of(listener))
    code = serve(
        app, service="broker", name=config.name, listener=listener, limits=limits,
        parent_pid=arguments.parent_pid,
    )  # fmt: skip
    if app.failure is not None:
        print(f"rocketq_broker: {app.failure}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
