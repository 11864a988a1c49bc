"""A table fits its terminal without cutting a cell."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from rocketq.cli.terminal.table_layout import Layout, layout_of

TITLES = ["topic", "broker", "queues"]
ROWS = [["orders", "broker-a", "4"], ["orders", "broker-b", "4"]]


def test_what_fits_is_a_whole_table() -> None:
    # Three columns of 6, 8 and 6 letters, a rule and two blanks each, and the last rule.
    assert layout_of(TITLES, ROWS, 30) == Layout((0, 1, 2))


def test_columns_that_say_the_same_in_each_row_are_said_once() -> None:
    assert layout_of(TITLES, ROWS, 29) == Layout((0, 1), same=(2,))


def test_rows_that_still_do_not_fit_become_blocks() -> None:
    assert layout_of(TITLES, ROWS, 20) == Layout((0, 1, 2), as_blocks=True)
    assert layout_of(TITLES, ROWS[:1], 29) == Layout((0, 1, 2), as_blocks=True)


@given(st.lists(st.lists(st.text("ab", max_size=6), min_size=3, max_size=3), max_size=5), st.integers(1, 60))
def test_every_column_is_shown_or_said(rows: list[list[str]], width: int) -> None:
    found = layout_of(TITLES, rows, width)
    assert sorted((*found.columns, *found.same)) == [0, 1, 2]
    assert all(len({row[n] for row in rows}) == 1 for n in found.same)


def test_a_terminal_of_80_columns_shows_every_name_in_full() -> None:
    """The whole way, on a real terminal."""
    show = (
        "from rocketq.cli.terminal.output import show; show("
        "[{'topic': 'a-topic-with-a-long-name', 'broker': f'broker-{n}', 'read queues': 4, 'write queues': 4,"
        " 'address': 'http://127.0.0.1:10911'} for n in 'ab'], 'table')"
    )
    here, there = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    said = b""
    with subprocess.Popen(
        [sys.executable, "-c", show], stdout=there, stderr=there, env=environment
    ) as process:
        os.close(there)
        while True:
            try:
                piece = os.read(here, 4096)
            except OSError:  # Linux's way to say that the other side is closed.
                break
            if not piece:
                break
            said += piece
    os.close(here)
    assert process.returncode == 0
    text = said.decode()
    assert "…" not in text
    assert "a-topic-with-a-long-name" in text
    assert "broker-a" in text
    assert "broker-b" in text
    assert "read queues 4" in text
