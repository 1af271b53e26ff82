"""The constraints of `math/instructions-v0`: definitions by hand, each kind on an example, and laws over drawn ones."""

import json
import re
import unicodedata
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.envs.math._instructions.constraint import Constraint
from envgym.envs.math._instructions.drawing import draw_constraints, has_held_out_pair, held, outline_of
from envgym.envs.math._instructions.kinds import ALL_KINDS, BASE, HELD_OUT_PAIRS, KINDS, are_compatible, tell
from envgym.envs.math._instructions.writer import DATA, write_text
from envgym.envs.math._instructions.written import WrittenText, count_sentences, has_copied_run, split_words

NUM_DRAWS = 200


@pytest.mark.parametrize(
    "text, words",
    [
        ("", []),
        ("--- ' - !?", []),
        ("a well-known fact, isn't it?", ["a", "well-known", "fact", "isn't", "it"]),
        ("'quoted' -- and/or 3.14 x_1", ["quoted", "and", "or", "3", "14", "x", "1"]),
        ("a--b a-'b -a- don't'", ["a", "b", "a", "b", "a", "don't"]),
        ("été naïf, Größe", ["été", "naïf", "größe"]),
        ("cafe\N{COMBINING ACUTE ACCENT} l\u2019eau", ["café", "l\u2019eau"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("привет, мир! 東京", ["привет", "мир", "東京"]),
    ],
)
def test_words_by_hand(text: str, words: list[str]) -> None:
    assert WrittenText(text).words == [unicodedata.normalize("NFC", word) for word in words]


@settings(max_examples=300)
@given(st.text(st.sampled_from("ab1'-_ .,\n*"), max_size=30))
def test_words_of_ascii_are_runs_with_joiners_inside(text: str) -> None:
    assert split_words(text) == re.findall(r"[a-z0-9]+(?:['-][a-z0-9]+)*", text)
    assert split_words(f"{text} é") == [*split_words(text), "é"]  # the pattern for all scripts


@pytest.mark.parametrize(
    "text, count",
    [
        ("", 0),
        ("...", 0),
        ("One. Two! Three?", 3),
        ("No end", 1),
        ("Pi is 3.14 or so.", 1),
        ('He said "stop." Then he left...', 2),
        ("What?! Yes.\n- a bullet\n- another", 4),
        ("これは本です。あれはペンです。", 2),
        ("(One.) [Two.] **Three.** four", 4),
    ],
)
def test_sentences_by_hand(text: str, count: int) -> None:
    assert count_sentences(text) == count


def test_paragraphs_bullets_titles_and_headings_by_hand() -> None:
    text = "<<A title>>\nPart 1\nOne.\r\n\r\nTwo.\n - b\n* [c] d\n-e\n \n\n***\n\npart 2\n<<no>> title"
    written = WrittenText(text)
    assert [part.split("\n")[0] for part in written.paragraphs] == ["<<a title>>", "two.", "part 2"]
    assert written.bullets == ["b", "[c] d"]
    assert written.titles == ["a title"]
    assert written.headings == ["1", "2"]
    assert written.placeholders == ["[c]"]


def test_copied_run_by_hand() -> None:
    source = ["a", "b", "c", "d", "e"]
    assert has_copied_run(["x", "b", "c", "d", "y"], source, frozenset(source), 3)
    assert not has_copied_run(["x", "b", "c", "y", "d", "e"], source, frozenset(source), 3)
    assert not has_copied_run(["b", "d", "c", "e", "b"], source, frozenset(source), 3)


@settings(max_examples=300)
@given(st.lists(st.sampled_from("abcd"), max_size=25), st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 5))
def test_copied_run_is_a_common_run(words: list[str], source: list[str], length: int) -> None:
    runs = {tuple(source[at : at + length]) for at in range(len(source) - length + 1)}
    found = any(tuple(words[at : at + length]) in runs for at in range(len(words) - length + 1))
    assert has_copied_run(words, source, frozenset(source), length) == found


# Kind, numbers, texts, a text that holds, one that differs by as little as possible and does not.
EXAMPLES: list[tuple[str, tuple[int, ...], tuple[str, ...], str, str]] = [
    ("topic", (2,), ("tea",), "Tea or tea.", "Tea or teas."),
    ("length", (4, 5), (), "a b a b", "a b a"),
    ("length", (4, 5), (), "a b a b a", "a b a b a b"),
    ("length", (4, 5), (), "a b a b", "a a a a"),
    ("json", (), ("a", "b"), '{"b": "x", "a": "y"}', '{"b": "x", "a": ""}'),
    ("json", (), ("a", "b"), '{"b": "x", "a": "y"}', '{"b": "x"}'),
    ("json", (), ("a",), '{"a": "x"}', 'Here: {"a": "x"}'),
    ("json", (), ("a",), '{"a": "x"}', '{"a": 1}'),
    ("json", (), ("a",), '{"a": "x"}', '{"a": "x", "a": "y"}'),
    ("json", (), ("a",), '{"a": "x"}', '[["a", "x"]]'),
    ("sections", (2,), (), "Part 1\na\nPart 2\nb", "Part 2\na\nPart 1\nb"),
    ("sections", (2,), (), "Part 1\na\nPart 2\nb", "Part 1\na\nPart 2: b"),
    ("paragraphs", (2, 2), (), "a\n\nb", "a\nb"),
    ("paragraphs", (2, 2), (), "a\n\n---\n\nb", "a\n\nb\n\nc"),
    ("paragraph_sentences", (2, 2), (), "A. B.\n\nC. D.", "A. B.\n\nC. D. E."),
    ("paragraph_sentences", (2, 2), (), "A. B.\n\nC. D.", "A. B."),
    ("paragraph_start", (2, 2), ("cat",), "A.\n\nCat b.", "A.\n\nCats b."),
    ("paragraph_start", (2, 2), ("cat",), "A.\n\nCat b.", "A.\n\nCat b.\n\nC."),
    ("bullets", (2, 2), (), "- a\n* b", "- a\n-b"),
    ("bullets", (2, 0), (), "- a\n- b\n- c", "- a\nb - c"),
    ("bullet_word", (2,), ("cat",), "- a cat\n- Cat!", "- a cat\n- b"),
    ("bullet_word", (2,), ("cat",), "- a cat\n- Cat!", "- a cat\n- Cat!\n- cat"),
    ("title", (), (), "<<A>>\nb", "<<A>> b"),
    ("title", (), (), "<<A>>\nb", "<<A>>\nb\n<<C>>"),
    ("start", (), ("Once upon",), "once upon a time", "So once upon a time"),
    ("end", (), ("The end.",), "it is the END.\n", "it is the end. P.S."),
    ("lowercase", (), (), "a ß é 1", "a É"),
    ("uppercase", (), (), "A É 1", "A ß"),
    ("no_commas", (), (), "a; b", "a, b"),
    ("no_commas", (), (), "a; b", "a、b"),
    ("placeholders", (2, 2), (), "[a] [b]", "[a] [] b"),
    ("placeholders", (2, 2), (), "[a] [b]", "[a] [b] [c]"),
    ("keywords", (), ("cat", "dog"), "Dog, cat.", "Dog, cats."),
    ("word_frequency", (2,), ("cat",), "cat CAT cats", "cat cat cat"),
    ("absent_words", (), ("cat", "dog"), "cats", "a (dog)"),
    ("letter_absent", (), ("z",), "abc", "Zabc"),
    ("letter_count", (3,), ("b",), "bbB", "bb"),
    ("sentences", (2, 2), (), "A. B.", "A. B. C."),
    ("sentences", (0, 2), (), "A.", "A. B. C."),
    ("sentences", (2, 0), (), "A. B. C.", "A."),
]


@pytest.mark.parametrize("kind, numbers, texts, right, wrong", EXAMPLES)
def test_kinds_by_hand(kind: str, numbers: tuple[int, ...], texts: tuple[str, ...], right: str, wrong: str) -> None:
    constraint = Constraint(kind, numbers, texts)
    assert [held(WrittenText(text), [constraint]) for text in (right, wrong)] == [[True], [False]]


def test_every_kind_has_an_example() -> None:
    assert {kind for kind, *_ in EXAMPLES} == set(ALL_KINDS)


def test_sentences_of_the_constraints_by_hand() -> None:
    told = {
        Constraint("bullets", (3, 3)): "Write exactly 3 bullets.",
        Constraint("placeholders", (1, 0)): "Leave at least 1 placeholder in square brackets, such as [address].",
        Constraint("sentences", (0, 4)): "Write at most 4 sentences.",
        Constraint("length", (31, 60)): "Write 31 to 60 words, at least 15 of them different.",
        Constraint("keywords", (), ("a", "b", "c")): 'Use the words "a", "b" and "c".',
        Constraint("paragraph_start", (3, 2), ("cat",)): (
            'Write exactly 3 paragraphs. The first word of the second paragraph is "cat".'
        ),
    }
    assert {constraint: tell(constraint) for constraint in told} == told


@settings(max_examples=NUM_DRAWS, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans())
def test_the_written_text_meets_all_drawn_constraints(seed: int, num: int, may_have_held_out: bool) -> None:
    drawn = draw_constraints(np.random.default_rng(seed), tuple(KINDS), num, may_have_held_out=may_have_held_out)
    kinds = [item.kind for item in drawn]
    assert len(set(kinds)) == len(kinds) == num + len(BASE)
    assert may_have_held_out or not has_held_out_pair(kinds)
    assert all(are_compatible(*pair) for pair in combinations(kinds[: -len(BASE)], 2))
    text = write_text(outline_of(drawn))
    assert held(WrittenText(text), drawn) == [True] * len(drawn)


def spoiled(text: str, constraint: Constraint) -> str:
    """Change a text that meets a constraint by as little as possible, so that it does not."""
    (number, *_), (word, *_) = (*constraint.numbers, 0), (*constraint.texts, "")
    match constraint.kind:
        case "length" | "topic":
            return " ".join(text.split()[:5])
        case "json" | "end":
            return f"{text} more"
        case "sections":
            return re.sub(r"(?i)part 2", "Part 7", text)
        case "paragraphs" | "paragraph_sentences" | "paragraph_start":
            return f"{text}\n\nMore"
        case "bullets" | "bullet_word":
            return text.replace("- ", "", 1)
        case "title":
            return text.replace("<<", "<", 1)
        case "start":
            return f"So {text}"
        case "lowercase":
            return f"{text} A"
        case "uppercase":
            return f"{text} a"
        case "no_commas":
            return f"{text},"
        case "placeholders":
            return text.replace("[", "(", number)
        case "keywords":
            return re.sub(rf"(?i)\b{word}\b", f"{word}q", text)
        case "word_frequency" | "absent_words":
            return f"{text} {word}"
        case "letter_absent":
            return f"{text} {word}"
        case "letter_count":
            return re.sub(f"(?i){word}", "", text, count=len(re.findall(f"(?i){word}", text)) - number + 1)
        case "sentences":
            return f"{text} More. More. More. More." if constraint.numbers[1] else text.replace(".", ";")
    raise AssertionError(constraint)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_small_change_violates_a_constraint(kind: str, seed: int) -> None:
    kinds = (kind if kind in KINDS else "title",)
    drawn = draw_constraints(np.random.default_rng(seed), kinds, 1, may_have_held_out=False)
    text = write_text(outline_of(drawn))
    constraint = next(item for item in drawn if item.kind == kind)
    assert held(WrittenText(text), [constraint]) == [True]
    assert held(WrittenText(spoiled(text, constraint)), [constraint]) == [False]


def test_every_kind_is_in_one_held_out_pair_of_kinds_that_go_together() -> None:
    assert sorted(kind for pair in HELD_OUT_PAIRS for kind in pair) == sorted(KINDS)
    assert all(are_compatible(*sorted(pair)) for pair in HELD_OUT_PAIRS)


def test_texts_of_the_data_keep_what_the_writer_relies_on() -> None:
    topics = [topic for field in DATA["fields"] for topic in field["topics"]]
    assert len(set(topics)) == len(topics) == 120
    for field in DATA["fields"]:
        assert set(field["related"]).isdisjoint(field["topics"])
        assert all(split_words(word) == [word] for word in (*field["topics"], *field["related"]))
    for text in (*DATA["clauses"], *DATA["carriers"], *DATA["openers"]):
        assert not re.search(r'[,.!?"\[\]<>]', text)
    for end in DATA["ends"]:
        assert count_sentences(end) == 1
    assert json.loads(json.dumps(DATA["keys"])) == sorted(set(DATA["keys"]), key=DATA["keys"].index)
