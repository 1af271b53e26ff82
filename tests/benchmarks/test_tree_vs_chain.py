"""The comparison of trees and turns against chains: its statistics, its cells, its page."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks._studies import (
    Game,
    check_declared,
    minimum_detectable_effect,
    pooled_spread,
    read_declaration,
    t_interval,
    t_quantile,
)
from benchmarks._tree_vs_chain_cells import (
    EXAMPLES,
    WARM_START,
    CellPaths,
    Declaration,
    marks,
    run_seed,
)
from benchmarks._tree_vs_chain_report import differences, planned_effect, results, write_report
from envgym.agents.settings import EvaluationSettings
from envgym.errors import RunError, SettingsError
from envgym.files import write_json
from envgym.trainer.checks.compatibility import check_search
from envgym.trainer.env_source import build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.settings import load_train_settings

SMALL = Declaration(
    seeds=(0, 1),
    pilot_seeds=(100, 101),
    baseline="grpo",
    arms=("tree_grpo", "turn_grpo"),
    tasks=6,
    points=2,
    games={"frozen_lake": Game(budget=3000, minimum_detectable_effect=0.1)},
)
TINY = (
    "model.tiny.num_layers=1",
    "sft.episodes=4",
    "sft.epochs=1",
    "sft.until_success=null",
    "rollout.groups=2",
)


def fake_cells(root: Path, seed: int, finals: dict[str, float]) -> None:
    """Write cells that start at 0.25 and pass half way at 0.5."""
    totals = dict.fromkeys(("tokens_generated", "tokens_prefilled", "steps", "episodes", "rows"), 10.0)
    paths = CellPaths(game="frozen_lake", seed=seed, root=root)
    paths.folder.mkdir(parents=True)
    write_json(paths.cell(WARM_START), {"points": [{"budget": 0, "success": 0.25}]})
    for recipe, final in finals.items():
        points = [{"budget": 1500, "success": 0.5}, {"budget": 3000, "success": final}]
        write_json(paths.cell(recipe), {"points": points, "metrics": totals, "cpu_s": 1.0})


@pytest.mark.parametrize(
    "freedom, expected", [(1, 12.7062047), (2, 4.3026527), (7, 2.3646243), (8, 2.3060041), (30, 2.0422725)]
)
def test_quantiles_are_those_of_students_tables(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=1e-7)


def test_interval_of_three_values_by_hand() -> None:
    # mean 2, standard deviation 1, t_{0.975, 2} = 4.3026527: half-width 4.3026527 / sqrt(3) = 2.4841377
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - 2.4841377, 2.0 + 2.4841377), abs=1e-6)
    assert t_interval([0.5]) == (0.5, -math.inf, math.inf)


def test_minimum_detectable_effect_of_eight_seeds_by_hand() -> None:
    # (t_{0.975, 7} + t_{0.8, 7}) / sqrt(8) = (2.3646243 + 0.8960296) / 2.8284271 = 1.1528152
    assert minimum_detectable_effect(0.1, 8) == pytest.approx(0.11528152, abs=1e-7)
    # variances 0.5 and 2 within the pairs, whatever their means
    assert pooled_spread([[0.0, 1.0], [7.0, 9.0]]) == pytest.approx(math.sqrt(1.25))


def test_differences_are_paired_by_seed_and_only_whole_seeds_count(tmp_path: Path) -> None:
    fake_cells(tmp_path, 0, {"grpo": 0.5, "tree_grpo": 0.75, "turn_grpo": 0.25})
    fake_cells(tmp_path, 1, {"grpo": 0.75, "tree_grpo": 0.875, "turn_grpo": 0.75})
    fake_cells(tmp_path, 2, {"grpo": 0.75, "tree_grpo": 0.75})
    of = results(tmp_path, SMALL, "frozen_lake", (0, 1, 2))
    assert of.seeds == (0, 1)
    assert differences(of, "tree_grpo", "grpo") == [0.25, 0.125]
    assert differences(of, "turn_grpo", "grpo", area=True) == [-0.125, 0.0]
    # spreads: variance of (0.25, 0.125) = 1/128, of (-0.25, 0) = 1/32; pooled sqrt(5/256)
    expected = minimum_detectable_effect(math.sqrt(5 / 256), 2)
    assert planned_effect(of, SMALL) == pytest.approx(expected)


def test_page_says_what_the_intervals_say_and_which_seeds_are_missing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(RunError, match="results must hold a seed that is through, got none"):
        write_report(tmp_path, SMALL, page)
    fake_cells(tmp_path, 0, {"grpo": 0.5, "tree_grpo": 0.75, "turn_grpo": 0.25})
    write_report(tmp_path, SMALL, page)
    text = page.read_text()
    assert "**Only 1 of the 2 declared seeds are complete.**" in text
    assert "`tree_grpo` does not differ significantly from `grpo`: +25.0 points." in text
    fake_cells(tmp_path, 1, {"grpo": 0.5, "tree_grpo": 0.75, "turn_grpo": 0.25})
    write_report(tmp_path, SMALL, page)
    text = page.read_text()
    assert "Only" not in text
    assert "`tree_grpo` ends above `grpo`: +25.0 [+25.0, +25.0] points." in text
    assert "`turn_grpo` ends below `grpo`: -25.0 [-25.0, -25.0] points." in text
    figure = ElementTree.fromstring(page.with_suffix(".svg").read_text())
    assert len(figure.findall("{http://www.w3.org/2000/svg}polyline")) == 3


def test_a_seed_trains_every_recipe_from_one_warm_start_to_the_same_budget(tmp_path: Path) -> None:
    paths = CellPaths(game="frozen_lake", seed=0, root=tmp_path)
    run_seed(SMALL, paths, TINY)
    cells = {recipe: json.loads(paths.cell(recipe).read_text()) for recipe in SMALL.recipes}
    for cell in cells.values():
        assert [point["budget"] for point in cell["points"]] == [1500, 3000]
        spent = cell["metrics"]["tokens_generated"] + cell["metrics"]["tokens_prefilled"]
        assert cell["points"][-1]["spent"] == spent >= 3000
        assert cell["points"][-1]["step"] == cell["metrics"]["steps"]
    written = paths.cell("grpo").stat().st_mtime_ns
    run_seed(SMALL, paths, TINY)
    assert paths.cell("grpo").stat().st_mtime_ns == written
    with pytest.raises(RunError, match="must be made with the settings of now"):
        run_seed(SMALL, paths, (*TINY, "optim.lr=0.5"))


def test_declaration_holds_eight_seeds_apart_from_the_pilots_and_even_marks() -> None:
    declared = read_declaration(Declaration, "tree_vs_chain")
    assert len(declared.seeds) == 8
    assert not set(declared.seeds) & set(declared.pilot_seeds)
    for game, of in declared.games.items():
        assert list(marks(declared, game))[-1] == of.budget


@pytest.mark.parametrize("game", read_declaration(Declaration, "tree_vs_chain").games)
@pytest.mark.parametrize("recipe", read_declaration(Declaration, "tree_vs_chain").recipes)
def test_every_recipe_suits_every_game(game: str, recipe: str) -> None:
    settings = load_train_settings(EXAMPLES / f"{game}.yaml", [f"recipe={recipe}"])
    env_sources = build_env_sources(settings.envs, EvaluationSettings(tasks=1))
    group_size = settings.rollout.group_size
    check_search(build_method(settings).search, env_sources, settings.agent, group_size=group_size)


def test_declared_seeds_wait_for_the_minimum_detectable_effect() -> None:
    check_declared(SMALL.minimum_detectable_effects(["frozen_lake"]))
    undeclared = SMALL.model_copy(update={"games": {"frozen_lake": Game(budget=3000)}})
    with pytest.raises(SettingsError, match=r"minimum_detectable_effect must be declared .* got none \(frozen_lake\)"):
        check_declared(undeclared.minimum_detectable_effects(["frozen_lake"]))
