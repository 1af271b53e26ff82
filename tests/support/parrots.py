"""Doubles for tests of agents: a renderer whose tokens are characters, agents that use it, and a parrot to talk to.

No model and no tokenizer is needed to state exactly which tokens an episode holds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from envgym import Action, Env, Message, Observation, Reply, Role, Split, Task, tool
from envgym.agents.loop.agent import Agent, AgentSettings, assemble
from envgym.agents.protocols import Generation, Policy, Rendering, Sampling
from envgym.agents.rollout.driver import run_episode
from envgym.agents.rollout.episode import Clock, EpisodeFactory, EpisodeJob
from envgym.agents.rollout.pool import run_pool
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Rewrite, Tree
from envgym.errors import ToolInfraFailure
from envgym.parsing import parse_action
from envgym.seeds import derive_seed
from envgym.tools import ToolSpec

_FRAME = 0x110000
"""First id after Unicode's last code point."""
SYSTEM, USER, ASSISTANT, TOOL, END = range(_FRAME, _FRAME + 5)
"""Framing tokens: one that opens each role's message, and one that closes any."""
_OPENS = {Role.SYSTEM: SYSTEM, Role.USER: USER, Role.ASSISTANT: ASSISTANT, Role.TOOL: TOOL}
_SHOWN = {SYSTEM: "<system>", USER: "<user>", ASSISTANT: "<assistant>", TOOL: "<tool>", END: "<end>"}


class CharRenderer:
    """Renders a message as its role's token, its characters and END; calls are written in the Hermes format.

    With `lists_tools` the tools' names stand before the first message. With `drops_thinking` the template forgets the
    reasoning of a turn once it is over, as those of many models do: the context is then rendered anew.
    """

    stop_token_ids = (END,)

    def __init__(self, *, lists_tools: bool = False, drops_thinking: bool = False) -> None:
        self.lists_tools, self.drops_thinking = lists_tools, drops_thinking

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        names = "".join(f"[{spec.name}]" for spec in tools) if self.lists_tools else ""
        ids = (*encode(names), *(token for message in messages for token in self._message(message)))
        prompt = (_segment(Origin.PROMPT, ids),) if ids else ()
        return Rendering(segments=(*prompt, _segment(Origin.TEMPLATE, (ASSISTANT,))))

    def extend(
        self,
        history: Sequence[Message],
        generation: Generation,
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> Rendering:
        """Render the closing of an unfinished turn, the observation and the opening of the next turn."""
        if self.drops_thinking and (action := self.parse(generation.token_ids)).thinking is not None:
            anew = self.start((*history, action.message, *observation.messages), tools).segments
            ids = tuple(token for segment in anew for token in segment.token_ids)
            return Rendering(segments=(_segment(Origin.PROMPT, ids),), rewrite=Rewrite.THINKING_DROPPED)
        glue = () if generation.token_ids[-1:] == (END,) else (END,)
        segments: list[Segment] = []
        for message in observation.messages:
            segments.append(_segment(Origin.TEMPLATE, (*glue, _OPENS[message.role])))
            if message.content:
                segments.append(_segment(Origin.TOOL, encode(message.content)))
            glue = (END,)
        segments.append(_segment(Origin.TEMPLATE, (*glue, ASSISTANT)))
        return Rendering(segments=tuple(segments))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        return parse_action("".join(chr(token) for token in token_ids if token < _FRAME))

    def encode_action(self, action: Action) -> tuple[int, ...]:
        return (*encode(action), END)

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return each character, and framing tokens in angle brackets."""
        return show(token_ids)

    def _message(self, message: Message) -> tuple[int, ...]:
        thinking = "" if message.thinking is None or self.drops_thinking else f"<think>{message.thinking}</think>"
        calls = "".join(f"{{{call.name}}}" for call in message.tool_calls)
        return (_OPENS[message.role], *encode(thinking + message.content + calls), END)


def encode(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def said(text: str) -> tuple[int, ...]:
    """Return the tokens of a whole turn that says `text`."""
    return (*encode(text), END)


def show(token_ids: Sequence[int]) -> tuple[str, ...]:
    """Return each token as a person reads it."""
    return tuple([chr(token) if token < _FRAME else _SHOWN[token] for token in token_ids])


def char_agent(renderer: CharRenderer | None = None, **settings: object) -> Agent:
    """Return an agent over characters; `settings` are those of `AgentSettings`."""
    limits = {"max_turn_tokens": 1000, "max_context_tokens": 100_000}
    return assemble(AgentSettings.model_validate(limits | settings), renderer or CharRenderer())


def _segment(origin: Origin, token_ids: tuple[int, ...]) -> Segment:
    return Segment(origin=origin, token_ids=token_ids, token_strings=show(token_ids))


class ParrotTasks:
    def __init__(self, num_tasks: int = 1) -> None:
        self.num_tasks = num_tasks

    def size(self, split: Split) -> int:
        return self.num_tasks

    def task(self, split: Split, index: int) -> Task:
        return parrot_task("Q" if self.num_tasks == 1 else f"Q{index}", split)


def parrot_task(prompt: str, split: Split = Split.TRAIN) -> Task:
    return Task(id=f"{split}/0", prompt=prompt, payload={"prompt": prompt}, split=split)


@dataclass(slots=True)
class ParrotState:
    heard: int = 0


class Parrot(Env[ParrotState]):
    """Repeats what it hears with a `!`; `bye` ends the episode, `crash` and `unplug` break it. Each turn pays 0.25."""

    tasks = ParrotTasks()

    def __init__(self, *, system_prompt: str = "", max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        self.system_prompt = system_prompt

    def begin(self, task: Task) -> str:
        self.state = ParrotState()
        return task.prompt

    def respond(self, action: Action) -> Reply:
        self.state.heard += 1
        if action.content == "crash":
            raise RuntimeError("the parrot fell")
        if action.content == "unplug":
            raise ToolInfraFailure("the perch lost power")
        return Reply(observation=f"{action.content}!", reward=0.25, terminated=action.content == "bye")

    @tool
    def look(self, at: str) -> str:
        """Look at something.

        Args:
            at: What to look at.
        """
        return f"a {at}"

    def oracle(self) -> str:
        """Look first, then leave."""
        if self.state.heard:
            return "bye"
        self.state.heard += 1
        return CALL


CALL = '<tool_call>{"name": "look", "arguments": {"at": "cat"}}</tool_call>'
"""A call that the parrot answers with `a cat`."""


def parrot_job(
    make_env: Callable[[], Env[ParrotState]] = Parrot, *, prompt: str = "Q", seed: int = 7, tree_id: str = "t"
) -> EpisodeJob:
    return EpisodeJob(make_env=make_env, task=parrot_task(prompt), seed=seed, tree_id=tree_id, env_id="parrot")


def episode_factory(job: EpisodeJob) -> EpisodeFactory:
    """Return what makes the jobs of a group's trees from one job; tree k of id `t` has the id `t/k`."""

    def make_job(number: int) -> EpisodeJob:
        seed = derive_seed(job.sampling_seed, "member", number)
        return replace(job, policy_seed=seed, tree_id=f"{job.tree_id}/{number:02d}")

    return make_job


async def run_episodes(
    jobs: Sequence[EpisodeJob],
    agent: Agent,
    policy: Policy,
    *,
    concurrency: int,
    on_finished: Callable[[Tree], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[Tree]:
    """Run all jobs at temperature 1, and return their trees in the order of the jobs."""
    return await run_pool(
        jobs,
        lambda job: run_episode(job, agent, policy, sampling=Sampling(), clock=clock),
        concurrency=concurrency,
        on_finished=on_finished,
    )
