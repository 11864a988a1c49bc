"""What a call of the command line imports, seen in an interpreter of its own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from typing import Final

import pytest

from rocketq import LocalCluster
from rocketq.cli.commands import COMMANDS
from tests.support.command_line import rocketq

SCRIPT: Final = """
import contextlib, io, json, sys
from rocketq.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
    main()
print(json.dumps({"said": said.getvalue(), "modules": sorted(sys.modules)}))
"""
PLACES: Final = {each.place.split(":")[0] for each in COMMANDS}


def modules_of(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """Return what a call wrote to stdout, and all modules that it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    return answer["said"], set(answer["modules"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.name)
def test_the_help_of_all_shows_the_summary_that_the_command_itself_has(command: object) -> None:
    found = command.load()
    assert found.name == command.name
    assert " ".join(inspect.cleandoc(found.help).split("\n\n")[0].split()) == command.summary


def test_help_shows_every_command_and_imports_none() -> None:
    said, modules = modules_of("--help")
    assert all(f" {each.name} " in said for each in COMMANDS)
    assert not modules & {*PLACES, "rocketq.errors", "rocketq.model", "urllib3", "msgspec"}


def test_a_call_imports_its_own_command_alone(cluster: LocalCluster) -> None:
    said, modules = modules_of(
        "topic", "list", "-o", "json", ROCKETQ_NAMESERVERS=",".join(cluster.nameservers)
    )
    assert isinstance(json.loads(said), list)
    # Shared modules of the terminal have commands of their own.
    assert {each for each in modules & PLACES if ".terminal." not in each} == {"rocketq.cli.topics"}
    assert not {"numpy", "pyarrow", "pandas"} & modules


def test_a_subcommand_is_completed_from_its_group() -> None:
    assert "list" in rocketq("topic", "--help").out
    variables = {"_ROCKETQ_COMPLETE": "bash_complete", "COMP_WORDS": "rocketq topic li", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "rocketq.cli.main"], env={**os.environ, **variables}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["plain,list"]
