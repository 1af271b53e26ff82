"""The page on notebooks: its cells run in order, inside a running loop as in a cell, and in a real kernel."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from envgym.cli.main import main
from tests.support.loops import in_a_running_loop
from tests.support.pages import ROOT, Block, blocks_of, form_of

CELLS = blocks_of("docs/notebooks.md", "python", "ipython")
(PROGRESS,) = blocks_of("docs/notebooks.md", "text")
SMALLER = {
    '"steps": 40, "checkpoint_every": 10': '"steps": 2',
    '{"num_layers": 2}': '{"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}',
    '"episodes": 2000': '"episodes": 16',
    '"until_success": 0.3': '"until_success": None',
    '"rollout": {"groups": 16, "group_size": 8}': (
        '"rollout": {"groups": 2, "group_size": 4}, "filter": {"name": "keep_all"}'
    ),
    '"tasks": 100': '"tasks": 2',
    "tasks=100": "tasks=2",
    "check library_env.py:Library": "check library_env.py:Library -n 3",
}
"""What the page says -> what a test, which learns nothing, runs instead."""
FILES = {"library_env.py", "questions.jsonl", "shelves.json", "train.yaml"}
REPORTS = {"runs/library/report.html", "runs/before/report.html", "runs/after/report.html"}
COMMAND = "!{sys.executable} -m envgym "


def smaller(code: str) -> str:
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    return code


def run_cell(block: Block, names: dict[str, Any]) -> None:
    """Run a cell without a kernel: its commands in this process; what only a kernel shows is left out."""
    code = smaller(block.text)
    first, _, rest = code.partition("\n")
    if first.startswith("%%writefile "):
        Path(first.split()[1]).write_text(rest, encoding="utf-8")
    elif block.language == "ipython":
        for line in code.splitlines():
            assert main(shlex.split(line.removeprefix(COMMAND))) == 0 if line.startswith(COMMAND) else True
    else:
        compiled = compile(code, block.where, "exec")
        in_a_running_loop(lambda: exec(compiled, names))


def test_page_says_what_the_test_makes_smaller() -> None:
    text = "".join(block.text for block in CELLS)
    assert [large for large in SMALLER if large not in text] == []


@pytest.mark.docs
def test_blocks_run_inside_a_running_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {}  # of the notebook
    for block in CELLS:
        run_cell(block, names)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == FILES
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("report.html")} == REPORTS
    assert names["episode"].reward.value == 1.0
    assert list(names["metrics"].index) == [0, 1, 2]
    assert len(names["episodes"]) == 2 * 2 * 4
    assert list(names["table"].mean(axis=0)) == [0.0, 0.0]
    assert names["table"].shape == (2, 2)


@pytest.mark.notebook
@pytest.mark.timeout(290)
def test_blocks_run_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient  # of the notebook lane
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(smaller(block.text)) for block in CELLS])
    nbclient.NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("report.html")} == REPORTS
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)
    assert "agent: " in printed
    assert "26 passed, 0 failed, 0 not checked" in printed
    assert [output for cell in notebook.cells for output in cell.outputs if output.get("name") == "stderr"] == []
    (trained, resumed), (before, after) = (shown(notebook, call) for call in ("train(", "evaluate("))
    assert [line for line in lines_of(PROGRESS.text) if line not in lines_of(f"{trained}\n{printed}")] == []
    assert "evaluation after 2 steps (held-out, 2 tasks): success " in trained.splitlines()[-1]
    assert resumed == "run directory: runs/library"
    assert before.startswith("evaluate held-out: 4/4, ")
    assert after.startswith("evaluate held-out: 4/4, ")


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in form_of(text)]


def shown(notebook: Any, call: str) -> list[str]:  # a NotebookNode
    """Return the last state of every progress display of the cells that make a call."""
    outputs = [output for cell in notebook.cells if f"envgym.{call}" in cell.source for output in cell.outputs]
    return [str(output["data"]["text/plain"]) for output in outputs if output.output_type == "display_data"]
