"""Runs the notebooks of the docs. ``python -m tests.docs.notebooks`` writes what their cells print into them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.checkout import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def executed(notebook: Path, folder: Path) -> Any:
    """Return a notebook as it is after all cells ran, in order, in a kernel whose folder is `folder`."""
    cells = nbformat.read(notebook, as_version=4)
    NotebookClient(cells, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    for cell in cells.cells:
        cell.metadata.pop("execution", None)  # when it ran
    return cells


def texts(cells: Any) -> list[str]:
    """Return what each cell of code shows, as text."""
    return [
        "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in cells.cells
        if cell.cell_type == "code"
    ]


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(executed(path, Path(tempfile.mkdtemp())), path)
