"""The page on recipes: its tables are what the recipes choose, and its settings can be set."""

import re
from operator import attrgetter
from pathlib import Path

import yaml

from envgym.settings import apply_overrides, read_value
from envgym.trainer.catalog import RECIPE
from envgym.trainer.method import build_method
from envgym.trainer.settings import recipe_settings, train_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_table_is_what_the_recipes_choose() -> None:
    header, _, *rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in TEXT[TEXT.index("| recipe |") :].split("\n\n")[0].splitlines()
    ]
    points = header[1:]
    assert [name for name, *_ in rows] == list(RECIPE.table)
    assert points == [
        *("curriculum", "search", "filter", "shaping", "credit", "loss", "correction"),
        "objective.aggregation",
    ]
    for name, *cells in rows:
        chosen = recipe_settings(name)
        assert cells == [attrgetter(f"{point}.name")(chosen) for point in points], name


def test_every_recipe_is_described() -> None:
    assert re.findall(r"^\*\*`(\w+)`\*\*", TEXT, re.MULTILINE) == list(RECIPE.table)


def test_compositions_can_be_set() -> None:
    rows = [line for line in TEXT.splitlines() if re.match(r"\| .* \| `\w+\.\w+=", line)]
    assert len(rows) == 8
    for row in rows:
        overrides = re.findall(r"`([\w.]+=[^`]+)`", row)
        settings = train_settings(apply_overrides({"envs": [{"id": "math/arithmetic-v0"}]}, overrides))
        build_method(settings)
        for path, _, value in (override.partition("=") for override in overrides):
            got = read_value(settings.model_dump(mode="json"), path)
            assert (got["name"] if isinstance(got, dict) else got) == yaml.safe_load(value), row
