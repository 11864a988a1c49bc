"""A server's options, and where the value of each comes from.

    a flag  >  an environment variable  >  the file that --config names  >  the default

click resolves this order and knows the source of each value, so there is one table of options for `--help`,
the environment, the file, `--show-config` and the configuration page. A variable is called
ROCKETQ_BROKER_RETENTION_MS or ROCKETQ_NAMESERVER_PORT. No file is read that was not named: what a server
does must not depend on the directory in which it was started.

    read(argv)            the settings, or an error of click
    run(argv, prepare)    the life of a server process: `prepare` checks and binds, and returns what serves.
                          Everything that is refused before that is exit code 2, with the value's origin
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from rocketq.errors import ExtraMissing, InvalidConfiguration
from rocketq.http_server.settings.config_file import read_table
from rocketq.http_server.settings.option_types import CommaList

CONFIG_VARIABLE: Final = "ROCKETQ_CONFIG"
#: The exit code of a server for settings that it cannot use.
MISUSED: Final = 2
#: The origin of a value that nobody gave.
DEFAULT: Final = "default"
FORMATS: Final = ("table", "json", "jsonl")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "text", "json")


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of each option by its name, and of each setting in words where it came from."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    #: Variables that look like settings of this server and are none.
    unknown_variables: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return every setting as `--show-config` shows it."""
        return [
            {"setting": name, "value": _shown(self.values[name]), "origin": origin}
            for name, origin in self.origins.items()
        ]

    def needed(self, *names: str) -> None:
        """Raise InvalidConfiguration for the first of these that has no value."""
        for name in names:
            if self.values[name] is None:
                flag = f"--{name.replace('_', '-')}"
                raise InvalidConfiguration(name, "", "it is needed, and has no default", hint=f"Give {flag}.")


class ServerCommand(click.Command):
    """The options of one kind of server; `section` names its table in a file and its variables."""

    def __init__(self, section: str, about: str, options: Sequence[click.Option]) -> None:
        self.section = section
        self.prefix = f"ROCKETQ_{section.upper()}"
        super().__init__(
            f"rocketq_{section}",
            params=[*options, *_common_options(self._take_file)],
            help=about,
            context_settings={
                "auto_envvar_prefix": self.prefix,
                "help_option_names": ["-h", "--help"],
                "show_default": True,
            },
        )

    @property
    def settings(self) -> list[click.Option]:
        """The options that a variable or a file may give; the others say how this one process is started."""
        return [each for each in self.params if isinstance(each, click.Option) and each.allow_from_autoenv]

    def variable(self, option: click.Option) -> str:
        """Return the name of the environment variable of an option."""
        return f"{self.prefix}_{str(option.name).upper()}"

    def read(self, argv: Sequence[str]) -> Settings:
        """Return the settings; raise InvalidConfiguration, or click's errors and `Exit` after `--help`."""
        try:
            context = self.make_context(str(self.name), list(argv))
        except click.BadParameter as error:
            raise self._with_origin(error) from None
        origins = {str(each.name): self._origin(context, each) for each in self.settings}
        return Settings(context.params, origins, self._unknown_variables())

    def run(self, argv: Sequence[str] | None, prepare: Callable[[Settings], Callable[[], int]]) -> int:
        """Read the settings, have the server prepared and run it; return the exit code of the process."""
        given = sys.argv[1:] if argv is None else list(argv)
        settings: Settings | None = None
        try:
            settings = self.read(given)
            serve = prepare(settings)
        except click.exceptions.Exit as asked:
            return asked.exit_code
        except click.ClickException as error:
            error.show()
            return MISUSED
        except InvalidConfiguration as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            origin = settings.origins.get(error.facts["name"], "") if settings else ""
            if origin not in ("", DEFAULT):
                print(f"  {error.facts['name']} comes from: {origin}", file=sys.stderr)
            return MISUSED
        except ExtraMissing as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return MISUSED
        return serve()

    def _take_file(self, context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
        """Have click take what the file says before the defaults."""
        if path is not None:
            context.default_map = read_table(path, self.section, self.settings)
            context.obj = path
        return path

    def _with_origin(self, error: click.BadParameter) -> click.BadParameter:
        """Return the error with the name of the variable, which click does not tell."""
        context, option = error.ctx, error.param
        if context is not None and isinstance(option, click.Option):
            source = context.get_parameter_source(str(option.name))
            if source is ParameterSource.ENVIRONMENT:
                told = f"{error.message} It comes from: {self._origin(context, option)}."
                return click.BadParameter(told, context, option)
        return error

    def _origin(self, context: click.Context, option: click.Option) -> str:
        source = context.get_parameter_source(str(option.name))
        if source is ParameterSource.COMMANDLINE:
            return f"flag {option.opts[0]}"
        if source is ParameterSource.ENVIRONMENT:
            names = option.envvar if isinstance(option.envvar, list) else [self.variable(option)]
            return f"environment {next(name for name in names if os.environ.get(name))}"
        if source is ParameterSource.DEFAULT_MAP:
            return f"file {context.obj} [{self.section}]"
        return DEFAULT

    def _unknown_variables(self) -> tuple[str, ...]:
        known = {self.variable(each) for each in self.settings}
        return tuple(sorted(n for n in os.environ if n.startswith(f"{self.prefix}_") and n not in known))


def option(*declarations: str, **attributes: Any) -> click.Option:
    """Return one option that a flag, a variable and a file can give."""
    return click.Option(declarations, show_envvar=True, **attributes)


def nameservers_option(section: str) -> click.Option:
    """The addresses of the NameServers; the clients' variable counts where the server's own is not set."""
    return option(
        "--nameservers",
        type=CommaList("URL[,URL…]"),
        default=(),
        envvar=[f"ROCKETQ_{section.upper()}_NAMESERVERS", "ROCKETQ_NAMESERVERS"],
        help="NameServers to register with.",
    )


def write_settings(settings: Settings, form: str) -> None:
    """Write the settings and their origins to stdout."""
    rows = settings.rows()
    if form == "json":
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif form == "jsonl":
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    else:
        cells = [["SETTING", "VALUE", "ORIGIN"], *([_cell(v) for v in row.values()] for row in rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(3)]
        for line in cells:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _common_options(take_file: Callable[..., Any]) -> list[click.Option]:
    return [
        option(
            "--log-level", type=click.Choice(LOG_LEVELS), default="info", help="The least that is logged."
        ),
        option(
            "--log-format", type=click.Choice(LOG_FORMATS), default="auto",
            help="How log lines are written to stderr; auto: text on a terminal, otherwise JSON.",
        ),
        click.Option(
            ["--config"], type=click.Path(path_type=Path), is_eager=True, callback=take_file,
            envvar=CONFIG_VARIABLE, show_envvar=True, allow_from_autoenv=False, metavar="FILE",
            help="A TOML file of settings.",
        ),
        click.Option(
            ["--show-config"], type=click.Choice(FORMATS), allow_from_autoenv=False,
            help="Show every setting with its origin, and end.",
        ),
        click.Option(
            ["--parent-pid"], type=int, default=0, allow_from_autoenv=False,
            help="End when this process is gone.",
        ),
    ]  # fmt: skip


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, Path) else value


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None or value == "" else str(value)
