"""Which renderer is made for which tokenizer, and what is refused."""

import pytest

from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.rendering import Prefer, family_setup, make_renderer
from envgym.agents.rendering.families import FamilyRenderer
from envgym.agents.rendering.generic import GenericRenderer
from envgym.core.messages import Action, Observation
from envgym.errors import InvalidInput, UnknownName
from envgym.parsing import text_format
from tests.agents.rendering.conftest import GetTokenizer
from tests.agents.rendering.episodes import CALCULATOR, PROMPT, decode, generation, ids_of, play, rewrites, script


def test_a_family_is_recognised_by_what_its_template_renders(get_tokenizer: GetTokenizer) -> None:
    made = make_renderer(get_tokenizer("qwen3"))
    assert isinstance(made, FamilyRenderer)
    assert made.family == "qwen3"
    assert "lists the tools" in made.notes[0]


@pytest.mark.parametrize("name", ["tiny", "smollm2", "gemma3"])
def test_a_template_of_no_known_family_is_rendered_generically(name: str, get_tokenizer: GetTokenizer) -> None:
    assert isinstance(make_renderer(get_tokenizer(name)), GenericRenderer)


def test_a_text_format_that_is_asked_for_is_used(get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer("qwen3")
    by_name, by_value = (make_renderer(tokenizer, text_format=chosen) for chosen in ("react", text_format("react")))
    action = Action("", content="84")
    said = by_name.encode_action(action)
    assert decode(tokenizer, said) == "Final Answer: 84<|im_end|>"
    assert by_value.encode_action(action) == said


def test_a_family_keeps_thinking_where_that_is_asked_for(get_tokenizer: GetTokenizer) -> None:
    assert rewrites(play(make_renderer(get_tokenizer("qwen3"), keeps_thinking=True), script("84"))) == []


@pytest.mark.parametrize("prefer", [Prefer.FAMILY, Prefer.GENERIC])
def test_without_thinking_the_template_closes_it_and_contexts_are_appended_to(
    prefer: Prefer, get_tokenizer: GetTokenizer
) -> None:
    tokenizer = get_tokenizer("qwen3")
    renderer = make_renderer(tokenizer, prefer=prefer, thinking=False)
    opening = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert decode(tokenizer, renderer.start(PROMPT, [CALCULATOR]).segments[-1].token_ids) == opening
    said = generation(renderer.encode_action(Action("It is 48.")))
    assert decode(tokenizer, said.token_ids) == "It is 48.<|im_end|>"
    after = renderer.extend(PROMPT, said, Observation("No."), [CALCULATOR])
    assert after.rewrite is None
    assert decode(tokenizer, ids_of(after.segments)) == f"\n<|im_start|>user\nNo.<|im_end|>\n{opening}"


def test_a_template_that_does_not_know_about_thinking_is_left_alone() -> None:
    told, untold = (make_renderer(tiny_tokenizer(), thinking=thinking).start(PROMPT, []) for thinking in (False, None))
    assert told == untold


def test_unknown_names_are_refused_with_near_ones() -> None:
    with pytest.raises(UnknownName, match=r"model family .*'qwen-3'.* did you mean .*qwen3"):
        make_renderer(tiny_tokenizer(), family="qwen-3")
    with pytest.raises(UnknownName, match=r"renderer preference .*'familly'.* did you mean family\?"):
        make_renderer(tiny_tokenizer(), prefer="familly")
    with pytest.raises(UnknownName, match=r"text format .*'herms'.* did you mean hermes\?"):
        make_renderer(tiny_tokenizer(), text_format="herms")


def test_a_tokenizer_of_another_family_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^tokenizer must be one of the family llama-3, got .+; name the family"):
        make_renderer(tiny_tokenizer(), family="llama-3")
    with pytest.raises(InvalidInput, match=r"^tokenizer must be of a known family"):
        make_renderer(tiny_tokenizer(), prefer=Prefer.FAMILY)


def test_a_family_that_cannot_fetch_its_own_vocabulary_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(family_setup, "create_renderer", offline)
    with pytest.raises(InvalidInput, match=r"family gpt-oss, got OSError: no network .*; go online once, so that"):
        make_renderer(tiny_tokenizer(), family="gpt-oss")


def test_a_tokenizer_without_a_template_is_refused_in_one_sentence(get_tokenizer: GetTokenizer) -> None:
    tokenizer = get_tokenizer("qwen3_6")
    with pytest.raises(InvalidInput, match=r"^chat template must be there, got none .*; put a chat_template\.jinja"):
        make_renderer(tokenizer)


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        name_or_path = "slow"
        chat_template = "{{ messages }}"
        is_fast = False

    with pytest.raises(InvalidInput, match=r"^tokenizer must be a fast one, got Slow"):
        make_renderer(Slow())  # type: ignore[arg-type]  # what is tested
