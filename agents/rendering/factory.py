"""From a tokenizer to its renderer: by the model's family, or by its chat template."""

import logging
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic import Field

from envgym.agents.protocols import Renderer
from envgym.agents.rendering.generic import GenericRenderer
from envgym.agents.rendering.template import ChatTemplate
from envgym.agents.rendering.tokens import require_fast
from envgym.agents.tables import KINDS
from envgym.config.plugins import PluginKind
from envgym.config.settings import Settings
from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput
from envgym.parsing import text_format as find_text_format
from envgym.parsing.formats import TextFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from envgym.agents.rendering.families import FamilyRenderer

_log = logging.getLogger(__name__)

DEFAULT_FORMAT = "hermes"
"""How calls are written for models of no known family."""


class RendererFactory(Protocol):
    """Makes the renderer for a tokenizer."""

    def __call__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        text_format: TextFormat | None = None,
        thinking: bool | None = None,
    ) -> Renderer:
        """Make the renderer.

        Args:
            tokenizer: a fast tokenizer, with a chat template unless its family is known by name.
            text_format: how calls and thinking are written; None: the family's own, or Hermes.
            thinking: whether a turn opens with room to think, where the template knows the difference; None: its
                default. Where False makes the template close thinking in advance, contexts are only ever appended to.

        Raises:
            InvalidInput: no chat template, a template that fails, a slow tokenizer, a family that does not fit.
            UnknownName: no such family.
        """
        ...


RENDERER: Final[PluginKind[RendererFactory]] = KINDS["renderer"]


class AutoRendererFactory(Settings):
    """Make the family's renderer if the family is known, lists tools and no text format is chosen; else the generic."""

    keeps_thinking: bool = False
    """Leave earlier thinking in the context where the template would drop it; without it such a context is rendered
    anew, and the rewrite is recorded."""

    def __call__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        text_format: TextFormat | None = None,
        thinking: bool | None = None,
    ) -> "GenericRenderer | FamilyRenderer":
        fast, keeps_thinking = require_fast(tokenizer), self.keeps_thinking
        if text_format is None and (family := _known_family(fast)) is not None:
            try:
                renderer = FamilyRendererFactory(family=family, keeps_thinking=keeps_thinking)(fast, thinking=thinking)
            except InvalidInput:
                if not fast.chat_template:
                    raise
            else:
                if renderer.lists_tools:
                    return renderer
        return GenericRendererFactory(keeps_thinking=keeps_thinking)(fast, text_format=text_format, thinking=thinking)


class FamilyRendererFactory(Settings):
    """Make the renderer of the model's family, which writes calls in the family's own format."""

    family: str | None = None
    """Name of the family, for a checkpoint that is not recognised."""
    keeps_thinking: bool = False
    """Leave earlier thinking in the context where the template would drop it."""

    def __call__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        text_format: TextFormat | None = None,
        thinking: bool | None = None,
    ) -> "FamilyRenderer":
        """Make the renderer. Raises: InvalidInput: a text format is chosen, or the family does not fit."""
        fast = require_fast(tokenizer)
        if text_format is not None:
            do = "choose the generic renderer, or text_format=native"
            must = "be the family's own for a family's renderer"
            raise InvalidInput.of("text format", must, text_format.name, where="renderer family", do=do)
        if find_spec("renderers") is None:
            do = "install the extra envgym[train]"
            raise InvalidInput.of("package renderers", "be installed", "none", where="renderer", do=do)
        from envgym.agents.rendering.families import FamilyRenderer

        family = self.family or _known_family(fast)
        if family is None:
            do = "name it with family=..., or choose the generic renderer"
            raise InvalidInput.of("tokenizer", "be of a known family", str(fast.name_or_path), where="renderer", do=do)
        return FamilyRenderer(fast, family, thinks=thinking, keeps_thinking=self.keeps_thinking)


class GenericRendererFactory(Settings):
    """Make the renderer that works with any chat template."""

    keeps_thinking: bool = False
    """Leave earlier thinking in the context where the template would drop it."""
    variables: dict[str, Any] = Field(default_factory=dict)  # JSON values; pydantic cannot read the recursive type
    """Further variables for the chat template."""

    def __call__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        text_format: TextFormat | None = None,
        thinking: bool | None = None,
    ) -> GenericRenderer:
        """Make the renderer; a tokenizer without a chat template gets a plain one."""
        fast = require_fast(tokenizer)
        _give_plain_template(fast)
        variables, keeps_thinking = dict(self.variables), self.keeps_thinking
        if thinking is not None and _changes_opening(fast, variables, thinking):
            variables["enable_thinking"] = thinking
            keeps_thinking = keeps_thinking or not thinking
        resolved_format = find_text_format(DEFAULT_FORMAT) if text_format is None else text_format
        return GenericRenderer(fast, resolved_format, keeps_thinking=keeps_thinking, variables=variables)


def _give_plain_template(tokenizer: "PreTrainedTokenizerFast") -> None:
    """Give a tokenizer without a chat template a plain one, and log it; checkpoints save it with the tokenizer.

    The template writes `bos_token` first if the tokenizer does. A tokenizer without `eos_token` stays as it is.
    """
    if tokenizer.chat_template or tokenizer.eos_token is None:
        return
    source = files("envgym.agents.rendering").joinpath("plain_chat.jinja").read_text(encoding="utf-8")
    has_bos = tokenizer.bos_token_id is not None and tokenizer.encode("?")[:1] == [tokenizer.bos_token_id]
    tokenizer.chat_template = ("{{- bos_token -}}" if has_bos else "") + source
    _log.warning(
        "%s has no chat template: messages get plain labels (User:, Assistant:), and %s ends a turn",
        tokenizer.name_or_path or "the tokenizer",
        tokenizer.eos_token,
    )


def _known_family(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """Return the family of a tokenizer; None: unknown, or the package that knows families is not installed."""
    if find_spec("renderers") is None:
        return None
    from envgym.agents.rendering.families import find_family

    return find_family(tokenizer)


def _changes_opening(tokenizer: "PreTrainedTokenizerFast", variables: Mapping[str, JsonValue], thinks: bool) -> bool:
    """Return whether the template opens a turn differently when a variable says whether to think."""
    question = [{"role": "user", "content": "?"}]
    with_variable = ChatTemplate(tokenizer, {**variables, "enable_thinking": thinks})
    return with_variable.attempt(question) != ChatTemplate(tokenizer, variables).attempt(question)
