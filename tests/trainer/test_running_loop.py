"""Training and evaluation inside a running event loop, as a cell of a notebook runs them."""

from pathlib import Path

import pytest

from envgym.agents.evaluation.run import run_evaluation
from envgym.agents.settings import EvalSettings
from envgym.errors import RunError, UnknownName
from envgym.trainer.phases import dry_runs
from envgym.trainer.train import train
from tests.support.loops import in_a_running_loop
from tests.support.tiny_runs import step_metrics, tiny_settings


def eval_settings(directory: Path, env_id: str = "tests.support.tiny_runs:EvenWords") -> EvalSettings:
    train_settings = tiny_settings(directory)
    sections = train_settings.model_dump(include={"model", "engine", "agent"})
    return EvalSettings.model_validate(
        {"run": {"directory": str(directory)}, "envs": [{"id": env_id}], "evaluation": {"tasks": 2}, **sections}
    )


def test_training_gives_the_same_steps_as_outside(tmp_path: Path) -> None:
    outside = train(tiny_settings(tmp_path / "outside"))
    inside = in_a_running_loop(lambda: train(tiny_settings(tmp_path / "inside")))
    assert inside.steps == outside.steps == 2
    assert step_metrics(tmp_path / "inside") == step_metrics(tmp_path / "outside")


def test_evaluation_runs(tmp_path: Path) -> None:
    result = in_a_running_loop(lambda: run_evaluation(eval_settings(tmp_path / "eval")))
    assert [len(record.rewards) for record in result.evaluations] == [2]
    assert result.report.exists()


def test_dry_run_runs(tmp_path: Path) -> None:
    result = in_a_running_loop(lambda: dry_runs([tiny_settings(tmp_path / "none")])[0])
    assert len(result.batch.groups) == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_what_is_refused_leaves_nothing(tmp_path: Path, program: str) -> None:
    def run() -> None:
        if program == "train":
            train(tiny_settings(tmp_path / "none", envs=[{"id": "math/arithmetik-v0"}]))
        else:
            run_evaluation(eval_settings(tmp_path / "none", env_id="math/arithmetik-v0"))

    with pytest.raises(UnknownName, match="did you mean"):
        in_a_running_loop(run)
    assert not (tmp_path / "none").exists()


def test_training_on_prompts_that_do_not_fit_the_context_stops_and_says_so(tmp_path: Path) -> None:
    agent = {"max_turn_tokens": 2, "max_context_tokens": 8}
    with pytest.raises(
        RunError, match=r"prompts must fit agent.max_context_tokens, got none of 1; .*raise agent.max_con"
    ):
        train(tiny_settings(tmp_path / "run", agent=agent))
