"""What a chat template puts between two turns, learned once per kind of reply and proved by rendering.

Appending is *exact* when the template renders

    history + assistant message + replies   as   (history as rendered before) + sampled turn + delta

with a delta that depends on the replies alone. A transition holds that delta with holes for the replies' contents,
and says for which turns it is exact; for the others the template renders earlier turns anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from envgym.agents.rendering.template import PROBE_CALL, PROBE_TOOL, ChatTemplate, Dialect, TemplateMessage
from envgym.agents.rendering.tokens import Encoded, TokenCodec
from envgym.core.messages import Action, Message, Role
from envgym.parsing.formats import join_thinking
from envgym.tools import ToolSpec


class TurnForm(NamedTuple):
    """What matters to a template about the turns before a reply."""

    num_calls: int
    """0, 1 or 2 (for more)."""
    is_thinking: bool
    """Whether the context holds thinking that the template may drop."""


_PLAIN = TurnForm(0, False)


class Delta(NamedTuple):
    """Tokens that follow a closed turn, the token that closes it first."""

    encoded: Encoded
    spans: tuple[tuple[int, int], ...]
    """Characters of the replies' contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The glue that the template puts between a turn and replies of given roles."""

    glue: tuple[str, ...] | None
    """Text around the contents, one more than there are; it begins with the text that closes a turn. None: unknown."""
    strips: tuple[bool, ...]
    """Per content: whether the template strips spaces around it."""
    num_control: int
    """Control tokens in the glue; a delta with another number would hold a forged one."""
    exact: Mapping[TurnForm, bool]
    """For which turns the template leaves what came before as it was."""

    @property
    def is_always_exact(self) -> bool:
        """Whether appending is exact whatever was sampled."""
        return all(self.exact.values())

    def delta(self, codec: TokenCodec, contents: Sequence[str]) -> Delta:
        """Return the tokens for these contents; text in them never becomes a control token."""
        assert self.glue is not None, "callers append only where the glue is known"
        texts = [text.strip() if strips else text for text, strips in zip(contents, self.strips, strict=True)]
        delta = _fill(codec, self.glue, map(codec.quote, texts))
        for escape in (codec.escape, codec.escape_all):
            if codec.count_control(delta.encoded.ids) == self.num_control:
                break
            delta = _fill(codec, self.glue, map(escape, texts))
        return delta


def _fill(codec: TokenCodec, glue: Sequence[str], contents: Iterable[str]) -> Delta:
    parts = [glue[0]]
    spans: list[tuple[int, int]] = []
    position = len(glue[0])
    for content, suffix in zip(contents, glue[1:], strict=True):
        end = position + len(content)
        spans.append((position, end))
        parts += content, suffix
        position = end + len(suffix)
    return Delta(codec.encode("".join(parts)), tuple(spans))


# ---- learning ------------------------------------------------------------------------------------------------------

_TRYING_CONTENTS = ("4", "\nqz", "qz\n", " qz", "qz ", "\u00e9", 'a\nb"c\\d', "<b>&amp;", "")
"""Contents whose border tokens could merge with what stands beside them, or that a template may rewrite."""
_PROBE_ID = "qzid"


@dataclass(frozen=True, slots=True)
class TransitionProbe:
    """Learns transitions of one template by rendering short conversations."""

    template: ChatTemplate
    dialect: Dialect
    codec: TokenCodec
    closing: str
    """Text of the token that ends a turn."""
    opened: str
    """Text of a turn that the template writes itself after the opening (`<think>`), mostly none."""

    def probe(self, roles: Sequence[str]) -> Transition:
        """Learn what follows a turn that is answered by messages of these template roles."""
        kinds = (0, 1, 2) if self.dialect.has_tools else (0,)
        cases = [TurnForm(*case) for case in product(kinds, (False, True))]
        seen = {case: self._observe(case, roles) for case in cases}
        plain = [glue for _, glue in seen.values() if glue is not None]
        glue = plain[0] if plain else None
        unknown = Transition(glue=None, strips=(), num_control=0, exact=dict.fromkeys(cases, False))
        if glue is None:
            return unknown
        transition = Transition(
            glue=glue,
            strips=tuple(self._strips(roles, index) for index in range(len(roles))),
            num_control=self.codec.count_control(self.codec.encode("".join(glue)).ids),
            exact={case: is_exact and observed == glue for case, (is_exact, observed) in seen.items()},
        )
        return transition if self._is_faithful(transition, roles) else unknown

    def _observe(self, case: TurnForm, roles: Sequence[str]) -> tuple[bool, tuple[str, ...] | None]:
        """Return (appending is exact for such turns, the glue) over early and late turns, with tools and without."""
        circumstances = product((0, 1, 2), ((), (PROBE_TOOL,)))
        observations = [self._observe_one(case, roles, depth, tools) for depth, tools in circumstances]
        glues = {glue for _, glue in observations}
        return (all(is_exact for is_exact, _ in observations), glues.pop()) if len(glues) == 1 else (False, None)

    def _observe_one(
        self, case: TurnForm, roles: Sequence[str], depth: int, tools: Sequence[ToolSpec]
    ) -> tuple[bool, tuple[str, ...] | None]:
        history, last = self._history(case, depth), self._turn(case, depth)
        context = self.template.attempt(self._messages(history, tools), self._listed(tools))
        contents = [f"qzreply{index}" for index in range(len(roles))]
        whole = self._whole([*history, last.message], roles, contents, tools)
        if context is None or whole is None:
            return False, None
        turn_text = self.dialect.written(last)
        end = whole.rfind(turn_text) + len(turn_text)
        if end < len(turn_text):
            return False, None
        glue = _cut_out(whole[end:], contents)
        names_the_call = any(mark in part for part in glue or () for mark in (PROBE_TOOL.name, _PROBE_ID))
        if glue is None or names_the_call or not glue[0].startswith(self.closing):
            return False, None
        return whole[:end] == context + after_opening(turn_text, self.opened), glue

    def _strips(self, roles: Sequence[str], index: int) -> bool:
        contents = ["qz"] * len(roles)
        contents[index] = " qzpadded\n"
        whole = self._whole([*self._history(_PLAIN, 0), self._turn(_PLAIN, 0).message], roles, contents, ())
        return whole is not None and contents[index] not in whole

    def _is_faithful(self, transition: Transition, roles: Sequence[str]) -> bool:
        """Return whether the delta's tokens end the tokens of the whole, for contents that make it hard."""
        conversation = [*self._history(_PLAIN, 0), self._turn(_PLAIN, 0).message]
        for content in _TRYING_CONTENTS:
            contents = [content] * len(roles)
            whole = self._whole(conversation, roles, contents, ())
            ids = transition.delta(self.codec, contents).encoded.ids
            if whole is None or self.codec.encode(whole).ids[-len(ids) :] != ids:
                return False
        return True

    # ---- conversations to render ---------------------------------------------------------------------------------

    def _history(self, case: TurnForm, depth: int) -> list[Message]:
        history = [Message(role=Role.SYSTEM, content="qzsystem"), Message(role=Role.USER, content="qztask")]
        for turn in range(depth):
            answers = max(case.num_calls, 1)
            role = Role.TOOL if case.num_calls else Role.USER
            history += [
                self._turn(case, turn).message,
                *[Message(role=role, content="qzearlier", name=PROBE_TOOL.name)] * answers,
            ]
        return history

    def _turn(self, case: TurnForm, turn: int) -> Action:
        thinking = f"qzthought{turn}" if case.is_thinking else None
        return Action("", content=f"qzsaid{turn}", thinking=thinking, tool_calls=(PROBE_CALL,) * case.num_calls)

    def _messages(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[TemplateMessage]:
        return self.dialect.messages(messages, tools, lambda text, _: text)

    def _listed(self, tools: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        return tools if self.dialect.has_tools else ()

    def _whole(
        self, messages: Sequence[Message], roles: Sequence[str], contents: Sequence[str], tools: Sequence[ToolSpec]
    ) -> str | None:
        replies: list[TemplateMessage] = [
            {"role": role, "content": content}
            | ({"name": PROBE_TOOL.name, "tool_call_id": _PROBE_ID} if role == "tool" else {})
            for role, content in zip(roles, contents, strict=True)
        ]
        return self.template.attempt([*self._messages(messages, tools), *replies], self._listed(tools))


def _cut_out(text: str, contents: Sequence[str]) -> tuple[str, ...] | None:
    """Return the text around the contents, None where one of them is missing."""
    glue: list[str] = []
    for content in contents:
        before, separator, text = text.partition(content)
        if not separator:
            return None
        glue.append(before)
    return (*glue, text)


def after_opening(text: str, opened: str) -> str:
    """Return the rest of a turn's text after its beginning, `opened`, that the template has already written."""
    if text.startswith(opened):
        return text[len(opened) :]
    return join_thinking("", text).removeprefix(opened)
