"""The page on plug-ins names every kind and every example."""

from pathlib import Path

from envgym.cli.plugin_kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


def test_every_kind_is_in_the_table() -> None:
    assert [kind for kind in KINDS if f"`{kind}`" not in TEXT] == []


def test_every_example_is_named() -> None:
    examples = sorted((ROOT / "examples" / "plugins").glob("*.py"))
    assert len(examples) >= 8
    assert [path.name for path in examples if f"`{path.name}`" not in TEXT] == []
