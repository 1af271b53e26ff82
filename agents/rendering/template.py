"""A tokenizer's chat template: messages in the template's own form -> text; and what probing says about it.

Two ways of using tools, chosen when the dialect is probed:
    native  the template lists the tools, writes calls exactly as the text format does, and renders `tool` messages;
    text    the text format's instructions join the system message, calls are part of what the assistant says, and
            their results come in a `user` message (several messages are joined by a line break).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from envgym.chats.fields import plain_json
from envgym.chats.openai import listed_tools
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action, Message, Role, ToolCall, text_of
from envgym.errors import InvalidInput
from envgym.parsing.formats import THINK_OPEN, TextFormat, join_thinking, split_thinking
from envgym.tools import ToolSpec
from envgym.verifiers.processes import Worker, WorkerDied, WorkerHung, WorkerPool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TemplateMessage = dict[str, Any]  # what the template's author chose to read
CPU_S = 5
"""Seconds of processor time that rendering a conversation may take."""
_WALL_S = 300.0
_MAX_REQUESTS = 1_000_000
_MAX_KEPT = 2048
_MAX_KEPT_CHARACTERS = 2**15
"""Of a request and its answer, where it is kept."""
_VARYING = ("strftime_now", "random")
"""What a template names that renders the same messages in several ways."""


_answers: dict[str, Mapping[str, str]] = {}
"""Request -> answer, of at most `_MAX_KEPT` requests."""


class _TemplateFault(Exception):
    """What a template raised on messages that its author did not think of."""


@cache
def _pool() -> WorkerPool:
    return WorkerPool("envgym.agents.models.template_worker", 2, max_requests=_MAX_REQUESTS)


def _answer(line: str) -> Mapping[str, str]:
    def ask(worker: Worker) -> Mapping[str, str]:
        worker.send_line(line)
        return worker.receive(_WALL_S)

    return _pool().use(ask)


def _kept_answer(line: str) -> Mapping[str, str]:
    """Return a worker's earlier answer to the same request, or a new one. Raises: as `_answer`.

    The members of a group begin with the same prompt, and all agents of a process probe the same template.
    """
    answer = _answers.get(line)
    if answer is None:
        answer = _answer(line)
        if len(line) + sum(map(len, answer.values())) <= _MAX_KEPT_CHARACTERS:
            if len(_answers) >= _MAX_KEPT:
                _answers.clear()
            _answers[line] = answer
    return answer


class ChatTemplate:
    """Renders messages to text with one tokenizer's template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", variables: Mapping[str, JsonValue]) -> None:
        """Take the tokenizer's template. Raises: InvalidInput: there is none, or it cannot render a question."""
        self.name = str(tokenizer.name_or_path) or type(tokenizer).__name__
        self._tokenizer = tokenizer
        self._variables: dict[str, Any] = json.loads(json.dumps(dict(variables), default=str))  # any JSON
        do = "put a chat_template.jinja beside its tokenizer.json, or use a model that has one"
        InvalidInput.unless(tokenizer.chat_template, "chat template", "exist", "none", where=self.name, do=do)
        try:
            self._render([{"role": "user", "content": "?"}], (), opens_turn=True)
        except _TemplateFault as fault:
            do = "correct the template, or use a model whose template works"
            raise InvalidInput.of(
                "chat template", "render a user message", str(fault), where=self.name, do=do
            ) from None

    @property
    def source(self) -> str:
        """The template's own text."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else json.dumps(template)

    def render(self, messages: Sequence[TemplateMessage], tools: Sequence[ToolSpec], *, opens_turn: bool) -> str:
        """Return the text; with `opens_turn` it ends where the assistant begins to speak.

        Raises: InvalidInput: the template refuses these messages.
        """
        try:
            return self._render(messages, tools, opens_turn=opens_turn)
        except _TemplateFault as fault:
            must = f"accept the roles {[message['role'] for message in messages]}"
            do = "use an environment or a model whose messages fit"
            raise InvalidInput.of("chat template", must, str(fault), where=self.name, do=do) from None

    def attempt(
        self, messages: Sequence[TemplateMessage], tools: Sequence[ToolSpec] = (), *, opens_turn: bool = True
    ) -> str | None:
        """Return the text, None where the template refuses the messages."""
        try:
            return self._render(messages, tools, opens_turn=opens_turn)
        except _TemplateFault:
            return None

    def _render(self, messages: Sequence[TemplateMessage], tools: Sequence[ToolSpec], *, opens_turn: bool) -> str:
        """Render in a process of its own, as a template comes with a model and may be hostile.

        Raises: _TemplateFault: the template refuses the messages. InvalidInput: it takes too long, or too much memory.
        """
        listed = listed_tools(tools) or None
        try:
            template = self._tokenizer.get_chat_template(tools=listed)
        except ValueError as error:
            raise _TemplateFault(str(error)) from None
        request: dict[str, Any] = {  # JSON
            "chat_template": template,
            "messages": list(messages),
            "tools": listed,
            "add_generation_prompt": opens_turn,
            "variables": {**self._tokenizer.special_tokens_map, **self._variables},
            "cpu_s": CPU_S,
        }

        line = json.dumps(request)
        try:
            answer = _answer(line) if any(name in template for name in _VARYING) else _kept_answer(line)
        except (WorkerDied, WorkerHung) as lost:
            must, do = f"render within {CPU_S} s and 1 GiB", "use a model with another template"
            raise InvalidInput.of("chat template", must, str(lost), where=self.name, do=do) from None
        if "fault" in answer:
            raise _TemplateFault(answer["fault"])
        return answer["text"]


def opened_thinking(opening: str) -> str:
    """Return the thinking that a turn's opening leaves open (`<think>` and what follows it), mostly nothing."""
    _, marker, suffix = opening.rpartition(THINK_OPEN)
    return marker + suffix if marker and not suffix.strip() else ""


# ---- how messages of ours become messages that a template renders --------------------------------------------------

Escape = Callable[[str, bool], str]
"""(text, whether tags such as `<tool_call>` stay what they are) -> text that cannot become control tokens."""

PROBE_TOOL = ToolSpec(
    name="qzprobe",
    description="Probe.",
    parameters={"type": "object", "properties": {"qzarg": {"type": "string"}}, "required": ["qzarg"]},
)
PROBE_CALL = ToolCall(name="qzprobe", arguments={"qzarg": "qzvalue", "qznumber": 7})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How messages are handed to one template."""

    format: TextFormat
    has_system: bool
    """Else standing instructions begin the first user message."""
    has_tools: bool
    """True: the native way; False: the text way."""
    tools_after_text: bool
    """Whether a `tool` message may answer a message without calls (one whose call was malformed has none)."""
    has_thinking: bool
    """Whether the template itself writes thinking, exactly as the format does."""
    alternates: bool
    """Whether the template refuses two user messages in a row."""

    @classmethod
    def probe(cls, template: ChatTemplate, format: TextFormat) -> "Dialect":
        """Find out by rendering what the template can do."""
        user = {"role": "user", "content": "qzuser"}
        system = template.attempt([{"role": "system", "content": "qzsystem"}, user])
        thought = {"role": "assistant", "content": "qzsaid", "reasoning_content": "qzthought"}
        thinking = template.attempt([user, thought], opens_turn=False)
        written = format.write(Action("", content="qzsaid", thinking="qzthought"))
        has_tools = _renders_tools(template, format)
        result = {"role": "tool", "content": "qzresult", "name": PROBE_TOOL.name, "tool_call_id": "qz"}
        assistant = {"role": "assistant", "content": "qzsaid"}
        return cls(
            format=format,
            has_system=system is not None and "qzsystem" in system,
            has_tools=has_tools,
            tools_after_text=has_tools and template.attempt([user, assistant, result], [PROBE_TOOL]) is not None,
            has_thinking=thinking is not None and written in thinking,
            alternates=template.attempt([user, user]) is None,
        )

    # ---- to the template -----------------------------------------------------------------------------------------

    def messages(self, messages: Sequence[Message], tools: Sequence[ToolSpec], escape: Escape) -> list[TemplateMessage]:
        """Return the inputs of the template for a whole conversation."""
        has_opening = bool(messages) and messages[0].role is Role.SYSTEM
        opening = [text_of(messages[0])] if has_opening else []
        if not self.has_tools:
            opening.append(self.format.instructions(tools))
        standing = escape("\n\n".join(part for part in opening if part), True)
        inputs: list[TemplateMessage] = []
        for is_sampled, run in groupby(messages[has_opening:], key=lambda message: message.role is Role.ASSISTANT):
            if is_sampled:
                inputs += [self._assistant(message, escape) for message in run]
            else:
                inputs += self.replies([*run], escape, after_calls=bool(inputs) and "tool_calls" in inputs[-1])
        inputs = inputs or self.replies((), escape, after_calls=False)
        return self._with_standing(inputs, standing) if standing or has_opening else inputs

    def _with_standing(self, inputs: list[TemplateMessage], standing: str) -> list[TemplateMessage]:
        if self.has_system:
            return [{"role": "system", "content": standing}, *inputs]
        if inputs[0]["role"] != "user":
            return [{"role": "user", "content": standing}, *inputs]
        joined = "\n\n".join(part for part in (standing, inputs[0]["content"]) if part)
        return [{"role": "user", "content": joined}, *inputs[1:]]

    def replies(self, messages: Sequence[Message], escape: Escape, *, after_calls: bool) -> list[TemplateMessage]:
        """Return the inputs of the template for messages that nobody sampled; no reply is an empty message."""
        inputs: list[TemplateMessage] = []
        joins = self.alternates or not self.has_tools
        for message in messages or (Message(role=Role.USER, content=""),):
            content = escape(text_of(message), False)
            if message.role is Role.TOOL and self.has_tools and (after_calls or self.tools_after_text):
                names = {"name": message.name, "tool_call_id": message.tool_call_id}
                fields = {key: value for key, value in names.items() if value is not None}
                inputs.append({"role": "tool", "content": content, **fields})
            elif joins and inputs and inputs[-1]["role"] == "user":
                inputs[-1] = {"role": "user", "content": f"{inputs[-1]['content']}\n{content}"}
            else:
                inputs.append({"role": "user", "content": content})
        return inputs

    def _assistant(self, message: Message, escape: Escape) -> TemplateMessage:
        fields: TemplateMessage = {"role": "assistant"}
        calls = tuple(replace(call, id=None) for call in message.tool_calls)
        thinking = message.thinking
        content = text_of(message)
        read = self.format.parse(content)
        is_kept = bool(read.tool_calls or read.malformed)
        if thinking is not None and self.has_thinking:
            fields["reasoning_content"] = escape(thinking, True)
            thinking = None
        if calls and self.has_tools and not is_kept:
            fields["tool_calls"] = [native_call(call, escape) for call in calls]
            calls = ()
        text = join_thinking(thinking, content) if is_kept else self._written(content, thinking, calls)
        fields["content"] = escape(text, True)
        return fields

    def _written(self, content: str, thinking: str | None, calls: tuple[ToolCall, ...]) -> str:
        """Write an assistant message in the format; where the format cannot, part by part."""
        try:
            return self.format.write(Action("", content=content, thinking=thinking, tool_calls=calls))
        except InvalidInput:
            alone = [self.format.write(Action("", content="", tool_calls=[call])) for call in calls]
            return join_thinking(thinking, "\n".join(part for part in (content, *alone) if part))

    # ---- from the model ------------------------------------------------------------------------------------------

    def read(self, text: str, sampled_text: str) -> Action:
        """Read `text` as an action of text `sampled_text`; a turn with an unreadable call keeps its markup as content.

        So a later rendering of the history shows what was sampled, mistakes included.
        """
        read = self.format.parse(text)
        content, thinking = read.content, read.thinking
        if read.malformed:
            thinking, content = split_thinking(text)
        return Action(
            sampled_text, content=content, thinking=thinking, tool_calls=read.tool_calls, malformed=read.malformed
        )

    def written(self, action: Action) -> str:
        """Return the text that says `action`: its own where that says the same, else as the format writes it.

        Raises: InvalidInput: the format cannot express the action.
        """
        text = str(action)
        is_bare = action.content == text and action.thinking is None and not action.tool_calls
        if is_bare or _parts(self.read(text, text)) == _parts(action):
            return text
        calls = [replace(call, id=None) for call in action.tool_calls]
        return self.format.write(Action("", content=action.content, thinking=action.thinking, tool_calls=calls))


def _parts(action: Action) -> tuple[object, ...]:
    return action.content, action.thinking, action.tool_calls, bool(action.malformed)


def _renders_tools(template: ChatTemplate, format: TextFormat) -> bool:
    """Return whether the template lists tools, writes a call as the format does, and shows its result."""
    user = {"role": "user", "content": "qzuser"}
    listed = template.attempt([user], [PROBE_TOOL])
    if listed is None or PROBE_TOOL.name not in listed:
        return False
    called = {"role": "assistant", "content": "", "tool_calls": [native_call(PROBE_CALL, lambda text, _: text)]}
    result = {"role": "tool", "content": "qzresult", "name": PROBE_TOOL.name}
    text = template.attempt([user, called, result], [PROBE_TOOL])
    try:
        written = format.write(Action("", content="", tool_calls=[PROBE_CALL]))
    except InvalidInput:
        return False
    return text is not None and written in text and "qzresult" in text


def native_call(call: ToolCall, escape: Escape) -> TemplateMessage:
    """Return a call in OpenAI's form."""
    arguments = plain_json(escaped_json(call.arguments, escape))
    return {"type": "function", "function": {"name": escape(call.name, True), "arguments": arguments}}


def escaped_json(value: JsonValue, escape: Escape) -> JsonValue:
    """Return `value` with every string in it escaped."""
    if isinstance(value, str):
        return escape(value, True)
    if isinstance(value, list | tuple):
        return [escaped_json(item, escape) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return {escape(key, True): escaped_json(item, escape) for key, item in value.items()}
