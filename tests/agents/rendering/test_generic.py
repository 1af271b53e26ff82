"""The generic renderer on templates that refuse roles, drop thinking, strip, reword, or open a turn with thinking."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.models.tiny import CALL_PARTS, MARKUP, VOCABULARY, tiny_tokenizer
from envgym.agents.rendering.generic import GenericRenderer
from envgym.core.messages import Action, Message, Observation, Role, ToolCall
from envgym.core.segments import Origin, Segment
from envgym.core.tree import Rewrite
from envgym.errors import InvalidInput
from envgym.parsing import text_format
from tests.agents.rendering.episodes import (
    CALCULATOR,
    MALFORMED,
    PROMPT,
    generation,
    ids_of,
    play,
    rewrites,
    script,
    tool_reply,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""No system role, strict turns, contents stripped."""
FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content and not loop.last %}"
    "{{ m.content.split('</think>')[-1].lstrip() }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Every earlier turn loses its thinking as soon as it is answered."""
OPENS = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
"""The turn begins inside thinking that the template writes; earlier turns are rendered as they were said."""
COUNTS = "{{ messages | length }}" + CHATML
"""The first token depends on the length of the conversation: nothing can ever be appended."""
REWORDS = CHATML.replace("{{ m.content }}", "{{ m.content | upper if m.role == 'user' else m.content }}")
"""Replies are not shown as they are."""


def made(template: str, name: str = "hermes", *, keeps_thinking: bool = False) -> GenericRenderer:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return GenericRenderer(tokenizer, text_format(name), keeps_thinking=keeps_thinking)


TINY = made(str(tiny_tokenizer().chat_template))


def shown(renderer: GenericRenderer, segments: Sequence[Segment]) -> list[tuple[Origin, str]]:
    return [(segment.origin, "".join(renderer.token_strings(segment.token_ids))) for segment in segments]


def reply(
    renderer: GenericRenderer, action: Action, observation: Observation, history: Sequence[Message] = PROMPT
) -> tuple[Rewrite | None, list[tuple[Origin, str]]]:
    """Return (rewrite, (origin, text) of what follows the action)."""
    said = generation(renderer.encode_action(action))
    after = renderer.extend(history, said, observation, [CALCULATOR])
    return after.rewrite, shown(renderer, after.segments)


# ---- framing -------------------------------------------------------------------------------------------------------


def test_the_opening_of_a_turn_is_template_and_all_before_it_prompt() -> None:
    (prompt, opening) = shown(TINY, TINY.start(PROMPT, [CALCULATOR]).segments)
    system = "<|im_start|>system\nSolve the task.\ncalculator(expression: str)<|im_end|>\n"
    assert prompt == (Origin.PROMPT, f"{system}<|im_start|>user\n{PROMPT[1].content}<|im_end|>\n")
    assert opening == (Origin.TEMPLATE, "<|im_start|>assistant\n")


def test_a_tools_answer_lies_between_template_tokens() -> None:
    wanted = [
        (Origin.TEMPLATE, "\n<|im_start|>tool\n"),
        (Origin.TOOL, "84"),
        (Origin.TEMPLATE, "<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert reply(TINY, Action("Hm."), tool_reply("84")) == (None, wanted)


def test_several_answers_are_several_messages_where_the_template_knows_tools_else_one() -> None:
    both = Observation.of([Message(role=Role.TOOL, content="1"), Message(role=Role.TOOL, content="2")])
    _, native = reply(TINY, Action("Hm."), both)
    assert [text for origin, text in native if origin is Origin.TOOL] == ["1", "2"]
    _, joined = reply(made(CHATML), Action("Hm."), both)
    assert joined[:2] == [(Origin.TEMPLATE, "\n<|im_start|>user\n"), (Origin.TOOL, "1\n2")]


def test_no_answer_is_an_empty_message() -> None:
    _, after = reply(TINY, Action("Hm."), Observation())
    assert after == [(Origin.TEMPLATE, "\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")]


@given(st.lists(st.text() | st.sampled_from([*VOCABULARY[:7], *MARKUP, *CALL_PARTS]), max_size=6).map("".join))
def test_any_answer_is_appended_between_the_same_tokens(text: str) -> None:
    said = generation(TINY.encode_action(Action("Hm.")))
    after = TINY.extend(PROMPT, said, Observation.of([Message(role=Role.TOOL, content=text)]), [])
    assert after.rewrite is None
    outside = [segment.token_ids for segment in after.segments if segment.origin is Origin.TEMPLATE]
    inside = [segment for segment in after.segments if segment.origin is Origin.TOOL]
    plain = TINY.extend(PROMPT, said, tool_reply("x"), []).segments
    assert ids_of([s for s in plain if s.origin is Origin.TEMPLATE]) == tuple(t for ids in outside for t in ids)
    assert tiny_tokenizer().decode(list(ids_of(inside))) == text


def test_a_template_without_a_system_role_gets_the_instructions_in_the_first_user_message() -> None:
    renderer = made(STRICT)
    (_, text), _ = shown(renderer, renderer.start(PROMPT, []).segments)
    assert text == f"<|im_start|>user\nSolve the task.\n\n{PROMPT[1].content}<|im_end|>\n"


def test_a_template_that_strips_contents_is_followed() -> None:
    rewrite, after = reply(made(STRICT), Action("Hm."), Observation("  84\n"))
    assert (rewrite, after[1]) == (None, (Origin.TOOL, "84"))


def test_tools_are_described_in_words_where_the_template_does_not_list_them() -> None:
    renderer = made(CHATML)
    (_, text), _ = shown(renderer, renderer.start(PROMPT, [CALCULATOR]).segments)
    assert text_format("hermes").instructions([CALCULATOR]) in text


@pytest.mark.parametrize("name", ["hermes", "react", "xml_tags"])
@pytest.mark.parametrize("template", [CHATML, STRICT])
def test_every_format_plays_a_whole_episode_append_only(template: str, name: str) -> None:
    turns = [turn for turn in script("84") if not turn[0].malformed and str(turn[0]) != MALFORMED]
    turns[-1] = (Action("", content="The answer is 84."), None)
    episode = play(made(template, name), turns)
    assert rewrites(episode) == []
    assert len(episode.rows) == 1
    for (action, _), read in zip(turns, episode.read, strict=True):
        assert (read.content, read.thinking, read.tool_calls) == (action.content, action.thinking, action.tool_calls)


# ---- rewrites ------------------------------------------------------------------------------------------------------


def test_a_template_that_forgets_thinking_is_rewritten_after_it_and_appended_otherwise() -> None:
    renderer = made(FORGETS)
    quiet, _ = reply(renderer, Action("It is 84."), Observation("No."))
    assert quiet is None
    rewrite, after = reply(renderer, Action("", content="It is 84.", thinking="Hm."), Observation("No."))
    assert rewrite is Rewrite.TEMPLATE
    ((origin, text),) = after
    assert origin is Origin.PROMPT
    assert "Hm." not in text
    assert text.endswith(
        "<|im_start|>assistant\nIt is 84.<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_thinking_that_was_dropped_before_does_not_cost_another_rewrite() -> None:
    thought = Action("", content="It is 48.", thinking="Hm.").message
    history = [*PROMPT, thought, Message(role=Role.USER, content="No.")]
    assert reply(made(FORGETS), Action("It is 84."), Observation("Why?"), history)[0] is None


def test_thinking_is_kept_where_that_is_asked_for() -> None:
    rewrite, after = reply(
        made(FORGETS, keeps_thinking=True), Action("", content="84", thinking="Hm."), Observation("No.")
    )
    assert rewrite is None
    assert after[1] == (Origin.TOOL, "No.")


@pytest.mark.parametrize("template", [COUNTS, REWORDS])
def test_a_template_that_cannot_be_appended_to_is_rendered_anew_each_turn(template: str) -> None:
    episode = play(made(template), script("84"))
    assert rewrites(episode) == [(turn, Rewrite.TEMPLATE) for turn in (1, 2, 3)]
    assert [sum(row.loss_mask) for row in episode.rows] == [len(ids) for ids in episode.sampled]


def test_a_mistake_stays_readable_in_a_context_rendered_anew() -> None:
    _, ((_, text),) = reply(made(COUNTS), Action(MALFORMED), tool_reply("Unreadable."))
    assert f"<|im_start|>assistant\n{MALFORMED}<|im_end|>" in text


# ---- what the policy says ------------------------------------------------------------------------------------------

CALL = ToolCall(name="calculator", arguments={"expression": "6*7"})


@pytest.mark.parametrize(
    "action",
    [
        Action("Just text."),
        Action("", content="", tool_calls=[CALL]),
        Action("", content="Both.", thinking="Hm.", tool_calls=[CALL, CALL]),
        Action("", content="Said.", thinking="Line\nline"),
    ],
)
@pytest.mark.parametrize("template", [str(tiny_tokenizer().chat_template), CHATML, OPENS])
def test_what_is_encoded_is_read_back(template: str, action: Action) -> None:
    renderer = made(template)
    read = renderer.parse(renderer.encode_action(action))
    assert (read.content, read.thinking, read.tool_calls) == (action.content, action.thinking, action.tool_calls)
    assert read.malformed == ()


def test_a_turn_that_the_template_opens_with_thinking_is_said_from_there_on() -> None:
    renderer = made(OPENS)
    thought = renderer.encode_action(Action("", content="Said.", thinking="Hm."))
    assert "".join(renderer.token_strings(thought)) == "Hm.\n</think>\n\nSaid.<|im_end|>"
    assert "".join(renderer.token_strings(renderer.encode_action(Action("Said.")))) == "\n</think>\n\nSaid.<|im_end|>"
    cut = renderer.parse(thought[:2])
    assert (cut.thinking, cut.content, str(cut)) == ("Hm", "", "Hm")


def test_a_call_in_the_tiny_dialect_is_short() -> None:
    # <tool_call> \n {"name": " calculator ", "arguments":  {"expression": "6*7"} } \n </tool_call> <|im_end|>
    assert len(TINY.encode_action(Action("", content="", tool_calls=[CALL]))) == 1 + 1 + 1 + 10 + 1 + 21 + 1 + 1 + 1 + 1


def test_a_turn_that_ends_with_another_stop_token_is_closed_by_the_templates_own() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    renderer = GenericRenderer(tokenizer, text_format("hermes"))
    assert renderer.stop_token_ids == (2, 0)
    *said, _ = renderer.encode_action(Action("Hm."))
    after = renderer.extend(PROMPT, generation([*said, 0]), tool_reply("84"), [])
    assert after.segments[0].token_strings[:2] == ("<|im_end|>", "\n")
    assert renderer.parse([*said, 0]).content == "Hm."


def test_a_format_explains_itself_with_and_without_tools() -> None:
    renderer = made(CHATML, "react")
    for tools in ([], [CALCULATOR]):
        (_, text), _ = shown(renderer, renderer.start(PROMPT, tools).segments)
        assert text_format("react").instructions(tools) in text


def test_a_special_token_in_what_an_oracle_says_is_plain_text() -> None:
    ids = TINY.encode_action(Action("stop <|im_end|> here"))
    assert ids.count(2) == 1
    assert TINY.parse(ids).content == "stop <|im_end|> here"


# ---- templates that cannot be used ---------------------------------------------------------------------------------


def test_a_tokenizer_without_a_template_is_refused_in_one_sentence() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InvalidInput, match=r"^chat template must exist, got none \(.*\); put a chat"):
        GenericRenderer(tokenizer, text_format("hermes"))


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "{% for %}", "{{ messages.nothing.more }}"])
def test_a_template_that_breaks_is_refused_in_one_sentence(template: str) -> None:
    with pytest.raises(InvalidInput, match=r"^chat template must render a user message, got .+; correct the template"):
        made(template)


def test_a_conversation_that_the_template_refuses_is_refused_in_one_sentence() -> None:
    refuses = CHATML.replace(
        "{{ m.content }}", "{% if 'no' in m.content %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    )
    with pytest.raises(InvalidInput, match=r"^chat template must accept the roles \['user'\], got TemplateError: no"):
        made(refuses).start([Message(role=Role.USER, content="no")], [])
