"""Which tests run in the same process when pytest-xdist runs several, and in what order they begin.

Tests of one file share servers, so a file is handed out as a whole. All tests that use the session `spark`
are handed out as one: a JVM takes seconds to start, and minutes to become fast. So are the files whose tests
start a JVM of their own: Spark gives a Python worker ten seconds to start, which many JVMs at a time use up.

`--dist loadgroup` does not do it: xdist 3.8 appends the group to a test's id, and pytest 9.2 drops it.
Each test is then handed out alone, without a word, and servers are started again and again.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Folders whose tests need no process but their own: they are short, and fill the gaps in the end.
SHORT: Final = {"filters", "golden", "http_server", "nameserver", "protocol", "store"}


def turn(item: pytest.Item) -> int:
    """What takes long begins first, so that no process works alone in the end: Spark, then servers."""
    if "spark" in getattr(item, "fixturenames", ()):
        return 0
    if item.get_closest_marker("spark") is not None:
        return 1
    return 3 if SHORT.intersection(item.path.parts) else 2


@cache
def tests_of_spark(path: Path) -> frozenset[str]:
    """The functions of a file that have an argument `spark`, or a fixture of the file that has one."""
    found = {"spark"}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and found.intersection(name.arg for name in node.args.args):
            found.add(node.name)
    return frozenset(found)


@cache
def starts_a_jvm(path: Path) -> bool:
    """Whether tests of a file are marked as such that need Spark."""
    return "pytest.mark.spark" in path.read_text()


class Scheduling(LoadScopeScheduling):
    """Hands out files in the order of their first tests, and two groups of those that need Spark."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        path = self.config.rootpath / file
        if name.partition("[")[0] in tests_of_spark(path):
            return "session"
        return "jvm" if starts_a_jvm(path) else file
