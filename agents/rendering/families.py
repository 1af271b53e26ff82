"""The renderer for model families that the package `renderers` knows: its rendering and parsing, in our segments.

The family's own format of calls is used. A call that cannot be read stays in the content, as it was written. A family
is known by the model's name, or because it renders probes to the very tokens that the tokenizer's own chat template
gives: a checkpoint in a local directory has no telling name.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from renderers import config_from_name, create_renderer  # type: ignore[import-untyped]  # shipped without types
from renderers.base import MODEL_RENDERER_MAP  # type: ignore[import-untyped]  # shipped without types

from envgym.agents.models.generation_config import join_stop_token_ids
from envgym.agents.protocols import Generation, Rendering
from envgym.agents.rendering.harmony import after_analysis, is_harmony, provide_vocabulary
from envgym.agents.rendering.template import (
    PROBE_CALL,
    PROBE_TOOL,
    ChatTemplate,
    TemplateMessage,
    native_call,
    opened_thinking,
)
from envgym.agents.rendering.tokens import TokenCodec, require_fast
from envgym.chats.openai import listed_tools
from envgym.core.messages import Action, Message, Observation, Role, ToolCall, text_of
from envgym.core.segments import Origin
from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput, check_known
from envgym.parsing.strict_json import read_json
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OWN_TOKENIZER = frozenset({"gpt-oss"})
"""Families that encode with a tokenizer of their own, in which text never becomes a control token."""


class GuardedTokenizer:
    """A tokenizer for `renderers` that undoes escapes: text from outside stays harmless when it is encoded."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", codec: TokenCodec) -> None:
        """Wrap `tokenizer`; everything but encoding is forwarded to it."""
        self._tokenizer, self._codec = tokenizer, codec

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **_: object) -> list[int]:
        """Return ids, escapes undone."""
        return self._codec.encode(text).ids

    def __call__(self, text: str, **_: object) -> dict[str, list[Any]]:  # ids, or pairs of characters
        """Return ids and their characters in the text as given."""
        encoded = self._codec.encode(text)
        return {"input_ids": encoded.ids, "offset_mapping": list(zip(encoded.starts, encoded.ends, strict=True))}


# ---- which family --------------------------------------------------------------------------------------------------


def family_names() -> tuple[str, ...]:
    """Return the families that can be named."""
    return tuple(sorted(set(MODEL_RENDERER_MAP.values())))


def find_family(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """Return the family of a tokenizer: by the model's name, else by equal tokens for the probes; None: unknown."""
    named = MODEL_RENDERER_MAP.get(str(tokenizer.name_or_path))
    if named is not None or not tokenizer.chat_template:
        return str(named) if named is not None else None
    if is_harmony(tokenizer):
        return "gpt-oss"
    template = ChatTemplate(tokenizer, {})
    expected = [_reference(template, tokenizer, messages, has_tools) for messages, has_tools in _PROBES]
    if None in expected:
        return None
    return next((name for name in family_names() if _renders(name, tokenizer, expected)), None)


_CALLED: TemplateMessage = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "qzthought",
    "tool_calls": [{"type": "function", "function": {"name": "qzprobe", "arguments": {"qzarg": "qzvalue"}}}],
}
_ASKED = [{"role": "system", "content": "qzsystem"}, {"role": "user", "content": "qzuser"}]
_ANSWERED = [*_ASKED, _CALLED, {"role": "tool", "content": "qzresult", "name": "qzprobe"}]
_PROBES: tuple[tuple[list[TemplateMessage], bool], ...] = (
    (_ASKED[1:], False),
    (_ASKED, True),
    (_ANSWERED, True),
    ([*_ANSWERED, {"role": "assistant", "content": "qzsaid"}, {"role": "user", "content": "qzmore"}], True),
)


def _reference(
    template: ChatTemplate, tokenizer: "PreTrainedTokenizerFast", messages: list[TemplateMessage], has_tools: bool
) -> list[int] | None:
    text = template.attempt(messages, [PROBE_TOOL] if has_tools else [])
    return None if text is None else list(tokenizer.encode(text, add_special_tokens=False))


def _renders(family: str, tokenizer: "PreTrainedTokenizerFast", expected: Sequence[list[int] | None]) -> bool:
    if family in OWN_TOKENIZER:
        return False
    try:
        inner = create_renderer(tokenizer, config_from_name(family))
        tools = listed_tools([PROBE_TOOL])
        return all(
            list(inner.render_ids(messages, tools=tools if has_tools else None, add_generation_prompt=True)) == ids
            for (messages, has_tools), ids in zip(_PROBES, expected, strict=True)
        )
    except Exception:  # noqa: BLE001  # whatever a family raises for a tokenizer that is not its own
        return False


def create_family(
    tokenizer: GuardedTokenizer, family: str, *, thinks: bool | None, keeps_thinking: bool
) -> Any:  # one of the classes of `renderers`, which has no types
    """Make the renderer of a family. Raises: UnknownName: no such family. InvalidInput: not its tokenizer."""
    check_known("model family", family, family_names(), where="renderers")
    changes: dict[str, object] = {"thinking_retention": "all"} if keeps_thinking else {}
    kind = type(config_from_name(family))
    if keeps_thinking and "auto_drop_analysis" in kind.model_fields:
        changes["auto_drop_analysis"] = False
    if thinks is not None and "enable_thinking" in kind.model_fields:
        changes["enable_thinking"] = thinks
    if family == "gpt-oss":
        provide_vocabulary(tokenizer)  # type: ignore[arg-type]  # the guard forwards everything but encoding
    try:
        return create_renderer(tokenizer, kind(**changes))
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        do = "name the family of this model, or none"
        if family in OWN_TOKENIZER:
            do = f"go online once, so that the family can fetch its own vocabulary, or {do}"
        raise InvalidInput.of("tokenizer", f"be one of the family {family}", got, where="renderers", do=do) from error


# ---- the renderer ----------------------------------------------------------------------------------------------------

_REASONS = {
    "invalid_json": "its arguments are not valid JSON",
    "unclosed_block": "it is not closed",
    "missing_name": "the name of the tool is missing",
    "malformed_structure": "it does not have the form that is required",
}


class FamilyRenderer:
    """Renders and parses with the hand-written renderer of one model family."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        family: str,
        *,
        thinks: bool | None = None,
        keeps_thinking: bool = False,
    ) -> None:
        """Set the family's renderer up.

        Args:
            tokenizer: a fast tokenizer of the family.
            family: a name of `family_names()`.
            thinks: whether a turn opens with room to think, where the family knows the difference; None: its default.
            keeps_thinking: append also where the family would drop thinking.

        Raises:
            UnknownName: no such family. InvalidInput: the tokenizer is not one of the family.
        """
        require_fast(tokenizer)
        self.family = family
        self._codec = TokenCodec(tokenizer, markup=str(tokenizer.chat_template or ""))
        self._guards = family not in OWN_TOKENIZER
        guarded = GuardedTokenizer(tokenizer, self._codec)
        self._inner = create_family(guarded, family, thinks=thinks, keeps_thinking=keeps_thinking)
        self._writer = self._inner
        """Renders turns as they are sampled, with their thinking."""
        if family == "gpt-oss":
            self._writer = create_family(guarded, family, thinks=thinks, keeps_thinking=True)
        self._own_stops = frozenset[int](self._inner.get_stop_token_ids())
        self.stop_token_ids = join_stop_token_ids(tokenizer, self._inner.get_stop_token_ids())
        """Ids at which the policy's turn ends: the family's own, then those of the model's generation config."""
        self._openings = {role: self._opening(role) for role in (Role.USER, Role.TOOL)}
        self._closing = {role: self._closing_id(role) for role in (Role.USER, Role.TOOL)}
        self._marks: frozenset[int] = frozenset()
        self._gap = ""
        self._lead, self._marks = self._probe()
        self._gap = self._lead[len(self._lead.rstrip("\n")) :]
        """Line breaks between the thinking and the text of a turn."""
        self._codec.count_as_markup(self._marks)

    def _probe(self) -> tuple[str, frozenset[int]]:
        """Return the text before that of a turn without thinking, and the tokens that calls are written with."""
        opened = self._inner.render_ids([{"role": "user", "content": "qz"}], add_generation_prompt=True)
        sampled = self._sampled_ids({"role": "assistant", "content": "qzsaid"})
        called = self._sampled_ids(
            self._message(Message(role=Role.ASSISTANT, content="qzsaid", tool_calls=(PROBE_CALL,)))
        )
        reads_bare_text = self.parse(self._codec.encode("qzsaid").ids).content == "qzsaid"
        needs_lead = opened_thinking(self._codec.decode(opened)) or not reads_bare_text
        lead = self._codec.decode(sampled).partition("qzsaid")[0] if needs_lead else ""
        return lead, self._codec.control(called) - self._codec.control(sampled) - set(self.stop_token_ids)

    def _closing_id(self, role: Role) -> int:
        """Return the token that ends a turn which a message of this role answers, as the family renders it."""
        calls = (PROBE_CALL,) if role is Role.TOOL else ()
        turn = Message(role=Role.ASSISTANT, content="qz", tool_calls=calls)
        reply = Message(role=role, content="qz", name=PROBE_TOOL.name if calls else None)
        messages = [Message(role=Role.USER, content="qz"), turn, reply]
        last = _last_sampled(self._inner.render([self._message(message) for message in messages]))
        return last if last is not None and last in self.stop_token_ids else self.stop_token_ids[0]

    def _opening(self, role: Role) -> list[int]:
        """Return a short context that ends as any context does whose last message has this role."""
        called = Message(role=Role.ASSISTANT, content="", tool_calls=(PROBE_CALL,))
        answered = [called, Message(role=Role.TOOL, content="qz", name=PROBE_TOOL.name)] if role is Role.TOOL else []
        messages = [self._message(message) for message in (Message(role=Role.USER, content="qz"), *answered)]
        tools = listed_tools([PROBE_TOOL])
        return list(self._inner.render_ids(messages, tools=tools, add_generation_prompt=True))

    @property
    def lists_tools(self) -> bool:
        """Whether the family's prompt tells the model about tools."""
        user = [{"role": "user", "content": "qz"}]
        without = self._inner.render_ids(user, tools=None)
        return list(without) != list(self._inner.render_ids(user, tools=listed_tools([PROBE_TOOL])))

    # ---- Renderer ------------------------------------------------------------------------------------------------

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendering:
        inputs = [self._message(message) for message in messages]
        whole = self._inner.render(inputs, tools=listed_tools(tools) or None, add_generation_prompt=True)
        ids, owners = list(whole.token_ids), list(whole.message_indices)
        end = len(ids)
        while end > 0 and owners[end - 1] < 0:
            end -= 1
        parts = ((Origin.PROMPT, ids[:end]), (Origin.TEMPLATE, ids[end:]))
        return Rendering(segments=tuple(self._codec.segment(origin, part) for origin, part in parts if part))

    def extend(
        self,
        history: Sequence[Message],
        generation: Generation,
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> Rendering:
        """Render what follows a sampled turn; where the family cannot append, the context is rendered anew."""
        replies = observation.messages or (Message(role=Role.USER, content=""),)
        last = Role.TOOL if history and history[-1].role is Role.TOOL else Role.USER
        opening, sampled = self._openings[last], list(generation.token_ids)
        bridged = self._inner.bridge_to_next_turn(
            opening, sampled, [self._message(message) for message in replies], tools=listed_tools(tools) or None
        )
        length = len(opening) + len(sampled)
        if bridged is None or list(bridged.token_ids[:length]) != opening + sampled:
            action = self.parse(generation.token_ids, tools)
            whole = self.start([*history, action.message, *replies], tools)
            ids = [token for segment in whole.segments for token in segment.token_ids]
            return Rendering(segments=(self._codec.segment(Origin.PROMPT, ids),), rewrite=Rewrite.TEMPLATE)
        ids = list(bridged.token_ids[length:])
        content_mask = bridged.is_content or [owner >= 0 for owner in bridged.message_indices]
        runs = groupby(zip(ids, content_mask[length:], strict=True), key=itemgetter(1))
        segments = (
            self._codec.segment(Origin.TOOL if is_reply else Origin.TEMPLATE, [token for token, _ in run])
            for is_reply, run in runs
        )
        return Rendering(segments=tuple(segments))

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        ids = list(token_ids[:-1] if token_ids and token_ids[-1] in self.stop_token_ids else token_ids)
        listed = listed_tools(tools) or None
        is_whole = self.family == "gpt-oss" and not self._own_stops.isdisjoint(token_ids[-1:])
        whole = list(token_ids) if is_whole else ids  # the last token of gpt-oss also closes its call
        read = self._inner.parse_response(whole, tools=listed, prompt_ids=self._openings[Role.USER])
        calls: list[ToolCall] = []
        malformed: list[str] = []
        unread: list[str] = []
        for parsed in read.tool_calls:
            call, reason = _call(parsed)
            if call is not None:
                calls.append(call)
                continue
            malformed.append(f"A tool call could not be read: {reason}.")
            unread.append(self._codec.decode(ids[slice(*parsed.token_span)]) if parsed.token_span else parsed.raw)
        if not read.tool_calls and not self._marks.isdisjoint(ids):
            malformed.append(f"A tool call could not be read: {_REASONS['malformed_structure']}.")
        return Action(
            self._codec.decode(ids),
            content="\n".join(part for part in (read.content.removeprefix(self._gap), *unread) if part),
            thinking=(read.reasoning_content or "").strip("\n") or None,
            tool_calls=calls,
            malformed=malformed,
        )

    def encode_action(self, action: Action) -> tuple[int, ...]:
        text = str(action)
        is_bare = action.content == text and action.thinking is None and not action.tool_calls
        if is_bare or action.malformed:
            ids = self._codec.encode(self._lead + self._codec.escape(text, markup=True)).ids
        else:
            ids = self._sampled_ids(self._message(action.message))
        if ids and ids[-1] in self.stop_token_ids:
            return tuple(ids)
        is_call = bool(action.tool_calls) or not self._marks.isdisjoint(ids)
        return (*ids, self._closing[Role.TOOL if is_call else Role.USER])

    def _sampled_ids(self, message: TemplateMessage) -> list[int]:
        """Return the tokens of an assistant message that the policy samples after the opening of its turn."""
        question = {"role": "user", "content": "qz"}
        opened = list(self._writer.render_ids([question], add_generation_prompt=True))
        whole = self._writer.render([question, message])
        end = max(place for place, is_sampled in enumerate(whole.sampled_mask) if is_sampled) + 1
        ids = list(whole.token_ids)[:end]
        if ids[: len(opened)] == opened:
            return ids[len(opened) :]
        if self.family == "gpt-oss":
            start = len(self._writer.render_ids([question]))
            return after_analysis(ids[start:], opened[start:], self._codec.encode("<|end|>").ids)
        # The last token of the opening has merged with what follows it: say the rest of the text anew.
        before, text = self._codec.decode(opened), self._codec.decode(ids)
        return self._codec.encode(text.removeprefix(before)).ids

    def token_strings(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return self._codec.strings(token_ids)

    # ---- messages ------------------------------------------------------------------------------------------------

    def _message(self, message: Message) -> TemplateMessage:
        is_ours = message.role in (Role.SYSTEM, Role.ASSISTANT)

        def safe(text: str, has_markup: bool = is_ours) -> str:
            return self._codec.escape(text, markup=has_markup) if self._guards else text

        fields: TemplateMessage = {"role": message.role.value, "content": safe(text_of(message))}
        if message.thinking is not None:
            fields["reasoning_content"] = safe(message.thinking)
        if message.tool_calls:
            fields["tool_calls"] = [native_call(call, safe) | {"id": call.id} for call in message.tool_calls]
        if message.role is Role.TOOL:
            fields |= {"name": message.name, "tool_call_id": message.tool_call_id}
        return {key: value for key, value in fields.items() if value is not None}


def _last_sampled(whole: Any) -> int | None:  # a RenderedTokens of `renderers`
    sampled = [token for token, mask in zip(whole.token_ids, whole.sampled_mask, strict=True) if mask]
    return int(sampled[-1]) if sampled else None


def _call(parsed: Any) -> tuple[ToolCall | None, str]:  # a ParsedToolCall of `renderers`
    status, arguments = str(parsed.status), parsed.arguments
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments) if arguments.strip() else {}
        except ValueError:
            status = "invalid_json"
    if not parsed.name:
        status = "missing_name"
    elif isinstance(arguments, Mapping) and status in ("invalid_json", "unknown_tool"):
        status = "ok"  # arguments that are plain text where no schema was known; the env answers unknown names
    if status in _REASONS or not isinstance(arguments, Mapping | None):
        return None, _REASONS.get(status, _REASONS["invalid_json"])
    return ToolCall(name=parsed.name, arguments=dict(arguments or {}), id=parsed.id), ""
