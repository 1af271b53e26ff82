"""Word problems: every plan can be told with every theme, and asks for what it tells."""

import re

import numpy as np
import pytest

from envgym.envs.math import _stories
from envgym.envs.math._expressions import canonical, evaluate, num_operations, write
from envgym.envs.math._stories import THEMES, draw_story


@pytest.mark.parametrize("level", range(1, 6))
def test_story_asks_for_as_many_operations_as_its_level(level: int) -> None:
    rng = np.random.default_rng(level)
    for _ in range(300):
        story = draw_story(rng, level, 2)
        value = evaluate(story.expression)
        assert num_operations(story.expression) == level
        assert value.denominator == 1
        assert value > 0


def test_numbers_of_the_story_are_the_numbers_of_the_expression() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        story = draw_story(rng, 4, 2)
        numbers = sorted(map(int, re.findall(r"\d+", story.text)))
        # "each of the 4 get" names the divisor again.
        assert set(numbers) == set(map(int, re.findall(r"\d+", write(story.expression))))


def test_every_story_ends_in_a_question_and_begins_with_its_theme() -> None:
    rng = np.random.default_rng(1)
    shapes = set()
    for _ in range(1000):
        story = draw_story(rng, 3, 2)
        assert story.text.endswith("?")
        assert story.text[0].isupper() or story.text[0].isdigit()
        assert "{" not in story.text
        shapes.add(re.sub(r"\d+", "#", story.text))
    assert len(shapes) > 300


def test_there_are_at_least_twelve_themes_and_each_tells_every_event() -> None:
    assert len(THEMES) >= 12
    for theme in THEMES:
        wanted = {"start": "n", "gain": "n", "lose": "n", "ask": "", "times": "k", "share": "k"}
        assert theme.keys() == {*wanted, "packs", "gain_packs", "lose_packs"}
        for kind, text in theme.items():
            parts = set(re.findall(r"\{(\w+)\}", text)) - {"name"}
            assert parts == set(wanted.get(kind, "nk")), (kind, text)
            assert text[-1] == ("?" if kind in ("ask", "times", "share") else ".")


def test_one_problem_told_with_two_themes_is_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for theme in THEMES[:2]:
        monkeypatch.setattr(_stories, "THEMES", (theme,))
        told.append(draw_story(np.random.default_rng(5), 3, 2))
    assert told[0].text != told[1].text
    assert canonical(told[0].expression) == canonical(told[1].expression)
