"""A whole evaluation on disk: episodes are written down as they end, so that one that was killed can be resumed."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import envgym
from envgym.agents.agent import NATIVE, agent_kind, make_agent
from envgym.agents.driver import run_episodes
from envgym.agents.episode import EpisodeJob
from envgym.agents.eval_settings import EvalEnv, EvalSettings
from envgym.agents.evaluation import EvalPlan, EvalRecord, complete, held_out_tasks, record_evaluation
from envgym.agents.message_driver import run_message_episodes
from envgym.agents.policies.endpoint import EndpointSettings
from envgym.agents.policies.openai import OpenAIPolicy
from envgym.agents.policies.vllm_server import VllmServerPolicy
from envgym.agents.pool import run_pool
from envgym.agents.protocols import Policy, Sampling
from envgym.agents.search import Chain, RolloutContext, Strategy
from envgym.agents.search.protocol import TreeStrategy
from envgym.core.rewards import Invalid
from envgym.core.tasks import Split, TaskSource
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.env import Env
from envgym.episodes import episode_rows
from envgym.errors import InvalidInput, RunError, SettingsError, UnknownName, sentence
from envgym.journal import Journal
from envgym.parsing import text_format
from envgym.report.from_run import write_run_report
from envgym.runs import RunDirectory, check_labels, check_new, check_same
from envgym.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

JOURNAL = "finished.jsonl"
"""Episodes of an evaluation that is not over yet."""
_LABELS = {Split.TEST: "held-out", Split.TRAIN: "train-split"}

Progress = Callable[[str, int, int], None]
"""Told (phase, done, total)."""


_Player = Callable[[Sequence[EpisodeJob], Callable[[Tree], None]], Coroutine[None, None, list[Tree]]]
"""Runs jobs, tells every episode as it ends, and returns all in the order of the jobs."""
_Opened = Callable[[], AbstractAsyncContextManager[Policy]]
"""Makes a policy ready for one event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What an evaluation left behind."""

    directory: Path
    report: Path
    evaluations: tuple[EvalRecord, ...]


def run_evaluation(
    settings: EvalSettings, *, resume: bool = False, on_progress: Progress = lambda phase, done, total: None
) -> EvalResult:
    """Evaluate as `settings` say and write a run directory.

    Args:
        settings: of the evaluation.
        resume: go on with the directory, whose settings must be these. Episodes that infrastructure ended run again.
        on_progress: called as episodes end.

    Raises:
        SettingsError, UnknownName, RunError: bad settings or directory; nothing has been written then. RunError: too
            many invalid episodes; what was finished is kept.
    """
    agent_kind(settings.agent.name)
    run = _open(settings, resume=resume)
    check_labels((env.label for env in settings.envs), where="envs")
    plans = [_plan(settings, env) for env in settings.envs]
    done = set() if run is None else {data["label"] for data in run.evals()}
    missing = [plan for plan in plans if plan.title not in done]
    play = _player(settings) if missing else None
    if run is None:
        run = RunDirectory.create(settings.run_directory, name=settings.run.name, config=_config(settings))
    journal = Journal(run.path / JOURNAL)
    for plan in missing:
        assert play is not None, "there is something to play"
        _evaluate(settings, run, journal, plan, play, on_progress)
    report = write_run_report(run)
    journal.discard()
    records = tuple(EvalRecord.from_json(data) for data in run.evals())
    return EvalResult(directory=run.path, report=report, evaluations=records)


def _evaluate(
    settings: EvalSettings, run: RunDirectory, journal: Journal, plan: EvalPlan, play: _Player, on_progress: Progress
) -> None:
    """Play what is missing of a plan, and record all of it."""
    finished = [tree for tree in journal.of(plan.label) if not _invalid(tree)]
    total = len(plan.tasks) * plan.samples
    started = time.perf_counter() - journal.seconds.get(plan.label, 0.0)
    watch = _Watch(total, settings.evaluation.max_invalid_rate)
    done = len(finished)

    def on_finished(tree: Tree) -> None:
        nonlocal done
        done += 1
        journal.add(plan.label, tree, seconds=time.perf_counter() - started)
        on_progress(f"evaluate {plan.label}", done, total)
        watch(tree)

    with asyncio.Runner() as runner:
        trees = runner.run(complete(plan, lambda jobs: play(jobs, on_finished), finished))
    step = settings.model.steps
    record = record_evaluation(
        plan,
        trees,
        step=step,
        temperature=settings.evaluation.temperature,
        seconds=time.perf_counter() - started,
    )
    run.write_episodes(step, episode_rows(trees, step=step), label=plan.title)
    run.write_eval(step, plan.title, record.to_json())


# ---- before the first episode ---------------------------------------------------------------------------------------


def _open(settings: EvalSettings, *, resume: bool) -> RunDirectory | None:
    """Return the run to resume, or see that a new directory can be made."""
    path = settings.run_directory
    if not resume:
        check_new(path)
        return None
    run = RunDirectory.open(path)
    policy = "policy" if settings.model.endpoint is None else "policy.cache_gib"  # it decides how an endpoint is asked
    check_same(run.config, _config(settings), where=path, but=("run.directory", "engine", policy))
    return run


def _config(settings: EvalSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json")


def _plan(settings: EvalSettings, env: EvalEnv) -> EvalPlan:
    """Make the env once, to see that its settings hold, and choose its tasks."""

    def make_env() -> Env[Any]:
        return envgym.make(env.id, **env.settings)

    asked = settings.evaluation
    search = settings.search.strategy()
    tasks = held_out_tasks(_tasks_of(make_env(), search, settings), asked.tasks, split=asked.split)
    if not tasks:
        do = "evaluate on another split"
        raise SettingsError(sentence("split", "hold a task", str(asked.split), where=env.id, do=do))
    label = _LABELS[asked.split]
    return EvalPlan(
        env_id=env.id,
        make_env=make_env,
        tasks=tasks,
        samples=asked.samples,
        seed=derive_seed(settings.run.seed, "evaluation"),
        label=label if len(settings.envs) == 1 else f"{label} {env.label}",
        success_at=asked.success_at,
        search=settings.search.name,
        selection=search.selection,
    )


def _tasks_of(env: Env[Any], search: Strategy, settings: EvalSettings) -> TaskSource:
    """Return the env's tasks. Raises: SettingsError: the search does not suit the env or the agent."""
    try:
        search.check(env, settings.agent, group_size=None)
        return env.unwrapped.tasks
    finally:
        env.close()


def _player(settings: EvalSettings) -> "_Player":
    """Get ready who is evaluated. Raises: UnknownName, InvalidInput: there is no such model, or no such agent."""
    endpoint = settings.model.endpoint
    if endpoint is None:
        from envgym.agents.policies.local import load_local  # the weights are heavy

        local = load_local(settings.model, settings.engine, settings.policy)
        return _by_tokens(settings, local.tokenizer, lambda: nullcontext(local.policy))
    if settings.policy.backend == "vllm":
        return _by_tokens(settings, *_served(settings, endpoint))
    return _by_messages(settings, endpoint)


def _sampling(settings: EvalSettings) -> Sampling:
    return Sampling(temperature=settings.evaluation.temperature, max_new_tokens=settings.agent.max_turn_tokens)


def _by_tokens(settings: EvalSettings, tokenizer: "PreTrainedTokenizerFast", opened: _Opened) -> _Player:
    """Play with a policy that is opened for every plan. Raises: UnknownName, InvalidInput: no agent for this model."""
    agent = make_agent(settings.agent, tokenizer)
    search = settings.search.strategy()
    if isinstance(search, TreeStrategy):
        search.check_tokenizer(tokenizer)
    sampling, concurrency = _sampling(settings), settings.engine.concurrency

    async def sample(jobs: Sequence[EpisodeJob], on_finished: Callable[[Tree], None]) -> list[Tree]:
        async with opened() as policy:
            if isinstance(search, Chain):
                return await run_episodes(
                    jobs, agent, policy, sampling=sampling, concurrency=concurrency, on_finished=on_finished
                )
            slots = asyncio.Semaphore(concurrency)
            context = RolloutContext(agent=agent, policy=policy, sampling=sampling, slots=slots)
            return await run_pool(
                jobs, lambda job: search.answer(job, context), concurrency=concurrency, on_finished=on_finished
            )

    return sample


def _served(settings: EvalSettings, endpoint: EndpointSettings) -> tuple["PreTrainedTokenizerFast", _Opened]:
    """Return the tokenizer of a model that vLLM serves, and what connects to it.

    Raises: InvalidInput: no such tokenizer, no such model, no key. PolicyFailure: the server does not answer, or cannot
        state token ids and the log-probs of this sampling.
    """
    from envgym.agents.models.registry import load_tokenizer, resolve_model  # transformers is heavy

    try:
        source = resolve_model(settings.model.tokenizer or settings.model.name, tiny=settings.model.tiny)
    except UnknownName as error:
        do = "name the served model's own with --tokenizer"
        raise InvalidInput(sentence("tokenizer", "be found", settings.model.name, where=str(error), do=do)) from error
    tokenizer = load_tokenizer(source)

    def opened() -> VllmServerPolicy:
        return VllmServerPolicy(endpoint, version=settings.model.steps)

    async def look() -> None:
        async with opened() as policy:
            policy.check(_sampling(settings))

    asyncio.run(look())
    return tokenizer, opened


def _by_messages(settings: EvalSettings, endpoint: EndpointSettings) -> _Player:
    """Play by messages. Raises: InvalidInput, UnknownName: no key, no text format, or a search that needs tokens."""
    sampling, concurrency = _sampling(settings), settings.engine.concurrency

    async def ask(jobs: Sequence[EpisodeJob], on_finished: Callable[[Tree], None]) -> list[Tree]:
        async with OpenAIPolicy(endpoint) as policy:
            return await run_message_episodes(
                jobs, settings.agent, policy, sampling=sampling, concurrency=concurrency, on_finished=on_finished
            )

    if settings.search.name != "chain":
        do = "use --backend vllm where vLLM serves it, load the model with --model, or use chain"
        got = settings.search.name
        raise SettingsError(sentence("search", "be chain where an endpoint is asked", got, where="search", do=do))
    OpenAIPolicy(endpoint)
    name = settings.agent.text_format or agent_kind(settings.agent.name).text_format
    if name != NATIVE:
        text_format(name)
    return ask


class _Watch:
    """Stops an evaluation whose infrastructure fails."""

    def __init__(self, num_episodes: int, max_invalid_rate: float) -> None:
        self._num_episodes, self._limit, self._num_invalid = num_episodes, max_invalid_rate, 0

    def __call__(self, tree: Tree) -> None:
        """Count an episode. Raises: RunError: too many were invalid."""
        reasons = _invalid(tree)
        self._num_invalid += bool(reasons)
        if self._num_invalid > self._limit * self._num_episodes:
            got = f"{self._num_invalid} of {self._num_episodes}, such as: {reasons[0]}"
            do = "mend the env, its services or the endpoint, then resume"
            must = f"stay below {self._limit:.0%}"
            raise RunError(sentence("invalid episodes", must, got, where=f"task {tree.task_id}", do=do))


def _invalid(tree: Tree) -> list[str]:
    """Return why episodes of a tree are invalid."""
    return [reward.reason for episode in trajectories(tree) if isinstance(reward := episode.reward, Invalid)]
