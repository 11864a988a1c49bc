"""The Grafana dashboard asks for metrics and labels that the servers have: each is looked up in a real
/metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from tests.deploy.conftest import names

FILE: Final = Path(__file__).parents[2] / "deploy" / "grafana" / "rocketq.json"
BOARD: Final[dict[str, Any]] = json.loads(FILE.read_text())
PANELS: Final = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS: Final = [target["expr"] for panel in PANELS for target in panel["targets"]]
#: Prometheus adds it to each sample that it scrapes.
SCRAPED: Final = {"instance"}


def test_every_metric_of_the_dashboard_is_one_of_the_servers(labels: dict[str, set[str]]) -> None:
    asked = {name for expression in EXPRESSIONS for name in names(expression)}
    variables = {name for each in BOARD["templating"]["list"] for name in names(each.get("definition", ""))}
    assert len(asked) > 30
    assert sorted((asked | variables) - set(labels)) == []


def test_every_label_of_the_dashboard_is_one_of_its_metric(labels: dict[str, set[str]]) -> None:
    wrong = []
    for expression in EXPRESSIONS:
        (name,) = set(names(expression))
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        asked = {each.strip() for group in grouped for each in group.split(",")} - SCRAPED
        asked |= set(re.findall(r"[{,]\s*(\w+)\s*[=!]", expression)) - SCRAPED
        if labels[name] and not asked <= labels[name]:
            wrong.append((name, asked - labels[name]))
    assert wrong == []


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            if grouped:
                assert shown <= {each.strip() for each in grouped[0].split(",")}, panel["title"]
    places = [tuple(panel["gridPos"].values()) for panel in BOARD["panels"]]
    assert len(places) == len(set(places))
