"""Named clusters: `rocketq context add prod http://10.0.0.1:9876`, and every command asks that one.

    -s  >  ROCKETQ_NAMESERVERS  >  the context (ROCKETQ_CONTEXT, or that of `context use`)  >  this machine

Contexts belong to the command line of one user. They are a TOML file, `contexts.toml` in
$XDG_CONFIG_HOME/rocketq or ~/.config/rocketq, which is replaced whole. Programs do not read it: what a
program does must not depend on what somebody chose in a terminal.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import rich_click as click

from rocketq.errors import ClientError, Conflict, InvalidConfiguration

DEFAULT_NAMESERVERS: Final = "http://127.0.0.1:9876"
VARIABLE: Final = "ROCKETQ_CONTEXT"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ContextNotFound(ClientError):
    """This user has no context of that name."""

    code = "CONTEXT_NOT_FOUND"
    status = 404

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"Context {name!r} does not exist.",
            hint=f"Contexts: {', '.join(known) or 'none'}. Add one: rocketq context add NAME ADDRESSES.",
            facts={"context": name, "known": known},
        )


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts: their NameServers by name, and which one is in use; "" for none."""

    nameservers: dict[str, str] = field(default_factory=dict)
    current: str = ""

    def with_one(self, name: str, nameservers: str, *, replaces: bool) -> Contexts:
        """Return these and another one; the first one is in use at once. Raises Conflict."""
        if not _NAME.fullmatch(name):
            raise InvalidConfiguration("name", name, "use 1 to 64 of A-Z a-z 0-9 _ -")
        if name in self.nameservers and not replaces:
            raise Conflict(f"context {name!r}", "it exists already", hint="Give --replace to change it.")
        return Contexts({**self.nameservers, name: nameservers}, self.current or name)

    def using(self, name: str) -> Contexts:
        """Return these with another one in use. Raises ContextNotFound."""
        self.of(name)
        return replace(self, current=name)

    def without(self, name: str) -> Contexts:
        """Return the others. Raises ContextNotFound."""
        self.of(name)
        left = {each: servers for each, servers in self.nameservers.items() if each != name}
        return Contexts(left, "" if self.current == name else self.current)

    def of(self, name: str) -> str:
        """Return the NameServers of a context. Raises ContextNotFound."""
        if name not in self.nameservers:
            raise ContextNotFound(name, sorted(self.nameservers))
        return self.nameservers[name]


def contexts_file() -> Path:
    """Return where this user's contexts are kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "rocketq" / "contexts.toml"


def read_contexts() -> Contexts:
    """Return this user's contexts; raise InvalidConfiguration if their file cannot be read."""
    path = contexts_file()
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        named = {str(name): str(each["nameservers"]) for name, each in document.get("contexts", {}).items()}
        return Contexts(named, str(document.get("current", "")))
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfiguration(
            "contexts", str(path), f"it cannot be read: {error}", hint="Mend the file, or remove it."
        ) from error


def write_contexts(contexts: Contexts) -> None:
    """Replace the file of this user's contexts."""
    path = contexts_file()
    # Strings of JSON are strings of TOML.
    lines = [f"current = {json.dumps(contexts.current)}"]
    for name, nameservers in sorted(contexts.nameservers.items()):
        lines += ["", f"[contexts.{name}]", f"nameservers = {json.dumps(nameservers, ensure_ascii=False)}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as new:
        new.write("\n".join([*lines, ""]))
    Path(new.name).replace(path)


def chosen_nameservers() -> tuple[str, str]:
    """Return the NameServers of a command without `-s`, and where they come from."""
    given = os.environ.get("ROCKETQ_NAMESERVERS")
    if given:
        return given, "environment ROCKETQ_NAMESERVERS"
    contexts = read_contexts()
    name = os.environ.get(VARIABLE) or contexts.current
    if not name:
        return DEFAULT_NAMESERVERS, "default"
    by = f"environment {VARIABLE}" if os.environ.get(VARIABLE) else f"file {contexts_file()}"
    return contexts.of(name), f"context {name} ({by})"


def default_nameservers() -> str:
    """Return the NameServers of a command without `-s`."""
    return chosen_nameservers()[0]


def complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that begin so, for a shell's completion."""
    return [name for name in sorted(read_contexts().nameservers) if name.startswith(incomplete)]
