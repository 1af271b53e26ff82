"""The README's Python runs as it stands, and the files it points to exist."""

import re
from pathlib import Path

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
