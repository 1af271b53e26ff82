"""Named agents: a choice of renderer, text format, system prompt and context strategy.

An agent is fixed before its first episode and shared by all of them; what changes is `AgentState` (`loop.state`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from pydantic import Field, model_validator

from envgym.agents.loop.context import CONTEXT_STRATEGY, ContextStrategy, drop_oldest_turns, stop
from envgym.agents.loop.path import History
from envgym.agents.loop.program_settings import ProgramSettings
from envgym.agents.protocols import GenerateRequest, Generation, Renderer, Rendering
from envgym.agents.rendering.factory import RENDERER
from envgym.agents.tables import KINDS
from envgym.config.plugins import Choice, PluginKind
from envgym.config.settings import Settings
from envgym.core.messages import GUIDE, Action, Message, Observation
from envgym.core.segments import Origin
from envgym.errors import InvalidInput, PolicyFailure, sentence
from envgym.parsing.formats import TEXT_FORMAT, TextFormat
from envgym.records import ResetRecord, StepRecord, first_messages
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NATIVE = "native"
"""The text format that stands for that of the model's own chat template."""


class OnLength(StrEnum):
    """What happens when a turn reaches `max_turn_tokens` before it is over."""

    TRUNCATE = "truncate"
    """The episode ends as TRUNCATED_TOKENS; what was said is kept, and the env does not hear it."""
    CLOSE = "close"
    """The turn is closed by the template and the env answers what was said so far."""


class AgentSettings(Settings):
    """How an agent acts."""

    name: str = "tool_calling"
    """`plain`, `tool_calling`, `react`, `code_act`, or an `AgentKind` of your own; it decides what is left at null."""
    system_prompt: str | None = None
    """Standing instructions before those of the env."""
    renderer: Choice = Choice(name="auto")
    """How messages become tokens: `family` by the model family's own renderer, `generic` by the chat template, `auto`
    by the family's where it is known; or one of your own."""
    text_format: Choice | None = None
    """How thinking and tool calls are written: `hermes`, `code_block`, `xml_tags`, `react`, `plain`, one of your own,
    or `native`, the model's own."""
    thinking: bool | None = None
    """Whether a turn opens with room to think, where the template knows the difference; null: its default."""
    max_turn_tokens: int = Field(default=256, ge=1)
    """Most tokens sampled in one turn."""
    max_context_tokens: int = Field(default=2048, ge=2)
    """Most tokens of a context with the turn that follows it."""
    on_length: OnLength = OnLength.TRUNCATE
    """What happens when a turn reaches `max_turn_tokens`: `truncate` ends the episode, `close` lets the env answer
    the truncated text."""
    context: Choice | None = None
    """What is left out when another turn would not fit `max_context_tokens`: `stop` (nothing, the episode ends),
    `drop_oldest_turns`, `drop_thinking`, or one of your own."""
    program: ProgramSettings | None = None
    """An agent program that plays the episodes in place of the agent loop; null: none."""

    @model_validator(mode="after")
    def _leave_prompts_to_the_program(self) -> Self:
        if self.program is not None and self.system_prompt:
            rule, do = "be left out with agent.program, which writes its own messages", "put it into the program"
            raise ValueError(sentence("system_prompt", rule, self.system_prompt, where="agent", do=do))
        return self

    @model_validator(mode="after")
    def _leave_room_for_a_prompt(self) -> Self:
        if self.max_turn_tokens >= self.max_context_tokens:
            rule = f"be less than max_context_tokens ({self.max_context_tokens})"
            do = "leave room for a prompt"
            raise ValueError(sentence("max_turn_tokens", rule, self.max_turn_tokens, where="agent", do=do))
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKind:
    """What an agent is made of, where its settings do not say otherwise."""

    summary: str = ""
    """One line for lists."""
    text_format: Choice | None = None
    """How thinking and tool calls are written; None: as the model's chat template writes them."""
    system_prompt: str = ""
    """Standing instructions before those of the env."""
    context: ContextStrategy = stop
    """What is left out when the context is full."""


AGENT: Final[PluginKind[AgentKind]] = KINDS["agent"]


PLAIN = AgentKind(summary="Answer in plain text, without tools.", text_format=Choice(name="plain"))
TOOL_CALLING = AgentKind(summary="Call tools as the model was trained to.")
REACT = AgentKind(
    summary="Think, then act, in the lines of ReAct.", text_format=Choice(name="react"), context=drop_oldest_turns
)
CODE_ACT = AgentKind(
    summary="Act by writing code blocks.", text_format=Choice(name="code_block"), context=drop_oldest_turns
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A made agent: everything about it that does not change while it acts."""

    settings: AgentSettings
    renderer: Renderer
    system_prompt: str = ""
    context: ContextStrategy = stop

    def opening(self, record: ResetRecord) -> tuple[Message, ...]:
        """Return the first messages of an episode; the renderer lists the tools."""
        return first_messages(record, self.system_prompt, record.system_prompt)

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        """Render a whole context. Raises: PolicyFailure: the renderer failed."""
        try:
            return self._readable(self.renderer.start(messages, tools))
        except Exception as error:
            raise _broken("rendering the context", error) from error

    def extend(
        self, history: Sequence[Message], generation: Generation, observation: Observation, tools: Sequence[ToolSpec]
    ) -> Rendering:
        """Render what follows a sampled turn. Raises: PolicyFailure: the renderer failed."""
        try:
            rendering = self._readable(self.renderer.extend(history, generation, observation, tools))
        except Exception as error:
            raise _broken("rendering the next turn", error) from error
        messages = observation.messages
        if not messages or any(item.name != GUIDE for item in messages):
            return rendering
        segments = rendering.segments
        parts = (replace(part, origin=Origin.INJECTED) if part.origin is Origin.TOOL else part for part in segments)
        return replace(rendering, segments=tuple(parts))

    def request(self, request: GenerateRequest, history: History, tools: tuple[ToolSpec, ...]) -> GenerateRequest:
        """Return the request for a turn as the policy takes it: here that of the tokens of `history`."""
        return request

    def parse(self, generation: Generation, tools: Sequence[ToolSpec] = ()) -> Action:
        """Read a sampled turn of an episode with these tools. Raises: PolicyFailure: the renderer failed."""
        try:
            return self.renderer.parse(generation.token_ids, tools)
        except Exception as error:
            raise _broken("reading the sampled turn", error) from error

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return each token as a person reads it. Raises: PolicyFailure: the renderer failed."""
        try:
            return self.renderer.token_strings(token_ids)
        except Exception as error:
            raise _broken("reading the sampled tokens", error) from error

    def turn_messages(self, record: StepRecord) -> tuple[Message, ...]:
        """Return the messages that a turn adds to the conversation."""
        return (record.action.message, *record.observation.messages)

    def context_length(self, context: tuple[int, ...], generation: Generation) -> int:
        """Return how many tokens `context`, which follows `generation`, has."""
        return len(context)

    def _readable(self, rendering: Rendering) -> Rendering:
        """Return `rendering` with token strings on every segment. Raises: InvalidInput: it holds sampled tokens."""
        has_strings = True
        for segment in rendering.segments:
            if segment.trains:
                do = "mark what is rendered PROMPT, TEMPLATE, TOOL or INJECTED"
                raise InvalidInput.of("rendering", "hold no POLICY segment", "one", where="renderer", do=do)
            has_strings = has_strings and bool(segment.token_strings)
        if has_strings:
            return rendering
        strings = self.renderer.token_strings
        segments = (replace(segment, token_strings=strings(segment.token_ids)) for segment in rendering.segments)
        return replace(rendering, segments=tuple(segments))


def _broken(what: str, error: Exception) -> PolicyFailure:
    return PolicyFailure(f"{what} failed: {type(error).__name__}: {error}")


def make_agent(settings: AgentSettings, tokenizer: "PreTrainedTokenizerBase") -> Agent:
    """Make the agent that `settings` name, for the model family of `tokenizer`.

    Raises: UnknownName: no such agent or text format. InvalidInput: the tokenizer's chat template cannot be used.
    """
    renderer = RENDERER.build(settings.renderer)
    return assemble(
        settings, renderer(tokenizer, text_format=resolve_text_format(settings), thinking=settings.thinking)
    )


def assemble(settings: AgentSettings, renderer: Renderer) -> Agent:
    """Put an agent together from a renderer that is at hand. Raises: UnknownName: no such agent."""
    kind = agent_kind(settings)
    return Agent(
        settings=settings,
        renderer=renderer,
        system_prompt=own_system_prompt(settings),
        context=kind.context if settings.context is None else CONTEXT_STRATEGY.build(settings.context),
    )


def own_system_prompt(settings: AgentSettings) -> str:
    """Return the agent's standing instructions. Raises: UnknownName: no such agent."""
    return agent_kind(settings).system_prompt if settings.system_prompt is None else settings.system_prompt


def resolve_text_format(settings: AgentSettings) -> TextFormat | None:
    """Return how the agent writes calls; None: as the model's chat template does. Raises: UnknownName: no such one."""
    choice = settings.text_format or agent_kind(settings).text_format
    return None if choice is None or choice.name == NATIVE else TEXT_FORMAT.build(choice)


def agent_kind(settings: AgentSettings) -> AgentKind:
    """Return the kind of the agent. Raises: UnknownName: there is no such agent; near names are listed."""
    return AGENT.build(Choice(name=settings.name))
