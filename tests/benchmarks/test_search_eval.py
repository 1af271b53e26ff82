"""The comparison of searches at evaluation: its declaration, its commands, its page."""

from collections.abc import Sequence
from pathlib import Path
from statistics import stdev
from xml.etree import ElementTree

import pytest

from benchmarks._search_eval_cells import CHAIN, EXAMPLES, Arm, Bench, Cell, Declaration, Game, Pilot, chain_tokens
from benchmarks._search_eval_report import planned_effect, write_report
from benchmarks._studies import read_declaration
from envgym.agents.catalog import SEARCH
from envgym.agents.evaluation.play import EvalRecord
from envgym.cli.main import build_parser
from envgym.errors import RunError, SettingsError
from envgym.files import write_json
from envgym.plugins import Choice
from envgym.runs import RunDirectory
from envgym.settings import apply_overrides
from envgym.trainer.settings import load_train_settings

DECLARED = read_declaration(Declaration, "search_eval")
TASKS = 12
SMALL = Declaration(
    seed=0,
    tasks=TASKS,
    factors=(1, 4),
    samples=4,
    pilot=Pilot(seed=1, tasks=4),
    compared=(("beam", "best_of"),),
    arms={"best_of": Arm(search="best_of", reads_value=True), "beam": Arm(search="beam", reads_value=True)},
    games={"arithmetic": Game(chain_tokens=50, episodes=64, minimum_detectable_effect=0.25)},
)
PILOT_PAIR = [(0.0,), (0.0,), (1.0,), (1.0,)], [(1.0,), (0.0,), (1.0,), (0.0,)]


def fake(bench: Bench, cell: Cell, rewards: Sequence[tuple[float, ...]]) -> None:
    """Write an evaluation that found these rewards."""
    costs = {"tokens_generated": 48.5, "tokens_prefilled": 8.0, "env_steps": 2.0}
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
    place = bench.root / cell.name
    RunDirectory.create(place, name=cell.arm, config={}).write_eval(0, "held-out", record.to_json())
    write_json(place / "reads.json", {"tokens_read": 120 if cell.arm == "beam" else 0})


def test_commands_of_the_declaration_are_understood() -> None:
    bench = Bench(DECLARED, Path("runs/search_eval"))
    assert (DECLARED.factors, len(DECLARED.games)) == ((1, 2, 4, 8), 2)
    for game in DECLARED.games:
        assert load_train_settings(EXAMPLES / f"{game}.yaml").run.steps == 0
        cells = [*bench.cells(game, is_pilot=False), *bench.cells(game, is_pilot=True)]
        for name, *words in [*bench.training(game), *map(bench.evaluation, cells)]:
            build_parser(name).parse_args([name, *words])
        for cell in cells:
            assert ("--split" in bench.evaluation(cell)) == cell.is_pilot
    assert len({cell.name for cell in bench.cells("arithmetic", is_pilot=False)}) == 1 + 4 * len(DECLARED.arms)


def test_budget_is_so_many_episodes() -> None:
    bench = Bench(SMALL, Path("runs"))
    words = bench.evaluation(Cell(game="arithmetic", arm="beam", factor=4))
    assert "budget.tokens_generated=200" in words
    assert "value.run=runs/arithmetic/value" in words
    assert "--samples" in bench.evaluation(Cell(game="arithmetic", arm=CHAIN))


@pytest.mark.parametrize("name", DECLARED.arms)
def test_only_the_labelled_arm_knows_the_reward(name: str) -> None:
    arm = DECLARED.arms[name]
    value = ["value=tests.agents.search.test_golden_trees:brevity"] if arm.reads_value else []
    overrides = apply_overrides({"name": arm.search}, [*arm.set, *value, "budget.tokens_generated=200"])
    selection = SEARCH.build(Choice.model_validate(overrides)).selection
    assert selection is not None
    assert selection.is_oracle == arm.is_oracle


def test_what_is_declared_follows_from_the_pilot(tmp_path: Path) -> None:
    bench = Bench(SMALL, tmp_path)
    fake(bench, Cell(game="arithmetic", arm=CHAIN, is_pilot=True), [(0.0,) * 4] * 4)
    assert chain_tokens(bench, "arithmetic") == 49
    for arm, rewards in zip(("beam", "best_of"), PILOT_PAIR, strict=True):
        fake(bench, Cell(game="arithmetic", arm=arm, factor=4, is_pilot=True), rewards)
    # z at 0.05: 1.959964, at power 0.8: 0.841621; over 12 tasks
    expected = (1.959964 + 0.841621) * stdev([-1.0, 0.0, 0.0, 1.0]) / TASKS**0.5
    assert planned_effect(bench, "arithmetic") == pytest.approx(expected, abs=1e-5)


def test_page_says_what_was_found(tmp_path: Path) -> None:
    bench, page = Bench(SMALL, tmp_path), tmp_path / "page.md"
    chain, *others = bench.cells("arithmetic", is_pilot=False)
    fake(bench, chain, [(1.0, 0.0, 1.0, 0.0)] * TASKS)
    with pytest.raises(RunError, match="evaluations must be finished, got 4 that are not"):
        write_report(bench, page)
    for cell in others:
        solves = 1.0 if (cell.arm, cell.factor) == ("beam", 4) else 0.0
        fake(bench, cell, [(solves,)] * TASKS)
    fit = RunDirectory.create(bench.value("arithmetic"), name="value", config={})
    fit.append_metrics({"step": 1, "critic/explained_variance": 0.375})
    write_report(bench, page)
    text = page.read_text()
    # 12 tasks, each a point better: p = 2 / 2^12
    assert "`arithmetic`: `beam` is better than `best_of`: +100.0 [" in text
    assert "p = 0.00049 after correction; 12 tasks better, 0 worse, 0 unchanged." in text
    assert "A single episode, sampled at temperature 1, solves 50.0 [" in text
    assert "fitted to 64 episodes, explains 38 %\nof the returns' variance" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| `beam` |"))
    assert row.endswith("| 48 | 8 | 2 | 10 |")
    figure = ElementTree.fromstring(page.with_suffix(".svg").read_text())
    assert len(figure.findall("{http://www.w3.org/2000/svg}polyline")) == 3
    assert len(page.with_suffix(".jsonl").read_text().splitlines()) == 5
    game = SMALL.games["arithmetic"].model_copy(update={"minimum_detectable_effect": None})
    undeclared = SMALL.model_copy(update={"games": {"arithmetic": game}})
    with pytest.raises(SettingsError, match="minimum_detectable_effect must be declared before the study"):
        write_report(Bench(undeclared, tmp_path), page)
