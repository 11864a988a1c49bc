"""The Containerfile copies what is there, and what it starts is a command of this package."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "container"
LINES: Final = [
    line.split(maxsplit=1)
    for line in (FOLDER / "Containerfile").read_text().replace("\\\n", "").splitlines()
    if line and not line.startswith("#")
]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in LINES if word == instruction]


def test_every_source_of_the_image_is_in_the_tree_and_is_not_ignored() -> None:
    lines = (FOLDER / "Containerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    sources = [source for copy in arguments("COPY") if "--from" not in copy for source in copy.split()[:-1]]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert set(sources) == kept


def test_the_image_has_what_the_wheel_is_built_from() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    sources = " ".join(arguments("COPY")).split()
    assert [package for package in wheel["packages"] if package.split("/")[0] not in sources] == []
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= set(sources)


def test_the_image_starts_the_command_of_the_package() -> None:
    ((program,),) = (json.loads(each) for each in arguments("ENTRYPOINT"))
    assert program in PROJECT["scripts"]
    assert not PROJECT["version"].endswith("dev")
    assert f"rocketq:{PROJECT['version']} " in (FOLDER / "Containerfile").read_text()
