"""The file of settings: TOML, with one table for each kind of server.

    [broker]
    name = "broker-a"
    data_dir = "/var/lib/rocketq/broker-a"
    nameservers = ["http://10.0.0.1:9876", "http://10.0.0.2:9876"]

    [nameserver]
    port = 9876

A setting is called as its flag is, with `_` for `-`. A table or a setting that no server has is refused,
and so is a value of another type: TOML knows numbers from texts, so nothing has to be guessed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from rocketq.errors import InvalidConfiguration

#: The tables that a file may have.
SECTIONS: Final = ("broker", "nameserver", "console")


def read_table(path: Path, section: str, options: Sequence[click.Option]) -> dict[str, Any]:
    """Return the settings of one kind of server, by name; raise InvalidConfiguration.

    `options` are those that may stand in the file.
    """
    document = _document(path)
    for name, table in document.items():
        if name not in SECTIONS or not isinstance(table, dict):
            _refuse(path, name, "is not a table that servers have", _nearest(name, SECTIONS))
    table = document.get(section, {})
    known = {option.name: option for option in options if option.name is not None}
    for name, value in table.items():
        if name not in known:
            _refuse(path, f"{section}.{name}", f"the {section} has no such setting", _nearest(name, known))
        _check(path, section, known[name], value)
    return dict(table)


def _document(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidConfiguration("config", str(path), error.strerror or "it cannot be read") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfiguration("config", str(path), f"it is not TOML: {error}") from error


def _check(path: Path, section: str, option: click.Option, value: Any) -> None:
    """Refuse what the option would not take, or would take only after a guess."""
    where = f"{section}.{option.name}"
    texts = isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))
    if option.is_flag:
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(option.type, click.types.IntParamType):
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif option.multiple:
        fits, wanted = texts and not isinstance(value, str), "a list of texts"
    elif option.type.name in ("list", "percentages"):
        fits, wanted = isinstance(value, (str, list)), "a text or a list"
    else:
        fits, wanted = isinstance(value, str), "a text"
    if not fits:
        _refuse(path, where, f"{value!r} is not {wanted}")
    try:
        option.type_cast_value(click.Context(click.Command(section)), value)
    except click.BadParameter as error:
        _refuse(path, where, error.message)


def _refuse(path: Path, name: str, why: str, hint: str = "") -> None:
    raise InvalidConfiguration("config", str(path), f"{name}: {why.rstrip('.')}", hint=hint)


def _nearest(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(name.replace("-", "_"), list(known), 1)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted(known))}."
