"""The page docs/documents.md, made from the documents of the code: `python3 dev.py pages`.

Types, defaults and bounds are what msgspec decodes by. The texts are the docstrings of the documents, and the
`#:` comments above their fields.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from rocketq.protocol.documents import (
    broker,
    groups,
    leases,
    meta_register,
    nameserver,
    replication,
    send_backs,
    sinks,
    transactions,
)
from rocketq_broker.data_plane.sends import send_json

PAGE: Final = Path(__file__).parents[2] / "docs" / "documents.md"
#: The chapters of the page, with the modules that they show.
CHAPTERS: Final[dict[str, ModuleType]] = {
    "NameServer": nameserver,
    "Sending JSON": send_json,
    "Broker": broker,
    "Consumer groups": groups,
    "Failed messages and dead letters": send_backs,
    "Message leases": leases,
    "Sinks": sinks,
    "Transactions": transactions,
    "Replication": replication,
    "Registers": meta_register,
}
#: Names of fields that are log offsets.
_LOG_OFFSETS: Final = re.compile(r"log_(begin|end|offset)|\w+_end|\w+_position")
_UNITS: Final = (
    (re.compile(r"\w*(at|since|from|to)_us"), "µs since 1970"),
    (re.compile(r"\w*_us"), "µs"),
    (re.compile(r"\w*_at_ms|timestamp_ms"), "ms since 1970"),
    (re.compile(r"\w*_ms"), "ms"),
    (re.compile(r"\w*bytes(_max)?"), "bytes"),
    (_LOG_OFFSETS, "log offset in bytes"),
)
_WORDS: Final[dict[type[types.Type], str]] = {
    types.IntType: "integer",
    types.StrType: "text",
    types.BoolType: "true or false",
    types.NoneType: "null",
}
_WIDTH: Final = 118
HEAD: Final = """\
# The documents of the protocol

The fields of every JSON document that [the calls](protocol.md) take and give, and of what these consist of.
The page is made of the classes by which the servers and the client encode and decode the documents.

- **JSON**: `integer` is a whole number of 64 bits with a sign; `text` is UTF-8; a list has any length.
- **Default**: a `required` field must be there. Another value is what counts if the field is missing. A
  field whose default is `absent` is left out if it has no value.
- A broker refuses a request with a field that the document does not have; a NameServer ignores it. Readers
  of answers ignore fields that they do not know: a later version may add some.
"""


def written() -> str:
    """Return the whole page."""
    return f"{HEAD}\n{_documents()}\n"


def titles() -> dict[type, str]:
    """Return the heading of every document; the chapter tells apart what has one name."""
    chapters = {each: chapter for chapter, each in _all()}
    names = Counter(each.__name__ for each in chapters)
    return {
        each: each.__name__ if names[each.__name__] == 1 else f"{each.__name__} ({chapter})"
        for each, chapter in chapters.items()
    }


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _all() -> Iterator[tuple[str, type]]:
    """Yield each document with its chapter: those of a module, and before them what else they consist of."""
    seen: set[type] = set()
    for chapter, module in CHAPTERS.items():
        found = [each for each in vars(module).values() if _is_document(each)]
        for each in (one for one in found if one.__module__ == module.__name__):
            for part in (*_parts(types.type_info(each)), each):
                if part not in seen:
                    seen.add(part)
                    yield chapter, part


def _is_document(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, msgspec.Struct)


def _parts(of: types.Type) -> Iterator[type]:
    """Yield what a type has of documents and enumerations, the inner ones first."""
    for inner in _inner_types(of):
        yield from _parts(inner)
        if isinstance(inner, types.EnumType | types.StructType | types.DataclassType):
            yield inner.cls


def _inner_types(of: types.Type) -> Iterator[types.Type]:
    match of:
        case types.StructType() | types.DataclassType():
            yield from (each.type for each in of.fields)
        case types.VarTupleType() | types.ListType():
            yield of.item_type
        case types.DictType():
            yield of.value_type
        case types.UnionType():
            yield from of.types


def _documents() -> str:
    heads = titles()
    lines: list[str] = []
    last = ""
    for chapter, each in _all():
        if chapter != last:
            lines += [f"## {chapter}", ""]
            last = chapter
        lines += [f"### {heads[each]}", "", *_description(each), ""]
        lines += [*(_values(each) if issubclass(each, Enum) else _fields(each, heads)), ""]
    return "\n".join(lines).rstrip()


def _description(document: type) -> list[str]:
    text = inspect.cleandoc(document.__doc__ or "")
    return [
        line
        for paragraph in text.split("\n\n")
        for line in ("", *textwrap.wrap(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False))
    ][1:]


def _values(document: type[Enum]) -> list[str]:
    said = _comments(document)
    if not any(said.values()):
        return [f"One of {', '.join(f'`{each.value}`' for each in document)}."]
    rows = [f"| `{each.value}` | {said.get(each.name, '')} |" for each in document]
    return ["| Value | Meaning |", "|---|---|", *rows]


def _fields(document: type, heads: dict[type, str]) -> list[str]:
    shape = types.type_info(document)
    assert isinstance(shape, types.StructType | types.DataclassType)
    said = _comments(document)
    rows = [["Field", "JSON", "Unit", "Default", ""]]
    rows += [
        [
            f"`{each.encode_name}`",
            _kind(each.type, heads),
            _unit(each),
            _default(each),
            said.get(each.name, ""),
        ]
        for each in shape.fields
    ]
    # A column in which no field has anything is left out.
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in zip(*kept, strict=True)]
    return [lines[0], "|" + "---|" * len(kept), *lines[1:]]


def _kind(of: types.Type, heads: dict[type, str]) -> str:
    match of:
        case types.EnumType() | types.StructType() | types.DataclassType():
            return f"[{heads[of.cls]}](#{anchor(heads[of.cls])})"
        case types.VarTupleType() | types.ListType():
            return f"list of {_kind(of.item_type, heads)}"
        case types.DictType():
            return f"object: {_kind(of.key_type, heads)} → {_kind(of.value_type, heads)}"
        case types.UnionType():
            return " or ".join(_kind(each, heads) for each in of.types)
    assert type(of) in _WORDS, f"the page has no word for {of}"
    return _WORDS[type(of)]


def _unit(field: types.Field) -> str:
    numeric = [each for each in (field.type, *_inner_types(field.type)) if isinstance(each, types.IntType)]
    found = [unit for names, unit in _UNITS if names.fullmatch(field.name)]
    return found[0] if numeric and found else ""


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return _shown(field.default_factory())
    return "absent" if field.default in (msgspec.UNSET, msgspec.NODEFAULT) else _shown(field.default)


def _shown(value: Any) -> str:
    return f"`{msgspec.json.encode(value).decode()}`"


def _comments(document: type) -> dict[str, str]:
    """Return what stands in `#:` comments above the fields or the values of a class."""
    said: dict[str, str] = {}
    for kind in reversed(document.__mro__):
        if kind.__module__.startswith("rocketq"):
            said.update(_own_comments(kind))
    return said


def _own_comments(document: type) -> dict[str, str]:
    lines = textwrap.dedent(inspect.getsource(document)).splitlines()
    (tree,) = ast.parse("\n".join(lines)).body
    assert isinstance(tree, ast.ClassDef)
    said: dict[str, str] = {}
    for each in tree.body:
        targets = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
        for target in (one for one in targets if isinstance(one, ast.Name)):
            above: list[str] = []
            number = each.lineno - 2
            while lines[number].strip().startswith("#:"):
                above.insert(0, lines[number].strip().removeprefix("#:").strip())
                number -= 1
            said[target.id] = " ".join(above).replace("|", "\\|")
    return said


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
