"""By what a finished episode is chosen at test time, and how a search values a place.

What the agent can see may choose: what was said and heard, and how probable it was. The reward may not, at test time: a
choice by it is called oracle-selected wherever its result is shown. A world's answer to the last action is not shown
to a `ValueFn` either, as its verdict may stand in it.
"""

import json
import math
import pkgutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from envgym.agents.path import Link
from envgym.agents.search.branches import Branch, Place
from envgym.core.endings import Ending
from envgym.core.messages import Action, Message
from envgym.core.rewards import Scored, total
from envgym.core.segments import Origin
from envgym.errors import SettingsError, sentence, unknown_name
from envgym.verifiers.extract import final

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an agent can see of a place where it is to speak, or of an episode that is over."""

    messages: tuple[Message, ...]
    """The conversation; of an episode that is over, up to its last action."""
    token_ids: tuple[int, ...]
    """[T] its tokens as the policy has them, what was sampled last included."""
    num_turns: int
    is_over: bool
    logprob: float
    """Mean log-prob of what was sampled on the way here, nats a token; 0.0 where nothing was."""


class ValueFn(Protocol):
    """Estimates what an episode will be worth, or is worth once it is over; learned, or a rule.

    It may have `is_oracle`, which says whether it knows more than the agent, and `check_tokenizer`, which refuses a
    policy whose tokens it cannot read.
    """

    async def __call__(self, seen: Sequence[Seen]) -> Sequence[float]:
        """Return one number for each, in the range of the env's episode rewards."""
        ...


class Signal(Protocol):
    """Scores finished episodes of one task; the highest is chosen, the first of equals."""

    @property
    def is_oracle(self) -> bool:
        """True where it knows what no agent can see."""
        ...

    async def __call__(self, branches: Sequence[Branch]) -> Sequence[float]:
        """Return one number for each; all of them have ended."""
        ...


class Majority:
    """The number of episodes that gave the same last answer."""

    is_oracle = False

    async def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """Count the votes; an episode without an answer has none."""
        answers = [answer_of(branch) for branch in branches]
        votes = Counter(answer for answer in answers if answer is not None)
        return [float(votes[answer]) if answer is not None else 0.0 for answer in answers]


class Likelihood:
    """The mean log-prob of what was sampled."""

    is_oracle = False

    async def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """Return nats a token."""
        return [seen_at_end(branch).logprob for branch in branches]


class Verifier:
    """The reward itself."""

    is_oracle = True

    async def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """Return episode rewards; an invalid one is below all others."""
        return [-math.inf if (reward := reward_of(branch)) is None else reward for branch in branches]


class Hook:
    """A `ValueFn` of the caller's."""

    def __init__(self, value: ValueFn) -> None:
        """Ask `value`."""
        self.value = value
        self.is_oracle = bool(getattr(value, "is_oracle", False))

    async def __call__(self, branches: Sequence[Branch]) -> Sequence[float]:
        """Return its values."""
        return await self.value([seen_at_end(branch) for branch in branches])


SIGNALS: Mapping[str, type[Signal]] = MappingProxyType(
    {"majority": Majority, "likelihood": Likelihood, "verifier": Verifier}
)
"""Name -> signal."""


def signal(name: str) -> Signal:
    """Return the signal called `name`, or the `ValueFn` at `package.module:name`.

    Raises: UnknownName, SettingsError: there is none.
    """
    if ":" in name:
        return Hook(value_fn(name, where="select"))
    if name not in SIGNALS:
        raise unknown_name("select", name, SIGNALS, where="search")
    return SIGNALS[name]()


def value_fn(path: str, *, where: str) -> ValueFn:
    """Return what stands at `package.module:name`; a class is made without arguments.

    Of `package.module:name:text` it is what the class or function there makes of the text, such as the folder that a
    value was learned in. Raises: SettingsError: there is none.
    """
    do = "write package.module:name of an async function or a class with async __call__"
    place, *text = _split(path)
    try:
        if ":" not in path:
            raise ValueError("no colon")
        found = pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        got = f"{path} ({error})"
        raise SettingsError(sentence(where, "name something importable", got, where=where, do=do)) from None
    if not callable(found):
        raise SettingsError(sentence(where, "name something that can be called", path, where=where, do=do))
    made: ValueFn = found(*text) if text or isinstance(found, type) else found
    return made


def _split(path: str) -> list[str]:
    """Return `package.module:name`, and the text behind it where there is some."""
    module, *rest = path.split(":", 2)
    return [":".join([module, *rest[:1]]), *rest[1:]]


def check_tokenizer(value: ValueFn, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Let a `ValueFn` that asks for it see whose tokens it will read. Raises: InvalidInput: it cannot."""
    check = getattr(value, "check_tokenizer", None)
    if check is not None:
        check(tokenizer)


async def choose(branches: Sequence[Branch], signal: Signal) -> Branch:
    """Return the best of the branches that ended best: terminated, else cut, else out of budget, else broken."""
    grade = min(_grade(branch) for branch in branches)
    candidates = [branch for branch in branches if _grade(branch) == grade]
    scores = await signal(candidates)
    return max(zip(scores, candidates, strict=True), key=lambda pair: pair[0])[1]


def _grade(branch: Branch) -> int:
    ending = branch.ending
    if ending is Ending.TERMINATED:
        return 0
    if ending is None or ending.is_error:
        return 3
    return 2 if ending is Ending.TRUNCATED_BUDGET else 1


# ---- what is seen of a branch -------------------------------------------------------------------------------------


def last_action(branch: Branch) -> Action | None:
    """Return the last action that the env heard on the branch's path."""
    link = branch.last
    while link is not None and link.outcome is None:
        link = link.parent
    return link.outcome.action if link is not None and link.outcome is not None else None


def answer_of(branch: Branch) -> str | None:
    r"""Return what the last action answers: its calls, or its marked answer (`\boxed{}`, `<answer>`), or its text."""
    action = last_action(branch)
    if action is None:
        return None
    if action.tool_calls:
        return json.dumps([(call.name, call.arguments) for call in action.tool_calls], sort_keys=True, default=str)
    answer = final(action.content).answer
    return " ".join(answer.split()).casefold() if answer else None


def reward_of(branch: Branch) -> float | None:
    """Return the episode's reward, hidden from the agent; None where it is invalid."""
    if branch.last is None or (branch.ending is not None and branch.ending.is_error):
        return None
    paid = total(link.outcome.reward for link in branch.last.line() if link.outcome is not None)
    return paid.value if isinstance(paid, Scored) else None


def seen_at(place: Place) -> Seen:
    """Return what the agent sees where it is to speak."""
    return Seen(
        messages=tuple(place.state.history),
        token_ids=place.state.context,
        num_turns=place.state.num_turns,
        is_over=False,
        logprob=_mean_logprob(place.link.line()),
    )


def seen_at_end(branch: Branch) -> Seen:
    """Return what the agent sees of its finished episode."""
    played, line = branch.turns[-1], branch.turns[-1].link.line()
    said = played.link.outcome.action.message if played.link.outcome is not None else None
    sampled = played.generation.token_ids if played.generation is not None else ()
    return Seen(
        messages=(*played.start.state.history, *(() if said is None else (said,))),
        token_ids=played.start.state.context + sampled,
        num_turns=sum(link.outcome is not None for link in line),
        is_over=True,
        logprob=_mean_logprob(line),
    )


def _mean_logprob(line: Sequence[Link]) -> float:
    sampled = [part for link in line for part in link.edge.segments if part.origin is Origin.POLICY]
    logprobs = [value for part in sampled for value in part.behavior_logprobs or ()]
    return math.fsum(logprobs) / len(logprobs) if logprobs else 0.0
