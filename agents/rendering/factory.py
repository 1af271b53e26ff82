"""The one way to get a renderer for a tokenizer."""

from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING

from envgym.agents.rendering.generic import GenericRenderer
from envgym.agents.rendering.template import ChatTemplate
from envgym.agents.rendering.tokens import require_fast
from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput, sentence, unknown_name
from envgym.parsing import text_format as format_named
from envgym.parsing.formats import TextFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    from envgym.agents.rendering.families import FamilyRenderer

DEFAULT_FORMAT = "hermes"
"""How calls are written for models of no known family."""


class Prefer(StrEnum):
    """Which kind of renderer is made."""

    AUTO = "auto"
    """That of the model's family, if the family is known, lists tools, and no text format is chosen."""
    GENERIC = "generic"
    """The one that works with any chat template."""
    FAMILY = "family"
    """That of the model's family, or an error."""


def make_renderer(
    tokenizer: "PreTrainedTokenizerBase",
    *,
    text_format: TextFormat | str | None = None,
    thinking: bool | None = None,
    keeps_thinking: bool = False,
    prefer: Prefer | str = Prefer.AUTO,
    family: str | None = None,
    variables: Mapping[str, JsonValue] | None = None,
) -> "GenericRenderer | FamilyRenderer":
    """Make the renderer for a tokenizer.

    Args:
        tokenizer: a fast tokenizer, with a chat template unless its family is known by name.
        text_format: how calls and thinking are written; None: the family's own, or Hermes.
        thinking: whether a turn opens with room to think, where the template knows the difference; None: its default.
            Where False makes the template close thinking in advance, contexts are only ever appended to.
        keeps_thinking: leave earlier thinking in the context where the template would drop it; without it such a
            context is rendered anew, and the rewrite is recorded.
        prefer: which kind of renderer.
        family: name of a family, for a checkpoint that is not recognised.
        variables: further variables for the chat template (generic renderer only).

    Raises:
        InvalidInput: no chat template, a template that fails, a slow tokenizer, a family that does not fit.
        UnknownName: no such family, format or preference.
    """
    require_fast(tokenizer)
    if prefer not in set(Prefer):
        raise unknown_name("renderer preference", str(prefer), Prefer, where="make_renderer")
    fast: PreTrainedTokenizerFast = tokenizer  # type: ignore[assignment]  # both renderers refuse another kind
    wants_family = family is not None or prefer == Prefer.FAMILY
    if wants_family or (prefer == Prefer.AUTO and text_format is None and not variables):
        found = _family_renderer(fast, family, thinking, keeps_thinking, is_required=wants_family)
        if found is not None:
            return found
    chosen = format_named(text_format or DEFAULT_FORMAT) if isinstance(text_format, str | None) else text_format
    settings: dict[str, JsonValue] = dict(variables or {})
    if thinking is not None and _changes_opening(fast, settings, thinking):
        settings["enable_thinking"] = thinking
        keeps_thinking = keeps_thinking or not thinking
    return GenericRenderer(fast, chosen, keeps_thinking=keeps_thinking, variables=settings)


def _family_renderer(
    tokenizer: "PreTrainedTokenizerFast",
    family: str | None,
    thinking: bool | None,
    keeps_thinking: bool,
    *,
    is_required: bool,
) -> "FamilyRenderer | None":
    """Return the family's renderer; None where it may be done without and is unknown, or would not list tools."""
    if find_spec("renderers") is None:
        if is_required:
            do = "install the extra envgym[train]"
            raise InvalidInput(sentence("package renderers", "be installed", "none", where="make_renderer", do=do))
        return None
    from envgym.agents.rendering.families import FamilyRenderer
    from envgym.agents.rendering.family_setup import find_family

    name = family or find_family(tokenizer)
    if name is None:
        if is_required:
            do = "name it with family=..., or use the generic renderer"
            got = str(tokenizer.name_or_path)
            raise InvalidInput(sentence("tokenizer", "be of a known family", got, where="make_renderer", do=do))
        return None
    try:
        made = FamilyRenderer(tokenizer, name, thinks=thinking, keeps_thinking=keeps_thinking)
    except InvalidInput:
        if is_required or not tokenizer.chat_template:
            raise
        return None
    return made if is_required or made.lists_tools else None


def _changes_opening(tokenizer: "PreTrainedTokenizerFast", variables: Mapping[str, JsonValue], thinks: bool) -> bool:
    """Return whether the template opens a turn differently when a variable says whether to think."""
    question = [{"role": "user", "content": "?"}]
    with_variable = ChatTemplate(tokenizer, {**variables, "enable_thinking": thinks})
    return with_variable.attempt(question) != ChatTemplate(tokenizer, variables).attempt(question)
