"""Tasks in other words: those of `uniform`, each asked for in every way, and what is no other wording."""

from dataclasses import replace

import pytest

from envgym.trainer.methods.curricula.reworded import Reworded
from envgym.trainer.methods.curricula.uniform import Uniform
from tests.support.graded import choose

WORDS = {"xml": "<task>{task}</task>", "prose": "You are asked this: {task}"}


def test_tasks_are_those_of_uniform_in_every_other_wording() -> None:
    expected = [replace(request, prompts=WORDS) for request in choose(Uniform(), 3)]
    assert choose(Reworded(prompts=WORDS), 3) == expected
    assert all(request.hint is None for request in expected)


@pytest.mark.parametrize("words", ["Think first.", "{task}"])
def test_words_without_the_task_and_its_own_alone_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"prompt xml must hold \{task\}, and other words than it, got"):
        Reworded(prompts={"xml": words})
    with pytest.raises(ValueError, match="at least 1 item"):
        Reworded(prompts={})
