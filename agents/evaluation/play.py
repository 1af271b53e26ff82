"""Play a plan: by tokens through a search, or by messages; in a training run and by itself alike."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import NamedTuple

from envgym.agents.evaluation.plan import EvalPlan
from envgym.agents.evaluation.record import EvalRecord, record_evaluation
from envgym.agents.loop.agent import Agent, AgentSettings, resolve_text_format
from envgym.agents.protocols import Policy, Sampling
from envgym.agents.rollout.driver import run_episodes
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.messages import MessagePolicy, run_message_episodes
from envgym.agents.rollout.pool import run_pool
from envgym.agents.search import Chain, RolloutContext, Strategy
from envgym.agents.settings import EvaluationSettings
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Invalid
from envgym.errors import RunError, SettingsError, sentence

OnFinished = Callable[[Tree], None]
"""Called with every episode as it ends."""
Player = Callable[[Sequence[EpisodeJob], OnFinished], Coroutine[None, None, list[Tree]]]
"""Plays jobs and returns their trees in the order of the jobs."""


class Evaluation(NamedTuple):
    """The episodes of a plan, in its order, and their record."""

    trees: list[Tree]
    record: EvalRecord


async def evaluate(
    plan: EvalPlan,
    play: Player,
    settings: EvaluationSettings,
    *,
    step: int,
    max_invalid_rate: float = 1.0,
    on_finished: OnFinished | None = None,
    finished: Iterable[Tree] = (),
    seconds_before: float = 0.0,
) -> Evaluation:
    """Play what is missing of a plan, and record all of it.

    Args:
        plan: the episodes.
        play: plays them.
        settings: of the evaluation.
        step: train steps done before.
        max_invalid_rate: share of invalid episodes above which the evaluation stops.
        on_finished: called with every episode that is played.
        finished: episodes of the plan that were played before.
        seconds_before: time that they took.

    Raises: RunError: too many invalid episodes.
    """
    started = time.perf_counter() - seconds_before
    check = _InvalidEpisodeLimit(len(plan.tasks) * plan.samples, max_invalid_rate)

    def handle(tree: Tree) -> None:
        if on_finished is not None:
            on_finished(tree)
        check(tree)

    trees = {tree.id: tree for tree in finished}
    jobs = plan.jobs()
    missing = [job for job in jobs if job.tree_id not in trees]
    trees.update(zip((job.tree_id for job in missing), await play(missing, handle), strict=True))
    ordered = [trees[job.tree_id] for job in jobs]
    seconds = time.perf_counter() - started
    record = record_evaluation(plan, ordered, step=step, temperature=settings.temperature, seconds=seconds)
    return Evaluation(ordered, record)


def evaluation_sampling(settings: EvaluationSettings, agent: AgentSettings) -> Sampling:
    """Return how the turns of an evaluation are sampled."""
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_new_tokens=agent.max_turn_tokens,
    )


def token_player(
    agent: Agent, policy: Policy, search: Strategy, settings: EvaluationSettings, *, concurrency: int
) -> Player:
    """Return what finds each episode by a search over a policy of tokens."""
    sampling = evaluation_sampling(settings, agent.settings)

    async def play(jobs: Sequence[EpisodeJob], on_finished: OnFinished) -> list[Tree]:
        if isinstance(search, Chain):
            return await run_episodes(
                jobs, agent, policy, sampling=sampling, concurrency=concurrency, on_finished=on_finished
            )
        slots = asyncio.Semaphore(concurrency)
        context = RolloutContext(agent=agent, policy=policy, sampling=sampling, slots=slots)
        return await run_pool(
            jobs, lambda job: search.answer(job, context), concurrency=concurrency, on_finished=on_finished
        )

    return play


def message_player(
    agent: AgentSettings, policy: MessagePolicy, search: Strategy, settings: EvaluationSettings, *, concurrency: int
) -> Player:
    """Return what plays each episode by messages.

    Raises: UnknownName: no such text format. SettingsError: a search that needs tokens.
    """
    if not isinstance(search, Chain):
        do = "use engine.backend=vllm_server where vLLM serves it, load the model here, or use chain"
        got = settings.search.name
        raise SettingsError(sentence("search", "be chain for a policy of messages", got, where="evaluation", do=do))
    resolve_text_format(agent)
    sampling = evaluation_sampling(settings, agent)

    async def play(jobs: Sequence[EpisodeJob], on_finished: OnFinished) -> list[Tree]:
        return await run_message_episodes(
            jobs, agent, policy, sampling=sampling, concurrency=concurrency, on_finished=on_finished
        )

    return play


class _InvalidEpisodeLimit:
    """Stops an evaluation whose infrastructure fails."""

    def __init__(self, num_episodes: int, max_invalid_rate: float) -> None:
        self._num_episodes, self._max_invalid_rate, self._num_invalid = num_episodes, max_invalid_rate, 0

    def __call__(self, tree: Tree) -> None:
        """Count an episode. Raises: RunError: too many were invalid."""
        reasons = invalid_reasons(tree)
        self._num_invalid += bool(reasons)
        if self._num_invalid > self._max_invalid_rate * self._num_episodes:
            got = f"{self._num_invalid} of {self._num_episodes}, such as: {reasons[0]}"
            do = "mend the env, its services or the endpoint, then resume"
            must = f"stay below {self._max_invalid_rate:.0%}"
            raise RunError(sentence("invalid episodes", must, got, where=f"task {tree.task_id}", do=do))


def invalid_reasons(tree: Tree) -> list[str]:
    """Return why episodes of a tree are invalid."""
    return [reward.reason for episode in trajectories(tree) if isinstance(reward := episode.reward, Invalid)]
