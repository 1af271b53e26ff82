"""Demonstrations of `puzzles/household-v0` by an agent that has to look for the thing; `household.yaml` imitates them.

The oracle knows where everything is. Who imitates it learns to go somewhere and hope, not to search.
"""

from dataclasses import replace
from functools import partial

from envgym.agents.rollout.driver import run_oracle_episode
from envgym.core.tasks import Task
from envgym.core.trajectory import Trajectory, trajectories
from envgym.envs.puzzles.household import Household
from envgym.seeds import derive_seed, generator
from envgym.trainer.workflows.demonstrations import (
    DemonstrationRequest,
    Demonstrations,
    DemonstrationSource,
    is_success,
)


class SearchingHousehold(Household):
    """Its oracle looks at one piece of furniture after the other until it sees a thing that it needs."""

    def begin(self, task: Task) -> str:
        """Enter the first room, and choose an order."""
        shown = super().begin(task)
        self.unseen = list(generator(0, "searching", task.id).permutation(len(self.state.layout.furniture)))
        return shown

    def oracle(self) -> str:
        """Say the next command of the search, or of the way to the goal once a thing was seen."""
        state = self.state
        if state.seen & state.layout.wanted_mask or state.held is not None:
            return super().oracle()
        if state.at >= 0 and state.is_closed(state.at):
            return f"open {state.layout.furniture[state.at].name}"
        return f"go to {state.layout.furniture[self.unseen.pop()].name}"


class SearchingDemonstrations(DemonstrationSource):
    """Episodes of that oracle which succeed."""

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Play on train tasks of one room."""
        episodes: list[Trajectory] = []
        jobs = request.jobs(tasks_seed=derive_seed(request.seed, "searching"))
        for number, job in enumerate(jobs, start=1):
            env = job.make_env().unwrapped
            assert isinstance(env, Household), "these demonstrations are of puzzles/household-v0"
            make = partial(SearchingHousehold, kinds=env.kinds, distractors=env.distractors, max_turns=env.max_turns)
            episodes += trajectories(await run_oracle_episode(replace(job, make_env=make), request.agent))
            request.on_progress("demonstrations", number, len(jobs))
        return Demonstrations(len(jobs), [episode for episode in episodes if is_success(episode, request.success_at)])
