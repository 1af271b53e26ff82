"""Words are what a reader would call equal words."""

import pytest

from envgym.retrieval.words import words_of


@pytest.mark.parametrize(
    "text, words",
    [
        ("The coastlines of Kenya", ["coastline", "kenya"]),
        ("Countries, country; CITIES", ["country", "country", "city"]),
        ("1,642 m and 1642.5", ["1642", "m", "1642.5"]),
        ("Côte d'Ivoire", ["cote", "d", "ivoire"]),
        ("US gas census basis glass", ["us", "gas", "census", "basis", "glass"]),
        ("what is the", []),
        ("\u200b_ --", []),
    ],
)
def test_words_are_plain_and_singular(text: str, words: list[str]) -> None:
    assert words_of(text) == words
