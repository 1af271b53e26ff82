"""Which model family a tokenizer belongs to, and how the family's renderer is made.

A family is known by the model's name, or because it renders probes to the very tokens that the tokenizer's own chat
template gives: a checkpoint in a local directory has no telling name.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from renderers import config_from_name, create_renderer  # type: ignore[import-untyped]  # shipped without types
from renderers.base import MODEL_RENDERER_MAP  # type: ignore[import-untyped]  # shipped without types

from envgym.agents.rendering.dialect import PROBE_TOOL
from envgym.agents.rendering.template import ChatTemplate, TemplateMessage, listed_tools
from envgym.agents.rendering.tokens import TokenCodec
from envgym.errors import InvalidInput, check_known, sentence

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
        """Return what the wrapped tokenizer has."""
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
    template = ChatTemplate(tokenizer, {})
    wanted = [_reference(template, tokenizer, messages, has_tools) for messages, has_tools in _PROBES]
    if None in wanted:
        return None
    return next((name for name in family_names() if _renders(name, tokenizer, wanted)), None)


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


def _renders(family: str, tokenizer: "PreTrainedTokenizerFast", wanted: Sequence[list[int] | None]) -> bool:
    if family in OWN_TOKENIZER:
        return False
    try:
        inner = create_renderer(tokenizer, config_from_name(family))
        tools = listed_tools([PROBE_TOOL])
        return all(
            list(inner.render_ids(messages, tools=tools if has_tools else None, add_generation_prompt=True)) == ids
            for (messages, has_tools), ids in zip(_PROBES, wanted, strict=True)
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
    if thinks is not None and "enable_thinking" in kind.model_fields:
        changes["enable_thinking"] = thinks
    try:
        return create_renderer(tokenizer, kind(**changes))
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        do = "name the family of this model, or none"
        if family in OWN_TOKENIZER:
            do = f"go online once, so that the family can fetch its own vocabulary, or {do}"
        text = sentence("tokenizer", f"be one of the family {family}", got, where="renderers", do=do)
        raise InvalidInput(text) from error
