"""The alert rules for Prometheus ask for metrics and labels that the servers have, and say what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from rocketq.errors.remote_errors import StoreFull, SystemBusy
from tests.deploy.conftest import names

FILE: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "rocketq-alerts.yml"
RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
#: Prometheus adds them to each sample that it scrapes.
SCRAPED: Final = {"instance", "job"}


def selected(expression: str) -> set[str]:
    """The labels by which an expression selects or groups."""
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    labels = {each.strip() for group in grouped for each in group.split(",")}
    return labels | set(re.findall(r"[{,]\s*(\w+)\s*[=!]", expression))


def test_every_metric_of_a_rule_is_one_of_the_servers(labels: dict[str, set[str]]) -> None:
    asked = {name for rule in RULES for name in names(rule["expr"])}
    assert len(asked) > 15
    assert sorted(asked - set(labels)) == []


def test_every_label_of_a_rule_is_one_of_its_metrics(labels: dict[str, set[str]]) -> None:
    """Those of its texts too: Prometheus writes nothing for a label that is not there."""
    wrong = []
    for rule in RULES:
        known = [labels[name] for name in names(rule["expr"])]
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        asked = (selected(rule["expr"]) | shown) - SCRAPED
        if all(known) and not all(asked <= each for each in known):
            wrong.append((rule["alert"], asked))
    assert wrong == []


def test_a_rule_that_groups_shows_only_what_it_groups_by() -> None:
    for rule in RULES:
        for group in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
            assert shown <= {each.strip() for each in group.split(",")}, rule["alert"]


def test_every_rule_has_a_name_of_its_own_a_severity_and_says_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"].endswith("."), rule["alert"]
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule["alert"]


def test_codes_of_refusals_in_rules_are_codes_of_errors() -> None:
    codes = {code for rule in RULES for code in re.findall(r'code="(\w+)"', rule["expr"])}
    assert codes == {StoreFull.code, SystemBusy.code}
