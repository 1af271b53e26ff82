"""The bias of every estimator that trains on chains and trees, by enumeration: what docs/credit.md states of it."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envgym.core.trajectory import Group
from envgym.trainer.methods.credit.planned import PlannedCredit
from envgym.trainer.methods.credit.sibling import Sibling
from envgym.trainer.methods.protocols import CreditContext
from tests.support.enumerable import LOGITS, Array, Enumerable, SampledGroup, expected_gradient, groups

ROOT = Path(__file__).resolve().parents[4]
WORLD = Enumerable(logits=LOGITS)
EXACT = "**exact**"
STATED: dict[tuple[str, str], str] = {
    ("grpo", "chains, G=3"): "0.646 (0.830)",
    ("turn_grpo", "chains, G=3"): EXACT,
    ("rloo", "chains, G=3"): EXACT,
    ("gae_turn, decay 1", "chains, G=3"): EXACT,
    ("gae_turn, decay 0.95", "chains, G=3"): "0.031 (1.000)",
    ("planned", "chains, G=3"): EXACT,
    ("grpo", "planned"): "0.581 (0.869)",
    ("tree_grpo", "planned"): "1.008 (0.853)",
    ("turn_grpo", "planned"): "0.175 (0.999)",
    ("gae_turn, decay 1", "planned"): "0.207",
    ("sibling", "planned"): EXACT,
    ("planned", "planned"): EXACT,
    ("planned_gae, decay 1", "planned"): EXACT,
    ("planned_gae, decay 0.95", "planned"): "0.031 (1.000)",
    ("grpo", "random_expand"): "0.800 (0.868)",
    ("tree_grpo", "random_expand"): "1.486 (0.844)",
    ("sibling", "random_expand"): "0.062 (0.999)",
    ("planned", "random_expand"): "0.063 (0.999)",
}
"""(estimator, how groups are sampled) -> |E g - true gradient| / |true gradient|, and the cosine unless it is 1."""


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:  # the names of a script
    return runpy.run_path(str(ROOT / "benchmarks" / "credit_bias.py"))


@pytest.fixture(scope="module")
def sampled(bench: dict[str, Any]) -> dict[str, list[SampledGroup]]:
    return {search: bench["searches"]()[search]() for search in dict.fromkeys(search for _, search in STATED)}


@pytest.mark.parametrize("name, search", STATED)
def test_bias_is_the_stated_one(
    bench: dict[str, Any], sampled: dict[str, list[SampledGroup]], name: str, search: str
) -> None:
    credit = bench["methods"]()[name]
    gradient = expected_gradient(WORLD, credit, sampled[search], once=name in bench["NODE_CREDITS"])
    found = bench["distance"](gradient)
    if STATED[name, search] == EXACT:
        assert gradient == pytest.approx(WORLD.true_gradient(), abs=1e-10)
    else:
        bias, *cosine = re.findall(r"\d\.\d{3}", STATED[name, search])
        assert f"{found['bias']:.3f}" == bias
        assert [f"{found['cosine']:.3f}"] == (cosine or ["1.000"])


def test_page_states_the_same() -> None:
    page = (ROOT / "docs" / "credit.md").read_text(encoding="utf-8")
    head, _, *lines = page[page.index("| method |") :].split("\n\n")[0].splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    shown = {
        (row[0].replace("`", ""), column): cell for row in cells for column, cell in zip(columns, row, strict=True)
    }
    assert {key: shown[key] for key in STATED} == STATED


def mean_of_steps(estimate: Callable[[list[Group]], Array]) -> Array:
    """Return the mean over all steps of a group of planned trees, of 2 to 4 leaves, and a group of two chains."""
    trees = groups(WORLD.grown(lambda depth: 2 if depth == 1 else 1), 2, name="a")
    chains = groups(WORLD.chains(), 2, name="b")
    terms = [a.probability * b.probability * estimate([a.group, b.group]) for a in trees for b in chains]
    return np.asarray(sum(terms), dtype=np.float64)


def test_groups_of_several_sizes_weigh_the_same_in_planned_and_not_in_sibling(bench: dict[str, Any]) -> None:
    """Losses are divided by the episodes of the whole step, so `sibling` weights a group by its number of leaves."""

    def siblings(step: list[Group]) -> Array:
        return WORLD.estimate([credit for group in step for credit in Sibling()(group)])

    def planned(step: list[Group]) -> Array:
        return WORLD.estimate(PlannedCredit(beta=0.7).assign(step, CreditContext()), once=True)

    assert mean_of_steps(planned) == pytest.approx(WORLD.true_gradient(), abs=1e-10)
    found = bench["distance"](mean_of_steps(siblings))
    assert (f"{found['bias']:.3f}", f"{found['cosine']:.3f}") == ("0.047", "1.000")
