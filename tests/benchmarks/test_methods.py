"""The study of methods at equal tokens: its budget, its statistics, its page, and that every arm suits every env."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks._forest import forest
from benchmarks._methods_cells import EXAMPLES, WARM_START, Arm, Cells, Declaration, result_of
from benchmarks._methods_report import differences, planned_effect, read, write_report
from benchmarks._studies import Game, Mean, minimum_detectable_effect, pooled_intervals, read_declaration
from benchmarks._token_budget import TokenBudget
from envgym.agents.settings import EvaluationSettings
from envgym.errors import RunError
from envgym.runs import RunDirectory
from envgym.trainer.checks.compatibility import check_search
from envgym.trainer.env_source import build_env_sources
from envgym.trainer.method import build_method
from envgym.trainer.methods.controllers.base import ControlContext
from envgym.trainer.settings import TrainSettings, load_train_settings
from envgym.trainer.train import train

DECLARED = read_declaration(Declaration, "methods")
SMALL = Declaration(
    seeds=(0, 1),
    pilot_seeds=(100, 101),
    baseline="grpo",
    arms={"grpo": Arm(recipe="grpo"), "rloo": Arm(recipe="rloo")},
    tasks=4,
    games={"guess_number": Game(budget=100, minimum_detectable_effect=0.1)},
)


def fake_run(path: Path, steps: list[tuple[float, float]], solved: list[float | None] | None, *, at: int) -> None:
    """Write a run of steps (tokens, success in training) that solved these held-out tasks after step `at`."""
    run = RunDirectory.create(path, name="fake", config={})
    for number, (tokens, share) in enumerate(steps, start=1):
        costs = {"cost/tokens_generated": tokens / 4, "cost/tokens_prefilled": tokens * 3 / 4}
        run.append_metrics({"step": number, "train/success": share, "time/step_s": 2.0, **costs})
    if solved is not None:
        rewards = {f"t{number}": [value] for number, value in enumerate(solved)}
        run.write_eval(at, "held-out", {"step": at, "label": "held-out", "success_at": 1.0, "rewards": rewards})


def fake_seed(root: Path, seed: int, finals: dict[str, list[float | None]]) -> None:
    """Write the runs of a seed whose warm start solves one of four tasks."""
    cells = Cells(declared=SMALL, game="guess_number", seed=seed, root=root)
    fake_run(cells.directory(WARM_START), [], [1, 0, 0, 0], at=0)
    for arm, solved in finals.items():
        fake_run(cells.directory(arm), [(60, 0.5), (60, 1.0)], solved, at=2)


def context(step: int, tokens: float) -> ControlContext:
    metrics = {"cost/tokens_generated": tokens, "cost/tokens_prefilled": 10.0}
    settings = TrainSettings.model_validate({"envs": [{"id": "math/arithmetic-v0"}]})
    return ControlContext(step=step, settings=settings, metrics=metrics)


def test_a_run_stops_after_the_step_that_reaches_the_budget_also_when_resumed(tmp_path: Path) -> None:
    before = TokenBudget(tokens=100)
    control = before.after_step(context(1, 40.0))
    assert control is not None
    assert (control.stop, control.metrics) == (None, {"spent": 50.0})
    before.save(tmp_path)
    after = TokenBudget(tokens=100)
    after.load(tmp_path)
    control = after.after_step(context(2, 40.0))
    assert control is not None
    assert (control.stop, control.metrics) == ("100 tokens are spent", {"spent": 100.0})


def test_a_real_run_spends_its_budget_and_is_evaluated_then(tmp_path: Path) -> None:
    settings = load_train_settings(
        EXAMPLES / "guess_number.yaml",
        [
            "sft=null",
            "rollout.groups=1",
            "rollout.group_size=2",
            "model.tiny.num_layers=1",
            "run.steps=1000",
            "agent.max_turn_tokens=8",
            "agent.on_length=close",
            "canary.enabled=false",
            "evaluation.tasks=2",
            f"run.directory={tmp_path / 'run'}",
            "controllers=[{name: 'benchmarks/_token_budget.py:TokenBudget', tokens: 400}]",
        ],
    )
    train(settings)
    result = result_of(RunDirectory.open(tmp_path / "run"), 400)
    assert result is not None
    assert result.tokens >= 400
    assert 1 < result.steps < 100
    assert result_of(RunDirectory.open(tmp_path / "run"), 10**6) is None


def test_numbers_of_a_run_by_hand(tmp_path: Path) -> None:
    fake_run(tmp_path / "whole", [(100, 0.25), (300, 0.75)], [1, 0.9, 1, None], at=2)
    result = result_of(RunDirectory.open(tmp_path / "whole"), 400)
    assert result is not None
    # (100 * .25 + 300 * .75) / 400
    assert (result.success, result.area, result.tokens, result.steps, result.seconds) == (0.5, 0.625, 400, 2, 4.0)
    fake_run(tmp_path / "unfinished", [(100, 0.25), (300, 0.75)], None, at=2)
    assert result_of(RunDirectory.open(tmp_path / "unfinished"), 400) is None


def test_intervals_take_one_spread_by_hand() -> None:
    # variances .5 and 2, so s = sqrt(1.25); t_{.975, 2} = 4.3026527: half-width 4.3026527 * 1.1180340 / sqrt(2)
    found = pooled_intervals({"a": [0.0, 1.0], "b": [7.0, 9.0]})
    assert found["a"] == pytest.approx((0.5, 0.5 - 3.4015457, 0.5 + 3.4015457), abs=1e-6)
    assert found["b"] == pytest.approx((8.0, 8.0 - 3.4015457, 8.0 + 3.4015457), abs=1e-6)
    # (t_{.975, 30} + t_{.8, 30}) / sqrt(3) = (2.0422725 + 0.8537673) / 1.7320508
    assert minimum_detectable_effect(0.1, 3, freedom=30) == pytest.approx(0.1672028, abs=1e-6)


def test_only_whole_seeds_are_compared_and_the_page_says_so(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    fake_seed(tmp_path, 0, {"grpo": [1, 1, 0, 0], "rloo": [1, 1, 1, 0]})
    fake_seed(tmp_path, 1, {"grpo": [1, 0, 0, 0]})
    of = read(SMALL, "guess_number", (0, 1), tmp_path)
    assert (of.seeds, differences(of)) == ((0,), {"rloo": [0.25]})
    with pytest.raises(RunError, match="results must hold two seeds that are through, got 1"):
        write_report(SMALL, tmp_path, page)
    cells = Cells(declared=SMALL, game="guess_number", seed=1, root=tmp_path)
    fake_run(cells.directory("rloo"), [(120, 0.5)], [1, 1, 1, 0], at=1)
    of = read(SMALL, "guess_number", (0, 1), tmp_path)
    assert differences(of) == {"rloo": [0.25, 0.5]}
    # variance 1/32; one arm and two seeds leave one degree of freedom
    assert planned_effect(of, SMALL) == pytest.approx(minimum_detectable_effect((1 / 32) ** 0.5, 2, freedom=1))
    write_report(SMALL, tmp_path, page)
    text = page.read_text()
    assert "no recipe differs significantly from `grpo`." in text
    assert "| `rloo` | 75.0 % | 75, 75 | +37.5 [-121.3, +196.3] | 62.5 % |" in text
    assert "| warm start | 25.0 % | 25, 25 |" in text
    assert page.with_suffix(".svg").exists()


def test_figure_has_a_dot_for_every_difference_the_best_first() -> None:
    panel = {"worse": Mean(-0.1, -0.2, 0.0), "better": Mean(0.1, 0.0, 0.2)}
    figure = ElementTree.fromstring(forest({"one": panel, "two": panel}, axis="points"))
    dots = [float(dot.attrib["cx"]) for dot in figure.findall("{http://www.w3.org/2000/svg}circle")]
    # 20 points to each side of the panel's middle: +-10 lie at a quarter
    assert dots == [130 + 225, 130 + 75, 470 + 225, 470 + 75]


def test_declaration_has_twelve_recipes_and_more_and_seeds_apart_from_the_pilots() -> None:
    assert len({arm.recipe for arm in DECLARED.arms.values()}) >= 12
    assert (len(DECLARED.seeds), len(DECLARED.games)) == (3, 2)
    assert not set(DECLARED.seeds) & set(DECLARED.pilot_seeds)
    assert DECLARED.baseline in DECLARED.arms


@pytest.mark.parametrize("game", DECLARED.games)
@pytest.mark.parametrize("arm", DECLARED.arms)
def test_every_arm_suits_every_env(game: str, arm: str, tmp_path: Path) -> None:
    cells = Cells(declared=DECLARED, game=game, seed=0, root=tmp_path)
    settings = TrainSettings.model_validate(cells.settings(arm))
    sources = build_env_sources(settings.envs, EvaluationSettings(tasks=1))
    check_search(build_method(settings).search, sources, settings.agent, group_size=settings.rollout.group_size)
