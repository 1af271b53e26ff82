"""Short forms for episodes in containers: a command, its output, and the reward of handing in."""

from envgym.core.turns import Reward
from envgym.envs.code.harbor import Harbor
from envgym.parsing import tool_call_action


def bash(env: Harbor, command: str) -> str:
    """Run a command; return what the agent sees."""
    return str(env.step(tool_call_action("bash", command=command)).observation)


def hand_in(env: Harbor) -> Reward:
    """Hand the work in; return the reward of the record."""
    record = env.step("Done.").info["envgym"]
    reward: Reward = record.reward
    return reward


def solve(env: Harbor) -> Reward:
    """Let the oracle play to the end."""
    while True:
        record = env.step(env.oracle()).info["envgym"]
        if record.ending is not None:
            reward: Reward = record.reward
            return reward
