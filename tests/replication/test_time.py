"""No step of a wall clock changes who is master: replication measures time by clocks that never jump."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent.parent
ROOMS: Final = (
    "broker_server/rocketq_broker/replication",
    "broker_server/rocketq_broker/replication_service",
    "broker_server/rocketq_broker/meta_register",
    "nameserver/rocketq_nameserver/meta_register",
)
#: How Python and `rocketq.clock` read the wall clock.
WALL: Final = {"now", "now_us", "time", "time_ns", "today", "utcnow", "wall_us"}


@pytest.mark.parametrize("room", ROOMS)
def test_replication_and_its_register_read_no_wall_clock(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _name(node.func) in WALL
    ]
    assert found == []


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
