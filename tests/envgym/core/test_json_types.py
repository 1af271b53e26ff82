"""Text made fit for a file."""

from hypothesis import given
from hypothesis import strategies as st

from envgym.core.json_types import well_formed


def test_lone_surrogates_become_replacement_characters_and_pairs_a_character() -> None:
    assert well_formed("a\ud800b") == "a\ufffdb"
    assert well_formed("\ud83d\ude00 \udfff") == "\U0001f600 \ufffd"


@given(st.text())
def test_text_that_is_well_formed_stays(text: str) -> None:
    assert well_formed(text) == text
