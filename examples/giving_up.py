"""Demonstrations in which the oracle gives up at once in a share of the episodes; `demo.yaml` uses it.

A policy that has imitated them can do the task and often does not try: reinforcement learning has to find out that
trying pays.
"""

from dataclasses import replace

from envgym.agents.policies.scripted import ScriptedPolicy
from envgym.agents.protocols import Sampling
from envgym.agents.rollout.driver import run_episode, run_oracle_episode
from envgym.core.messages import Action
from envgym.core.trajectory import Trajectory, trajectories
from envgym.core.turns import is_success
from envgym.seeds import derive_seed, generator
from envgym.trainer.workflows.demonstrations import (
    DemonstrationRequest,
    Demonstrations,
    DemonstrationSource,
)


class GivingUp(DemonstrationSource):
    """Episodes of the oracles, of which a share is one turn that gives up; these are imitated whatever they earn."""

    def __init__(self, share: float = 0.75, text: str = "I do not know.") -> None:
        """Choose the share, in [0, 1), and what is said."""
        self.share, self.text = share, text

    async def __call__(self, request: DemonstrationRequest) -> Demonstrations:
        """Play on train tasks."""
        jobs = request.jobs(tasks_seed=derive_seed(request.seed, "sft gives up"))
        draws = generator(request.seed, "sft gives up").random(len(jobs))
        token_ids = request.agent.renderer.encode_action(Action(self.text))
        policy = ScriptedPolicy(lambda _: token_ids)
        imitated: list[Trajectory] = []
        for number, (job, draw) in enumerate(zip(jobs, draws, strict=True), start=1):
            is_given_up = bool(draw < self.share)
            if is_given_up:
                job = replace(job, tree_id=job.tree_id.replace("oracle", "gave-up"))
                tree = await run_episode(job, request.agent, policy, sampling=Sampling())
            else:
                tree = await run_oracle_episode(job, request.agent)
            episodes = trajectories(tree)
            imitated += [
                episode for episode in episodes if is_given_up or is_success(episode.reward, request.success_at)
            ]
            request.on_progress("oracle episodes", number, len(jobs))
        return Demonstrations(len(jobs), imitated)
