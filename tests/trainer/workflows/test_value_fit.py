"""A value is fitted to a policy that stays as it is, from episodes on train tasks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envgym.errors import RunError, SettingsError
from envgym.trainer.method import build_method
from envgym.trainer.self_training import fit_scorer, value_settings
from envgym.trainer.train import train
from envgym.trainer.workflows.critic_value import critic
from envgym.trainer.workflows.value_fit import split_by_task
from tests.support.credit_trees import chain, group_of
from tests.support.parrots import Parrot, ParrotTasks
from tests.trainer.test_critic_run import settings


class Flock(Parrot):
    tasks = ParrotTasks(28)


FIT = ("optim.epochs=12", "optim.minibatches=16", "optim.lr=0.003", "critic.lr=0.1")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an untrained policy's run on a parrot that is spoken to three times and pays 0.25 each time."""
    folder = tmp_path_factory.mktemp("policy")
    env: dict[str, Any] = {"id": f"{__name__}:Flock", "settings": {"max_turns": 3}}
    train(
        settings(
            folder / "run", run={"steps": 0}, envs=[env], credit={"name": "grpo"}, filter={"name": "zero_variance"}
        )
    )
    return folder / "run"


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_value_learns_the_return_from_each_turn_on(policy: Path, tmp_path: Path) -> None:
    before = content(policy)
    made = value_settings(policy, episodes=256, directory=tmp_path / "fit", overrides=FIT)
    fit = fit_scorer(made, policy)
    # three turns pay 0.25 each: 0.75, 0.5 and 0.25 are to come, half of it on average
    assert fit.metrics["critic/target"] == pytest.approx(0.5, abs=0.03)
    assert fit.metrics["critic/value"] == pytest.approx(0.5, abs=0.05)
    assert fit.metrics["critic/explained_variance"] > 0.8
    assert content(policy) == before
    assert critic(str(fit.directory)).tokens_read == 0


def test_a_fit_takes_the_targets_of_the_credit_that_is_named(policy: Path) -> None:
    for name, expected in (
        ("agent_prm", {"name": "agent_prm"}),
        ("gae_turn", {"name": "gae_turn", "decay": 1.0}),  # its targets are the returns, as by default
        ("gae_token", {"name": "gae_token", "decay": 1.0}),
    ):
        made = value_settings(policy, episodes=64, overrides=(f"credit.name={name}",))
        assert made.credit.model_dump() == expected
        build_method(made)
    made = value_settings(policy, episodes=64, overrides=("credit.name=gae_turn", "credit.decay=0.5"))
    assert made.credit.settings == {"decay": 0.5}


def test_equal_settings_fit_the_same_value(policy: Path, tmp_path: Path) -> None:
    few = ("optim.epochs=2", "optim.minibatches=4")
    one, other = (
        fit_scorer(value_settings(policy, episodes=64, directory=tmp_path / name, overrides=few), policy)
        for name in ("one", "other")
    )
    assert one.metrics == other.metrics


def test_a_fit_may_go_on_from_another_one_and_samples_from_the_policy(policy: Path, tmp_path: Path) -> None:
    still = ("optim.lr=1e-12", "critic.lr=1e-12", "optim.epochs=1", "optim.minibatches=1")
    first = fit_scorer(
        value_settings(policy, episodes=64, directory=tmp_path / "first", overrides=("optim.epochs=1",)), policy
    )
    made = [value_settings(policy, episodes=64, directory=tmp_path / name, overrides=still) for name in ("on", "anew")]
    on = fit_scorer(made[0], policy, before=first.directory)
    anew = fit_scorer(made[1], policy)
    # it values as the first does, on the episodes that the policy says
    assert on.metrics["critic/value"] == pytest.approx(first.metrics["critic/value"], abs=1e-4)
    assert anew.metrics["critic/value"] != pytest.approx(first.metrics["critic/value"], abs=1e-2)
    assert on.metrics["critic/target"] == anew.metrics["critic/target"]


def test_what_cannot_be_fitted_is_refused(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="episodes must fill 8 groups of 2, got 15"):
        value_settings(policy, episodes=15)
    with pytest.raises(RunError, match=r"run directory must hold run\.json"):
        value_settings(tmp_path, episodes=64)
    made = value_settings(policy, episodes=64, directory=tmp_path / "fit", overrides=("critic.detach=true",))
    with pytest.raises(SettingsError, match="critic must train the model that it reads"):
        fit_scorer(made, policy)
    with pytest.raises(RunError, match="run directory must be new or empty"):
        fit_scorer(value_settings(policy, episodes=64, directory=policy), policy)
    lonely = value_settings(
        policy, episodes=16, directory=tmp_path / "fit", overrides=("envs.0.id=tests.support.parrots:Parrot",)
    )
    with pytest.raises(SettingsError, match="groups must be of at least 2 tasks, got 1"):
        fit_scorer(lonely, policy)
    assert not (tmp_path / "fit").exists()


@given(st.lists(st.integers(0, 27), min_size=2, max_size=64), st.integers(0, 5))
def test_what_is_held_back_is_of_tasks_that_are_not_learned(drawn: list[int], seed: int) -> None:
    assume(len(set(drawn)) > 1)
    groups = [group_of(replace(chain("t", [1.0]), task_key=str(task))) for task in drawn]
    held_back, learned = split_by_task(groups, seed=seed)
    tasks = [{group.trees[0].task_key for group in part} for part in (held_back, learned)]
    assert not tasks[0] & tasks[1]
    assert len(tasks[0]) == max(len(set(drawn)) // 8, 1)
    assert len(held_back) + len(learned) == len(groups)


def test_fit_that_was_interrupted_can_be_made_again(policy: Path, tmp_path: Path) -> None:
    made = value_settings(policy, episodes=64, directory=tmp_path / "fit", overrides=("optim.epochs=1",))

    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == "fit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_scorer(made, policy, on_progress=interrupt)
    assert fit_scorer(made, policy).directory == tmp_path / "fit"
