"""The notebooks of the manual, executed from the first cell to the last."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.service.processes import ROOT, Daemon

SECONDS = 300
"""The time for a cell; the first one starts Spark."""


@pytest.mark.spark
@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own, with a Spark session of its own without settings, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "daemon").mkdir()
    (tmp_path / "work").mkdir()
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before a commit"

    with Daemon(tmp_path / "daemon") as daemon:
        monkeypatch.setenv("SYNREPL_URL", daemon.url)
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(tmp_path / "work")}},
        )
        client.execute()

    shown = [
        "".join(one.get("text", one.get("data", {}).get("text/plain", "")) for one in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    assert "(3, 1)" in shown
    assert "(4, 5)" in shown
    assert any("| @ada:h|   !b:h|      2|" in text for text in shown)
    assert "[" in shown[-1]
