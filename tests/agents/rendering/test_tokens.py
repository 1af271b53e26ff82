"""Laws of the codec: text survives, and no text from outside turns into a control token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.models.tiny import CALL_PARTS, MARKUP, VOCABULARY, tiny_tokenizer
from envgym.agents.rendering.tokens import TokenCodec
from envgym.core.segments import Origin
from tests.agents.rendering.conftest import GetTokenizer

TOKENIZER = tiny_tokenizer()
CODEC = TokenCodec(TOKENIZER, markup=str(TOKENIZER.chat_template))
CONTROL = [*VOCABULARY[:7], *MARKUP, *CALL_PARTS]
PRIVATE = st.characters(min_codepoint=0xF0000, max_codepoint=0x10FFFF) | st.just("\ufdd0")
TEXTS = st.lists(st.text() | st.sampled_from(CONTROL) | PRIVATE, max_size=8).map("".join)
"""Any Unicode, full of control tokens and of the characters that escapes are made of."""


@given(TEXTS)
def test_escaped_text_decodes_to_itself_and_holds_no_control_token(text: str) -> None:
    for escaped in (CODEC.escape(text), CODEC.escape_all(text)):
        ids = CODEC.encode(escaped).ids
        assert CODEC.decode(ids) == text
        assert CODEC.count_control(ids) == 0


@given(TEXTS)
def test_the_models_own_markup_stays_and_special_tokens_do_not(text: str) -> None:
    ids = CODEC.encode(CODEC.escape(text, markup=True)).ids
    assert CODEC.decode(ids) == text
    assert not set(ids) & set(range(7))


@given(st.text())
def test_text_without_control_tokens_is_encoded_as_the_tokenizer_does(text: str) -> None:
    wanted = TOKENIZER.encode(text, add_special_tokens=False)
    assert CODEC.encode(CODEC.quote(text)).ids == wanted
    if not CODEC.count_control(wanted):
        assert CODEC.encode(CODEC.escape(text)).ids == wanted


@given(TEXTS)
def test_every_token_knows_its_characters(text: str) -> None:
    escaped = CODEC.escape(text)
    ids, starts, ends = CODEC.encode(escaped)
    assert len(ids) == len(starts) == len(ends)
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert all(0 <= start < end <= len(escaped) for start, end in zip(starts, ends, strict=True))


def test_markup_in_a_text_of_the_author_is_one_token_and_in_a_tools_output_many() -> None:
    assert len(CODEC.encode(CODEC.escape("<think>", markup=True)).ids) == 1
    assert len(CODEC.encode(CODEC.escape("<think>")).ids) == len("<think>")


def test_segments_split_where_the_spans_say() -> None:
    encoded = CODEC.encode("ab<|im_end|>cd")
    segments = CODEC.segments(encoded, [(0, 1), (1, 1), (13, 14)], Origin.TOOL, Origin.TEMPLATE)
    found = [(segment.origin, "".join(segment.token_strings)) for segment in segments]
    assert found == [(Origin.TOOL, "a"), (Origin.TEMPLATE, "b<|im_end|>c"), (Origin.TOOL, "d")]
    skipped = CODEC.segments(encoded, [], Origin.TOOL, Origin.TEMPLATE, skip=3)
    assert [segment.token_strings for segment in skipped] == [("c", "d")]


def test_bytes_that_are_no_text_on_their_own_are_shown_as_bytes() -> None:
    assert CODEC.strings(CODEC.encode("a\u20ac\n").ids) == ("a", "\\xe2", "\\x82", "\\xac", "\n")
    assert CODEC.strings([len(VOCABULARY) + 1000]) == (f"<unknown token {len(VOCABULARY) + 1000}>",)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "deepseek_v3"])
def test_token_strings_join_to_the_text(name: str, get_tokenizer: GetTokenizer) -> None:
    codec = TokenCodec(get_tokenizer(name))
    text = "Hello  world!\n\n 12345 x's na\u00efve \u4e2d\u6587 def f():\n\treturn"
    assert "".join(codec.strings(codec.encode(text).ids)) == text


def test_lone_surrogates_become_replacement_characters() -> None:
    assert CODEC.decode(CODEC.encode(CODEC.quote("a\udfffb")).ids) == "a\ufffdb"


def test_a_text_says_with_which_control_token_it_begins() -> None:
    assert CODEC.first_control("<|im_end|>\nmore") == (2, "<|im_end|>")
    assert CODEC.first_control("\n<|im_end|>") is None
    assert CODEC.first_control("") is None


def test_what_others_set_on_the_tokenizer_cuts_and_pads_nothing() -> None:
    tokenizer = tiny_tokenizer()
    codec = TokenCodec(tokenizer)
    tokenizer(["a", "abc"], padding="max_length", truncation=True, max_length=2)
    assert codec.decode(codec.encode("abcdef").ids) == "abcdef"
    tokenizer(["a"], padding="max_length", max_length=9)
    assert len(codec.encode("abcdef").ids) == 6
