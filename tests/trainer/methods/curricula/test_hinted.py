"""Hints that are withdrawn, and sub-goals that are no longer told."""

from pathlib import Path

import pytest

from envgym.errors import InvalidInput, SettingsError
from envgym.trainer.methods.curricula.hinted import Hinted
from envgym.trainer.methods.curricula.sub_goals import SubGoals
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import EnvSupply
from tests.support.graded import choose, graded_supply, observe

SUPPLY = graded_supply()


def num_hinted(curriculum: Hinted, step: int, groups: int = 400) -> int:
    return sum(request.hint is not None for request in choose(curriculum, step, groups=groups))


def test_share_of_hints_falls_to_none() -> None:
    curriculum = Hinted(share=0.8, until=100)
    assert [curriculum.share_at(step) for step in (0, 50, 100, 200)] == pytest.approx([0.8, 0.4, 0.0, 0.0])
    assert abs(num_hinted(curriculum, 0) - 320) < 40
    assert abs(num_hinted(curriculum, 50) - 160) < 40
    assert choose(curriculum, 100) == choose(Uniform(), 100)
    assert num_hinted(Hinted(until=0), 0) == 0


def test_hint_is_the_tasks_own_and_tasks_without_are_asked_as_they_are() -> None:
    for request in choose(Hinted()):
        assert request.hint == SUPPLY.task(request.index).metadata["hint"]
    assert choose(Hinted(key="clue")) == choose(Uniform())
    with pytest.raises(InvalidInput, match=r"metadata difficulty must be a text, got \d+"):
        choose(Hinted(key="difficulty"))


def test_context_with_the_hint_is_kept_also_when_it_is_withdrawn() -> None:
    for request in choose(Hinted(until=10, keep_as="skill"), 10):
        assert request.hint is None
        assert request.prompts == {"skill": SUPPLY.task(request.index).metadata["hint"]}


def test_ever_more_sub_goals_are_left_to_be_solved() -> None:
    curriculum = SubGoals(window=2)
    for request in choose(curriculum):
        parts = SUPPLY.task(request.index).metadata["sub_goals"]
        assert isinstance(parts, list)
        assert request.hint in parts
        assert request.metadata == {"asked": 1, "parts": 2}
    assert {str(request.hint)[0] for request in choose(curriculum, groups=20)} == {"a", "b"}
    requests = choose(curriculum, groups=2)
    assert observe(curriculum, requests, [1.0, 1.0], [0.0, 0.6]) == {"asked/graded": 1.0}  # (1 + .3) / 2 = .65
    assert observe(curriculum, requests[:1], [1.0, 0.5]) == {"asked/graded": 1.0}  # (.3 + .75) / 2
    assert observe(curriculum, requests[:1], [1.0, 1.0]) == {"asked/graded": 2.0}  # (.75 + 1) / 2
    assert choose(curriculum, 1) == choose(Uniform(), 1)


def test_groups_that_were_asked_for_fewer_parts_do_not_count_for_the_next_level() -> None:
    curriculum = SubGoals(window=1)
    requests = choose(curriculum, groups=2)
    assert observe(curriculum, requests, [1.0], [1.0]) == {"asked/graded": 2.0}


def test_state_comes_back(tmp_path: Path) -> None:
    before, after = SubGoals(window=2), SubGoals(window=2)
    observe(before, choose(before, groups=3), [1.0], [1.0], [0.5])
    before.save(tmp_path)
    after.load(tmp_path)
    assert after.state() == before.state()
    assert choose(after, 1) == choose(before, 1)


def test_sub_goals_must_be_texts_and_may_be_missing() -> None:
    with pytest.raises(SettingsError, match="metadata difficulty must be a list of texts"):
        choose(SubGoals(key="difficulty"))
    assert choose(SubGoals(key="parts")) == choose(Uniform())
    assert isinstance(SUPPLY, EnvSupply)
