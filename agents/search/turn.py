"""One turn of a branch: ask the policy, let the env answer; also behind the first tokens of an elder sibling."""

from dataclasses import dataclass, replace

from envgym.agents.episode import Clock
from envgym.agents.events import Event, Failed, Finished, Generate, Generated, Request, Stepped
from envgym.agents.loop import AgentState, advance
from envgym.agents.path import Link
from envgym.agents.protocols import GenerateRequest, Generation, Policy
from envgym.agents.search.branches import Place, Played
from envgym.agents.search.snapshots import SearchEnv
from envgym.errors import InfrastructureError, PolicyFailure
from envgym.records import ending_of


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a turn."""

    state: AgentState
    generation: Generation | None
    """None where the policy failed."""
    request: GenerateRequest | None
    """What the next turn asks for; None where the episode ended."""

    @property
    def link(self) -> Link:
        """The turn's edge."""
        return link_of(self.state)


async def play_turn(place: Place, env: SearchEnv, policy: Policy, clock: Clock, prefix: Played | None, at: int) -> Turn:
    """Play one turn. Never raises for what policy or env do.

    Args:
        place: where it begins.
        env: the env as it is there.
        policy: who acts.
        clock: times the calls.
        prefix: the elder's turn from the same place, whose first tokens this one keeps; None: sample all.
        at: how many tokens it keeps.
    """
    state, generation = place.state, None
    asked: Request = Generate(_behind(place.request, prefix, at))
    while not isinstance(asked, Finished):
        started = clock()
        event: Event
        try:
            if isinstance(asked, Generate):
                sampled = await _generate(policy, asked.request)
                generation = sampled if prefix is None else joined(prefix, at, sampled)
                event = Generated(generation, clock() - started)
            else:
                event = Stepped(await env.step(asked.action), clock() - started)
        except InfrastructureError as error:
            event = Failed(ending_of(error), str(error), clock() - started)
        state, asked = advance(state, event)
        if isinstance(asked, Generate):
            break
    if prefix is not None and generation is not None:
        state = _charged_for_its_own(state, at)
    return Turn(state, generation, asked.request if isinstance(asked, Generate) else None)


async def _generate(policy: Policy, request: GenerateRequest) -> Generation:
    """Ask the policy. Raises: PolicyFailure: whatever went wrong."""
    try:
        return await policy.generate(request)
    except PolicyFailure:
        raise
    except Exception as error:
        raise PolicyFailure(f"generation failed: {type(error).__name__}: {error}") from error


def link_of(state: AgentState) -> Link:
    """Return the last edge of an agent that has begun."""
    assert state.path is not None, "the prompt was rendered"
    return state.path


# ---- forks inside a turn ------------------------------------------------------------------------------------------


def _behind(request: GenerateRequest, prefix: Played | None, at: int) -> GenerateRequest:
    """Return the request for what follows the first `at` tokens that `prefix` sampled, within the same turn limit."""
    if prefix is None or prefix.generation is None:
        return request
    sampling = replace(request.sampling, max_new_tokens=request.sampling.max_new_tokens - at)
    return replace(request, token_ids=request.token_ids + prefix.generation.token_ids[:at], sampling=sampling)


def joined(prefix: Played, at: int, sampled: Generation) -> Generation:
    """Return one generation of the first `at` tokens of a played turn and what was sampled behind them.

    Log-probs stay as they were sampled. What only one of the two knows is left out.
    """
    elder = prefix.generation
    assert elder is not None, "a fork inside a turn follows sampled tokens"
    raw = None
    if elder.raw_logprobs is not None and sampled.raw_logprobs is not None:
        raw = elder.raw_logprobs[:at] + sampled.raw_logprobs
    top = None
    if elder.top_logprobs is not None and sampled.top_logprobs is not None:
        top = elder.top_logprobs[:at] + sampled.top_logprobs
    return replace(
        sampled,
        token_ids=elder.token_ids[:at] + sampled.token_ids,
        behavior_logprobs=elder.behavior_logprobs[:at] + sampled.behavior_logprobs,
        raw_logprobs=raw,
        top_logprobs=top,
        policy_version=min(elder.policy_version, sampled.policy_version),
    )


def _charged_for_its_own(state: AgentState, at: int) -> AgentState:
    """Take the shared first tokens out of the last edge's cost: they were sampled once, by the elder."""
    link = link_of(state)
    cost = replace(link.edge.cost, tokens_generated=link.edge.cost.tokens_generated - at)
    return state._replace(path=replace(link, edge=replace(link.edge, cost=cost)))
