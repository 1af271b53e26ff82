"""Conversations of known length: an env with a tool, its replies as tokens, and an engine driven through them."""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from envgym.agents.protocols import (
    FinishReason,
    GenerateRequest,
    Generation,
    Policy,
    Renderer,
    Rendering,
    Sampling,
)
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.tasks import Split, Task
from envgym.env import Env
from envgym.records import Reply
from envgym.seeds import derive_seed
from envgym.tools import Tool, tool

ENV_ID: Final = "benchmarks/ledger-v0"
TOOL: Final = "look_up"
RULES: Final = (
    "You keep the books of a small harbour. Every entry of the ledger has a number of four digits. Look entries up "
    "before you speak about them, one at a time, and say in each message what you have learned, what you expect of "
    "the next entry, and why. Keep to plain English, and do not say the same thing twice."
)
_FIRST: Final = 1000
"""Entries are named by numbers of four digits, so that all texts are equally long."""
_ENTRIES: Final = 9000


class Ledgers:
    """Tasks that differ in the number of one entry."""

    def size(self, split: Split) -> int:
        return _ENTRIES // 2

    def task(self, split: Split, index: int) -> Task:
        number = _FIRST + 2 * index + (split is Split.TEST)
        return Task(id=f"{split}/{index}", prompt=question(number), payload={"number": number}, split=split)


class Ledger(Env[int]):
    """A ledger that knows every entry."""

    system_prompt = RULES
    tasks = Ledgers()

    def __init__(self, *, looks: int = 3) -> None:
        """End at so many looks, and pay for the number looked up last; 0: without tools, pay for the answer."""
        super().__init__()
        self.looks = looks

    def toolset(self) -> Mapping[str, Tool]:
        """Return the tool, where there are looks."""
        return super().toolset() if self.looks else {}

    def begin(self, task: Task) -> str:
        """Ask for the task's entry; the state counts what was looked up."""
        self.state = 0
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Pay for the answer, and end."""
        return Reply(reward=score(action), terminated=True)

    def after_tools(self, observation: Observation) -> Reply:
        """Count the look; the last one pays."""
        self.state += 1
        is_last = self.state == self.looks
        return Reply(observation=observation, reward=score(observation) if is_last else 0.0, terminated=is_last)

    @tool
    def look_up(self, number: int) -> str:
        """Read an entry of the ledger.

        Args:
            number: The entry's number.
        """
        return entry(number)


def question(number: int) -> str:
    """Return what an episode begins with."""
    return f"What became of the goods of entry {number}?"


def entry(number: int) -> str:
    """Return the ledger's text of an entry."""
    return f"Entry {number}: {10_000 - number:04d} barrels of oil, unloaded at noon, and moved to the northern shed."


def score(text: str) -> float:
    """Return a number in [0, 1) that differs between texts, and costs nothing."""
    return zlib.crc32(text.encode()) / 2**32


def number_of(token_ids: Sequence[int]) -> int:
    """Return the entry that a sampled turn is taken to ask for."""
    return _FIRST + sum(token_ids) % _ENTRIES


@dataclass(frozen=True, slots=True)
class Shape:
    """How many conversations there are and how they branch; every context is sampled `width` times at each turn."""

    roots: int
    width: int
    turns: int

    @property
    def rows(self) -> tuple[int, ...]:
        """Sampled turns at each depth."""
        return tuple(self.roots * self.width ** (depth + 1) for depth in range(self.turns))


CELLS: Final = {"E1": Shape(1, 1, 3), "E16": Shape(16, 1, 3), "E64": Shape(64, 1, 3), "tree": Shape(1, 4, 3)}
"""So many episodes at a time; and a tree of depth 3 and width 4."""

Ids = tuple[int, ...]


class Talk(NamedTuple):
    """Replies of the env, as tokens."""

    openings: list[Ids]
    """The first context of each conversation, up to the policy's turn."""
    replies: list[Ids]
    """What follows a sampled turn, in the order in which they are used: the tool's answer and its framing."""

    def reply(self, number: int) -> Ids:
        """Return one of the replies, which come round again."""
        return self.replies[number % len(self.replies)]


def make_talk(renderer: Renderer, roots: int, *, num_replies: int = 16) -> Talk:
    """Render the env's side of the conversations; all openings are equally long, and so are all replies."""
    tools = tuple(item.spec for item in Ledger().toolset().values())
    prompts = [(RULES, question(_FIRST + index)) for index in range(roots)]
    openings = [
        _ids(renderer.start((Message(role=Role.SYSTEM, content=rules), Message(role=Role.USER, content=text)), tools))
        for rules, text in prompts
    ]
    call = Generation(
        token_ids=renderer.encode_action(Action("Let me see."))[:1],
        behavior_logprobs=(0.0,),
        raw_logprobs=None,
        finish_reason=FinishReason.LENGTH,
        policy_version=0,
    )
    answers = [Message(role=Role.TOOL, content=entry(_FIRST + index), name=TOOL) for index in range(num_replies)]
    replies = [_ids(renderer.extend((), call, Observation.of([answer]), tools)) for answer in answers]
    for texts in (openings, replies):
        assert len({len(ids) for ids in texts}) == 1, "numbers of four digits are equally long"
    return Talk(openings, replies)


def _ids(rendering: Rendering) -> Ids:
    assert rendering.rewrite is None, "what was sampled is never rendered anew here"
    return tuple(token for segment in rendering.segments for token in segment.token_ids)


class Count(NamedTuple):
    """What an engine did."""

    sampled: int
    """New tokens."""
    prefilled: int
    """Tokens of contexts that it computed; the others it had."""
    longest: int
    """Tokens of the longest context."""


async def lead(policy: Policy, talk: Talk, shape: Shape, *, tokens: int) -> Count:
    """Let a policy sample every turn of every conversation, each as soon as its context is there."""
    sampling = Sampling(max_new_tokens=tokens)
    done: list[Generation] = []
    lengths: list[int] = []

    async def branch(context: Ids, path: Ids) -> None:
        request = GenerateRequest(token_ids=context, sampling=sampling, seed=derive_seed(0, *path))
        generation = await policy.generate(request)
        assert len(generation.token_ids) == tokens, "nothing but the limit ends a turn"
        done.append(generation)
        lengths.append(len(context))
        if len(path) <= shape.turns:
            await spread(context + generation.token_ids + talk.reply(path[-1]), path)

    async def spread(context: Ids, path: Ids) -> None:
        await asyncio.gather(*[branch(context, (*path, index)) for index in range(shape.width)])

    await asyncio.gather(*[spread(opening, (root,)) for root, opening in enumerate(talk.openings[: shape.roots])])
    prefilled = sum(generation.num_prefilled for generation in done)
    return Count(sum(len(generation.token_ids) for generation in done), prefilled, max(lengths))
