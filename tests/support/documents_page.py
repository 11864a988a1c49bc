"""The page docs/documents.md, made from the documents of the protocol: `python3 dev.py pages`."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

PAGE: Final = Path(__file__).parents[2] / "docs" / "documents.md"
#: The modules of documents, and what their part of the page is called.
PARTS: Final = {
    "nameserver": "NameServer",
    "broker": "Broker: messages, offsets, topics",
    "groups": "Consumer groups",
    "send_backs": "Failed messages",
    "leases": "Message leases",
    "sinks": "Sinks",
    "transactions": "Transactions",
    "replication": "Replication",
    "meta_register": "Registers",
}
SHARED: Final = "Used by several"
HEAD: Final = """\
# The documents of the protocol

The JSON documents that [the calls](protocol.md) take and give, field by field. A field without a default
must be there; one with a default may be missing. *Integer* is a whole number of 64 bits with a sign. *Or
null*: the field may have the value `null`. Readers ignore fields that they
do not know, so that a later version may add some; sends and calls that change a topic refuse them. Names end with their unit:
`_us` microseconds, `_ms` milliseconds, `_bytes`.

The tables are made of the classes in `rocketq/protocol/documents`.
"""


class Named:
    """What has a section of its own: where it stands, and what it says."""

    def __init__(self) -> None:
        self.parts: dict[str, list[type]] = {title: [] for title in [*PARTS.values(), SHARED]}
        self._known: set[type] = set()
        for module, title in PARTS.items():
            for kind in vars(import_module(f"rocketq.protocol.documents.{module}")).values():
                is_own = inspect.isclass(kind) and kind.__module__.endswith(f"documents.{module}")
                if is_own and issubclass(kind, msgspec.Struct | Enum):
                    self._add(kind, title)
        for title in list(PARTS.values()):
            for kind in self.parts[title]:
                self._add_used(kind)

    def _add(self, kind: type, title: str) -> None:
        if kind not in self._known and kind.__doc__:
            self._known.add(kind)
            self.parts[title].append(kind)

    def _add_used(self, kind: type) -> None:
        """Add what a document consists of and no module of documents has."""
        for hint in _fields_of(kind):
            for used in _classes_in(hint[1]):
                if used not in self._known:
                    self._add(used, SHARED)
                    self._add_used(used)


def _classes_in(hint: Any) -> list[type]:
    found = [each for arg in typing.get_args(hint) for each in _classes_in(arg)]
    if inspect.isclass(hint) and (issubclass(hint, msgspec.Struct | Enum) or dataclasses.is_dataclass(hint)):
        found.append(hint)
    return found


def _fields_of(kind: type) -> list[tuple[str, Any, str]]:
    """Return the name, the type and the default of each field."""
    if issubclass(kind, Enum):
        return []
    hints = typing.get_type_hints(kind)
    found = []
    if issubclass(kind, msgspec.Struct):
        for one in msgspec.structs.fields(kind):
            made = None if one.default_factory is msgspec.NODEFAULT else one.default_factory()
            default = one.default if one.default is not msgspec.NODEFAULT else made
            found.append((one.encode_name, hints[one.name], "" if one.required else _shown(default)))
        return found
    for each in dataclasses.fields(kind):
        required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        default = each.default if each.default is not dataclasses.MISSING else []
        found.append((each.name, hints[each.name], "" if required else _shown(default)))
    return found


def _shown(default: Any) -> str:
    if default is msgspec.UNSET:
        return "left out"
    if isinstance(default, Enum):
        default = default.value
    return f"`{msgspec.json.encode(default).decode()}`"


def kind_of(hint: Any) -> str:
    """Say in words which JSON a type is."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind_of(arg) for arg in args if arg is not msgspec.UnsetType)
    if origin in (tuple, list, frozenset, set) or "Sequence" in str(origin):
        inner = [arg for arg in args if arg is not Ellipsis]
        if origin is tuple and Ellipsis not in args:
            return f"list of {len(inner)}: {', '.join(map(kind_of, inner))}"
        return f"list of {kind_of(inner[0])}"
    if origin in (dict,) or "Mapping" in str(origin):
        return f"object: {kind_of(args[1])} by {kind_of(args[0])}"
    if origin is typing.Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is typing.Annotated:
        return kind_of(args[0])
    words = {
        int: "integer",
        str: "text",
        bool: "true, false",
        float: "number",
        type(None): "null",
        Any: "any",
    }
    if hint in words:
        return words[hint]
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


def section(kind: type) -> str:
    """Return what the page says of one document."""
    lines = [f"### {kind.__name__}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
    if issubclass(kind, Enum):
        return "\n".join([*lines, f"One of {', '.join(f'`{each.value}`' for each in kind)}.", ""])
    lines += ["| Field | JSON | Default |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind_of(hint)} | {default} |" for name, hint, default in _fields_of(kind)]
    return "\n".join([*lines, ""])


def written() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for title, kinds in Named().parts.items():
        lines.append(f"## {title}\n")
        lines += [section(kind) for kind in kinds]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
