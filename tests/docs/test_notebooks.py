"""The page on notebooks: its blocks run in order, inside a running loop as in a cell, and in a real kernel."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.loops import in_a_running_loop

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "notebooks.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
FILES = {"runs/first/report.html", "runs/first-eval/report.html"}


def test_blocks_run_inside_a_running_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}  # of the notebook
    for block in BLOCKS:
        code = compile(block, "notebooks.md", "exec")
        in_a_running_loop(lambda code=code: exec(code, names))  # type: ignore[misc]  # a lambda's default has no type
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("report.html")} == FILES
    assert len(names["metrics"]) == 2
    assert len(names["episodes"]) == 2 * 2 * 4
    assert names["rewards"].shape == (3, 2)


@pytest.mark.notebook
@pytest.mark.timeout(290)
def test_blocks_run_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient  # of the notebook lane
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in BLOCKS])
    nbclient.NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("report.html")} == FILES
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    assert "agent: " in printed[1]
    assert [output for cell in notebook.cells for output in cell.outputs if output.get("name") == "stderr"] == []
    trained, measured = (shown_progress(notebook.cells[number]) for number in (2, 3))
    assert "step    2/2  success " in trained
    assert "evaluation after 2 steps (held-out, 2 tasks): success " in trained.splitlines()[-1]
    assert measured.startswith("evaluate held-out: 6/6, ")


def shown_progress(cell: Any) -> str:  # a NotebookNode
    """Return the last state of the one display that a cell has."""
    (text,) = [output["data"]["text/plain"] for output in cell.outputs if output.output_type == "display_data"]
    return str(text)
