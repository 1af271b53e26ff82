"""Collect the groups of one train step: tasks from the curriculum, episodes from the agent loop.

Every seed derives from the run's seed and the names of what it drives, and nothing that the policy served before is
reused, so a step can be collected again alone.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from envgym.agents.driver import EpisodeJob, run_episodes
from envgym.agents.search import Chain, Crew, Strategy
from envgym.agents.search.base import Member, together
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
    search: Strategy | None = None,
    rounds: int = 1,
    on_finished: Callable[[Tree], None] | None = None,
) -> tuple[list[TaskRequest], list[Group]]:
    """Return the step's requests and their groups, in the curriculum's order; a crashed episode is in its group.

    Rounds of `rollout.groups` groups follow each other until the filter keeps that many, or the rounds are used up.
    The tasks of all rounds are drawn at once, so which they are does not depend on what is kept.

    Args:
        bench: of the run.
        settings: of the run.
        step: train steps done before.
        stats: what training has seen of each task.
        search: how a group is grown; None: as the settings say.
        rounds: most rounds.
        on_finished: called with every tree when it is grown.
    """
    bench.policy.update_weights((), bench.policy.version)  # a resumed run has not sampled what came before
    requests = list(
        bench.method.curriculum.choose(
            step=step,
            num_groups=settings.rollout.groups * rounds,
            group_size=settings.rollout.group_size,
            supplies=supplies(bench.worlds),
            stats=stats,
            seed=settings.run.seed,
        )
    )
    search = bench.method.search if search is None else search
    members = [_member(bench, settings, step, number, request) for number, request in enumerate(requests)]
    groups: list[Group] = []
    while len(groups) < len(requests):
        part = slice(len(groups), len(groups) + settings.rollout.groups)
        if isinstance(search, Chain):
            grown = await _chains(bench, settings, requests[part], members[part], on_finished)
        else:
            grown = await _searches(bench, settings, search, requests[part], members[part], on_finished)
        for trees in grown:
            groups.append(Group(key=f"step-{step:06d}/{len(groups):03d}", trees=trees))
        if len(bench.method.filter(groups).kept) >= settings.rollout.groups:
            break
    return requests[: len(groups)], groups


async def _chains(
    bench: Workbench,
    settings: TrainSettings,
    requests: Sequence[TaskRequest],
    members: Sequence[Member],
    on_finished: Callable[[Tree], None] | None,
) -> list[tuple[Tree, ...]]:
    """Run the episodes of all groups side by side."""
    sizes = [request.group_size for request in requests]
    jobs = [member(number) for member, size in zip(members, sizes, strict=True) for number in range(size)]
    trees = iter(
        await run_episodes(
            jobs,
            bench.agent,
            bench.policy,
            sampling=bench.sampling(settings.rollout.temperature),
            concurrency=settings.rollout.concurrency,
            on_finished=on_finished,
        )
    )
    return [tuple(islice(trees, size)) for size in sizes]


async def _searches(
    bench: Workbench,
    settings: TrainSettings,
    search: Strategy,
    requests: Sequence[TaskRequest],
    members: Sequence[Member],
    on_finished: Callable[[Tree], None] | None,
) -> list[tuple[Tree, ...]]:
    """Grow all groups side by side; they share the branches that may be under way."""
    crew = Crew(
        agent=bench.agent,
        policy=bench.policy,
        sampling=bench.sampling(settings.rollout.temperature),
        slots=asyncio.Semaphore(settings.rollout.concurrency),
    )

    async def one(request: TaskRequest, member: Member) -> tuple[Tree, ...]:
        trees = (await search.grow(member, crew, group_size=request.group_size)).trees
        if on_finished is not None:
            for tree in trees:
                on_finished(tree)
        return trees

    return await together([one(*pair) for pair in zip(requests, members, strict=True)])


def _member(bench: Workbench, settings: TrainSettings, step: int, number: int, request: TaskRequest) -> Member:
    """Return the job of each of a group's trees; they share task and env seed, and differ in what is sampled."""
    world = bench.worlds[request.env]
    task = world.tasks.task(Split.TRAIN, request.index)
    names = (settings.run.seed, "step", step, number, request.env, request.index)
    seed = derive_seed(*names, "env")

    def member(place: int) -> EpisodeJob:
        return EpisodeJob(
            make_env=world.make,
            task=task,
            seed=seed,
            policy_seed=derive_seed(*names, "policy", place),
            tree_id=f"step-{step:06d}/{number:03d}/{place:02d}",
            env_id=world.env_id,
        )

    return member


def updated_stats(stats: Stats, requests: list[TaskRequest], groups: list[Group], *, step: int) -> Stats:
    """Return the task statistics with this step's valid episodes added."""
    found = dict(stats)
    for request, group in zip(requests, groups, strict=True):
        key = (request.env, request.index)
        old = found.get(key, TaskStats(0, 0.0, 0.0, step))
        values = [reward.value for episode in group.valid if isinstance(reward := episode.reward, Scored)]
        found[key] = TaskStats(
            attempts=old.attempts + len(values),
            rewards=old.rewards + sum(values),
            squares=old.squares + sum(value * value for value in values),
            last_step=step,
        )
    return found
