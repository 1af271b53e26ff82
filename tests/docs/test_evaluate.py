"""The page on evaluation: its program runs, and its numbers are those of the statistics."""

import re
import runpy
from pathlib import Path

import pytest

from envgym.report.from_run import declare

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evaluate.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.docs
def test_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, text),) = re.findall(r'^```python title="([^"]*)"\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE)
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(name, run_name="__main__")
    assert (tmp_path / "runs/measured/report.html").exists()


def test_table_of_resolutions_is_computed() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) points \| ([\d.]+) points \|$", TEXT, re.MULTILINE)
    assert len(rows) == 3
    for tasks, one, four in rows:
        for samples, told in ((1, one), (4, four)):
            effect = declare(int(tasks), samples).minimum_detectable_effect
            assert float(told) == round(100 * effect, 1)
