"""The README's Python runs as it stands, and the files it points to exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from envgym.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_of_the_readme_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # its assertions are the test


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert targets
    assert missing == []


def test_installation_by_hand_is_in_an_environment_of_its_own_and_pinned() -> None:
    (block,) = (
        block for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) if "pip" in block
    )
    first, *rest = block.splitlines()
    assert first == "python3 -m venv .venv && source .venv/bin/activate"
    assert all("--no-deps" in line or "-c constraints/core.txt" in line for line in rest)
    assert "torch==" in (ROOT / "constraints/core.txt").read_text(encoding="utf-8")


def tour(title: str) -> list[str]:
    """Return the commands of the shell block that contains a text."""
    (block,) = (
        block for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) if title in block
    )
    return [line.partition(" #")[0].strip() for line in block.splitlines()]


@pytest.mark.slow
def test_every_line_of_the_tour_runs_after_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo as it is shipped, made smaller; counts of tasks are made smaller too."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    small = yaml.safe_load(Path("examples/demo.yaml").read_text(encoding="utf-8"))
    small["run"]["steps"] = 1
    small["model"]["tiny"] = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}
    small["sft"]["episodes"] = small["sft"]["next"]["episodes"] = 8
    small["rollout"] = {"groups": 2, "group_size": 2}
    small["evaluation"]["tasks"] = 4
    Path("examples/demo.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")
    assert main(["train", "examples/demo.yaml"]) == 0
    lines = tour("--dry-run")
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(line.replace("--tasks 300", "--tasks 3"))
        assert words[0] == "envgym"
        assert main(words[1:]) == 0, line
    assert Path("runs/demo/report.html").exists()
    assert Path("runs/demo-1/report.html").exists()


def test_a_second_demo_goes_on_with_the_first(tmp_path: Path) -> None:
    def command() -> str:
        (tmp_path / "venv").mkdir(exist_ok=True)
        asked = ["make", "-n", "--no-print-directory", "-f", str(ROOT / "Makefile"), "demo"]
        asked += [f"VENV={tmp_path}/venv", "STAMP="]
        return subprocess.run(asked, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.splitlines()[-1]

    assert command().endswith("envgym train examples/demo.yaml ")
    (tmp_path / "runs/demo").mkdir(parents=True)
    assert command().endswith("envgym train examples/demo.yaml --resume")
