"""Contexts name clusters; completion asks the live cluster; `config show` tells which one and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rocketq import LocalCluster
from rocketq.cli.messages.produce_consume import consume
from rocketq.cli.terminal import completion
from rocketq.cli.terminal.contexts import Contexts, contexts_file, read_contexts, write_contexts
from rocketq.errors import Conflict, InvalidConfiguration
from tests.support.command_line import rocketq
from tests.support.conditions import WAIT_MS
from tests.support.patience import PatientClient


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user who has no settings yet."""
    for name in [name for name in os.environ if name.startswith("ROCKETQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_a_context_is_asked_unless_something_nearer_names_a_cluster(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rocketq("context", "add", "here", cluster.nameservers[0]).code == 0
    assert rocketq("context", "add", "away", "http://127.0.0.1:9").code == 0
    assert rocketq("cluster").code == 0
    (row,) = rocketq("config", "show", "-o", "json").json
    assert row["value"] == cluster.nameservers[0]
    assert row["origin"].startswith("context here (file ")
    assert rocketq("context", "use", "away").code == 0
    assert rocketq("cluster").code == 4
    assert rocketq("cluster", "-s", cluster.nameservers[0]).code == 0
    monkeypatch.setenv("ROCKETQ_CONTEXT", "here")
    assert rocketq("cluster").code == 0
    monkeypatch.setenv("ROCKETQ_NAMESERVERS", "http://a:1")
    (row,) = rocketq("config", "show", "-o", "json").json
    assert (row["value"], row["origin"]) == ("http://a:1", "environment ROCKETQ_NAMESERVERS")


def test_without_a_context_it_is_this_machine() -> None:
    rocketq("context", "add", "here", "http://a:1")
    assert rocketq("context", "remove", "here", "-o", "json").json == []
    (row,) = rocketq("config", "show", "-o", "json").json
    assert (row["value"], row["origin"]) == ("http://127.0.0.1:9876", "default")


def test_a_context_that_is_not_there_is_told_with_those_that_are() -> None:
    rocketq("context", "add", "here", "http://a:1")
    said = rocketq("context", "use", "her")
    assert said.code == 3
    assert "Contexts: here." in said.err
    said = rocketq("context", "add", "here", "http://b:1")
    assert said.code == 5
    assert "--replace" in said.err
    assert rocketq("context", "add", "here", "http://b:1", "--replace", "-o", "json").json == [
        {"context": "here", "nameservers": "http://b:1", "in use": True}
    ]


def test_contexts_are_read_as_they_were_written() -> None:
    assert read_contexts() == Contexts()
    made = Contexts().with_one("a-1", 'http://ä:1,http://b\\":2', replaces=False)
    made = made.with_one("b", "http://c:3", replaces=False).using("b")
    write_contexts(made)
    assert read_contexts() == made
    assert made.without("b").current == ""
    with pytest.raises(Conflict):
        made.with_one("b", "http://d:4", replaces=False)
    with pytest.raises(InvalidConfiguration):
        made.with_one("a.b", "http://d:4", replaces=False)
    assert [path.name for path in contexts_file().parent.iterdir()] == ["contexts.toml"]


@pytest.mark.parametrize(
    "text", ["contexts = 5", "[contexts]\na = 1", "[contexts.a]", "[", "contexts.a = ''"]
)
def test_a_broken_file_of_contexts_is_told(text: str) -> None:
    contexts_file().parent.mkdir()
    contexts_file().write_text(text)
    with pytest.raises(InvalidConfiguration, match=r"contexts\.toml"):
        read_contexts()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    said = rocketq("completion", shell)
    assert said.code == 0
    assert f"{shell}_complete" in said.out


def completed(words: str, nameservers: str) -> list[str]:
    variables = {
        "_ROCKETQ_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "ROCKETQ_NAMESERVERS": nameservers,
    }
    variables["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    done = subprocess.run(
        [sys.executable, "-m", "rocketq.cli.main"],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.split(",", 1)[1] for line in done.stdout.splitlines() if "," in line]


def test_topics_and_groups_of_the_live_cluster_are_completed(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PatientClient(cluster.nameservers) as mq:
        mq.create_topic(topic, queues=1)
        mq.groups.set(f"group-{topic}")
    monkeypatch.setattr(completion, "WAIT_MS", WAIT_MS)
    context = click.Context(consume)
    context.params["nameservers"] = cluster.nameservers[0]
    assert completion.complete_topic(context, consume.params[0], topic[:-1]) == [topic]
    assert completion.complete_group(context, consume.params[0], f"group-{topic[:-1]}") == [f"group-{topic}"]
    assert completed("rocketq con", cluster.nameservers[0]) == ["config", "console", "consume", "context"]


def test_a_cluster_that_does_not_answer_completes_nothing_and_says_nothing() -> None:
    assert completed("rocketq consume x", "http://127.0.0.1:9") == []
