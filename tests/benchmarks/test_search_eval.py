"""The comparison of searches at test time: its declaration, its commands, its page."""

from collections.abc import Sequence
from pathlib import Path
from statistics import stdev

import pytest

from benchmarks._search_eval_arms import EXAMPLES, Bench, Declaration, Fit, Pilot, planned_effect
from benchmarks._search_eval_report import write_report
from benchmarks._studies import read_declaration
from envgym.agents.catalog import SEARCH
from envgym.agents.evaluation.play import EvalRecord
from envgym.cli.main import build_parser
from envgym.errors import RunError, SettingsError
from envgym.files import write_json
from envgym.plugins import Choice
from envgym.runs import RunDirectory
from envgym.settings import apply_overrides
from envgym.trainer.method import build_method
from envgym.trainer.settings import load_train_settings

TASKS = 12
SMALL = Declaration(
    seed=0,
    tasks=TASKS,
    budget=200,
    samples=4,
    pilot=Pilot(seed=1, tasks=4, arms=("majority",)),
    level=0.05,
    compared=("majority", "mcts"),
    value=Fit(episodes=64),
    minimum_detectable_effect=0.25,
)


def fake(bench: Bench, name: str, rewards: Sequence[tuple[float, ...]], *, is_pilot: bool = False) -> None:
    """Write an evaluation that found these rewards."""
    place = bench.directory(name, is_pilot=is_pilot)
    costs = {"tokens_generated": 200 / len(rewards[0]), "tokens_prefilled": 8.0, "env_steps": 2.0}
    record = EvalRecord(
        env_id="math/arithmetic-v0",
        label="held-out",
        step=0,
        temperature=1.0,
        success_at=1.0,
        rewards={f"test/{number}": of_task for number, of_task in enumerate(rewards)},
        endings={"TERMINATED": len(rewards)},
        costs=costs,
        seconds=1.0,
    )
    RunDirectory.create(place, name=name, config={}).write_eval(0, "held-out", record.to_json())
    write_json(place / "reads.json", {"tokens_read": 120 if name == "mcts" else 0})


def test_declaration_is_complete_and_its_commands_are_understood() -> None:
    declared = read_declaration(Declaration, "search_eval")
    bench = Bench(declared, Path("runs/search_eval"))
    assert declared.tasks >= 300
    assert set(declared.compared) | set(declared.pilot.arms) <= set(bench.arms)
    settings = load_train_settings(EXAMPLES / "policy.yaml")
    assert build_method(settings).search is not None
    assert declared.budget >= settings.agent.max_turn_tokens
    commands = [*bench.training(), *(bench.evaluation(name, is_pilot=False) for name in bench.arms)]
    for name, *words in commands:
        build_parser(name).parse_args([name, *words])
    assert "--split" in bench.evaluation("mcts", is_pilot=True)
    assert "--split" not in bench.evaluation("mcts", is_pilot=False)


def test_only_the_labelled_arm_knows_the_reward() -> None:
    bench = Bench(read_declaration(Declaration, "search_eval"), Path("runs"))
    for name, arm in bench.arms.items():
        fields = [item for item in arm.settings if not item.startswith("value.")]
        fields += ["value=tests.agents.search.test_golden_trees:brevity"] if arm.asks_value else []
        overrides = [*fields, "budget.tokens_generated=200"] if arm.search != "chain" else []
        search = Choice.model_validate(apply_overrides({"name": arm.search}, overrides))
        selection = SEARCH.build(search).selection
        is_oracle = selection is not None and selection.is_oracle
        assert arm.asks_value == ("value.name=critic" in arm.settings)
        assert is_oracle == ("oracle-selected" in arm.what) == (name == "verifier")


def test_minimum_detectable_effect_follows_from_the_spread_of_the_pilot(tmp_path: Path) -> None:
    bench = Bench(SMALL, tmp_path)
    fake(bench, "chain", [(1.0, 0.0, 0.0, 0.0), (0.0,) * 4, (1.0,) * 4, (1.0, 1.0, 0.0, 0.0)], is_pilot=True)
    fake(bench, "majority", [(0.0,), (0.0,), (1.0,), (1.0,)], is_pilot=True)
    # z at 0.05 / 2 comparisons: 2.2414, at power 0.8: 0.8416; over 12 tasks
    expected = (2.241403 + 0.841621) * stdev([-0.25, 0.0, 0.0, 0.5]) / TASKS**0.5
    assert planned_effect(bench) == pytest.approx(expected, abs=1e-5)


def test_page_says_what_was_found(tmp_path: Path) -> None:
    bench, page = Bench(SMALL, tmp_path), tmp_path / "page.md"
    half = [(1.0, 0.0, 1.0, 0.0)] * TASKS
    fake(bench, "chain", half)
    for name in ("likelihood", "value", "verifier"):
        fake(bench, name, [(1.0,)] * TASKS)
    fake(bench, "mcts", [(1.0,), (0.0,)] * (TASKS // 2))
    with pytest.raises(RunError, match=r"results must hold every arm, got none of \['majority'\]"):
        write_report(bench, page)
    fake(bench, "majority", [(1.0,)] * TASKS)
    fit = RunDirectory.create(bench.value, name="value", config={})
    fit.append_metrics({"step": 1, "critic/explained_variance": 0.375})
    write_report(bench, page)
    text = page.read_text()
    # 12 tasks, each half a point better: p = 2 / 2^12, times 2 comparisons
    (row,) = (line for line in text.splitlines() if line.startswith("| `best_of` by majority |"))
    assert row.startswith("| `best_of` by majority | 100.0 | +50.0 [")
    assert row.endswith("] | 0.0010 | 200 | 8 | 2.0 | 0 |")
    assert "| mean of single episodes | 50.0 |  |  | 200 | 32 | 8.0 | 0 |" in text
    assert (
        "- `best_of` by majority: better than `chain`, by 50.0 points; 12 tasks better, 0 worse, 0 unchanged." in text
    )
    assert (
        "- `mcts` by the learned value: no significant difference from `chain` at the corrected level (+0.0 points);"
        in text
    )
    assert "| `best_of` by the reward, **oracle-selected** | 100.0 |" in text
    assert "explains 38 % of the variance" in text
    undeclared = SMALL.model_copy(update={"minimum_detectable_effect": None})
    with pytest.raises(SettingsError, match="minimum_detectable_effect must be declared before the study"):
        write_report(Bench(undeclared, tmp_path), page)
