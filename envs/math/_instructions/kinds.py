"""The table of kinds. Those that read a text written so far, to ask for a little more, stand last."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from envgym.envs.math._instructions.constraint import (
    NO_LIMIT,
    Constraint,
    ConstraintKind,
    DrawContext,
    in_range,
    say_range,
)
from envgym.envs.math._instructions.outline import Outline
from envgym.envs.math._instructions.writer import DATA
from envgym.envs.math._instructions.written import WrittenText, split_words

Drawn = tuple[tuple[int, ...], tuple[str, ...]]
COMMAS = re.compile(r"[,\u060c\u3001\uff0c\uff64]")
"""The Arabic, the ideographic, the full-width and the half-width comma, too."""
RARE_LETTERS, COUNTED_LETTERS = "bfgjkpvwxyz", "bfgkpvwy"
MIN_WORDS, MAX_MIN_WORDS = 30, 110
WORDS_PER_TOPIC = 30
"""Of so many words one is the topic, and at least two."""
WIDTHS = (20, 35)
"""Least and greatest difference between the highest and the lowest number of words."""
ORDINALS = ("", "first", "second", "third", "fourth", "fifth")


def quoted(texts: tuple[str, ...]) -> str:
    """List texts in quotation marks, as written in a sentence."""
    *most, last = (f'"{text}"' for text in texts)
    return f"{', '.join(most)} and {last}" if most else last


def tell(constraint: Constraint) -> str:
    numbers, unit = constraint.numbers, DATA["units"].get(constraint.kind)
    return str(DATA["tells"][constraint.kind]).format(
        numbers=numbers,
        texts=quoted(constraint.texts) if constraint.texts else "",
        counted=say_range(numbers, unit, f"{unit}s") if unit else "",
        half=numbers[0] // 2 if numbers else 0,
        ordinal=ORDINALS[numbers[1]] if constraint.kind == "paragraph_start" else "",
    )


def is_json_object(written: WrittenText, constraint: Constraint) -> bool:
    """Tell whether the text is an object with exactly these keys, each with a text that has a word."""
    try:
        pairs = json.loads(written.text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return False
    if not isinstance(pairs, list) or len(pairs) != len(constraint.texts):
        return False
    if not all(isinstance(pair, tuple) and isinstance(pair[1], str) and split_words(pair[1]) for pair in pairs):
        return False
    return sorted(str(key) for key, _ in pairs) == sorted(constraint.texts)


def _draw_one_related(context: DrawContext, numbers: tuple[int, ...]) -> Drawn:
    return numbers, context.pick(context.related)


def _draw_range(context: DrawContext, low: int, high: int, *, exactly: bool = False) -> Drawn:
    number = context.number(low, high)
    return ((number, number) if exactly or context.rng.random() < 0.5 else (number, NO_LIMIT)), ()


def _draw_absent(context: DrawContext) -> Drawn:
    reserved = context.outline.reserved
    common = [word for word in DATA["common"] if word not in reserved]
    return (), tuple(sorted((*context.pick(common, 2), *context.pick(context.related))))


def _draw_rare_letter(context: DrawContext) -> Drawn:
    """Draw a letter that no text has which must occur word for word; placeholders and headings do without it, too."""
    fixed = context.outline.fixed_text.lower() + ("part" if context.outline.sections else "")
    return (), context.pick([letter for letter in RARE_LETTERS if letter not in fixed])


def _draw_letter_count(context: DrawContext) -> Drawn:
    letters = [letter for letter in COUNTED_LETTERS if letter not in context.outline.avoided_letters]
    (letter,) = context.pick(letters)
    count = context.measure(context.outline).folded.count(letter)
    return (count + context.number(2, 5),), (letter,)


def _draw_sentences(context: DrawContext) -> Drawn:
    """Draw a number from what the text has without this constraint."""
    count = context.measure(context.outline).num_sentences + context.number(1, 3)
    return ((count, count), (count, NO_LIMIT), (0, count))[context.number(0, 2)], ()


def _draw_length(context: DrawContext) -> Drawn:
    needed = len(context.measure(context.outline).words)
    low = max(needed, MIN_WORDS) + context.number(0, MAX_MIN_WORDS - MIN_WORDS)
    return (low, low + context.number(*WIDTHS)), ()


def _draw_paragraph_start(context: DrawContext) -> Drawn:
    count = context.number(2, 4)
    return _draw_one_related(context, (count, context.number(2, count)))


def _has_paragraph_start(written: WrittenText, constraint: Constraint) -> bool:
    (count, place), (word,) = constraint.numbers, constraint.texts
    paragraphs = written.paragraphs
    return len(paragraphs) == count and split_words(paragraphs[place - 1])[0] == word


def _has_paragraph_sentences(written: WrittenText, constraint: Constraint) -> bool:
    count, each = constraint.numbers
    return len(written.paragraphs) == count and all(
        WrittenText(part).num_sentences == each for part in written.paragraphs
    )


def _has_bullets_with(written: WrittenText, constraint: Constraint) -> bool:
    (word,) = constraint.texts
    return len(written.bullets) == constraint.numbers[0] and all(word in split_words(part) for part in written.bullets)


def _plan_words(outline: Outline, constraint: Constraint) -> Outline:
    count = constraint.numbers[0] if constraint.numbers else 1
    return replace(outline, words=(*outline.words, *((word, count) for word in constraint.texts)))


LISTS = frozenset(("bullets", "bullet_word"))
BLOCKS = frozenset(("paragraphs", "paragraph_start", "paragraph_sentences", "sections"))
BASE: Mapping[str, ConstraintKind] = MappingProxyType(
    {
        "length": ConstraintKind(
            draw=_draw_length,
            holds=lambda written, constraint: (
                in_range(len(written.words), constraint.numbers)
                and len(written.vocabulary) >= constraint.numbers[0] // 2
            ),
            plan=lambda outline, constraint: replace(outline, min_words=constraint.numbers[0]),
        ),
        "topic": ConstraintKind(
            draw=lambda context: ((max(2, context.outline.min_words // WORDS_PER_TOPIC),), (context.topic,)),
            holds=lambda written, constraint: written.words.count(constraint.texts[0]) >= constraint.numbers[0],
            plan=lambda outline, constraint: replace(outline, topic_count=constraint.numbers[0]),
        ),
    }
)
"""Constraints of every task; nothing is paid without them."""

KINDS: Mapping[str, ConstraintKind] = MappingProxyType(
    {
        "json": ConstraintKind(
            draw=lambda context: ((), context.pick(DATA["keys"], context.number(2, 4))),
            holds=is_json_object,
            plan=lambda outline, constraint: replace(outline, keys=constraint.texts),
            excludes=LISTS | BLOCKS | {"title", "start", "end", "uppercase", "no_commas", "sentences"},
        ),
        "sections": ConstraintKind(
            draw=lambda context: ((context.number(2, 4),), ()),
            holds=lambda written, constraint: (
                written.headings == [str(number) for number in range(1, constraint.numbers[0] + 1)]
            ),
            plan=lambda outline, constraint: replace(outline, sections=constraint.numbers[0]),
            excludes=BLOCKS - {"sections"},
        ),
        "paragraphs": ConstraintKind(
            draw=lambda context: _draw_range(context, 2, 5, exactly=True),
            holds=lambda written, constraint: in_range(len(written.paragraphs), constraint.numbers),
            plan=lambda outline, constraint: replace(outline, paragraphs=constraint.numbers[0]),
            excludes=BLOCKS - {"paragraphs"},
        ),
        "paragraph_sentences": ConstraintKind(
            draw=lambda context: ((context.number(2, 4), context.number(2, 4)), ()),
            holds=_has_paragraph_sentences,
            plan=lambda outline, constraint: replace(
                outline, paragraphs=constraint.numbers[0], paragraph_sentences=constraint.numbers[1]
            ),
            excludes=LISTS | {"paragraph_start", "title", "sentences"},
        ),
        "paragraph_start": ConstraintKind(
            draw=_draw_paragraph_start,
            holds=_has_paragraph_start,
            plan=lambda outline, constraint: replace(
                outline, paragraphs=constraint.numbers[0], opening=(constraint.numbers[1], constraint.texts[0])
            ),
        ),
        "bullets": ConstraintKind(
            draw=lambda context: _draw_range(context, 2, 6),
            holds=lambda written, constraint: in_range(len(written.bullets), constraint.numbers),
            plan=lambda outline, constraint: replace(outline, bullets=constraint.numbers[0]),
            excludes=frozenset(("bullet_word",)),
        ),
        "bullet_word": ConstraintKind(
            draw=lambda context: _draw_one_related(context, (context.number(2, 4),)),
            holds=_has_bullets_with,
            plan=lambda outline, constraint: replace(
                outline, bullets=constraint.numbers[0], bullet_word=constraint.texts[0]
            ),
        ),
        "title": ConstraintKind(
            holds=lambda written, constraint: len(written.titles) == 1,
            plan=lambda outline, constraint: replace(outline, has_title=True),
        ),
        "start": ConstraintKind(
            draw=lambda context: ((), context.pick(DATA["starts"])),
            holds=lambda written, constraint: written.folded.startswith(constraint.texts[0].lower()),
            plan=lambda outline, constraint: replace(outline, start=constraint.texts[0]),
        ),
        "end": ConstraintKind(
            draw=lambda context: ((), context.pick(DATA["ends"])),
            holds=lambda written, constraint: written.folded.endswith(constraint.texts[0].lower()),
            plan=lambda outline, constraint: replace(outline, end=constraint.texts[0]),
        ),
        "lowercase": ConstraintKind(
            holds=lambda written, constraint: written.text == written.folded,
            plan=lambda outline, constraint: replace(outline, is_lower=True),
            excludes=frozenset(("uppercase",)),
        ),
        "uppercase": ConstraintKind(
            holds=lambda written, constraint: written.text == written.text.upper(),
            plan=lambda outline, constraint: replace(outline, is_upper=True),
        ),
        "no_commas": ConstraintKind(
            holds=lambda written, constraint: COMMAS.search(written.text) is None,
            plan=lambda outline, constraint: outline,
        ),
        "placeholders": ConstraintKind(
            draw=lambda context: _draw_range(context, 1, 4),
            holds=lambda written, constraint: in_range(len(written.placeholders), constraint.numbers),
            plan=lambda outline, constraint: replace(outline, placeholders=constraint.numbers[0]),
        ),
        "keywords": ConstraintKind(
            draw=lambda context: ((), context.pick(context.related, context.number(2, 3))),
            holds=lambda written, constraint: written.vocabulary.issuperset(constraint.texts),
            plan=_plan_words,
        ),
        "word_frequency": ConstraintKind(
            draw=lambda context: _draw_one_related(context, (context.number(2, 5),)),
            holds=lambda written, constraint: written.words.count(constraint.texts[0]) == constraint.numbers[0],
            plan=_plan_words,
        ),
        "absent_words": ConstraintKind(
            draw=_draw_absent,
            holds=lambda written, constraint: written.vocabulary.isdisjoint(constraint.texts),
            plan=lambda outline, constraint: replace(outline, avoided_words=constraint.texts),
        ),
        "letter_absent": ConstraintKind(
            draw=_draw_rare_letter,
            holds=lambda written, constraint: constraint.texts[0] not in written.folded,
            plan=lambda outline, constraint: replace(outline, avoided_letters=constraint.texts[0]),
        ),
        "letter_count": ConstraintKind(
            draw=_draw_letter_count,
            holds=lambda written, constraint: written.folded.count(constraint.texts[0]) >= constraint.numbers[0],
            plan=lambda outline, constraint: replace(outline, letters=((constraint.texts[0], constraint.numbers[0]),)),
        ),
        "sentences": ConstraintKind(
            draw=_draw_sentences,
            holds=lambda written, constraint: in_range(written.num_sentences, constraint.numbers),
            plan=lambda outline, constraint: replace(outline, sentences=max(constraint.numbers)),
        ),
    }
)
ALL_KINDS: Mapping[str, ConstraintKind] = MappingProxyType({**BASE, **KINDS})


def are_compatible(one: str, other: str) -> bool:
    """Tell whether two kinds can be in one task."""
    return other not in KINDS[one].excludes and one not in KINDS[other].excludes


HELD_OUT_PAIRS: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            ("title", "bullets"),
            ("lowercase", "keywords"),
            ("start", "paragraphs"),
            ("letter_absent", "sentences"),
            ("placeholders", "no_commas"),
            ("json", "word_frequency"),
            ("uppercase", "end"),
            ("bullet_word", "paragraph_start"),
            ("absent_words", "sections"),
            ("letter_count", "paragraph_sentences"),
        ),
    )
)
"""Kinds that are never together in the train split; every kind is in one pair."""
