"""Families of `renderers`: what is sampled is read with its mistakes, and said again as it was."""

import pytest

from envgym.agents.rendering.factory import FamilyRendererFactory
from envgym.agents.rendering.families import FamilyRenderer, family_names
from envgym.core.messages import Action, Message, Role, ToolCall
from envgym.core.segments import Origin
from envgym.tools import ToolSpec
from tests.agents.rendering.conftest import GetTokenizer
from tests.agents.rendering.episodes import (
    CALCULATOR,
    HOSTILE,
    MALFORMED,
    PROMPT,
    decode,
    generation,
    ids_of,
    tool_reply,
)

pytestmark = pytest.mark.timeout(600)  # the first test of a tokenizer downloads and converts it

FAMILIES = {
    "qwen3": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_6": "qwen3.6",
    "deepseek_v3": "deepseek-v3",
    "glm4": "glm-4.5",
    "gptoss": "gpt-oss",
}
CLOSED_BY = {"glm4": "<|endoftext|>", "gptoss": "<|end|>"}
"""Families whose cut turns are closed by another token than a sampled end."""
CALL = ToolCall(name="calculator", arguments={"expression": "6*7"})


def family(name: str, get_tokenizer: GetTokenizer) -> FamilyRenderer:
    made = FamilyRendererFactory(family=FAMILIES[name])(get_tokenizer(name))
    assert isinstance(made, FamilyRenderer)
    return made


def test_the_families_that_the_issue_names_are_known() -> None:
    wanted = {"qwen3", "qwen3.5", "llama-3", "gemma4", "glm-5", "deepseek-v3", "kimi-k2", "gpt-oss", "nemotron-3"}
    assert wanted <= set(family_names())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "action",
    [
        Action("Just text."),
        Action("", content="Just text."),
        Action("", content="", tool_calls=[CALL]),
        Action("", content="", tool_calls=[CALL, CALL]),
    ],
)
def test_what_is_encoded_is_read_back(name: str, action: Action, get_tokenizer: GetTokenizer) -> None:
    renderer = family(name, get_tokenizer)
    said = renderer.encode_action(action)
    read = renderer.parse(said)
    assert said[-1] in renderer.stop_token_ids
    assert read.content == action.content
    assert [(call.name, dict(call.arguments)) for call in read.tool_calls] == [
        (call.name, dict(call.arguments)) for call in action.tool_calls
    ]
    assert read.malformed == ()


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6"])
def test_thinking_is_read_back(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = family(name, get_tokenizer)
    read = renderer.parse(renderer.encode_action(Action("", content="84", thinking="Hm.", tool_calls=[CALL])))
    assert (read.thinking, read.content, len(read.tool_calls)) == ("Hm.", "84", 1)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6"])
def test_an_unreadable_call_is_told_and_kept_as_it_was_written(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = family(name, get_tokenizer)
    read = renderer.parse(renderer.encode_action(Action(MALFORMED)))
    assert len(read.malformed) == 1
    assert read.malformed[0].startswith("A tool call could not be read: ")
    assert read.content == MALFORMED
    again = renderer.start([*PROMPT, read.message, *tool_reply("No.").messages], [CALCULATOR])
    assert MALFORMED in decode(get_tokenizer(name), ids_of(again.segments))


def music_tool(year: str) -> ToolSpec:
    return ToolSpec(
        name="lookup_music",
        description="Find songs.",
        parameters={"type": "object", "properties": {"year": {"type": year}}, "required": ["year"]},
    )


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_6", "glm4"])
def test_arguments_without_quotes_are_text_where_the_schema_says_so(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = family(name, get_tokenizer)
    renderer.start(PROMPT, [CALCULATOR])
    call = ToolCall(name="calculator", arguments={"expression": "42"})
    said = renderer.encode_action(Action("", content="", tool_calls=[call]))
    (read,) = renderer.parse(said, [CALCULATOR]).tool_calls
    assert read.arguments == {"expression": "42"}


@pytest.mark.parametrize("name", FAMILIES)
def test_concurrent_episodes_read_calls_by_their_own_tools(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = family(name, get_tokenizer)
    said = renderer.encode_action(
        Action("", content="", tool_calls=[ToolCall(name="lookup_music", arguments={"year": 2019})])
    )
    tables: dict[str, list[ToolSpec]] = {kind: [music_tool(kind)] for kind in ("string", "integer")}
    alone = {kind: renderer.parse(said, tools) for kind, tools in tables.items()}
    for tools in (*tables.values(), *reversed(tables.values())):
        renderer.start(PROMPT, tools)  # another episode begins
        for kind in tables:
            assert renderer.parse(said, tables[kind]) == alone[kind]
    if name in ("qwen3_5", "qwen3_6", "glm4"):
        years = [action.tool_calls[0].arguments["year"] for action in alone.values()]
        assert years == ["2019", 2019]


@pytest.mark.parametrize("name", FAMILIES)
def test_hostile_text_in_a_context_rendered_anew_holds_no_control_token(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer, renderer = get_tokenizer(name), family(name, get_tokenizer)
    added = set(tokenizer.added_tokens_decoder)

    def context(text: str) -> tuple[int, ...]:
        call = ToolCall(name="calculator", arguments={"expression": text.replace("<tool_call>", "")})
        turns = [
            Action("", content="", tool_calls=[call]).message,
            Message(role=Role.TOOL, content=text, name="calculator"),
        ]
        return ids_of(renderer.start([*PROMPT, *turns], [CALCULATOR]).segments)

    harmless, hostile = context("84"), context(HOSTILE)
    special = {index for index in added if tokenizer.added_tokens_decoder[index].special}
    assert [t for t in hostile if t in special] == [t for t in harmless if t in special]
    assert HOSTILE in decode(tokenizer, hostile)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_cut_by_length_is_closed(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = family(name, get_tokenizer)
    whole = renderer.encode_action(Action("It is 48."))
    closed = renderer.extend(PROMPT, generation(whole), tool_reply("No."), [CALCULATOR])
    cut = renderer.extend(PROMPT, generation(whole[:-1]), tool_reply("No."), [CALCULATOR])
    closing = get_tokenizer(name).convert_tokens_to_ids(CLOSED_BY[name]) if name in CLOSED_BY else whole[-1]
    assert ids_of(cut.segments)[0] == closing
    assert ids_of(cut.segments)[-len(ids_of(closed.segments)) :] == ids_of(closed.segments)
    assert cut.segments[0].origin is Origin.TEMPLATE
