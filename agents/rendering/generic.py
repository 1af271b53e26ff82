"""The renderer for any chat template: finds the template's framing by rendering probes, appends where that is exact.

Where the template would render earlier turns anew (many drop old thinking), the whole context is rendered anew and
recorded as a rewrite. Tokens that were sampled stay as they were sampled; text from outside never becomes a control
token (`agents/rendering/tokens.py`).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from envgym.agents.models.generation_config import join_stop_token_ids
from envgym.agents.protocols import Generation, Rendering
from envgym.agents.rendering.template import PROBE_CALL, ChatTemplate, Dialect, TemplateMessage, opened_thinking
from envgym.agents.rendering.tokens import TokenCodec, require_fast
from envgym.agents.rendering.transitions import Transition, TransitionProbe, TurnForm, after_opening
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.segments import Origin
from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput
from envgym.parsing.formats import THINK_CLOSE, THINK_OPEN, TextFormat
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class GenericRenderer:
    """Renders with the tokenizer's own chat template."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        format: TextFormat,
        *,
        keeps_thinking: bool = False,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Probe the template and prove what can be appended.

        Args:
            tokenizer: a fast tokenizer with a chat template.
            format: how calls, and thinking, are written where the template does not write them.
            keeps_thinking: append also where the template would drop thinking: the context keeps what was sampled.
            variables: further variables of the template (`enable_thinking`, `date_string` ...).

        Raises:
            InvalidInput: no template, a template that fails on a user message, no token that ends a turn.
        """
        require_fast(tokenizer)
        self._template = ChatTemplate(tokenizer, variables or {})
        self._codec = TokenCodec(tokenizer, markup=self._template.source)
        self._dialect = Dialect.probe(self._template, format)
        self._codec.count_as_markup(self._codec.encode(_tags(format)).ids)
        self._keeps_thinking = keeps_thinking
        opening = self._template.render([{"role": "user", "content": "?"}], (), opens_turn=True)
        self._opened = opened_thinking(opening)
        self._require_plain_turns(opening)
        self._closing_id, closing = self._find_closing(tokenizer)
        self.stop_token_ids = join_stop_token_ids(tokenizer, (self._closing_id, tokenizer.eos_token_id))
        """Ids at which the policy's turn ends: the template's closing token, the tokenizer's end of text, and the end
        tokens of the model's generation config."""
        self._probe = cache(TransitionProbe(self._template, self._dialect, self._codec, closing, self._opened).probe)
        for usual in (("user",), ("tool",), ("tool", "tool")) if self._dialect.has_tools else (("user",),):
            self._probe(usual)

    def _require_plain_turns(self, opening: str) -> None:
        """Raise: InvalidInput: the model has to write control tokens before the text of a turn, as gpt-oss does."""
        whole = self._template.attempt([{"role": "user", "content": "?"}, {"role": "assistant", "content": "qzsaid"}])
        if whole is None or not whole.startswith(opening):
            return
        lead = whole[len(opening) :].partition("qzsaid")[0]
        if self._codec.special(self._codec.encode(lead.replace(THINK_OPEN, "").replace(THINK_CLOSE, "")).ids):
            must = "open a turn so that its text can follow"
            do = "use the renderer of the model's family: agent.renderer auto or family, without agent.text_format"
            raise InvalidInput.of("chat template", must, f"{lead!r} before the text", where=self._template.name, do=do)

    def _find_closing(self, tokenizer: "PreTrainedTokenizerFast") -> tuple[int, str]:
        """Return the token that ends a turn: the one the template writes after it, else the tokenizer's own."""
        conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "qzsaid"}]
        text = self._template.attempt([*conversation, {"role": "user", "content": "?"}])
        control = self._codec.first_control(text.rpartition("qzsaid")[2]) if text is not None else None
        if control is not None:
            return control
        if isinstance(tokenizer.eos_token_id, int):
            return tokenizer.eos_token_id, str(tokenizer.eos_token)
        must, do = "have a token that ends a turn", "set eos_token in its tokenizer_config.json"
        raise InvalidInput.of("tokenizer", must, "none", where=self._template.name, do=do)

    # ---- Renderer ------------------------------------------------------------------------------------------------

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        inputs = self._dialect.messages(messages, tools, lambda text, markup: self._codec.escape(text, markup=markup))
        listed = tools if self._dialect.has_tools else ()
        text = self._template.render(inputs, listed, opens_turn=True)
        without_opening = self._template.attempt(inputs, listed, opens_turn=False)
        encoded = self._codec.encode(text)
        end = len(without_opening) if without_opening and text.startswith(without_opening) else encoded.ends[-1]
        return Rendering(segments=self._codec.segments(encoded, [(0, end)], Origin.PROMPT, Origin.TEMPLATE))

    def extend(
        self,
        history: Sequence[Message],
        generation: Generation,
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> Rendering:
        """Render what follows a sampled turn; independent of the history's length unless the context is rewritten."""
        replies = observation.messages
        needs_action = self._dialect.has_tools and not self._dialect.tools_after_text
        action = self.parse(generation.token_ids, tools) if needs_action else None
        inputs = self._dialect.replies(replies, _unescaped, after_calls=action is None or bool(action.tool_calls))
        transition = self._transition(inputs)
        appends = transition.glue is not None
        if appends and not (self._keeps_thinking or transition.is_always_exact):
            action = action or self.parse(generation.token_ids, tools)
            appends = transition.exact[self._turn_form(history, action)]
        if not appends:
            action = action or self.parse(generation.token_ids, tools)
            whole = self.start([*history, action.message, *replies], tools)
            ids = [token for segment in whole.segments for token in segment.token_ids]
            return Rendering(segments=(self._codec.segment(Origin.PROMPT, ids),), rewrite=Rewrite.TEMPLATE)
        delta = transition.delta(self._codec, [message["content"] for message in inputs])
        is_closed = generation.token_ids[-1:] == (self._closing_id,)
        segments = self._codec.segments(delta.encoded, delta.spans, Origin.TOOL, Origin.TEMPLATE, skip=int(is_closed))
        return Rendering(segments=segments)

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.stop_token_ids else token_ids
        sampled_text = self._codec.decode(ids)
        return self._dialect.read(self._opened + sampled_text, sampled_text)

    def encode_action(self, action: Action) -> tuple[int, ...]:
        """Return the ids that say `action`. Raises: InvalidInput: the text format cannot express it."""
        text = after_opening(self._dialect.written(action), self._opened)
        return (*self._codec.encode(self._codec.escape(text, markup=True)).ids, self._closing_id)

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return self._codec.strings(token_ids)

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _transition(self, inputs: Sequence[TemplateMessage]) -> Transition:
        return self._probe(tuple(str(message["role"]) for message in inputs))

    def _turn_form(self, history: Sequence[Message], action: Action) -> TurnForm:
        """Return the form that the template reads; the history is searched back to where it last dropped thinking."""
        num_calls = min(len(action.tool_calls), 2) if self._dialect.has_tools else 0
        is_thinking = action.thinking is not None
        replies: list[Message] = []
        for message in () if is_thinking else reversed(history):
            if message.role is not Role.ASSISTANT:
                replies.insert(0, message)
                continue
            if self._dropped(message, replies):
                break
            is_thinking = message.thinking is not None
            if is_thinking:
                break
            replies = []
        return TurnForm(num_calls, is_thinking)

    def _dropped(self, turn: Message, replies: Sequence[Message]) -> bool:
        inputs = self._dialect.replies(replies, _unescaped, after_calls=bool(turn.tool_calls))
        transition = self._transition(inputs)
        num_calls = min(len(turn.tool_calls), 2) if self._dialect.has_tools else 0
        return not transition.exact[TurnForm(num_calls, True)]


def _tags(format: TextFormat) -> str:
    """Return a turn with all tags that a format writes: in some tokenizers these are special tokens."""
    try:
        call = format.write(Action("", content="", tool_calls=[PROBE_CALL]))
    except InvalidInput:  # the format has no calls
        call = ""
    return THINK_OPEN + THINK_CLOSE + call


def _unescaped(text: str, _: bool) -> str:
    return text
