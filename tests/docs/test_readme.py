"""The README: its links lead somewhere, its installation is pinned, and a second demo goes on with the first."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_a_second_demo_goes_on_with_the_first(tmp_path: Path) -> None:
    def command() -> str:
        (tmp_path / "venv").mkdir(exist_ok=True)
        asked = ["make", "-n", "--no-print-directory", "-f", str(ROOT / "Makefile"), "demo"]
        asked += [f"VENV={tmp_path}/venv", "STAMP="]
        return subprocess.run(asked, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.splitlines()[-1]

    assert command().endswith("envgym train examples/demo.yaml ")
    (tmp_path / "runs/demo").mkdir(parents=True)
    assert command().endswith("envgym train examples/demo.yaml --resume")
