"""Settings of servers: which place wins, what is refused, and that each value's origin is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from rocketq.console.console import ConsoleConfig
from rocketq.console.console_options import COMMAND as CONSOLE
from rocketq.console.console_options import config_of as console_config
from rocketq.errors import InvalidConfiguration
from rocketq.http_server.settings.server_command import Settings
from rocketq.net.route_cache import DEFAULT_NAMESERVER
from rocketq_broker.broker_options import COMMAND as BROKER
from rocketq_broker.broker_options import config_of as broker_config
from rocketq_broker.config import BrokerConfig
from rocketq_nameserver.config import NameServerConfig
from rocketq_nameserver.nameserver_options import COMMAND as NAMESERVER
from rocketq_nameserver.nameserver_options import config_of as nameserver_config
from tests.support import configuration_page


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROCKETQ_")]:
        monkeypatch.delenv(name)


def file(directory: Path, text: str) -> str:
    path = directory / "rocketq.toml"
    path.write_text(text)
    return str(path)


def broker(*arguments: str) -> Settings:
    return BROKER.read(["--name", "a", "--data-dir", ".", *arguments])


def test_without_settings_a_server_has_the_defaults_of_its_configuration() -> None:
    made = broker_config(broker().values)
    assert made == BrokerConfig(name="a", data_dir=Path("."))
    assert nameserver_config(NAMESERVER.read([]).values) == NameServerConfig()
    assert console_config(CONSOLE.read([]).values) == ConsoleConfig((DEFAULT_NAMESERVER,))


def test_the_console_has_its_settings_from_the_same_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(tmp_path, "[broker]\nport = 1\n[console]\nport = 9081\nallow_changes = true\n")
    monkeypatch.setenv("ROCKETQ_NAMESERVERS", "http://a:1,http://b:2")
    read = CONSOLE.read(["--config", path, "--observe-ms", "500"])
    made = console_config(read.values)
    assert (made.port, made.allow_changes, made.observe_ms) == (9081, True, 500)
    assert made.nameservers == ("http://a:1", "http://b:2")
    assert read.origins["nameservers"] == "environment ROCKETQ_NAMESERVERS"
    assert broker("--config", path).values["port"] == 1


def test_the_console_command_hands_on_only_what_is_given(tmp_path: Path) -> None:
    path = file(tmp_path, "[console]\nport = 9081\nallow_changes = true\nobserve_ms = 0\n")
    done = process(
        "rocketq.cli.main", "console", "--config", path, "--host", "127.0.0.2", "--show-config", "jsonl"
    )
    origins = {row["setting"]: row["origin"] for row in map(json.loads, done.stdout.splitlines())}
    assert (origins["host"], origins["port"]) == ("flag --host", f"file {path} [console]")
    assert (done.returncode, "observe_ms" in done.stderr) == (2, True)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[broker]\nretention_ms = 1000\ntopics_max = 1001\nqueues_max = 1002\n"
    monkeypatch.setenv("ROCKETQ_BROKER_TOPICS_MAX", "2001")
    monkeypatch.setenv("ROCKETQ_BROKER_QUEUES_MAX", "2002")
    path = file(tmp_path, text)
    read = broker("--config", path, "--queues-max", "3002")
    names = ("retention_ms", "topics_max", "queues_max", "port")
    assert [read.values[name] for name in names] == [1000, 2001, 3002, 10911]
    assert [read.origins[name] for name in names] == [
        f"file {path} [broker]",
        "environment ROCKETQ_BROKER_TOPICS_MAX",
        "flag --queues-max",
        "default",
    ]


def test_a_file_has_every_kind_of_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    [broker]
    name = "b"
    data_dir = "here"
    nameservers = ["http://a:1/", "http://b:2"]
    allowed_hosts = ["x.example", "y.example"]
    watermarks = [10, 20, 30]
    auto_create_topics = false
    wait_for_name = true
    flush = "sync"
    transaction_checks_max = 3
    """
    monkeypatch.setenv("ROCKETQ_CONFIG", file(tmp_path, text))
    made = broker_config(BROKER.read([]).values)
    assert made.nameservers == ("http://a:1", "http://b:2")
    assert made.allowed_hosts == ("x.example", "y.example")
    assert (made.retention.clean_percent, made.retention.refuse_percent) == (10, 30)
    assert (made.name, made.data_dir, made.flush.value) == ("b", Path("here"), "sync")
    assert (made.auto_create_topics, made.wait_for_name, made.transactions.checks_max) == (False, True, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[broker]\nretention_m = 5", "Did you mean retention_ms?"),
        ("[broker]\nretention-ms = 5", "Did you mean retention_ms?"),
        ("[brokers]\nport = 5", "Did you mean broker?"),
        ("port = 5", "not a table"),
        ("[broker]\nport = '5'", "broker.port: '5' is not a whole number"),
        ("[broker]\nport = true", "not a whole number"),
        ("[broker]\nport = 5.0", "not a whole number"),
        ("[broker]\nwait_for_name = 1", "not true or false"),
        ("[broker]\nname = 1", "not a text"),
        ("[broker]\nnameservers = 1", "not a text or a list"),
        ("[broker]\nnameservers = [1]", "not a list of texts"),
        ("[broker]\nallowed_hosts = 'a'", "not a list of texts"),
        ("[broker]\nwatermarks = [1, 2]", "not 3 percentages"),
        ("[broker]\nflush = 'often'", "broker.flush"),
        ("[broker]\nconfig = 'x'", "no such setting"),
        ("[broker]\nparent_pid = 5", "no such setting"),
        ("[broker", "not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        broker("--config", file(tmp_path, text))
    assert said in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="No such file"):
        broker("--config", str(tmp_path / "none.toml"))


def test_a_wrong_variable_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETQ_BROKER_PORT", "tcp://10.0.0.1:10911")
    with pytest.raises(click.BadParameter) as refused:
        broker()
    assert "ROCKETQ_BROKER_PORT" in refused.value.format_message()


def test_a_broker_registers_where_clients_look_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETQ_NAMESERVERS", "http://clients:1")
    assert broker().values["nameservers"] == ("http://clients:1",)
    assert broker().origins["nameservers"] == "environment ROCKETQ_NAMESERVERS"
    monkeypatch.setenv("ROCKETQ_BROKER_NAMESERVERS", "http://brokers:1,http://brokers:2")
    assert broker().values["nameservers"] == ("http://brokers:1", "http://brokers:2")
    assert broker().origins["nameservers"] == "environment ROCKETQ_BROKER_NAMESERVERS"


def process(module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def rows(text: str) -> dict[str, dict[str, Any]]:
    return {row["setting"]: row for row in map(json.loads, text.splitlines())}


def test_config_show_names_each_origin_and_starts_nothing(tmp_path: Path) -> None:
    arguments = ("config", "show", "broker", "--name", "a", "--data-dir", str(tmp_path / "data"))
    done = process("rocketq.cli.main", *arguments, "-o", "jsonl", ROCKETQ_BROKER_PORT="0")
    assert (done.returncode, done.stderr) == (0, "")
    told = rows(done.stdout)
    assert told["port"] == {"setting": "port", "value": 0, "origin": "environment ROCKETQ_BROKER_PORT"}
    assert told["name"]["origin"] == "flag --name"
    assert told["lease_ms"]["origin"] == "default"
    assert not (tmp_path / "data").exists()


def test_config_show_tells_what_a_server_would_refuse() -> None:
    done = process("rocketq_broker", "--show-config", "table", ROCKETQ_BROKER_PORT="70000")
    assert done.returncode == 2
    assert "70000" in done.stdout
    assert "Give --name" in done.stderr
    done = process("rocketq_broker", "--name", "a", "--data-dir", "x", ROCKETQ_BROKER_PORT="70000")
    assert done.returncode == 2
    assert "port comes from: environment ROCKETQ_BROKER_PORT" in done.stderr


def test_a_variable_that_is_no_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETQ_BROKER_RETENTION", "5")
    assert broker().unknown_variables == ("ROCKETQ_BROKER_RETENTION",)


def test_the_configuration_page_has_the_options_of_the_code() -> None:
    page = configuration_page.PAGE.read_text("utf-8")
    assert page == configuration_page.written(page), "run: python3 dev.py pages"


def test_the_file_on_the_configuration_page_is_taken(tmp_path: Path) -> None:
    page = configuration_page.PAGE.read_text("utf-8")
    text = page.split("```toml\n")[1].split("```")[0]
    path = file(tmp_path, text)
    assert broker_config(BROKER.read(["--config", path]).values).retention.clean_percent == 70
    assert nameserver_config(NAMESERVER.read(["--config", path]).values).support_acting_master
