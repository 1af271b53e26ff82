"""Self-training in rounds: search with the policy, fit a scorer to targets of its steps, train the policy, repeat.

Each round is two run directories below one folder, `round-01/scorer` and `round-01/policy`; `round-00/policy` is the
first policy's. What is complete there is kept, so that a process that was killed goes on where it was.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import Field

from envgym.errors import SettingsError, sentence
from envgym.seeds import derive_seed
from envgym.settings import Settings, build_settings
from envgym.trainer.learner.checkpoint import newest_checkpoint, require_checkpoint
from envgym.trainer.settings import TrainSettings
from envgym.trainer.train import train
from envgym.trainer.workflows.value_fit import fit_value, value_settings

Sections = Mapping[str, Any]
"""Sections of a run's settings, as plain data; each is laid over the run's section of the same name."""
_REPORT = "report.html"
"""What a training run writes last."""


class SelfTrainingPlan(Protocol):
    """What a method of self-training chooses in every round."""

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Return how the scorer's episodes are searched, and its targets; `previous` is the last round's scorer."""
        ...

    def policy_sections(self, scorer: Path) -> Sections:
        """Return how the policy learns, given the run of the scorer."""
        ...


class RestMctsRounds(Settings):
    """ReST-MCTS*: the policy imitates solved episodes of a tree search that the scorer leads. Source: 2406.03816.

    The search of the first round has no scorer: it backs up the rewards of whole episodes. Deviations: a round's policy
    goes on from the one before, as does its scorer from that policy (the paper's from the scorer before); all solved
    episodes of the search are imitated, without a threshold on the scorer's value of them.
    """

    search: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the search `mcts`."""
    sft: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the imitation, as `sft`."""

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Search, led by the scorer of the round before, and learn the tree's quality values."""
        value = {} if previous is None else {"value": {"name": "critic", "run": str(previous)}}
        return {"credit": {"name": "rest_mcts"}, "search": {"name": "mcts", **value, **self.search}}

    def policy_sections(self, scorer: Path) -> Sections:
        """Imitate the solved episodes."""
        sft = {"source": {"name": "recorded", "directory": str(scorer)}, **self.sft}
        return {"sft": sft, "run": {"steps": 0}}


class AgentPrmRounds(Settings):
    """AgentPRM: the policy learns by reinforcement from a process-reward model of its own turns. Source: 2502.10325.

    The scorer's value of every turn is the turn's reward, in place of the env's, and is compared with those of the same
    turn in the group; a KL term holds the policy to that of the round before. Deviation: the paper's policy step is
    online DPO on two samples a state.
    """

    kl_coef: float = Field(default=0.03, ge=0)
    """Weight of the KL term."""
    sections: dict[str, Any] = Field(default_factory=dict)
    """Further sections of the policy's runs, such as `optim`."""

    def scorer_sections(self, previous: Path | None) -> Sections:
        """Learn the mean outcome of every turn from independent episodes."""
        return {"credit": {"name": "agent_prm"}, "search": {"name": "chain"}}

    def policy_sections(self, scorer: Path) -> Sections:
        """Learn from the scorer's values."""
        return {
            "sft": None,
            "annotate": [{"name": "process_reward", "model": "scorer"}],
            "models": {"scorer": {"kind": {"name": "critic", "run": str(scorer)}}},
            "shaping": {"name": "annotated", "annotation": "process", "level": "turn", "instead": True},
            "filter": {"name": "keep_all"},
            "credit": {"name": "scrl"},
            "objective": {"kl_coef": self.kl_coef},
            **self.sections,
        }


class RoundRuns(NamedTuple):
    """The run directories of one round."""

    scorer: Path
    policy: Path


def self_train(
    settings: TrainSettings,
    plan: SelfTrainingPlan,
    *,
    rounds: int,
    episodes: int,
    scorer: Sections | None = None,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[RoundRuns]:
    """Train a first policy, then `rounds` rounds of a scorer and a policy; return the rounds' runs.

    Args:
        settings: of the first policy; `run.directory` is the folder of all runs. A round's policy takes over all
            sections that the plan does not choose.
        plan: the method.
        rounds: at least 1.
        episodes: that the scorer of each round is fitted on.
        scorer: sections of the fits, such as `optim` and `critic`.
        on_progress: called with a phase, what is done of it, and of how much.

    Raises: SettingsError, RunError: settings that do not fit, or a folder that holds runs of other settings.
    """
    if rounds < 1:
        raise SettingsError(sentence("rounds", "be at least 1", rounds, where="self_train", do="ask for one more"))
    root = settings.run.path
    policy = _trained(_in_directory(settings, root / "round-00" / "policy"))
    runs: list[RoundRuns] = []
    for number in range(1, rounds + 1):
        folder, seed = root / f"round-{number:02d}", derive_seed(settings.run.seed, "self-training", number) % 2**31
        chosen = plan.scorer_sections(runs[-1].scorer if runs else None)
        fitted = _fitted(policy, folder / "scorer", {**chosen, **(scorer or {})}, episodes, seed, on_progress)
        data = _with_model(settings.model_dump(mode="json"), require_checkpoint(policy) / "model")
        data["run"] |= {"seed": seed}
        data = _laid_over(data, plan.policy_sections(fitted))
        built = build_settings(TrainSettings, data, where=f"round {number}")
        policy = _trained(_in_directory(built, folder / "policy"))
        runs.append(RoundRuns(fitted, policy))
    return runs


def _trained(settings: TrainSettings) -> Path:
    """Train, or go on with a run that is there; one that has its report is complete."""
    path = settings.run.path
    if not (path / _REPORT).exists():
        train(settings, resume=(path / "run.json").exists())
    return path


def _fitted(
    policy: Path,
    directory: Path,
    sections: Sections,
    episodes: int,
    seed: int,
    on_progress: Callable[[str, int, int], None],
) -> Path:
    """Fit a scorer to a policy's episodes, unless that is done; what an earlier process has left of it is dropped."""
    if directory.exists() and newest_checkpoint(directory) is None:
        shutil.rmtree(directory)
    if not directory.exists():
        planned = value_settings(policy, episodes=episodes, directory=directory)
        data = _laid_over(planned.model_dump(mode="json"), sections)
        data["run"] |= {"seed": seed}
        fit_value(build_settings(TrainSettings, data, where="scorer"), policy, on_progress=on_progress)
    return directory


def _in_directory(settings: TrainSettings, directory: Path) -> TrainSettings:
    run = settings.run.model_copy(update={"directory": str(directory)})
    return settings.model_copy(update={"run": run})


def _with_model(data: dict[str, Any], model: Path) -> dict[str, Any]:
    """Return settings that begin with saved weights, or saved adapters where adapters train."""
    where = "name" if data["model"]["lora"] is None else "adapter"
    return {**data, "model": {**data["model"], where: str(model)}}


def _laid_over(data: Mapping[str, Any], sections: Sections) -> dict[str, Any]:
    """Lay sections over those of `data`; one that names another plug-in, or that was empty, is taken whole."""
    merged = dict(data)
    for name, section in sections.items():
        base = merged.get(name)
        is_same = isinstance(base, Mapping) and isinstance(section, Mapping) and "name" not in section
        merged[name] = {**base, **section} if is_same else section  # type: ignore[dict-item]  # both are mappings
    return merged
