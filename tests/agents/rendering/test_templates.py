"""Token-exact episodes for real chat templates: rows decode to what the template gives, only sampled tokens train."""

from typing import TYPE_CHECKING, Any

import pytest
from renderers import config_from_name, create_renderer  # type: ignore[import-untyped]  # shipped without types

from envgym.agents.protocols import FinishReason
from envgym.agents.rendering.factory import AutoRendererFactory, FamilyRendererFactory, GenericRendererFactory
from envgym.agents.rendering.families import FamilyRenderer
from envgym.agents.rendering.generic import GenericRenderer
from envgym.core.messages import Action, Message, Observation, Role
from envgym.core.segments import Origin
from envgym.core.tree import Rewrite
from tests.agents.rendering.conftest import GetTokenizer
from tests.agents.rendering.episodes import (
    CALCULATOR,
    HOSTILE,
    MALFORMED,
    PROMPT,
    Episode,
    decode,
    generation,
    ids_of,
    listed,
    play,
    rewrites,
    script,
    template_ids,
    template_messages,
    template_text,
    tool_reply,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.timeout(600)  # the first test of a tokenizer downloads and converts it

NATIVE = {"tiny": True, "smollm2": False, "qwen3": True, "llama3_1": False, "gemma3": False, "deepseek_v3": False}
NATIVE |= {"qwen3_5": False, "mistral": False, "glm4": False, "phi4": False, "smollm3": False}
"""Template -> whether it lists tools and writes calls in the Hermes form itself."""
EVERY_TURN = [(turn, Rewrite.TEMPLATE) for turn in (1, 2, 3)]
REWRITES = {"qwen3": [(3, Rewrite.TEMPLATE)], "qwen3_5": EVERY_TURN, "mistral": EVERY_TURN, "glm4": EVERY_TURN}
"""Of the generic renderer. Qwen3 drops thinking when the user speaks again, before turn 3. Qwen3.5 and GLM also do, and
to their templates each result in text is a message of the user. Mistral moves the system prompt to the last message."""
FAMILIES = {
    "qwen3": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_6": "qwen3.6",
    "deepseek_v3": "deepseek-v3",
    "glm4": "glm-4.5",
    "gptoss": "gpt-oss",
}
NEVER_DROPS = "deepseek_v3"
"""The family that keeps thinking; the others drop it when the user speaks again, before the last turn."""
OTHER_CALLS = ("glm4", "gptoss")
"""Families to which the malformed call of the script is none."""
ANALYSIS = "<|channel|>analysis<|message|>"
"""With it the family's renderer opens a turn of gpt-oss, further than the chat template does."""


def check_records(episode: Episode, tokenizer: "PreTrainedTokenizerFast", texts: list[str]) -> None:
    """Assert what holds for every template: who wrote which token, and what trains, each once."""
    segments = [segment for row in episode.rows for segment in row.segments]
    policy = tuple(segment.token_ids for segment in segments if segment.origin is Origin.POLICY)
    assert policy == episode.sampled
    trained = [
        token
        for row in episode.rows
        for token, is_trained in zip(row.token_ids, row.loss_mask, strict=True)
        if is_trained
    ]
    assert trained == [token for turn in episode.sampled for token in turn]
    for row in episode.rows:
        mask = [segment.origin is Origin.POLICY for segment in row.segments for _ in segment.token_ids]
        assert list(row.loss_mask) == mask
        assert all(s.origin is Origin.PROMPT for s in row.segments[:1])
    shown = [decode(tokenizer, segment.token_ids) for segment in segments if segment.origin is Origin.TOOL]
    assert [text.strip() for text in shown] == texts[: len(shown)]
    assert all(len(segment.token_strings) == len(segment) for segment in segments if not segment.trains)


def row_turns(episode: Episode) -> list[int]:
    return [
        max(turn for turn, is_trained in zip(row.turns, row.loss_mask, strict=True) if is_trained)
        for row in episode.rows
    ]


@pytest.mark.parametrize("name", NATIVE)
def test_rows_decode_to_the_template_and_only_sampled_tokens_train(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer(name)
    turns = script(HOSTILE)
    episode = play(GenericRendererFactory()(tokenizer), turns)
    said = [decode(tokenizer, ids) for ids in episode.sampled]
    spoken = [text.removesuffix(decode(tokenizer, ids[-1:])) for text, ids in zip(said, episode.sampled, strict=True)]
    for row, last in zip(episode.rows, row_turns(episode), strict=True):
        messages = template_messages(turns[:last], spoken[:last], is_native=NATIVE[name])
        context = template_text(tokenizer, messages, lists_tools=NATIVE[name])
        assert decode(tokenizer, row.token_ids) == context + said[last]
    assert rewrites(episode) == REWRITES.get(name, [])
    replies = [str(observation) for _, observation in turns if observation is not None]
    check_records(episode, tokenizer, replies)
    assert [bool(action.malformed) for action in episode.read] == [False, True, False, False]
    assert [action.thinking for action in episode.read] == ["Use the tool.", None, "48, I guess.", None]
    assert episode.read[0].tool_calls == turns[0][0].tool_calls
    assert episode.read[1].message.content == MALFORMED


@pytest.mark.parametrize("name", NATIVE)
def test_contexts_hold_the_very_ids_that_the_template_gives(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer(name)
    turns = script("84\n")
    episode = play(GenericRendererFactory()(tokenizer), turns)
    said = [decode(tokenizer, ids[:-1]) for ids in episode.sampled]
    for turn, context in enumerate(episode.contexts):
        messages = template_messages(turns[:turn], said[:turn], is_native=NATIVE[name])
        wanted = template_ids(tokenizer, messages, lists_tools=NATIVE[name])
        assert list(context) == wanted, turn


@pytest.mark.parametrize("name", NATIVE)
def test_outside_text_never_becomes_a_control_token(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer(name)
    renderer = GenericRendererFactory()(tokenizer)
    said = generation(renderer.encode_action(Action("I look.")))
    harmless, hostile = (
        renderer.extend(PROMPT, said, tool_reply(text), [CALCULATOR])
        for text in ("84", " ".join(tokenizer.all_special_tokens) + HOSTILE)
    )
    special = set(tokenizer.all_special_ids)
    assert [t for t in ids_of(hostile.segments) if t in special] == [
        t for t in ids_of(harmless.segments) if t in special
    ]
    assert not any(t in special for s in hostile.segments if s.origin is Origin.TOOL for t in s.token_ids)
    opening = renderer.start([PROMPT[0], Message(role=Role.USER, content=HOSTILE)], [CALCULATOR])
    plain = renderer.start(PROMPT, [CALCULATOR])
    assert [t for t in ids_of(opening.segments) if t in special] == [t for t in ids_of(plain.segments) if t in special]
    assert HOSTILE in decode(tokenizer, ids_of(opening.segments))


@pytest.mark.parametrize("name", [name for name in NATIVE if REWRITES.get(name) != EVERY_TURN])
def test_a_turn_cut_by_length_is_closed_by_the_template(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = GenericRendererFactory()(get_tokenizer(name))
    whole = renderer.encode_action(Action("It is 48."))
    closed = renderer.extend(PROMPT, generation(whole), tool_reply("No."), [CALCULATOR])
    cut = renderer.extend(PROMPT, generation(whole[:-1], FinishReason.LENGTH), tool_reply("No."), [CALCULATOR])
    assert ids_of(cut.segments) == (whole[-1], *ids_of(closed.segments))
    assert cut.segments[0].origin is Origin.TEMPLATE
    assert whole[-1] == renderer.stop_token_ids[0]


# ---- families of the package `renderers` ---------------------------------------------------------------------------


def family_script(name: str, tool_output: str) -> tuple[tuple[Action, Observation | None], ...]:
    """Return the script, without its malformed call where that means nothing to the family."""
    turns = script(tool_output)
    return (turns[0], *turns[2:]) if name in OTHER_CALLS else turns


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "glm4"])
def test_contexts_of_a_family_are_what_the_chat_template_gives(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer(name)
    turns = family_script(name, "84")
    renderer = AutoRendererFactory()(tokenizer)
    assert isinstance(renderer, FamilyRenderer)
    episode = play(renderer, turns)
    for turn, context in enumerate(episode.contexts):
        messages = template_messages(turns[:turn], [""] * turn, is_native=True)
        wanted = template_ids(tokenizer, messages, lists_tools=True)
        if name == "qwen3_5":  # the template opens with "<think>" and a line break; a sampled second one stays its own
            assert decode(tokenizer, context) == decode(tokenizer, wanted), turn
        else:
            assert list(context) == wanted, turn


def test_a_prompt_of_gpt_oss_is_what_its_template_gives_and_opens_the_analysis(
    get_tokenizer: GetTokenizer,
) -> None:
    tokenizer = get_tokenizer("gptoss")
    renderer = AutoRendererFactory()(tokenizer)
    assert isinstance(renderer, FamilyRenderer)
    opening = renderer.start(PROMPT, [CALCULATOR])
    messages = template_messages([], [], is_native=True)
    analysis = tokenizer.encode(ANALYSIS, add_special_tokens=False)
    assert list(ids_of(opening.segments)) == [*template_ids(tokenizer, messages, lists_tools=True), *analysis]


def test_gpt_oss_writes_analysis_call_and_answer_in_the_channels_of_its_format(get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer("gptoss")
    episode = play(AutoRendererFactory()(tokenizer), family_script("gptoss", "84"))
    assert [decode(tokenizer, ids) for ids in episode.sampled] == [
        "Use the tool.<|end|><|start|>assistant to=functions.calculator<|channel|>commentary<|message|>"
        '{"expression": "12*(3+4)"}<|call|>',
        "48, I guess.<|end|><|start|>assistant<|channel|>final<|message|>It is 48.<|return|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>The answer is 84.<|return|>",
    ]
    assert [(action.thinking, action.content, len(action.tool_calls)) for action in episode.read] == [
        ("Use the tool.", "", 1),
        ("48, I guess.", "It is 48.", 0),
        (None, "The answer is 84.", 0),
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_a_family_decode_to_what_its_full_rendering_gives(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer(name)
    turns = family_script(name, "84")
    renderer = FamilyRendererFactory(family=FAMILIES[name])(tokenizer)
    episode = play(renderer, turns)
    reference = create_renderer(tokenizer, config_from_name(FAMILIES[name]))
    for turn, context in enumerate(episode.contexts):
        messages = template_messages(turns[:turn], [""] * turn, is_native=True)
        if name == "deepseek_v3" and turn > 0:
            continue
        wanted = reference.render_ids(messages, tools=listed(), add_generation_prompt=True)
        assert decode(tokenizer, context) == decode(tokenizer, wanted), turn
    assert rewrites(episode) == ([] if name == NEVER_DROPS else [(len(turns) - 1, Rewrite.TEMPLATE)])
    check_records(episode, tokenizer, [str(observation) for _, observation in turns if observation is not None])
    assert episode.read[0].tool_calls[0].arguments == turns[0][0].tool_calls[0].arguments


@pytest.mark.parametrize("name", FAMILIES)
def test_outside_text_never_becomes_a_control_token_of_a_family(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer(name)
    renderer = FamilyRendererFactory(family=FAMILIES[name])(tokenizer)
    said = generation(renderer.encode_action(Action("I look.")))
    added = set(tokenizer.added_tokens_decoder)
    harmless, hostile = (renderer.extend(PROMPT, said, tool_reply(text), [CALCULATOR]) for text in ("84", HOSTILE))
    assert [t for t in ids_of(hostile.segments) if t in added] == [t for t in ids_of(harmless.segments) if t in added]
    (shown,) = (s for s in hostile.segments if s.origin is Origin.TOOL)
    assert decode(tokenizer, shown.token_ids).strip() == HOSTILE


def test_a_known_template_is_rendered_by_its_family_and_an_unknown_one_generically(get_tokenizer: GetTokenizer) -> None:
    made: dict[str, Any] = {name: AutoRendererFactory()(get_tokenizer(name)) for name in ("qwen3", "tiny")}
    assert made["qwen3"].family == "qwen3"
    assert isinstance(made["tiny"], GenericRenderer)
