"""Collect the groups of one train step: tasks from the curriculum, episodes from the agent loop.

Every seed derives from the run's seed and the names of what it drives, so a step can be collected again alone.
"""

from collections.abc import Callable, Mapping

from envgym.agents.driver import EpisodeJob, run_episodes
from envgym.core.rewards import Scored
from envgym.core.tasks import Split
from envgym.core.trajectory import Group
from envgym.core.tree import Tree
from envgym.seeds import derive_seed
from envgym.trainer.points import TaskRequest, TaskStats
from envgym.trainer.settings import TrainSettings
from envgym.trainer.workbench import Workbench
from envgym.trainer.world import supplies

Stats = Mapping[tuple[str, int], TaskStats]


async def collect(
    bench: Workbench,
    settings: TrainSettings,
    *,
    step: int,
    stats: Stats,
    on_finished: Callable[[Tree], None] | None = None,
) -> tuple[list[TaskRequest], list[Group]]:
    """Return the step's requests and their groups, in the curriculum's order; a crashed episode is in its group."""
    requests = list(
        bench.method.curriculum.choose(
            step=step,
            num_groups=settings.rollout.groups,
            group_size=settings.rollout.group_size,
            supplies=supplies(bench.worlds),
            stats=stats,
            seed=settings.run.seed,
        )
    )
    jobs = [
        job for number, request in enumerate(requests) for job in _group_jobs(bench, settings, step, number, request)
    ]
    trees = await run_episodes(
        jobs,
        bench.agent,
        bench.policy,
        sampling=bench.sampling(settings.rollout.temperature),
        concurrency=settings.rollout.concurrency,
        on_finished=on_finished,
    )
    groups: list[Group] = []
    for number, request in enumerate(requests):
        members, trees = trees[: request.group_size], trees[request.group_size :]
        groups.append(Group(key=f"step-{step:06d}/{number:03d}", trees=tuple(members)))
    return requests, groups


def _group_jobs(
    bench: Workbench, settings: TrainSettings, step: int, number: int, request: TaskRequest
) -> list[EpisodeJob]:
    """Return one job per member; they share task and env seed, and differ in what the policy samples."""
    world = bench.worlds[request.env]
    task = world.tasks.task(Split.TRAIN, request.index)
    names = (settings.run.seed, "step", step, number, request.env, request.index)
    return [
        EpisodeJob(
            make_env=world.make,
            task=task,
            seed=derive_seed(*names, "env"),
            policy_seed=derive_seed(*names, "policy", member),
            tree_id=f"step-{step:06d}/{number:03d}/{member:02d}",
            env_id=world.env_id,
        )
        for member in range(request.group_size)
    ]


def updated_stats(stats: Stats, requests: list[TaskRequest], groups: list[Group], *, step: int) -> Stats:
    """Return the task statistics with this step's valid episodes added."""
    found = dict(stats)
    for request, group in zip(requests, groups, strict=True):
        key = (request.env, request.index)
        old = found.get(key, TaskStats(0, 0.0, 0.0, step))
        values = [reward.value for episode in group.valid if isinstance(reward := episode.reward, Scored)]
        found[key] = TaskStats(
            attempts=old.attempts + len(values),
            successes=old.successes + sum(values),
            squares=old.squares + sum(value * value for value in values),
            last_step=step,
        )
    return found
