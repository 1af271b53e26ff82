"""A tokenizer's chat template: messages in the template's own form -> text."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2

from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput
from envgym.parsing.formats import THINK_OPEN
from envgym.tools import ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TemplateMessage = dict[str, Any]  # what the template's author chose to read
_TEMPLATE_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises when it is given messages that its author did not think of."""


class ChatTemplate:
    """Renders messages to text with one tokenizer's template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", variables: Mapping[str, JsonValue]) -> None:
        """Take the tokenizer's template. Raises: InvalidInput: there is none, or it cannot render a question."""
        self.name = str(tokenizer.name_or_path) or type(tokenizer).__name__
        self._tokenizer = tokenizer
        self._variables: dict[str, Any] = dict(variables)  # whatever the template's author named
        if not tokenizer.chat_template:
            do = "put a chat_template.jinja beside its tokenizer.json, or use a model that has one"
            raise InvalidInput.of("chat template", "be there", "none", where=self.name, do=do)
        try:
            self._render([{"role": "user", "content": "?"}], (), opens_turn=True)
        except _TEMPLATE_FAULTS as error:
            must, got = "render a user message", f"{type(error).__name__}: {error}"
            do = "correct the template, or use a model whose template works"
            raise InvalidInput.of("chat template", must, got, where=self.name, do=do) from error

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
        except _TEMPLATE_FAULTS as error:
            must = f"accept the roles {[message['role'] for message in messages]}"
            got = f"{type(error).__name__}: {error}"
            do = "use an environment or a model whose messages fit"
            raise InvalidInput.of("chat template", must, got, where=self.name, do=do) from error

    def attempt(
        self, messages: Sequence[TemplateMessage], tools: Sequence[ToolSpec] = (), *, opens_turn: bool = True
    ) -> str | None:
        """Return the text, None where the template refuses the messages."""
        try:
            return self._render(messages, tools, opens_turn=opens_turn)
        except _TEMPLATE_FAULTS:
            return None

    def _render(self, messages: Sequence[TemplateMessage], tools: Sequence[ToolSpec], *, opens_turn: bool) -> str:
        listed = listed_tools(tools) or None
        text = self._tokenizer.apply_chat_template(
            list(messages), tools=listed, add_generation_prompt=opens_turn, tokenize=False, **self._variables
        )
        return str(text)


def opened_thinking(opening: str) -> str:
    """Return the thinking that a turn's opening leaves open (`<think>` and what follows it), mostly nothing."""
    _, found, suffix = opening.rpartition(THINK_OPEN)
    return found + suffix if found and not suffix.strip() else ""


def listed_tools(tools: Sequence[ToolSpec]) -> list[Any]:  # JSON, as chat templates expect it
    """Return the tools in OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {"name": spec.name, "description": spec.description, "parameters": plain_json(spec.parameters)},
        }
        for spec in tools
    ]


def plain_json(value: JsonValue) -> Any:  # JSON in the dicts and lists that templates and json.dumps insist on
    """Return `value` with every mapping as a dict."""
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    return [plain_json(item) for item in value] if isinstance(value, list | tuple) else value
