"""Text made fit for a file, and for a terminal."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import JsonValue, visible, well_formed


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
