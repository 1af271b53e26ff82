"""Text made fit for a file, and for a terminal."""

import json
import re
import tracemalloc
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import JsonValue, decode_recorded, parse_json, visible, well_formed


def test_lone_surrogates_become_replacement_characters_and_pairs_a_character() -> None:
    assert well_formed("a\ud800b") == "a\ufffdb"
    assert well_formed("\ud83d\ude00 \udfff") == "\U0001f600 \ufffd"


@given(st.text())
def test_text_that_is_well_formed_stays(text: str) -> None:
    assert well_formed(text) == text


@given(st.text())
def test_visible_text_holds_nothing_that_a_terminal_obeys_and_stays_what_it_is(text: str) -> None:
    shown = visible(text)
    kinds = {unicodedata.category(char) for char in shown if char not in "\n\t\u200c\u200d"}
    assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert visible(shown) == shown


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda part: st.lists(part) | st.dictionaries(st.text(), part))
)
def test_visible_json_is_the_same_json(value: JsonValue) -> None:
    assert json.loads(visible(json.dumps(value, ensure_ascii=False))) == value


def test_words_of_any_language_stay_as_they_are() -> None:
    text = "naïve\u00a0— Füße\t日本\u3000語\nक्\u200dष 👩\u200d🚀"
    assert visible(text) == text
    assert visible("a\x1b[2Jb\x9b\u202e\ud800") == "a\\u001b[2Jb\\u009b\\u202e\\ud800"


JSON = st.recursive(
    st.text() | st.integers() | st.booleans(), lambda part: st.lists(part) | st.dictionaries(st.text(), part)
)


def count_parts(value: JsonValue) -> int:
    """Count strings, brackets and braces that open, commas and colons, by hand."""
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + sum(2 + count_parts(item) for item in value.values())
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(count_parts, value))
    return 0


@given(JSON, st.booleans())
def test_json_is_decoded_up_to_exactly_its_number_of_parts(value: JsonValue, is_ascii: bool) -> None:
    text, parts = json.dumps(value, ensure_ascii=is_ascii), count_parts(value)
    assert parse_json(text, parts) == parse_json(text.encode(errors="surrogatepass"), parts) == value
    if parts:
        with pytest.raises(ValueError, match=f"more than {parts - 1} parts"):
            parse_json(text, parts - 1)


@pytest.mark.parametrize("unit", ["[],", "{},", '{"":0},', "1,", '"a",', "[", '{"a":', '"', "\\", '"\\', '\\"', "[[],"])
def test_hostile_json_takes_no_memory_beyond_its_text(unit: str) -> None:
    text = "[" + unit * ((1 << 20) // len(unit))
    tracemalloc.start()
    try:
        with pytest.raises(
            ValueError, match=re.compile("parts|nested too deep|Expecting|Unterminated|escape|delimiter")
        ):
            parse_json(text, 1_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20, "decoded, it takes up to 30 times its size"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    )
)
def test_recorded_json_is_decoded_as_by_json(value: JsonValue) -> None:
    text = json.dumps(value)
    assert repr(decode_recorded(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ['"a\\ud800"', "[" * 900 + "]" * 900, "[NaN, 1e-320, 1e400]", '{"a": 1, "a": 2}'])
def test_recorded_json_that_only_json_reads_is_decoded(text: str) -> None:
    assert repr(decode_recorded(text)) == repr(json.loads(text))
