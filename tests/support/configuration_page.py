"""The tables of docs/configuration.md, made from the options of the servers: `python3 dev.py pages`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from rocketq.console.console_options import COMMAND as CONSOLE
from rocketq.http_server.settings.server_command import ServerCommand
from rocketq_broker.broker_options import COMMAND as BROKER
from rocketq_nameserver.nameserver_options import COMMAND as NAMESERVER

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
TABLES: Final = {"broker": BROKER, "nameserver": NAMESERVER, "console": CONSOLE}


def table(command: ServerCommand) -> str:
    """Return the settings of one server as a table: what they are called, their kind, default and meaning."""
    lines = ["| Setting | Kind | Default | |", "|---|---|---|---|"]
    lines += [
        f"| `{each.name}` | {_kind(each)} | {_default(each)} | {str(each.help).replace('|', '&#124;')} |"
        for each in command.settings
    ]
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with the tables as they should be; each stands between two marks."""
    for name, command in TABLES.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
        assert len(pattern.findall(page)) == 1, begin
        page = page.replace(pattern.findall(page)[0], f"{begin}\n{table(command)}\n{end}")
    return page


def _kind(option: click.Option) -> str:
    if option.is_flag:
        return "true, false"
    if isinstance(option.type, click.Choice):
        return ", ".join(map(str, option.type.choices))
    if option.multiple or option.type.name == "list":
        return "list"
    return {"integer": "number", "text": "text", "path": "path"}.get(option.type.name, option.type.name)


def _default(option: click.Option) -> str:
    value = option.default
    if option.is_flag:
        return "true" if value is True else "false"
    given = value not in (None, "", ()) and "UNSET" not in repr(value).upper()
    if not given:
        return ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
