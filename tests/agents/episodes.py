"""Episodes with a parrot over characters, and how their rows are drawn."""

import asyncio
from collections.abc import Iterable

from envgym.agents.loop.agent import Agent
from envgym.agents.policies.scripted import ScriptedPolicy, ScriptedReply
from envgym.agents.protocols import FinishReason, Generation, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.core.trajectory import Row, Trajectory, trajectories
from tests.support.generations import generated
from tests.support.parrots import Parrot, char_agent, encode, parrot_job, show


def episode(
    replies: Iterable[ScriptedReply], agent: Agent | None = None, env: Parrot | None = None, prompt: str = "Q"
) -> tuple[Trajectory, ScriptedPolicy]:
    policy = ScriptedPolicy(replies, version=3)
    job = parrot_job(lambda: env or Parrot(), prompt=prompt)
    tree = asyncio.run(run_episode(job, agent or char_agent(), policy, sampling=Sampling(), clock=lambda: 0.0))
    (trajectory,) = trajectories(tree)
    return trajectory, policy


def drawn(row: Row) -> tuple[str, str]:
    """Return the row as text, and below each token T where it trains, else a dot."""
    text = "".join(show(row.token_ids))
    marks = "".join(
        ("T" if trains else ".") * len(shown) for shown, trains in zip(show(row.token_ids), row.loss_mask, strict=True)
    )
    return text, marks


def generation(text: str, finish_reason: FinishReason, logprob: float = -0.5) -> Generation:
    return generated(encode(text), logprob, reason=finish_reason, version=3, num_prefilled=9)
