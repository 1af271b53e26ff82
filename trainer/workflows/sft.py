"""Supervised warm start: the policy gradient with advantage 1 on episodes that somebody else played.

An oracle's episodes run through the same agent loop, so rows, masks and templates are those of training proper.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from envgym.agents.agent import Agent
from envgym.agents.driver import run_episode, run_oracle_episode
from envgym.agents.episode import EpisodeJob
from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.search import Chain
from envgym.core.messages import Action
from envgym.core.rewards import Scored
from envgym.core.tasks import Split
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.tree import Tree
from envgym.episodes import trees_of
from envgym.errors import SettingsError, sentence
from envgym.runs import RunDirectory
from envgym.seeds import derive_seed, generator
from envgym.trainer.batch.rows import TrainRow, train_row
from envgym.trainer.build import RunContext
from envgym.trainer.env_source import supplies
from envgym.trainer.learner.learner import Learner
from envgym.trainer.learner.objective import Objective
from envgym.trainer.methods.corrections import NoCorrection
from envgym.trainer.methods.losses import Reinforce
from envgym.trainer.metrics.rollout import rollout_metrics
from envgym.trainer.metrics.update import Metrics
from envgym.trainer.rollout.collector import collect
from envgym.trainer.settings import ObjectiveSettings, SftSettings, TrainSettings

LIKELIHOOD = Objective(
    loss=Reinforce(),
    correction=NoCorrection(),
    settings=ObjectiveSettings(aggregation="token-mean"),
    temperature=1.0,
)
"""-A log pi with A = 1, averaged over tokens: the negative log-likelihood."""

GAVE_UP = "gave-up/"
"""How the ids of episodes begin in which the oracle gave up on purpose."""


async def warm_start(
    bench: RunContext,
    settings: TrainSettings,
    sft: SftSettings,
    *,
    on_progress: Callable[[str, int, int], None],
) -> Metrics:
    """Train on the oracle's (or recorded) episodes; return the mean loss of the first and of the last tenth.

    Raises: SettingsError: no episode to train on.
    """
    oracle = sft.model_copy(update={"gives_up": 0.0})
    episodes = (
        _recorded(Path(sft.recorded)) if sft.recorded else await _from_oracle(bench, settings, oracle, on_progress)
    )
    success_at = settings.evaluation.success_at
    rows = [row for episode in episodes for row in likelihood_rows(episode, success_at=success_at)]
    if not rows:
        got = f"none of {len(episodes)} episodes succeeded"
        do = "look at the env's oracle with `envgym check`, or name another sft.recorded"
        raise SettingsError(sentence("warm start", "have successful episodes", got, where="sft", do=do))
    losses, success = await fit(bench, settings, sft, rows, on_progress=on_progress)
    if sft.gives_up:
        last = sft.model_copy(update={"episodes": sft.gives_up_episodes, "epochs": 1, "until_success": None})
        at_times = await _from_oracle(bench, settings, last, on_progress)
        mixed = [row for episode in at_times for row in likelihood_rows(episode, success_at=success_at)]
        await fit(bench, settings, last, mixed, on_progress=on_progress)
    tenth = max(len(losses) // 10, 1)
    return {
        "sft/episodes": float(len(episodes)),
        "sft/updates": float(len(losses)),
        "sft/loss_first": sum(losses[:tenth]) / tenth,
        "sft/loss_last": sum(losses[-tenth:]) / tenth,
        **({} if success is None else {"sft/success": success}),
    }


async def fit(
    bench: RunContext,
    settings: TrainSettings,
    sft: SftSettings,
    rows: Sequence[TrainRow],
    *,
    on_progress: Callable[[str, int, int], None],
) -> tuple[list[float], float | None]:
    """Run the epochs with an optimizer of their own, or stop where the policy succeeds often enough.

    Returns: the loss of every update, and the success at the last check (None where nothing was checked).
    """
    total = sft.epochs * -(-len(rows) // sft.batch_size)
    decay = "cosine" if sft.until_success is None else "constant"
    warmup = round(sft.warmup_share * total)
    optim = settings.optim.model_copy(
        update={"lr": sft.lr, "warmup_steps": warmup, "decay": decay, "minibatches": 1, "epochs": 1}
    )
    learner = Learner(bench.model, optim=optim, num_steps=total, device=bench.device, autocast=bench.learner.autocast)
    losses: list[float] = []
    success: float | None = None
    for batch in _batches(rows, sft, seed=settings.run.seed):
        losses.append(learner.train_step(batch, LIKELIHOOD, step=len(losses))["loss/policy"])
        on_progress("warm start", len(losses), total)
        if sft.until_success is not None and len(losses) % sft.check_every == 0:
            success = await _success(bench, settings, sft, check=len(losses))
            if success >= sft.until_success:
                on_progress("warm start", total, total)
                break
    return losses, success


def _batches(rows: Sequence[TrainRow], sft: SftSettings, *, seed: int) -> Iterator[list[TrainRow]]:
    """Yield the rows of every epoch in an order of its own."""
    for epoch in range(sft.epochs):
        order = list(range(len(rows)))
        random.Random(derive_seed(seed, "sft", epoch)).shuffle(order)
        for start in range(0, len(order), sft.batch_size):
            yield [rows[number] for number in order[start : start + sft.batch_size]]


async def _success(bench: RunContext, settings: TrainSettings, sft: SftSettings, *, check: int) -> float:
    """Return the share of sampled episodes on train tasks that succeed; invalid ones do not count."""
    probe = settings.model_copy(
        update={
            "rollout": settings.rollout.model_copy(update={"groups": sft.check_tasks, "group_size": 1}),
            "run": settings.run.model_copy(update={"seed": derive_seed(settings.run.seed, "sft check")}),
        }
    )
    found = await collect(bench, probe, step=check, stats={}, search=Chain())
    return rollout_metrics(found.groups, success_at=settings.evaluation.success_at).get("train/success", 0.0)


def likelihood_rows(episode: Trajectory, *, success_at: float) -> list[TrainRow]:
    """Return the rows of an episode that succeeded, or gave up on purpose, with advantage 1; none for another."""
    reward = episode.reward
    if not isinstance(reward, Scored):
        return []
    if reward.value < success_at and not episode.tree.id.startswith(GAVE_UP):
        return []
    return [train_row(row, [float(trains) for trains in row.loss_mask]) for row in episode.rows if any(row.loss_mask)]


async def _from_oracle(
    bench: RunContext, settings: TrainSettings, sft: SftSettings, on_progress: Callable[[str, int, int], None]
) -> list[Trajectory]:
    """Play the oracle on train tasks, dealt over the mixture as the curriculum deals them."""
    requests = bench.method.curriculum.choose(
        step=0,
        num_groups=sft.episodes,
        group_size=1,
        supplies=supplies(bench.env_sources),
        stats={},
        seed=derive_seed(settings.run.seed, "sft gives up" if sft.gives_up else "sft"),
    )
    words = bench.agent.renderer.encode_action(Action(sft.gives_up_saying))
    quitter = ScriptedPolicy(lambda request: words)
    draws = generator(settings.run.seed, "sft gives up").random(len(requests))
    trees: list[Tree] = []
    for number, (request, draw) in enumerate(zip(requests, draws, strict=True)):
        gives_up = draw < sft.gives_up
        env_source = bench.env_sources[request.env]
        job = EpisodeJob(
            make_env=env_source.make,
            task=env_source.tasks.task(Split.TRAIN, request.index),
            seed=derive_seed(settings.run.seed, "sft", number),
            tree_id=f"{GAVE_UP if gives_up else 'oracle/'}{number:06d}",
            env_id=env_source.env_id,
        )
        if gives_up:
            trees.append(await run_episode(job, bench.agent, quitter, sampling=bench.sampling(1.0)))
        else:
            trees.append(await run_oracle_episode(job, bench.agent))
        on_progress("oracle episodes", number + 1, len(requests))
    return [episode for tree in trees for episode in trajectories(tree)]


def check_recorded(sft: SftSettings | None) -> None:
    """See that there are episodes to learn from. Raises: RunError: no run there. SettingsError: it saved none."""
    if sft is None or sft.recorded is None:
        return
    if not RunDirectory.open(Path(sft.recorded)).episode_steps():
        do = "name a training run that saved its episodes (run.save_episodes_every)"
        raise SettingsError(sentence("sft.recorded", "hold train episodes", "none", where=sft.recorded, do=do))


def check_vocabulary(sft: SftSettings | None, agent: Agent) -> None:
    """See that recorded ids are to this model the tokens that they were. Raises: SettingsError: they are not."""
    if sft is None or sft.recorded is None:
        return
    run = RunDirectory.open(Path(sft.recorded))
    for tree in trees_of(run.episodes(run.episode_steps()[:1], label="train")):
        for segment in (segment for node in tree.nodes for segment in node.edge.segments if segment.token_strings):
            here = agent.renderer.token_strings(segment.token_ids)
            for index, then, now in zip(segment.token_ids, segment.token_strings, here, strict=True):
                if then != now:
                    got = f"id {index} for {then!r}, which is {now!r} here"
                    do = "record the episodes with this model, or let the oracle play (no sft.recorded)"
                    must = "hold tokens of this model's vocabulary"
                    raise SettingsError(sentence("sft.recorded", must, got, where=sft.recorded, do=do))


def _recorded(path: Path) -> list[Trajectory]:
    """Read the episodes that another run saved; their tokens are taken as they were sampled."""
    rows = RunDirectory.open(path).episodes()
    return [episode for tree in trees_of(rows) for episode in trajectories(tree) if tree.split is Split.TRAIN]
