"""`rocketq up`, `rocketq nameserver run`, `rocketq broker run`."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final

import rich_click as click

from rocketq.cli.brokers.clocks import clock
from rocketq.cli.brokers.duty import drain, list_brokers, resume
from rocketq.cli.brokers.replicas import handover, promote, replicas
from rocketq.cli.terminal.output import say
from rocketq.errors import InvalidConfiguration
from rocketq.system.extras import need
from rocketq.system.platforms import check_servers_run_here

if TYPE_CHECKING:
    from rocketq.local_cluster.cluster import LocalCluster
    from rocketq.local_cluster.console_process import ConsoleBeside

WATCH_S: Final = 0.5
PORT_MAX: Final = 65_535
PORT: Final = click.IntRange(0, PORT_MAX)
COUNT: Final = click.IntRange(1)
PASS_ON: Final = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.command()
@click.option("--brokers", type=COUNT, default=2, show_default=True, help="How many brokers.")
@click.option("--nameservers", type=COUNT, default=1, show_default=True, help="How many NameServers.")
@click.option(
    "--replicas",
    "replica_count",
    type=COUNT,
    default=1,
    show_default=True,
    help="How many brokers each group has; from 2 on the NameServers keep who is master.",
)
@click.option(
    "--data-dir",
    default="rocketq-data",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Where the messages are kept; the next `up` finds them there.",
)
@click.option("--temporary", is_flag=True, help="Keep the messages in a temporary directory and remove it.")
@click.option(
    "--flush",
    type=click.Choice(["async", "sync"]),
    default="async",
    show_default=True,
    help="When a send is acknowledged: async, when it is in memory; sync, when it is on disk.",
)
@click.option(
    "--nameserver-port",
    type=PORT,
    default=9876,
    show_default=True,
    help="Port of the first NameServer; 0: any.",
)
@click.option(
    "--allowed-hosts",
    multiple=True,
    metavar="HOST[,HOST…]",
    help="Further names that the servers are called by; may be given several times.",
)
@click.option(
    "--broker-port", type=PORT, default=10911, show_default=True, help="Port of the first broker; 0: any."
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, exists=True, resolve_path=True),
    help="A TOML file of settings for all servers: docs/configuration.md.",
)
@click.option(
    "--console-port",
    type=PORT,
    default=9080,
    show_default=True,
    help="Port of the console; another if it is taken; 0: any.",
)
@click.option(
    "--console/--no-console", "with_console", default=True, help="Show the cluster on web pages, too."
)
@click.option("--allow-changes", is_flag=True, help="Let the console's pages change the cluster.")
def up(
    brokers: int,
    nameservers: int,
    replica_count: int,
    data_dir: str,
    temporary: bool,
    flush: str,
    nameserver_port: int,
    broker_port: int,
    allowed_hosts: tuple[str, ...],
    config: str | None,
    console_port: int,
    with_console: bool,
    allow_changes: bool,
) -> int:
    """Start a cluster on this machine and keep it up until Ctrl-C, or `rocketq down` in another terminal.

    When a server dies, `up` says so, the others go on, and nothing is started again by itself.
    Exit code 1: a server died.

    \b
    Examples:
      rocketq up
      rocketq up --brokers 3 --flush sync --data-dir /var/tmp/rocketq
      rocketq up --brokers 1 --replicas 3 --nameservers 3
      rocketq up --temporary --nameserver-port 0 --broker-port 0
    """
    _need_servers()
    from rocketq.local_cluster.cluster import LocalCluster
    from rocketq.local_cluster.console_process import console_beside
    from rocketq.local_cluster.up_file import kept_up

    for port, count, option in (
        (nameserver_port, nameservers, "--nameserver-port"),
        (broker_port, brokers * replica_count, "--broker-port"),
    ):
        if port and port + count - 1 > PORT_MAX:
            raise InvalidConfiguration(
                option, port, f"{count} servers need ports up to {port + count - 1}, the last is {PORT_MAX}",
                hint=f"{option} 0 takes free ports.",
            )  # fmt: skip
        for number in range(port, port + count if port else port):
            _need_free(number, option)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    allowed = [f"--allowed-hosts={host}" for host in allowed_hosts]
    given = [*allowed, *([f"--config={config}"] if config else [])]
    say("starting …")
    cluster = LocalCluster(
        brokers,
        nameservers,
        data_dir=None if temporary else data_dir,
        flush=flush,
        nameserver_port=nameserver_port,
        broker_port=broker_port,
        replicas=replica_count,
        nameserver_arguments=given,
        broker_arguments=given,
    )
    console = [*allowed, *(["--allow-changes"] if allow_changes else [])] if with_console else None
    with (
        cluster,
        kept_up(cluster.data_dir, cluster.addresses),
        console_beside(cluster, console_port, console) as console_page,
    ):
        _show_up(cluster, console_page)
        dead = _watch(cluster, ended)
        say("stopping …")
    say("stopped" if temporary else f"stopped; the messages are in {data_dir}")
    return 1 if dead else 0


def _show_up(cluster: LocalCluster, console: ConsoleBeside) -> None:
    rows = [(f"nameserver-{number}", address) for number, address in enumerate(cluster.nameservers, 1)]
    rows += [(name, f"{address}/docs") for name, address in cluster.brokers.items()]
    if console.address:
        rows.append(("console", console.address))
    if console.why_not:
        rows.append(("console", f"did not start, the cluster goes on without it: {console.why_not}"))
    rows.append(("data, logs", str(cluster.data_dir)))
    width = max(len(name) for name, _ in rows)
    for name, what in rows:
        say(f"{name:{width}}  {what}")
    say("\nNow, in another terminal:")
    addresses = ",".join(cluster.nameservers)
    if addresses != "http://127.0.0.1:9876":
        say(f"  export ROCKETQ_NAMESERVERS={addresses}")
    say("  echo hello | rocketq produce greetings")
    say("  rocketq consume greetings")
    say("  rocketq topic describe greetings")
    say("\nCtrl-C stops it.")


def _watch(cluster: LocalCluster, ended: threading.Event) -> set[str]:
    """Wait until it is to end, or no server is left; tell of each that dies, and return their names."""
    dead: set[str] = set()
    while not ended.wait(WATCH_S) and len(dead) < len(cluster.names):
        for name in [each for each in cluster.names if each not in dead and not cluster.running(each)]:
            dead.add(name)
            say(f"{name} ended with exit code {cluster.exit_code(name)}; its log is {cluster.log(name)}")
            say(f"  the others go on. To start it again: {shlex.join(cluster.command(name))}")
    return dead


def _need_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InvalidConfiguration(
                option,
                port,
                f"port {port} cannot be used: {error.strerror}",
                hint=f"A cluster may be up already (rocketq cluster); {option} 0 takes any free port.",
            ) from error


def _need_servers() -> None:
    check_servers_run_here()
    need("a server of rocketq", "server")


def become(module: str, arguments: list[str]) -> None:
    """Run the server in this process's place: signals and exit codes are its own."""
    _need_servers()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


@click.group()
def nameserver() -> None:
    """Run a NameServer."""


@nameserver.command("run", context_settings=PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_nameserver(arguments: tuple[str, ...]) -> None:
    """Run a NameServer in the foreground; its options are those of `python -m rocketq_nameserver`.

    \b
    Examples:
      rocketq nameserver run
      rocketq nameserver run --port 9877
      rocketq nameserver run --help
    """
    become("rocketq_nameserver", list(arguments))


@click.group()
def broker() -> None:
    """Run a broker, or look after one."""


for command in (clock, list_brokers, drain, resume, replicas, handover, promote):
    broker.add_command(command)


@broker.command("run", context_settings=PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_broker(arguments: tuple[str, ...]) -> None:
    """Run a broker in the foreground; its options are those of `python -m rocketq_broker`.

    \b
    Examples:
      rocketq broker run --name broker-a --data-dir data/a --nameservers http://127.0.0.1:9876
      rocketq broker run --name broker-b --data-dir data/b --port 10912 --flush sync
      rocketq broker run --help
    """
    become("rocketq_broker", list(arguments))
