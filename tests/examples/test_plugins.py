"""Every example of a plug-in is used by a real training run, and by an evaluation where it can be chosen there."""

import json
from pathlib import Path
from typing import Any

import pytest

from envgym.cli.main import main
from envgym.config.plugins import Choice
from envgym.core.trajectory import Group
from envgym.runs.directory import RunDirectory
from envgym.trainer.batch.build import build_batch
from envgym.trainer.methods.protocols import CREDIT, BatchCredit, CreditContext, TrajectoryValues
from envgym.trainer.methods.weights.base import WEIGHTS
from tests.support.credit_trees import chains
from tests.support.example_trees import outcome_tree

PLUGINS = Path(__file__).resolve().parents[2] / "examples" / "plugins"


def plugin(name: str) -> str:
    return f"{PLUGINS / name}"


def config(directory: Path) -> dict[str, Any]:
    """Return a run of seconds, with every example chosen."""
    return {
        "run": {"name": "plugins", "directory": str(directory), "steps": 1, "trackers": []},
        "model": {"name": "tiny", "tiny": {"num_layers": 1}},
        "engine": {"device": "cpu", "backend": plugin("continuous_batching.py:ContinuousBackend")},
        "agent": {
            "name": plugin("brief_agent.py:BRIEF"),
            "max_turn_tokens": 6,
            "max_context_tokens": 256,
            "on_length": "close",
        },
        "envs": [{"id": plugin("coin.py:Coin")}],
        "search": {"name": plugin("last_turn.py:LastTurn"), "nodes": 3},
        "curriculum": {"name": plugin("mistakes.py:Mistakes"), "share": 0.5},
        "allocator": {"name": plugin("second_chance.py:SecondChance"), "extra": 2},
        "filter": {"name": "keep_all"},
        "annotate": [{"name": plugin("brevity_annotator.py:Brevity"), "scale": 8.0}],
        "controllers": [{"name": plugin("halve_rate.py:HalveRate"), "patience": 1}],
        "shaping": {"name": "annotated", "annotation": "brevity", "coef": 0.1},
        "replay": {"name": plugin("last_failure.py:LastFailure"), "keep": 16},
        "credit": {"name": plugin("best_of_group.py:BestOfGroup"), "bonus": 0.5},
        "loss": {"name": plugin("weighted_reinforce.py:WeightedReinforce"), "cap": 1.5},
        "objective": {"terms": [{"name": "even", "loss": plugin("even_successes.py:EvenSuccesses"), "coef": 0.01}]},
        "sft": {"episodes": 16, "batch_size": 8},
        "rollout": {"groups": 2, "group_size": 4, "metrics": [plugin("answer_metric.py:RepeatedAnswers"), "lengths"]},
        "evaluation": {"tasks": 2, "metrics": ["endings"]},
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "run.yaml").write_text(json.dumps(config(folder / "run")))  # JSON is YAML
    assert main(["train", str(folder / "run.yaml")]) == 0
    return folder / "run"


def test_training_uses_every_example(trained: Path) -> None:
    run = RunDirectory.open(trained)
    step = run.metrics()[-1]  # the first rows are those of the warm start
    assert 0 <= step["metric/repeated_answers"] <= 1
    assert step["metric/turns"] == step["rollout/turns"]
    assert step["coef/even"] == 0.01
    assert step["loss/even"] >= 0
    assert run.config["search"]["name"] == plugin("last_turn.py:LastTurn")
    assert 0 < step["annotate/brevity_mean"] < 1
    assert step["annotate/brevity_failed"] == 0.0
    assert all(sum(data["metrics"].values()) == pytest.approx(1) for data in run.evals()), "shares of endings"
    (history,) = run.checkpoints.glob("step-*1/parts/controllers-0/seen.json")
    assert json.loads(history.read_text()) == {"best": step["reward/mean"], "since": 0}


def test_evaluation_uses_search_agent_backend_metric_and_env(trained: Path, tmp_path: Path) -> None:
    words = ["eval", "--model", str(trained), "--env", plugin("coin.py:Coin"), "--tasks", "2"]
    words += ["--agent", plugin("brief_agent.py:BRIEF"), "--agent-set", "max_turn_tokens=6"]
    words += ["--search", plugin("last_turn.py:LastTurn"), "--search-set", "nodes=2"]
    words += ["--backend", plugin("continuous_batching.py:ContinuousBackend")]
    words += ["--metric", plugin("answer_metric.py:RepeatedAnswers"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    run = RunDirectory.open(tmp_path / "out")
    (record,) = run.evals()
    assert run.config["engine"]["backend"]["name"] == plugin("continuous_batching.py:ContinuousBackend")
    assert 0 <= record["metrics"]["metric/repeated_answers"] <= 1
    assert record["search"] == plugin("last_turn.py:LastTurn")


def test_credit_of_a_batch_reads_its_scores(tmp_path: Path) -> None:
    chosen = {
        **config(tmp_path / "run"),
        "credit": {"name": plugin("drift_credit.py:DriftCredit"), "bound": 1e-6},
        "weights": [plugin("first_turn.py:first_turn")],
        "objective": {"entropy_coef": 1.0},  # the policy moves in every step, whatever its rewards
        "sft": {"episodes": 4, "batch_size": 4},
        "optim": {"lr": 0.001},
    }
    chosen["run"]["steps"] = 3
    (tmp_path / "run.yaml").write_text(json.dumps(chosen))
    assert main(["train", str(tmp_path / "run.yaml")]) == 0
    rows = [row for row in RunDirectory.open(tmp_path / "run").episodes([2, 3]) if row["advantages"] is not None]
    advantages = [value for row in rows for value in json.loads(row["advantages"]) if isinstance(value, float)]
    assert len(rows) >= 8
    assert max(map(abs, advantages)) < 1e-2, "all episodes have drifted beyond so small a bound"


def test_episodes_that_have_drifted_count_less() -> None:
    # Two tokens each; the second episode's have moved by 1 nat, five times the bound.
    group = Group(key="g", trees=(outcome_tree("stayed", 1.0), outcome_tree("moved", 0.0)))
    logprobs = {"now": (-1.0, -1.0), "then": (-1.0, -2.0)}
    scores = {
        name: [
            TrajectoryValues(trajectory=episode, values=((), (value, value)))
            for episode, value in zip(group.valid, values, strict=True)
        ]
        for name, values in logprobs.items()
    }
    credit = CREDIT.build(Choice.model_validate({"name": plugin("drift_credit.py:DriftCredit"), "bound": 0.2}))
    assert isinstance(credit, BatchCredit)
    found = [result.advantages[1] for result in credit.assign([group], CreditContext(scores=scores))]
    assert found == pytest.approx([0.707106, -0.2 * 0.707106], abs=1e-5)


def test_first_turn_is_a_function_of_the_turns() -> None:
    first_turn = WEIGHTS.build(Choice(name=plugin("first_turn.py:first_turn")))
    groups = [chains([0.0, 1.0], [0.0])]
    rows = build_batch(groups, CREDIT.build(Choice(name="grpo")), once=False, weights=[first_turn]).rows
    # two turns of a token each behind the four of the prompt: of the first episode the second turn loses its advantage
    assert [row.advantages[4:] for row in rows] == [
        pytest.approx((0.707106, 0.0), abs=1e-5),
        pytest.approx((-0.707106,), abs=1e-5),
    ]
