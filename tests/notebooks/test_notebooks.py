"""Every notebook runs from top to bottom, in a kernel of its own, and is committed without output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER: Final = Path(__file__).parent.parent.parent / "notebooks"
NOTEBOOKS: Final = sorted(FOLDER.glob("*.ipynb"))
CELL_TIMEOUT_S: Final = 540
#: Those that take a minute or more on a busy machine: they belong to `make test-slow`.
SLOW: Final = {"02_streaming_aggregation", "03_exactly_once", "05_failover", "06_performance"}
RUNS: Final = [
    pytest.param(path, marks=pytest.mark.slow if path.stem in SLOW else (), id=path.stem)
    for path in NOTEBOOKS
]


def test_there_is_a_quickstart() -> None:
    assert FOLDER / "01_quickstart.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_committed_without_output_and_ends_in_checks(path: Path) -> None:
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert not [cell.id for cell in code if cell.outputs or cell.execution_count is not None]
    assert any(line.startswith("assert ") for cell in code for line in cell.source.splitlines())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_begins_with_its_title_and_has_no_other(path: Path) -> None:
    text = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    titles = [line for source in text for line in source.splitlines() if line.startswith("# ")]
    assert titles == [text[0].splitlines()[0]]


def test_every_notebook_is_listed() -> None:
    page = (FOLDER.parent / "docs" / "notebooks.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"(../notebooks/{path.name})" not in page] == []


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", RUNS)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel must be this interpreter, whatever kernels the user has registered.
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    plots = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert plots, "a notebook shows a plot"
