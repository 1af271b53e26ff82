"""Self-training: rounds of a scorer and a policy, each from the one before, and going on after a crash."""

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from envgym import Action, Reply
from envgym.errors import SettingsError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.methods.annotators.process_reward import turn_prefixes
from envgym.trainer.methods.self_training.agent_prm import AgentPrmRounds
from envgym.trainer.methods.self_training.base import SelfTrainingPlan
from envgym.trainer.methods.self_training.rest_mcts import RestMctsRounds
from envgym.trainer.self_training import self_train
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workflows.critic_value import critic
from envgym.trainer.workflows.demonstrations import DemonstrationRequest, RecordedDemonstrations
from tests.support.parrots import Parrot, ParrotTasks
from tests.trainer.test_critic_run import settings as critic_settings

NO_ONE: Any = None
"""What a source that reads a run asks nothing of."""
FIT = {"optim": {"epochs": 1, "minibatches": 2, "lr": 0.001}, "critic": {"detach": False, "lr": 0.02, "coef": 1.0}}


class Parity(Parrot):
    """Hears two turns, and pays 1 at the end where they have an even number of characters."""

    tasks = ParrotTasks(16)

    def respond(self, action: Action) -> Reply:
        self.state.heard += len(action.content) + 1000
        is_over = self.state.heard >= 2000
        return Reply(observation="go on", reward=float(is_over and self.state.heard % 2 == 0), terminated=is_over)


def settings(directory: Path) -> TrainSettings:
    plain = {"shaping": {"name": "none"}, "credit": {"name": "grpo"}}
    return critic_settings(directory, run={"steps": 1}, envs=[{"id": f"{__name__}:Parity"}], **plain)


REST = RestMctsRounds(
    search={"simulations": 4}, sft={"epochs": 1, "batch_size": 4, "episodes": 8}, min_value=-9.0
)  # a scorer of a few updates may think little of everything
PRM = AgentPrmRounds(sections={"rollout": {"groups": 4, "group_size": 3}, "optim": {"minibatches": 1}})
REWARDS = AgentPrmRounds(update="reinforce", kl_coef=0.1)


def content(folder: Path) -> dict[Path, bytes]:
    wanted = [*folder.rglob("*.safetensors"), *folder.rglob("critic.pt")]
    return {path.relative_to(folder): path.read_bytes() for path in wanted}


def test_rest_mcts_rounds_search_with_the_scorer_and_imitate_what_was_solved(tmp_path: Path) -> None:
    first, second = self_train(settings(tmp_path / "all"), REST, rounds=2, episodes=16, scorer=FIT)
    configs = [RunDirectory.open(path).config for path in (first.scorer, first.policy, second.scorer, second.policy)]
    assert configs[0]["credit"]["name"] == configs[2]["credit"]["name"] == "rest_mcts"
    assert "value" not in configs[0]["search"]
    assert configs[2]["search"]["value"] == {"name": "critic", "run": str(first.scorer)}
    assert configs[1]["sft"]["source"] == {"name": "recorded", "directory": str(first.scorer), "min_value": -9.0}
    assert configs[1]["model"]["name"].startswith(str(tmp_path / "all" / "round-00" / "policy"))
    assert configs[3]["model"]["name"].startswith(str(first.policy))
    solved = [tree for tree in trees_of(RunDirectory.open(first.scorer).episodes()) if tree.leaves]
    assert len(solved) == 8  # trees of two leaves
    rows = RunDirectory.open(first.policy).metrics()
    assert rows[0]["sft/episodes"] > 0
    assert rows[0]["sft/updates"] > 0


def test_recorded_episodes_are_imitated_where_their_own_scorer_values_them_enough(tmp_path: Path) -> None:
    (only,) = self_train(settings(tmp_path / "all"), REST, rounds=1, episodes=64, scorer=FIT)
    request = DemonstrationRequest(
        num_episodes=1, success_at=1.0, seed=0, agent=NO_ONE, env_sources={}, curriculum=NO_ONE, on_progress=NO_ONE
    )

    def imitated(min_value: float | None) -> list[float]:
        source = RecordedDemonstrations(str(only.scorer), min_value=min_value)
        prefixes = [turn_prefixes(item)[-1].token_ids for item in asyncio.run(source(request)).imitated]
        return critic(str(only.scorer)).compute_values(prefixes, [True] * len(prefixes))

    values = sorted(imitated(None))
    assert sorted(imitated(-9.0)) == pytest.approx(values)
    assert len(values) > 2
    assert values[0] < values[-1]
    middle = (values[0] + values[-1]) / 2
    assert sorted(imitated(middle)) == pytest.approx([value for value in values if value >= middle])
    assert imitated(9.0) == []


def test_agent_prm_ranks_turns_of_one_state_by_the_scorer(tmp_path: Path) -> None:
    (only,) = self_train(settings(tmp_path / "all"), PRM, rounds=1, episodes=16, scorer=FIT)
    config = RunDirectory.open(only.policy).config
    assert config["loss"] == {"name": "step_dpo", "by": "advantage", "beta": 0.03}
    assert config["search"]["name"] == "random_expand"
    (row,) = [row for row in RunDirectory.open(only.policy).metrics() if row["step"] == 1]
    # before the update the policy is its reference: every pair is a guess
    assert row["loss/policy"] * row["train/trained_tokens"] == pytest.approx(math.log(2), abs=1e-4)
    assert row["loss/policy/margin"] == pytest.approx(0.0, abs=1e-4)
    assert row["optim/grad_norm"] > 0


def test_agent_prm_rounds_may_train_on_the_scorers_values(tmp_path: Path) -> None:
    (only,) = self_train(settings(tmp_path / "all"), REWARDS, rounds=1, episodes=16, scorer=FIT)
    config = RunDirectory.open(only.policy).config
    assert config["models"]["scorer"]["kind"] == {"name": "critic", "run": str(only.scorer)}
    assert config["objective"]["kl_coef"] == 0.1
    assert RunDirectory.open(only.scorer).config["credit"]["name"] == "agent_prm"
    (row,) = [row for row in RunDirectory.open(only.policy).metrics() if row["step"] == 1]
    assert row["annotate/process_failed"] == 0.0
    assert row["optim/grad_norm"] > 0
    metrics = RunDirectory.open(only.scorer).metrics()[-1]
    assert 0 <= metrics["critic/target"] <= 1


@pytest.mark.parametrize("plan", [REST, PRM], ids=["rest_mcts", "agent_prm"])
def test_a_process_that_was_killed_goes_on_to_the_same_rounds(plan: SelfTrainingPlan, tmp_path: Path) -> None:
    asked = settings(tmp_path / "all")
    (whole,) = self_train(asked, plan, rounds=1, episodes=16, scorer=FIT)
    before = content(tmp_path / "all")
    shutil.rmtree(whole.scorer / "checkpoints")  # killed in the fit
    shutil.rmtree(whole.policy)
    self_train(asked, plan, rounds=1, episodes=16, scorer=FIT)
    assert content(tmp_path / "all") == before
    (whole.policy / "report.html").unlink()  # killed in the last moment
    self_train(asked, plan, rounds=1, episodes=16, scorer=FIT)
    assert content(tmp_path / "all") == before


def test_no_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="rounds must be at least 1, got 0"):
        self_train(settings(tmp_path / "all"), REST, rounds=0, episodes=16)
    assert not (tmp_path / "all").exists()
