"""Supervised warm start: the policy gradient with advantage 1 on episodes that somebody else played.

An oracle's episodes run through the same agent loop, so rows, masks and templates are those of training proper.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from envgym.agents.driver import EpisodeJob, run_oracle_episode
from envgym.core.rewards import Scored
from envgym.core.tasks import Split
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.episodes import trees_of
from envgym.errors import SettingsError, sentence
from envgym.runs import RunDirectory
from envgym.seeds import derive_seed
from envgym.trainer.batch import TrainRow, train_row
from envgym.trainer.corrections import NoCorrection
from envgym.trainer.learner import Learner, Objective
from envgym.trainer.losses import Reinforce
from envgym.trainer.seen import Metrics
from envgym.trainer.settings import ObjectiveSettings, OptimSettings, SftSettings, TrainSettings
from envgym.trainer.workbench import Workbench
from envgym.trainer.world import supplies

LIKELIHOOD = Objective(
    loss=Reinforce(),
    correction=NoCorrection(),
    settings=ObjectiveSettings(aggregation="token-mean"),
    temperature=1.0,
)
"""-A log pi with A = 1, averaged over tokens: the negative log-likelihood."""


async def warm_start(
    bench: Workbench,
    settings: TrainSettings,
    sft: SftSettings,
    *,
    on_progress: Callable[[str, int, int], None],
) -> Metrics:
    """Train on the oracle's (or recorded) episodes; return the mean loss of the first and of the last tenth.

    Raises: SettingsError: no episode to train on.
    """
    episodes = _recorded(Path(sft.recorded)) if sft.recorded else await _from_oracle(bench, settings, sft, on_progress)
    rows = [row for episode in episodes for row in likelihood_rows(episode)]
    if not rows:
        got = f"none of {len(episodes)} episodes succeeded"
        do = "look at the env's oracle with `envgym check`, or name another sft.recorded"
        raise SettingsError(sentence("warm start", "have successful episodes", got, where="sft", do=do))
    losses = fit(bench, settings, sft, rows, on_progress=on_progress)
    tenth = max(len(losses) // 10, 1)
    return {
        "sft/episodes": float(len(episodes)),
        "sft/updates": float(len(losses)),
        "sft/loss_first": sum(losses[:tenth]) / tenth,
        "sft/loss_last": sum(losses[-tenth:]) / tenth,
    }


def fit(
    bench: Workbench,
    settings: TrainSettings,
    sft: SftSettings,
    rows: Sequence[TrainRow],
    *,
    on_progress: Callable[[str, int, int], None],
) -> list[float]:
    """Run the epochs with an optimizer of their own; return the loss of every update."""
    starts = range(0, len(rows), sft.batch_size)
    total = sft.epochs * len(starts)
    optim = settings.optim.model_copy(
        update={
            "lr": sft.lr,
            "warmup_steps": round(sft.warmup_share * total),
            "decay": "cosine",
            "minibatches": 1,
            "epochs": 1,
        }
    )
    learner = Learner(
        bench.model, optim=OptimSettings.model_validate(optim.model_dump()), num_steps=total, device=bench.device,
        autocast=bench.learner.autocast,
    )  # fmt: skip
    losses: list[float] = []
    for epoch in range(sft.epochs):
        order = list(range(len(rows)))
        random.Random(derive_seed(settings.run.seed, "sft", epoch)).shuffle(order)
        for start in starts:
            batch = [rows[number] for number in order[start : start + sft.batch_size]]
            losses.append(learner.learn(batch, LIKELIHOOD, step=len(losses))["loss/policy"])
            on_progress("warm start", len(losses), total)
    return losses


def likelihood_rows(episode: Trajectory) -> list[TrainRow]:
    """Return the rows of a successful episode with advantage 1; none for another."""
    reward = episode.reward
    if not isinstance(reward, Scored) or reward.value <= 0:
        return []
    return [train_row(row, [float(trains) for trains in row.loss_mask]) for row in episode.rows if any(row.loss_mask)]


async def _from_oracle(
    bench: Workbench, settings: TrainSettings, sft: SftSettings, on_progress: Callable[[str, int, int], None]
) -> list[Trajectory]:
    """Play the oracle on train tasks, dealt over the mixture as the curriculum deals them."""
    requests = bench.method.curriculum.choose(
        step=0,
        num_groups=sft.episodes,
        group_size=1,
        supplies=supplies(bench.worlds),
        stats={},
        seed=derive_seed(settings.run.seed, "sft"),
    )
    trees: list[Tree] = []
    for number, request in enumerate(requests):
        world = bench.worlds[request.env]
        job = EpisodeJob(
            make_env=world.make,
            task=world.tasks.task(Split.TRAIN, request.index),
            seed=derive_seed(settings.run.seed, "sft", number),
            tree_id=f"oracle/{number:06d}",
            env_id=world.env_id,
        )
        trees.append(await run_oracle_episode(job, bench.agent))
        on_progress("oracle episodes", number + 1, len(requests))
    return [episode for tree in trees for episode in trajectories(tree)]


def _recorded(path: Path) -> list[Trajectory]:
    """Read the episodes that another run saved; their tokens are taken as they were sampled."""
    rows = RunDirectory.open(path).episodes()
    return [episode for tree in trees_of(rows) for episode in trajectories(tree) if tree.split is Split.TRAIN]
