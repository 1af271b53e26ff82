"""Which renderer is made for which tokenizer, and what is refused."""

import pytest

from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.rendering import families
from envgym.agents.rendering.factory import (
    AutoRendererFactory,
    FamilyRendererFactory,
    GenericRendererFactory,
    RendererFactory,
)
from envgym.agents.rendering.families import FamilyRenderer
from envgym.agents.rendering.generic import GenericRenderer
from envgym.core.messages import Action, Observation
from envgym.errors import InvalidInput, UnknownName
from envgym.parsing import text_format
from tests.agents.rendering.conftest import GetTokenizer
from tests.agents.rendering.episodes import CALCULATOR, PROMPT, decode, generation, ids_of, play, rewrites, script


def test_a_family_is_recognised_by_what_its_template_renders(get_tokenizer: GetTokenizer) -> None:
    made = AutoRendererFactory()(get_tokenizer("qwen3"))
    assert isinstance(made, FamilyRenderer)
    assert made.family == "qwen3"
    assert made.lists_tools


@pytest.mark.parametrize("name", ["tiny", "smollm2", "gemma3"])
def test_a_template_of_no_known_family_is_rendered_generically(name: str, get_tokenizer: GetTokenizer) -> None:
    assert isinstance(AutoRendererFactory()(get_tokenizer(name)), GenericRenderer)


def test_a_text_format_that_is_asked_for_is_used(get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer("qwen3")
    renderer = AutoRendererFactory()(tokenizer, text_format=text_format("react"))
    sampled = renderer.encode_action(Action("", content="84"))
    assert decode(tokenizer, sampled) == "Final Answer: 84<|im_end|>"
    with pytest.raises(InvalidInput, match="text format must be the family's own for a family's renderer, got react"):
        FamilyRendererFactory()(tokenizer, text_format=text_format("react"))


def test_a_family_keeps_thinking_where_that_is_asked_for(get_tokenizer: GetTokenizer) -> None:
    assert rewrites(play(AutoRendererFactory(keeps_thinking=True)(get_tokenizer("qwen3")), script("84"))) == []


@pytest.mark.parametrize("factory", [FamilyRendererFactory(), GenericRendererFactory()])
def test_without_thinking_the_template_closes_it_and_contexts_are_appended_to(
    factory: RendererFactory, get_tokenizer: GetTokenizer
) -> None:
    tokenizer = get_tokenizer("qwen3")
    renderer = factory(tokenizer, thinking=False)
    opening = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert decode(tokenizer, renderer.start(PROMPT, [CALCULATOR]).segments[-1].token_ids) == opening
    said = generation(renderer.encode_action(Action("It is 48.")))
    assert decode(tokenizer, said.token_ids) == "It is 48.<|im_end|>"
    after = renderer.extend(PROMPT, said, Observation("No."), [CALCULATOR])
    assert after.rewrite is None
    assert decode(tokenizer, ids_of(after.segments)) == f"\n<|im_start|>user\nNo.<|im_end|>\n{opening}"


def test_a_template_that_does_not_know_about_thinking_is_left_alone() -> None:
    told, untold = (
        AutoRendererFactory()(tiny_tokenizer(), thinking=thinking).start(PROMPT, []) for thinking in (False, None)
    )
    assert told == untold


def test_unknown_names_are_refused_with_near_ones() -> None:
    with pytest.raises(UnknownName, match=r"model family .*'qwen-3'.* did you mean .*qwen3"):
        FamilyRendererFactory(family="qwen-3")(tiny_tokenizer())


def test_a_tokenizer_of_another_family_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^tokenizer must be one of the family llama-3, got .+; name the family"):
        FamilyRendererFactory(family="llama-3")(tiny_tokenizer())
    with pytest.raises(InvalidInput, match=r"^tokenizer must be of a known family"):
        FamilyRendererFactory()(tiny_tokenizer())


def test_a_family_that_cannot_fetch_its_own_vocabulary_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(families, "create_renderer", offline)
    with pytest.raises(InvalidInput, match=r"family gpt-oss, got OSError: no network .*; go online once, so that"):
        FamilyRendererFactory(family="gpt-oss")(tiny_tokenizer())


def test_a_tokenizer_without_a_template_is_refused_in_one_sentence(get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer("qwen3_6")
    with pytest.raises(InvalidInput, match=r"^chat template must exist, got none .*; put a chat_template\.jinja"):
        AutoRendererFactory()(tokenizer)


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        name_or_path = "slow"
        chat_template = "{{ messages }}"
        is_fast = False

    with pytest.raises(InvalidInput, match=r"^tokenizer must be a fast one, got Slow"):
        AutoRendererFactory()(Slow())  # type: ignore[arg-type]  # what is tested
