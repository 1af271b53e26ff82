"""The page on losses: it names every loss with its settings."""

import re
from pathlib import Path

from tests.support.plugins import LOSSES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")


def test_every_loss_is_named_with_its_settings() -> None:
    table = TEXT[TEXT.index("| `loss.name` |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table]
    named = {row[0].strip(" `"): re.findall(r"`(\w+)`", row[3]) for row in cells}
    assert sorted(named) == sorted(LOSSES)
    for name, build in LOSSES.items():
        assert set(named[name]) == set(type(build()).model_fields), name  # type: ignore[attr-defined]  # all are settings
