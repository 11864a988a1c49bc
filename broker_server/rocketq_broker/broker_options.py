"""The options of a broker, and the configuration that their values make.

A new setting is a field of `BrokerConfig` (or of a policy in `store.config`) and an option here; a flag, an
environment variable and a line of the configuration file follow from it, and so does
`docs/configuration.md` (`python3 dev.py pages` writes it). A default is that of the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import click

from rocketq.http_server.admission import hosts_given
from rocketq.http_server.settings.option_types import CommaList, Percentages
from rocketq.http_server.settings.server_command import ServerCommand, nameservers_option, option
from rocketq.model import FlushMode, ReplicationMode
from rocketq_broker.config import MIN_IN_SYNC, ROLES, BrokerConfig
from rocketq_broker.store.config import RetentionPolicy, TransactionPolicy

_FIELDS: Final = BrokerConfig.__dataclass_fields__
_KEPT: Final = RetentionPolicy()
_CHECKS: Final = TransactionPolicy()

#: Settings of BrokerConfig that are options of the same name, and their help.
_SAME_NAME: Final = (
    ("cluster", "The cluster that the broker belongs to."),
    ("broker_id", "0: a group of one broker; from 1 on: the number of this replica of the group."),
    ("scrub_ms", "How often a replica reads its whole log to find damage; 0: never."),
    ("catch_up_bytes_per_s", "How fast a replica that is not in sync copies the log; 0: as fast as it can."),
    ("slave_read_enable", "Whether a master sends consumers that lag far to a slave."),
    (
        "access_message_in_memory_max_ratio",
        "A consumer lags far when it is behind by more than so many percent of the memory.",
    ),
    ("host", "The address to listen on."),
    ("port", "The port to listen on; 0 takes a free one."),
    ("advertise", "The base URL for others, if it is not the address itself."),
    ("segment_bytes", "Size of a log file."),
    ("auto_create_topics", "Whether a send creates its topic."),
    ("auto_create_groups", "Whether a heartbeat or a commit creates its group."),
    ("default_queues", "Queues of a topic that a send creates."),
    ("delay_ms_max", "How far away the delivery time of a delayed message may be."),
    ("topics_max", "Topics the broker takes."),
    ("queues_max", "Queues over all topics."),
    ("leased_messages_max", "Messages of one queue that a group may have leased one by one."),
    ("open_files_max", "Files of the store open at once."),
    ("decoded_bytes_max", "What may be inflated at once for decoded answers and compressed sends."),
    ("decoded_wait_ms_max", "How long a call waits for room among these before it is told SYSTEM_BUSY."),
    ("queued_bytes_max", "What may wait for the log before senders are told SYSTEM_BUSY."),
    ("queue_wait_ms_max", "How long a send may wait for the log."),
    ("flush_timeout_ms", "A slower sync is answered FLUSH_DISK_TIMEOUT."),
    ("session_timeout_ms", "A member of a group that was silent for so long is gone."),
    ("sink_check_ms", "Staged messages that were quiet this long are asked about."),
    ("stage_ttl_ms", "Staged messages that stay undecided this long are given up."),
    ("heartbeat_ms", "How often the broker tells the NameServers that it lives."),
    ("lease_ms", "How long a NameServer believes in the broker without hearing of it."),
    ("wait_for_name", "While another live process has this broker's name, wait, instead of ending."),
)
_TRANSACTIONS: Final = (
    ("timeout_ms", "A transaction that is undecided for so long is checked."),
    ("check_interval_ms", "Time between two checks of an undecided transaction."),
    ("checks_max", "Checks of one transaction before it is parked: left to an operator."),
    ("kept_ms", "A parked transaction is rolled back after this, and one nobody asks to check is parked."),
    ("group_max", "Open transactions of one producer group before SYSTEM_BUSY."),
)


def _same_name(name: str, about: str) -> click.Option:
    default, flag = _FIELDS[name].default, f"--{name.replace('_', '-')}"
    if default is True:
        flag = f"{flag}/--no-{name.replace('_', '-')}"
    # Without a type an option with a default of False is a flag, and one of "" a text.
    kinds: dict[str, Any] = {"is_flag": True} if isinstance(default, bool) else {"type": type(default)}
    return option(flag, default=default, help=about, **kinds)


def _transaction_option(name: str, about: str) -> click.Option:
    flag = f"--transaction-{name.replace('_', '-')}"
    return option(flag, type=int, default=getattr(_CHECKS, name), help=about)


def _retention_options() -> list[click.Option]:
    marks = (_KEPT.clean_percent, _KEPT.force_percent, _KEPT.refuse_percent)
    return [
        option(
            "--retention-ms", type=int, default=_KEPT.retention_ms, help="Messages older than this go."
        ),
        option(
            "--retention-bytes", type=int,
            help="Remove the oldest log file while the rest is still at least this large.",
        ),
        option(
            "--watermarks", type=Percentages(len(marks)), default=",".join(map(str, marks)),
            help="Percent of disk use: remove expired files at once, remove files of any age, refuse writes.",
        ),
        option(
            "--free-bytes-enough", type=int, default=_KEPT.free_bytes_enough,
            help="No watermark counts while this much is free.",
        ),
    ]  # fmt: skip


COMMAND: Final = ServerCommand(
    "broker",
    "Run one rocketq broker.",
    [
        option("--name", help="The broker group's name. Needed."),
        option("--data-dir", type=click.Path(path_type=Path), help="Where messages are kept. Needed."),
        nameservers_option("broker"),
        option("--insecure", is_flag=True, default=False, help="Allow an address that others can reach."),
        option(
            "--allowed-hosts", multiple=True, metavar="HOST[,HOST…]",
            help="Further names that clients call it by; may be given several times.",
        ),
        option(
            "--flush", type=click.Choice([str(mode) for mode in FlushMode]), default=str(FlushMode.ASYNC),
            help="Acknowledge after the page cache (async) or after the disk (sync).",
        ),
        option(
            "--role", type=click.Choice(ROLES), default="auto",
            help="A replica takes part in elections (auto), or is made master by a command only (slave).",
        ),
        option(
            "--replication", type=click.Choice([str(mode) for mode in ReplicationMode]),
            default=str(ReplicationMode.SYNC),
            help="A message is confirmed when the in-sync replicas hold it (sync), or the master (async).",
        ),
        option(
            "--min-in-sync", type=int,
            help=f"Replicas, the master included, that hold a message before it is confirmed: {MIN_IN_SYNC} "
            "under synchronous replication.",
        ),
        option(
            "--etcd", type=CommaList("URL[,URL…]"), default=(),
            help="An etcd cluster that keeps the record of the group; without it the NameServers do.",
        ),
        *_retention_options(),
        *(_same_name(name, about) for name, about in _SAME_NAME),
        *(_transaction_option(name, about) for name, about in _TRANSACTIONS),
    ],
)  # fmt: skip


def config_of(values: Mapping[str, Any]) -> BrokerConfig:
    """Return the configuration that the values of the options ask for; raise InvalidConfiguration."""
    clean, force, refuse = values["watermarks"]
    return BrokerConfig(
        **{name: values[name] for name, _ in _SAME_NAME},
        name=values["name"],
        data_dir=values["data_dir"],
        allowed_hosts=hosts_given(values["allowed_hosts"]),
        nameservers=tuple(address.rstrip("/") for address in values["nameservers"]),
        role=values["role"],
        replication=ReplicationMode(values["replication"]),
        min_in_sync=values["min_in_sync"],
        etcd=tuple(address.rstrip("/") for address in values["etcd"]),
        flush=FlushMode(values["flush"]),
        retention=RetentionPolicy(
            values["retention_ms"], values["retention_bytes"], clean, force, refuse,
            values["free_bytes_enough"],
        ),
        transactions=TransactionPolicy(
            **{each.name: values[f"transaction_{each.name}"] for each in fields(TransactionPolicy)}
        ),
    )  # fmt: skip
