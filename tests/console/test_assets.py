"""The vendored files are those of their packages, and nothing lies beside them unnamed."""

from __future__ import annotations

import hashlib
import re

import pytest

from rocketq.console import assets
from rocketq.console.pages import TEMPLATES


@pytest.mark.parametrize("name", assets.VENDORED)
def test_a_vendored_file_is_as_its_package_has_it(name: str) -> None:
    known = assets.VENDORED[name]
    assert hashlib.sha256((assets.DIRECTORY / name).read_bytes()).hexdigest() == known.sha256
    assert known.version in name or name.endswith("LICENSE.txt")


def test_every_file_is_served_or_a_licence() -> None:
    there = {
        str(path.relative_to(assets.DIRECTORY)) for path in assets.DIRECTORY.rglob("*") if path.is_file()
    }
    licences = {name for name in there if name.endswith("LICENSE.txt")}
    assert there - licences == assets.SERVED.keys()
    assert licences <= assets.VENDORED.keys()


def test_the_asset_names_in_the_templates_are_served() -> None:
    named = {
        name
        for path in TEMPLATES.glob("*.html")
        for name in re.findall(r"/assets/\{\{ build \}\}/([\w./-]+)", path.read_text())
    }
    assert named == assets.SERVED.keys()


def test_no_template_turns_escaping_off() -> None:
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text()
        assert "|safe" not in text.replace(" ", ""), path.name
        assert "autoescape" not in text, path.name
        assert not re.search(r"\son\w+=", text), f"{path.name} has a handler inline"
        assert "style=" not in text, path.name
