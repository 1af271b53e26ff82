"""Episodes that go on from a recorded one: its turns as generations, and their place in the new path. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile, takewhile

from envgym.agents.loop.agent import Agent
from envgym.agents.loop.hints import PLAIN, token_ids
from envgym.agents.loop.path import PathNode
from envgym.agents.protocols import FinishReason, Generation
from envgym.core.segments import Origin, Segment
from envgym.core.trajectory import StartState, Turn
from envgym.core.tree import Source
from envgym.errors import EnvFailure
from envgym.forking import check_equal

_ACTION = (Origin.POLICY, Origin.INJECTED, Origin.DEMONSTRATION)
"""Origins of the tokens of an action: sampled, or repeated from a recorded episode."""


def recorded_generation(turn: Turn, agent: Agent) -> Generation:
    """Return a recorded turn as what a policy sampled: its tokens, or those of its action where it has none.

    Raises: InvalidInput: the agent has no tokens for the action.
    """
    assert turn.outcome is not None, "a turn before a start state has ended"
    after_rewrite = dropwhile(lambda segment: segment.origin is Origin.PROMPT, turn.segments)
    action = takewhile(lambda segment: segment.origin in _ACTION, after_rewrite)
    tokens = token_ids(tuple(action)) or agent.renderer.encode_action(turn.outcome.action)
    is_stopped = bool(tokens) and tokens[-1] in agent.renderer.stop_token_ids
    return Generation(
        token_ids=tokens,
        behavior_logprobs=(0.0,) * len(tokens),
        raw_logprobs=None,
        finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
        policy_version=0,
    )


def check_replayed(turn: Turn, again: PathNode, *, where: str) -> None:
    """See that a turn went as it was recorded. Raises: EnvFailure: the first difference."""
    recorded, check = turn.outcome, partial(check_equal, where=where, kind=EnvFailure)
    assert recorded is not None, "a turn before a start state has ended"
    check(f"ending of turn {turn.index}", None, again.ending)
    assert again.outcome is not None, "the turn did not end the episode"
    check(f"action of turn {turn.index}", recorded.action, again.outcome.action)
    check(f"observation of turn {turn.index}", recorded.observation, again.outcome.observation)
    check(f"reward of turn {turn.index}", recorded.reward, again.outcome.reward)


def check_first_context(start: StartState, prompts: Mapping[str, tuple[int, ...]], context: tuple[int, ...]) -> None:
    """See that an episode begins with the context of the recorded one, hints aside. Raises: EnvFailure: it does not."""
    tree = start.tree
    recorded = tree.prompts.get(PLAIN, token_ids(tree.nodes[0].edge.segments))
    if recorded and prompts.get(PLAIN, context) != recorded:
        must, got = "be that of the recorded episode", "other tokens"
        do = "use start states of the same agent and model, and an env that repeats its first observation"
        raise EnvFailure.of("first context", must, got, where=f"start state in tree {tree.id}", do=do)


def as_context(leaf: PathNode, source: Source) -> PathNode:
    """Return a replayed path whose actions were not sampled, and cost nothing to sample.

    Those of a demonstration stay one, for terms of an objective that imitate; those that a policy sampled are a hint.
    """
    origin = Origin.DEMONSTRATION if source in (Source.DEMONSTRATION, Source.TEACHER) else Origin.INJECTED
    node: PathNode | None = None
    for item in leaf.path():
        cost = replace(item.edge.cost, tokens_generated=0, tokens_prefilled=0)
        edge = replace(item.edge, segments=not_sampled(item.edge.segments, origin), cost=cost)
        node = replace(item, parent=node, edge=edge)
    assert node is not None, "a path has a root"
    return node


def not_sampled(segments: Sequence[Segment], origin: Origin) -> tuple[Segment, ...]:
    """Return segments whose sampled tokens are of another origin, so that they do not train."""
    return tuple(
        replace(segment, origin=origin, behavior_logprobs=None, raw_logprobs=None, policy_version=None)
        if segment.origin is Origin.POLICY
        else segment
        for segment in segments
    )
