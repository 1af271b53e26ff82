"""Every end token of a model ends a turn; what follows it is appended, and what was sampled stays."""

import copy

import pytest

from envgym.agents.loop.agent import AgentSettings, assemble
from envgym.agents.loop.state import begin
from envgym.agents.models.generation_config import set_end_token_ids
from envgym.agents.protocols import Generation, Renderer, Sampling
from envgym.agents.rendering.factory import AutoRendererFactory, GenericRendererFactory
from envgym.core.messages import Action
from envgym.core.segments import Origin
from tests.agents.rendering.conftest import GetTokenizer
from tests.agents.rendering.episodes import CALCULATOR, PROMPT, decode, generation, ids_of, tool_reply

pytestmark = pytest.mark.timeout(600)  # the first test of a tokenizer downloads and converts it

END_TOKENS = {
    "tiny": ["<|im_end|>", "<|endoftext|>"],
    "qwen3": ["<|im_end|>", "<|endoftext|>"],
    "qwen3_5": ["<|im_end|>", "<|endoftext|>"],
    "llama3_1": ["<|end_of_text|>", "<|reserved_special_token_4|>", "<|eot_id|>"],
    "gemma3": ["<eos>", "<end_of_turn>"],
    "mistral": ["</s>"],
    "deepseek_v3": ["<\uff5cend\u2581of\u2581sentence\uff5c>"],
    "glm4": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|endoftext|>", "<|call|>"],
    "phi4": ["<|im_end|>", "<|endoftext|>"],
    "smollm3": ["<|im_end|>", "<|end_of_text|>"],
}
"""Of the generation configs of the published models. Llama 3 called `<|eom_id|>` a reserved token."""
APPENDED = [name for name in END_TOKENS if name not in ("mistral", "qwen3_5", "gptoss")]
"""Models whose next turn follows a plain answer without a rewrite."""


_made: dict[tuple[str, bool], Renderer] = {}


def renderer_of(name: str, get_tokenizer: GetTokenizer, *, is_generic: bool = False) -> Renderer:
    """Return the renderer of a model whose generation config names all of its end tokens; each is made once."""
    renderer = _made.get((name, is_generic))
    if renderer is None:
        tokenizer = copy.copy(get_tokenizer(name))  # only the attribute with the end tokens differs
        set_end_token_ids(tokenizer, ids_named(name, END_TOKENS[name], get_tokenizer))
        renderer = (GenericRendererFactory() if is_generic else AutoRendererFactory())(tokenizer)
        _made[name, is_generic] = renderer
    return renderer


def ids_named(name: str, texts: list[str], get_tokenizer: GetTokenizer) -> list[int]:
    tokenizer = get_tokenizer(name)
    ids = tokenizer.convert_tokens_to_ids(texts)
    assert isinstance(ids, list)
    assert tokenizer.convert_ids_to_tokens(ids) == texts
    return ids


def turns_of(renderer: Renderer, name: str, get_tokenizer: GetTokenizer) -> list[Generation]:
    *said, _ = renderer.encode_action(Action("", content="It is 48."))
    return [generation([*said, end]) for end in ids_named(name, END_TOKENS[name], get_tokenizer)]


@pytest.mark.parametrize("name", END_TOKENS)
def test_every_end_token_is_requested_of_the_engine(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = renderer_of(name, get_tokenizer)
    wanted = set(ids_named(name, END_TOKENS[name], get_tokenizer))
    assert wanted <= set(renderer.stop_token_ids)
    assert len(set(renderer.stop_token_ids)) == len(renderer.stop_token_ids)
    agent = assemble(AgentSettings(), renderer)
    state = begin(agent, sampling=Sampling(stop_token_ids=(7,)), seed=0)
    assert state.episode.sampling.stop_token_ids == (*renderer.stop_token_ids, 7)


@pytest.mark.parametrize("name", END_TOKENS)
def test_an_end_token_is_no_part_of_what_the_model_says(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = renderer_of(name, get_tokenizer)
    for turn in turns_of(renderer, name, get_tokenizer):
        action = renderer.parse(turn.token_ids, [CALCULATOR])
        assert (action.content, action.malformed) == ("It is 48.", ())


@pytest.mark.parametrize("name", APPENDED)
def test_the_next_turn_is_appended_whatever_token_ended_this_one(name: str, get_tokenizer: GetTokenizer) -> None:
    tokenizer, renderer = get_tokenizer(name), renderer_of(name, get_tokenizer)
    closing = renderer.encode_action(Action("", content="It is 48."))[-1]
    after = {}
    for turn in turns_of(renderer, name, get_tokenizer):
        rendering = renderer.extend(PROMPT, turn, tool_reply("84"), [CALCULATOR])
        assert rendering.rewrite is None
        assert not any(segment.origin is Origin.POLICY for segment in rendering.segments)
        after[turn.token_ids[-1]] = ids_of(rendering.segments)
    for end, ids in after.items():
        if name == "qwen3":  # the family's renderer lets either end token close a turn
            assert ids == after[closing]
        elif end != closing and name != "glm4":  # GLM ends a turn with the token that begins the next message
            assert ids == (closing, *after[closing]), decode(tokenizer, [end])


@pytest.mark.parametrize("name", ["tiny", "llama3_1", "gemma3", "phi4"])
def test_a_turn_without_an_end_token_is_closed_once(name: str, get_tokenizer: GetTokenizer) -> None:
    renderer = renderer_of(name, get_tokenizer, is_generic=True)
    *cut, closing = renderer.encode_action(Action("It is 48."))
    ids = ids_of(renderer.extend(PROMPT, generation(cut), tool_reply("84"), []).segments)
    whole = ids_of(renderer.extend(PROMPT, generation([*cut, closing]), tool_reply("84"), []).segments)
    assert ids == (closing, *whole)
