"""The style as a test: small files, small functions, headers, directions of import, nothing dead."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rocketq.cli.commands import COMMANDS

ROOT: Final = Path(__file__).parent.parent
SOURCE_ROOTS: Final = ("connector", "broker_server", "nameserver")
MODULE_LINES_MAX: Final = 500
FUNCTION_LINES_MAX: Final = 60
TEST_NAME_MAX: Final = 80
#: Underscored names of Python and PySpark that have no public counterpart.
NOT_OURS: Final = {"_exit", "_getframe", "_replace", "_jvm", "_jsc"}
BANNED_NAMES: Final = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
#: Run by name: `python -m`, the console script, or Spark's own search.
ENTRY_POINTS: Final = {
    "pyspark_rocketq",
    "pyspark_rocketq.demo.__main__",
    "pyspark_rocketq.session.java",
    "rocketq",
    "rocketq.cli.main",
    "rocketq.console.__main__",
    "rocketq.testing.fixtures",
    "rocketq_broker.__main__",
    "rocketq_broker.salvage",
    "rocketq_nameserver.__main__",
}


def modules() -> dict[str, Path]:
    """Every module of the product, by its import name."""
    found = {}
    for base in SOURCE_ROOTS:
        for path in sorted((ROOT / base).rglob("*.py")):
            parts = path.relative_to(ROOT / base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def sources() -> list[Path]:
    """Every Python file of ours: product, tests, benchmarks, tools."""
    folders = [*SOURCE_ROOTS, "tests", "benchmarks", "requirements"]
    return [ROOT / "dev.py", *(p for folder in folders for p in sorted((ROOT / folder).rglob("*.py")))]


MODULES: Final = modules()


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_is_small_and_its_functions_fit_a_screen(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    long = [
        f"{node.name}: {length}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := _lines(node)) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_and_defers_annotations(name: str) -> None:
    text = MODULES[name].read_text()
    tree = ast.parse(text)
    if not tree.body:
        return
    assert ast.get_docstring(tree), "the header is the design; write one"
    only_docstring = len(tree.body) == 1
    assert only_docstring or "from __future__ import annotations" in text


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_named_for_what_it_is(name: str) -> None:
    assert not BANNED_NAMES & set(name.split("."))


def test_no_module_is_dead() -> None:
    imported = {name for path in MODULES.values() for name in _imports(path)}
    ancestors = {name.rsplit(".", 1)[0] for name in MODULES if "." in name}
    commands = {each.place.split(":")[0] for each in COMMANDS}
    dead = set(MODULES) - imported - commands - ENTRY_POINTS - ancestors
    assert not dead, "no other module of the product imports these"


def test_no_work_is_left_as_a_mark_in_the_code() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
    marked = [str(path) for path in MODULES.values() if marks.search(path.read_text())]
    assert not marked


def test_no_error_is_swallowed() -> None:
    swallowing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body)
    ]
    assert not swallowing, "say what an error means here, or let it pass on"


@pytest.mark.parametrize(
    "package", ["rocketq", "pyspark_rocketq", "rocketq.cli.main", "rocketq.local_cluster"]
)
def test_clients_load_no_web_framework(package: str) -> None:
    loaded = _loaded_by(package)
    assert not {"fastapi", "starlette", "uvicorn", "pydantic"} & loaded


def test_the_command_line_is_there_at_once() -> None:
    heavy = {"pyarrow", "numpy", "pandas", "pyspark", "urllib3"}
    assert not heavy & _loaded_by("rocketq.cli.main")


def test_every_public_name_of_rocketq_is_there_and_listed() -> None:
    import rocketq

    for name in rocketq.__all__:
        assert getattr(rocketq, name).__class__ is not None
    assert set(rocketq.__all__) <= set(dir(rocketq))
    with pytest.raises(AttributeError):
        rocketq.no_such_name  # noqa: B018


def test_tests_look_at_no_private_attribute() -> None:
    looks = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and re.match("_[a-z]", node.attr)
        and node.attr not in NOT_OURS
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    ]
    assert not looks, "test what callers see"


def test_the_name_of_a_test_is_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and len(node.name) > TEST_NAME_MAX
    ]
    assert not long


def test_every_test_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").exists()]


def _loaded_by(module: str) -> set[str]:
    script = f"import {module}, sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code: the signature and docstring are not what makes a function long."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _imports(path: Path) -> Iterator[str]:
    """The names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
