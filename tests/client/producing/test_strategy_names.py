"""One table names the strategies that choose queues; Python, the CLI, Spark and the documents follow it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_rocketq.options.options import sink_options
from pyspark_rocketq.options.table import Use
from rocketq.cli.main import rocketq
from rocketq.producing.selection.queue_selectors import STRATEGIES

DOCS = Path(__file__).parents[3] / "docs"


def spark_name(name: str) -> str:
    return re.sub("_(.)", lambda match: match[1].upper(), name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_spark_takes_each_strategy_and_knows_whether_it_needs_the_key(name: str) -> None:
    raw = {"nameservers": "http://h:1", "queueSelection": spark_name(name)}
    options = sink_options(raw, Use.BATCH_WRITE)
    assert (options.selection, options.selection_needs_key) == (name, STRATEGIES[name].needs_key)


def test_the_documents_list_exactly_the_strategies_there_are() -> None:
    listed = re.findall(r'`send_batch\(selection="(\w+)"', (DOCS / "client.md").read_text())
    assert sorted(listed) == sorted(STRATEGIES)
    (row,) = [line for line in (DOCS / "spark.md").read_text().splitlines() if "| `queueSelection`" in line]
    named = re.findall(r"`(\w+)`", row.split("|", 3)[3])
    assert {*named} - {"key"} == {spark_name(name) for name in STRATEGIES}


def test_the_command_line_offers_the_strategies_that_need_no_key() -> None:
    shown = CliRunner().invoke(rocketq, ["produce", "--help"]).output
    assert [name for name in STRATEGIES if name in shown.replace("[default: round_robin]", "")] == [
        name for name, strategy in STRATEGIES.items() if not strategy.needs_key
    ]
