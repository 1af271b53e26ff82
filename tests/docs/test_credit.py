"""The page on credit: it names every method with its settings, and its figures are what the benchmark measures."""

import re
import runpy
from collections.abc import Mapping
from pathlib import Path

import pytest

from envgym.trainer.methods.weights.base import WEIGHTS
from tests.support.enumerable import expected_gradient, groups
from tests.support.plugins import BATCH_CREDITS, CREDITS, CRITIC_CREDITS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "credit.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table whose first column is called `title`."""
    table = TEXT[TEXT.index(f"| {title} |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(
    "title, credits", [("`credit.name`", CREDITS), ("`credit.name` of a whole batch", BATCH_CREDITS)]
)
def test_every_method_is_named_with_its_settings(title: str, credits: Mapping[str, type]) -> None:
    named = {row[0].strip("`"): re.findall(r"`(\w+)`", row[2]) for row in rows(title)}
    assert list(named) == list(credits)
    for name, build in credits.items():
        assert named[name] == list(getattr(build, "model_fields", ())), name
    assert all(f"`{name}`" in TEXT for name in CRITIC_CREDITS)


def test_token_weights_are_named_with_their_settings() -> None:
    named = {row[0].strip("`"): re.findall(r"`(\w+)`", row[2]) for row in rows("`weights.0.name`")}
    built = {name: WEIGHTS.load(name) for name in WEIGHTS.table}
    assert named == {name: list(made.model_fields) for name, made in built.items()}


def test_table_of_biases_is_what_the_benchmark_measures() -> None:
    """The cheapest column is measured again; all others come from the same functions."""
    bench = runpy.run_path(str(ROOT / "benchmarks" / "credit_bias.py"))
    sampled = groups(bench["WORLD"].chains(), 2)
    shown = {row[0].replace("`", ""): row[1] for row in rows("method")}
    methods = bench["methods"]()
    assert list(shown) == list(methods)
    for name, credit in methods.items():
        found = bench["distance"](expected_gradient(bench["WORLD"], credit, sampled))
        if shown[name] == "**exact**":
            assert found["bias"] < 1e-12, name
        else:
            bias, *cosine = re.findall(r"-?\d\.\d{3}", shown[name])
            assert f"{found['bias']:.3f}" == bias, name
            assert [f"{found['cosine']:.3f}"] == (cosine or ["1.000"]), name
