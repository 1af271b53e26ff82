"""Named agents: a choice of renderer, text format, system prompt and context strategy.

An agent is fixed before its first episode and shared by all of them; what changes is `AgentState` (agents/loop.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from envgym.agents.context import STRATEGIES, ContextStrategy, ContextStrategyName, stop
from envgym.agents.protocols import Generation, Renderer, Rendering
from envgym.core.messages import Action, Message, Observation, Role
from envgym.errors import InvalidInput, PolicyFailure, sentence, unknown_name
from envgym.parsing import text_format
from envgym.parsing.formats import TextFormat
from envgym.records import ResetRecord
from envgym.settings import Settings
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class OnLength(StrEnum):
    """What happens when a turn reaches `max_turn_tokens` before it is over."""

    TRUNCATE = "truncate"
    """The episode ends as TRUNCATED_TOKENS; what was said is kept, and the env does not hear it."""
    CLOSE = "close"
    """The turn is closed by the template and the env answers what was said so far."""


class AgentSettings(Settings):
    """How an agent acts."""

    name: str = "tool_calling"
    """A row of `AGENTS`; the settings left at None take that row's choice."""
    system_prompt: str | None = None
    """Standing instructions before those of the env."""
    text_format: str | None = None
    """A format of `envgym.parsing` for thinking and tool calls, or `native`: that of the model's chat template."""
    thinking: bool = False
    """Whether the template opens a turn with room to think, where the model's family knows the difference."""
    max_turn_tokens: int = Field(default=256, ge=1)
    """Most tokens sampled in one turn."""
    max_context_tokens: int = Field(default=2048, ge=2)
    """Most tokens of a context with the turn sampled behind it."""
    on_length: OnLength = OnLength.TRUNCATE
    context: ContextStrategyName | None = None
    """What is left out when another turn would not fit `max_context_tokens`."""

    @model_validator(mode="after")
    def _leave_room_for_a_prompt(self) -> Self:
        if self.max_turn_tokens >= self.max_context_tokens:
            rule = f"be less than max_context_tokens ({self.max_context_tokens})"
            raise ValueError(
                sentence("max_turn_tokens", rule, self.max_turn_tokens, where="agent", do="leave room for a prompt")
            )
        return self


NATIVE = "native"
"""The text format that stands for the model family's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKind:
    """One row of the table of agents."""

    text_format: str
    system_prompt: str = ""
    context: ContextStrategyName = ContextStrategyName.STOP


AGENTS: Mapping[str, AgentKind] = MappingProxyType(
    {
        "plain": AgentKind(text_format="plain"),
        "tool_calling": AgentKind(text_format=NATIVE),
        "react": AgentKind(text_format="react", context=ContextStrategyName.DROP_OLDEST_TURNS),
        "code_act": AgentKind(text_format="code_block", context=ContextStrategyName.DROP_OLDEST_TURNS),
    }
)
"""Name -> what the agent is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A made agent: everything about it that does not change while it acts."""

    settings: AgentSettings
    renderer: Renderer
    text_format: TextFormat | None = None
    """None: the renderer's own format, which is told the tools itself."""
    system_prompt: str = ""
    context: ContextStrategy = stop

    def opening(self, record: ResetRecord) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
        """Return the first messages of an episode, and the tools that the chat template has to list."""
        parts = [self.system_prompt, record.system_prompt]
        if self.text_format is not None:
            parts.append(self.text_format.instructions(record.tools))
        text = "\n\n".join(part for part in parts if part)
        system = (Message(role=Role.SYSTEM, content=text),) if text else ()
        return (*system, *record.observation.messages), record.tools if self.text_format is None else ()

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
            return self._readable(self.renderer.extend(history, generation, observation, tools))
        except Exception as error:
            raise _broken("rendering the next turn", error) from error

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Read a sampled turn. Raises: PolicyFailure: the renderer failed."""
        try:
            return self.renderer.parse(token_ids)
        except Exception as error:
            raise _broken("reading the sampled turn", error) from error

    def _readable(self, rendering: Rendering) -> Rendering:
        """Return `rendering` with token strings on every segment. Raises: InvalidInput: it holds sampled tokens."""
        is_readable = True
        for segment in rendering.segments:
            is_readable = is_readable and segment.token_strings != ()
            if segment.trains:
                do = "mark what is rendered PROMPT, TEMPLATE, TOOL or INJECTED"
                raise InvalidInput(sentence("rendering", "hold no POLICY segment", "one", where="renderer", do=do))
        if is_readable:
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
    from envgym.agents.rendering import make_renderer

    kind = agent_kind(settings.name)
    name = settings.text_format or kind.text_format
    chosen = None if name == NATIVE else text_format(name)
    return assemble(settings, make_renderer(tokenizer, text_format=chosen, thinking=settings.thinking), chosen)


def assemble(settings: AgentSettings, renderer: Renderer, text_format: TextFormat | None = None) -> Agent:
    """Put an agent together from a renderer that is at hand."""
    kind = agent_kind(settings.name)
    return Agent(
        settings=settings,
        renderer=renderer,
        text_format=text_format,
        system_prompt=kind.system_prompt if settings.system_prompt is None else settings.system_prompt,
        context=STRATEGIES[settings.context or kind.context],
    )


def agent_kind(name: str) -> AgentKind:
    """Return the row called `name`. Raises: UnknownName: there is none; near names are listed."""
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS, where="agents")
    return AGENTS[name]
