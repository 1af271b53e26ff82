"""Plan an evaluation, play it by tokens through a search or by messages, and record it; in a training run too.

The tasks, their order and every seed are a function of the plan alone, so two evaluations of one plan are paired.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from envgym.agents.evaluation.metrics.base import Metric, compute_metrics
from envgym.agents.evaluation.metrics.tools import count_tool_failures
from envgym.agents.loop.agent import Agent, AgentSettings
from envgym.agents.protocols import Policy
from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.messages import MessagePolicy, message_agent, reply_fn, run_message_episode
from envgym.agents.rollout.pool import run_pool
from envgym.agents.rollout.programs.episode import run_program_episode
from envgym.agents.rollout.reissue import grow_or_reissue
from envgym.agents.search import Chain, RolloutContext, Selection, Strategy
from envgym.agents.settings import EvaluationSettings
from envgym.core.tasks import Split, Task, TaskSource, check_ids, distinct_tasks
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.core.turns import Cost, Ending, Invalid
from envgym.env import Env
from envgym.errors import RunError, SettingsError
from envgym.report.data import ToolFailure
from envgym.seeds import derive_seed
from envgym.stats import Estimate, bound_invalid, successes_of

ORACLE_SELECTED = "oracle-selected"
"""Marks numbers of episodes that were chosen by what no agent can see."""
SELECTED_BY_ENDING = "selected by ending"
"""Marks numbers of episodes that were chosen by how they ended, which may reveal the verdict."""
SPLIT_LABELS = {Split.TEST: "held-out", Split.TRAIN: "train-split"}
"""Labels of evaluations on all tasks of a plan."""


_FIRST_EPISODES = 16
"""An evaluation stops where none of so many episodes had room for a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """The episodes of an evaluation; fixed before the first one."""

    env_id: str
    make_env: Callable[[], Env[Any]]
    tasks: tuple[Task, ...]
    settings: EvaluationSettings
    seed: int
    label: str = "held-out"
    """Evaluations of one label share tasks and sampling, and may be compared."""
    selection: Selection | None = None
    """How a search that finds several chooses one."""
    metrics: tuple[Metric, ...] = ()
    """What is measured of the episodes."""

    @property
    def title(self) -> str:
        """The label, and what must be known to read the numbers right."""
        marks: list[str] = []
        if self.selection is not None:
            marks += [ORACLE_SELECTED] if self.selection.is_oracle else []
            marks += [SELECTED_BY_ENDING] if self.selection.uses_ending else []
        return " ".join([self.label, ", ".join(marks)]) if marks else self.label

    def jobs(self) -> list[EpisodeJob]:
        """Return the episodes, task by task."""
        return [
            EpisodeJob(
                make_env=self.make_env,
                task=task,
                seed=derive_seed(self.seed, self.env_id, task.key, sample),  # alike alone and in a mixture
                tree_id=f"{self.label}/{task.id}/{sample}",
                env_id=self.env_id,
            )
            for task in self.tasks
            for sample in range(self.settings.samples)
        ]


def held_out_tasks(source: TaskSource, count: int, *, split: Split = Split.TEST) -> tuple[Task, ...]:
    """Return the first `count` tasks of different content; fewer where the split ends before.

    Raises: InvalidInput: two of them have one id.
    """
    size = source.size(split)
    tasks_by_key: dict[str, Task] = {}
    if size is None:
        tasks_by_key = {task.key: task for task in distinct_tasks(source, split, count)}
    for index in range(size or 0):
        if len(tasks_by_key) == count:
            break
        task = source.task(split, index)
        tasks_by_key.setdefault(task.key, task)
    check_ids(tasks_by_key.values(), where=f"{split} split", do="give each task an id of its own in the task source")
    return tuple(tasks_by_key.values())


# ---- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """The result of an evaluation in plain numbers; a run directory keeps it as JSON."""

    env_id: str
    label: str
    step: int
    """Train steps done before it."""
    temperature: float
    success_at: float
    rewards: Mapping[str, tuple[float | None, ...]]
    """Task id -> reward of each sample; None where it is invalid."""
    endings: Mapping[str, int]
    """Ending -> episodes."""
    costs: Mapping[str, float]
    """Mean per episode; after a search, all that the search spent."""
    seconds: float
    """From the first episode's beginning to the last one's end, without imports and loading."""
    search: str = "chain"
    """The search that chose each episode; costs are those of the whole search."""
    selected_by: str | None = None
    """The scorer that chose it among several; None: there was one."""
    is_oracle: bool = False
    """True where that scorer knows what no agent can see."""
    uses_ending: bool = False
    """True where how an episode ended came before the scorer."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the metrics that the settings choose, called `metric/<name>`; `_low` and `_high` are the interval."""
    tool_failures: tuple[ToolFailure, ...] = ()
    """Failed calls of tools by tool and answer."""

    @property
    def success(self) -> Estimate | None:
        """Success rate over the valid episodes, with its interval; None where none is valid."""
        return bound_invalid(successes_of(self.rewards, self.success_at)).valid

    def __repr__(self) -> str:
        success = "unknown" if self.success is None else self.success.percent
        size = f"{len(self.rewards)} tasks, {sum(self.endings.values())} episodes"
        return f"<EvalRecord {self.env_id}, {self.label} after {self.step} train steps: success {success}, {size}>"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "EvalRecord":
        rewards = {task_id: tuple(rewards) for task_id, rewards in data["rewards"].items()}
        failures = tuple(ToolFailure(**failure) for failure in data.get("tool_failures", ()))
        return cls(**{**data, "rewards": rewards, "tool_failures": failures})


def record_evaluation(plan: EvalPlan, trees: Sequence[Tree], *, step: int, seconds: float) -> EvalRecord:
    """Return the record of the plan's episodes, which are in its order."""
    episodes = [episode for tree in trees for episode in trajectories(tree)]
    rewards: dict[str, list[float | None]] = {task.id: [] for task in plan.tasks}
    for episode in episodes:
        rewards[episode.tree.task_id].append(None if isinstance(episode.reward, Invalid) else episode.reward.value)
    cost = sum((tree.total_cost for tree in trees), Cost())
    size, selection = max(len(episodes), 1), plan.selection
    return EvalRecord(
        env_id=plan.env_id,
        label=plan.title,
        step=step,
        temperature=plan.settings.temperature,
        success_at=plan.settings.success_at,
        rewards={task_id: tuple(values) for task_id, values in rewards.items()},
        endings=dict(Counter(episode.ending.value for episode in episodes)),
        costs={
            "turns": sum(len(episode.turns) for episode in episodes) / size,
            **{name: value / size for name, value in asdict(cost).items()},
        },
        seconds=seconds,
        search=plan.settings.search.name,
        selected_by=None if selection is None else selection.by,
        is_oracle=selection is not None and selection.is_oracle,
        uses_ending=selection is not None and selection.uses_ending,
        metrics=compute_metrics(plan.metrics, episodes),
        tool_failures=count_tool_failures(episodes),
    )


# ---- playing ---------------------------------------------------------------------------------------------------------

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
        step: train steps done before.
        max_invalid_rate: share of invalid episodes above which the evaluation stops.
        on_finished: called with every episode that is played.
        finished: episodes of the plan that were played before.
        seconds_before: time that they took.

    Raises: RunError: too many invalid episodes, or prompts that do not fit the context.
    """
    started = time.perf_counter() - seconds_before
    trees = {tree.id: tree for tree in finished}
    jobs = plan.jobs()
    num_invalid = 0
    first: list[Tree] = []

    def handle(tree: Tree) -> None:
        nonlocal num_invalid
        if on_finished is not None:
            on_finished(tree)
        if len(first) < _FIRST_EPISODES:
            first.append(tree)
            if len(first) == min(_FIRST_EPISODES, len(jobs)):
                check_prompts(first, where=f"the first episodes of {plan.env_id}")
        reasons = invalid_reasons(tree)
        num_invalid += bool(reasons)
        if num_invalid > max_invalid_rate * len(jobs):
            got = f"{num_invalid} of {len(jobs)}, such as: {reasons[0]}"
            do = "fix the environment, its services or the endpoint, then resume"
            must = f"stay below {max_invalid_rate:.0%}"
            raise RunError.of("invalid episodes", must, got, where=f"task {tree.task_id}", do=do)

    missing = [job for job in jobs if job.tree_id not in trees]
    trees.update(zip((job.tree_id for job in missing), await play(missing, handle), strict=True))
    ordered = [trees[job.tree_id] for job in jobs]
    record = record_evaluation(plan, ordered, step=step, seconds=time.perf_counter() - started)
    return Evaluation(ordered, record)


def token_player(
    agent: Agent, policy: Policy, search: Strategy, settings: EvaluationSettings, *, concurrency: int
) -> Player:
    """Return the player that finds each episode by a search over a policy of tokens."""

    async def play(jobs: Sequence[EpisodeJob], on_finished: OnFinished) -> list[Tree]:
        slots = asyncio.Semaphore(concurrency)
        context = RolloutContext(agent=agent, policy=policy, sampling=settings.sampling, slots=slots)

        async def answer(job: EpisodeJob) -> Tree:
            return await grow_or_reissue(job, lambda job: search.answer(job, context))

        leaves_cycles = agent.settings.program is not None
        return await run_pool(
            jobs, answer, concurrency=concurrency, on_finished=on_finished, leaves_cycles=leaves_cycles
        )

    return play


def message_player(
    agent: AgentSettings, policy: MessagePolicy, search: Strategy, settings: EvaluationSettings, *, concurrency: int
) -> Player:
    """Return the player of episodes by messages.

    Raises: UnknownName: no such text format. SettingsError: a search that needs tokens.
    """
    if not isinstance(search, Chain):
        do = "use engine.backend=vllm_server where vLLM serves it, load the model here, or use chain"
        got = settings.search.name
        raise SettingsError.of("search", "be chain for a policy of messages", got, where="evaluation", do=do)
    program_agent = message_agent(agent)

    async def converse(job: EpisodeJob) -> Tree:
        if agent.program is None:
            return await run_message_episode(job, agent, policy, sampling=settings.sampling)
        return await run_program_episode(job, program_agent, reply_fn(policy), sampling=settings.sampling)

    async def play(jobs: Sequence[EpisodeJob], on_finished: OnFinished) -> list[Tree]:
        return await run_pool(
            jobs,
            lambda job: grow_or_reissue(job, converse),
            concurrency=concurrency,
            on_finished=on_finished,
            leaves_cycles=agent.program is not None,
        )

    return play


def check_prompts(trees: Sequence[Tree], *, where: str) -> None:
    """See that prompts fit the context, where there are episodes. Raises: RunError: not one of them does."""
    lengths = [_prompt_that_is_too_long(tree) for tree in trees]
    if lengths and all(length is not None for length in lengths):
        got = f"none of {len(trees)}; that of task {trees[0].task_id} has {lengths[0]} tokens"
        do = "raise agent.max_context_tokens, if the model has room for more, or shorten the task and the tools"
        raise RunError.of("prompts", "fit agent.max_context_tokens", got, where=where, do=do)


def _prompt_that_is_too_long(tree: Tree) -> int | None:
    """Return the tokens of a prompt after which there was no room for a reply; None: there was."""
    is_cut = all(tree.nodes[leaf].ending is Ending.TRUNCATED_TOKENS for leaf in tree.leaves)
    if not is_cut or tree.total_cost.tokens_generated:
        return None
    return sum(len(segment) for segment in tree.nodes[0].edge.segments)


def invalid_reasons(tree: Tree) -> list[str]:
    """Return why episodes of a tree are invalid."""
    return [reward.reason for episode in trajectories(tree) if isinstance(reward := episode.reward, Invalid)]
