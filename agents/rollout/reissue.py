"""Episodes whose environment server went away are begun again once: nothing of them was the policy's doing."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from envgym.agents.rollout.episode import EpisodeJob
from envgym.agents.rollout.pool import AbortHandle
from envgym.core.trajectory import trajectories
from envgym.core.tree import Tree
from envgym.env import Env
from envgym.runtime.processes.log import Ids, about, log_event
from envgym.runtime.processes.restarts import REISSUED, count_failure
from envgym.serving.remote_env import RemoteEnv


async def grow_or_reissue(
    job: EpisodeJob, grow: Callable[[EpisodeJob], Awaitable[Tree]], abort: AbortHandle | None = None
) -> Tree:
    """Grow a tree, and once again where it has no valid episode because its server went away.

    The second one has the same task and seeds. A tree of which some episodes are valid is kept: those that were lost
    are in it with the ending `ERROR_ENV`. One that was aborted is not begun again.
    """
    envs: list[Env[Any]] = []

    def make_env() -> Env[Any]:
        env = job.make_env()
        envs.append(env)
        return env

    tree = await grow(replace(job, make_env=make_env))
    is_lost = any(isinstance(env.unwrapped, RemoteEnv) and env.unwrapped.has_lost_session for env in envs)
    is_aborted = abort is not None and abort.reason is not None
    if not is_lost or is_aborted or any(item.is_valid for item in trajectories(tree)):
        return tree
    count_failure(REISSUED)
    with about(Ids(job.tree_id)):
        log_event("reissue")
    return await grow(job)
