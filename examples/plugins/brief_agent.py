"""An agent with a context strategy of its own.

    envgym train run.yaml --set agent.name=examples/plugins/brief_agent.py:BRIEF
    envgym eval --model runs/first --agent examples/plugins/brief_agent.py:BRIEF

An agent is an `AgentKind`: how it writes calls, its system prompt, and what it leaves out when the context is full. A
context strategy gets the messages and proposes shorter conversations, the longest first; it can also be chosen alone:
`--set agent.context=examples/plugins/brief_agent.py:keep_task_and_last_turn`.
"""

from collections.abc import Sequence

from envgym.agents.loop.agent import AgentKind
from envgym.agents.loop.context import Proposal
from envgym.config.plugins import Choice
from envgym.core.messages import Message, Role
from envgym.core.tree import Rewrite


def keep_task_and_last_turn(messages: Sequence[Message]) -> Proposal | None:
    """Leave out every turn but the last."""
    starts = [index for index, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if len(starts) < 2:
        return None
    return Proposal(Rewrite.TURNS_DROPPED, [(*messages[: starts[0]], *messages[starts[-1] :])])


BRIEF = AgentKind(
    summary="Answer briefly, and remember only the last turn.",
    text_format=Choice(name="plain"),
    system_prompt="Answer with as few words as possible.",
    context=keep_task_and_last_turn,
)
