"""The page on recipes: its tables are what the recipes choose, and its settings can be set."""

import re
from pathlib import Path

from envgym.settings import apply_overrides
from envgym.trainer.build import build_method
from envgym.trainer.catalog import RECIPE
from envgym.trainer.settings import recipe_settings, train_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_table_is_what_the_recipes_choose() -> None:
    header, _, *rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in TEXT.split("```")[0].splitlines()
        if line.startswith("|")
    ]
    assert header[1:] == list(RECIPE.table)
    for point, *cells in rows:
        if point == "objective.aggregation":
            chosen = [recipe_settings(name).objective.aggregation.name for name in RECIPE.table]
        else:
            chosen = [getattr(recipe_settings(name), point).name for name in RECIPE.table]
        assert cells == chosen, point
    assert len(rows) == 8


def test_every_recipe_is_described() -> None:
    assert re.findall(r"^\*\*`(\w+)`\*\*", TEXT, re.MULTILINE) == list(RECIPE.table)


def test_compositions_can_be_set() -> None:
    rows = [line for line in TEXT.splitlines() if re.match(r"\| .* \| `\w+\.\w+=", line)]
    assert len(rows) == 8
    for row in rows:
        overrides = re.findall(r"`([\w.]+=[^`]+)`", row)
        build_method(train_settings(apply_overrides({"envs": [{"id": "math/arithmetic-v0"}]}, overrides)))
