"""How a program's episode ends, what it is paid, and what its tree keeps of the run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from envgym.agents.loop.program_settings import ProgramSettings, RewardSource
from envgym.agents.loop.state import FailureEvent
from envgym.agents.rollout.programs.runner import ProgramEnd, ProgramRun
from envgym.core.tree import Annotation, Tree
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.errors import sentence

CRASHES: Final = "program/crashes"
"""Annotation of an episode: 1 where its program crashed, else 0. Every episode of a program has it."""
IGNORED_OPTIONS: Final = "program/ignored_options"
"""Annotation of an episode: the number of options without effect in the calls of its program."""
_NO_REWARD: Final[Mapping[RewardSource, tuple[str, str]]] = {
    RewardSource.ENV: (
        "return its answer as text, or end the episode by task.call",
        "return text, or choose another source",
    ),
    RewardSource.RESULT: ("return its reward", "return a number, or a mapping with the key reward"),
    RewardSource.POSTED: ("post its reward", "call task.post_reward, or send it by POST to the address with /reward"),
}
"""Source of the reward -> what the program must do, and how."""


class EpisodeEnd(NamedTuple):
    """The end of an episode."""

    ending: Ending
    error: str | None = None
    """For an `ERROR_*` ending: what failed."""
    reward: Reward | None = None
    """Paid at the end; None: nothing more."""
    replaces: bool = False
    """Whether the reward takes the place of all that was paid before."""
    is_crash: bool = False
    """Whether the episode ended because the program crashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """What is known of an episode whose program has ended."""

    run: ProgramRun
    failure: FailureEvent | None
    """Why the policy or the env failed, or the run was aborted."""
    num_turns: int
    no_call: str
    """What is wrong with a program that made no call."""
    has_called: bool
    """Whether the model was to answer a call of the program."""
    is_at_limit: bool
    """Whether a call was refused because the program had all its turns."""
    is_full: bool
    """Whether the last call was refused because the context was full."""
    env_ending: Ending | None
    """None: the env goes on, or does not give the reward."""
    reward: Reward | None
    """Of the source that the settings name; None: it gave none."""


def conclude(facts: ProgramFacts, settings: ProgramSettings) -> EpisodeEnd:
    """Return how the episode ends; without a reward it is invalid, never 0."""
    run, failure = facts.run, facts.failure
    if failure is not None:
        return EpisodeEnd(failure.ending, failure.reason)
    limit = _limit(facts)
    is_crash = limit is None and run.end is ProgramEnd.CRASHED
    if not facts.num_turns:  # no turn can hold a reward, and none trains
        return EpisodeEnd(Ending.ERROR_ENV, run.error or _no_turn(facts, limit), is_crash=is_crash)
    if is_crash:
        if settings.on_crash == "invalid":
            return EpisodeEnd(Ending.ERROR_ENV, run.error or "the program crashed", is_crash=True)
        return EpisodeEnd(Ending.TERMINATED, reward=Scored(value=settings.on_crash), replaces=True, is_crash=True)
    reason = run.error or no_reward_error(facts.run, settings)
    if limit is not None:
        return EpisodeEnd(limit, reward=facts.reward or Invalid(cause=Ending.ERROR_ENV, reason=reason))
    if facts.reward is None:
        return EpisodeEnd(Ending.ERROR_ENV, reason)
    return EpisodeEnd(facts.env_ending or Ending.TERMINATED, reward=facts.reward)


def annotate_run(tree: Tree, *, is_crash: bool, num_ignored_options: int) -> Tree:
    """Return a tree of one episode with the numbers of its run that the turns do not show."""
    (leaf,) = tree.leaves
    numbers = {CRASHES: float(is_crash), IGNORED_OPTIONS: float(num_ignored_options)}
    added = [Annotation(name=name, level="episode", node=leaf, value=number) for name, number in numbers.items()]
    return replace(tree, annotations=(*tree.annotations, *added))


def no_reward_error(run: ProgramRun, settings: ProgramSettings) -> str:
    """Return the sentence about a program without a reward of the source that the settings name."""
    got = "no reward"
    if settings.reward is RewardSource.ENV:
        got = "no answer" if run.result.reward is None else f"the reward {run.result.reward.value:g} and no answer"
    must, do = _NO_REWARD[settings.reward]
    return sentence("program", must, got, where=f"agent.program.reward: {settings.reward}", do=do)


def _limit(facts: ProgramFacts) -> Ending | None:
    """Return the limit that ended the program."""
    if facts.run.end is ProgramEnd.TIME_LIMIT:
        return Ending.TRUNCATED_TIME
    if facts.is_at_limit or facts.run.end is ProgramEnd.TURN_LIMIT:
        return Ending.TRUNCATED_TURNS
    return Ending.TRUNCATED_TOKENS if facts.is_full else None


def _no_turn(facts: ProgramFacts, limit: Ending | None) -> str:
    if facts.is_full:
        return "no call of the program fitted into the context window: raise agent.max_context_tokens"
    if limit is None:
        return facts.no_call
    if facts.has_called:
        return "the program got no reply within its time limit"
    return "no call of the program reached the model within its time limit, agent.program.seconds"
