"""R3 and ExIt: from which recorded states groups go on, how states are scored, and that both come back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envgym.core.trajectory import Group, StartState
from envgym.core.tree import Tree
from envgym.errors import RunError
from envgym.trainer.methods.curricula.ex_it import ExIt, variance
from envgym.trainer.methods.curricula.r3 import R3, states_of
from envgym.trainer.methods.curricula.uniform import Uniform
from envgym.trainer.methods.protocols import EnvSupply, StepOutcome, TaskRequest
from tests.support.credit_trees import chain, group_of
from tests.support.graded import choose

SUPPLIES = [EnvSupply("a", 1.0, 10)]


def requests(curriculum: Any, step: int = 0, groups: int = 200) -> list[TaskRequest]:
    return choose(curriculum, step, groups=groups, supplies=SUPPLIES)


def show(curriculum: Any, *groups: Group, starts: Sequence[StartState | None] = ()) -> dict[str, float]:
    asked = [TaskRequest("a", number, 2, start=starts[number] if starts else None) for number in range(len(groups))]
    found: dict[str, float] = curriculum.observe(StepOutcome(step=1, requests=asked, groups=groups))
    return found


def four_turns(name: str, last: float) -> Tree:
    return chain(name, [0.0, 0.0, 0.0, last])


def test_before_a_success_r3_is_uniform() -> None:
    curriculum = R3()
    assert requests(curriculum) == requests(Uniform())
    show(curriculum, group_of(four_turns("t", 0.0)))
    assert requests(curriculum) == requests(Uniform())


def test_mixed_groups_begin_at_every_state_alike() -> None:
    curriculum = R3()
    metrics = show(curriculum, group_of(four_turns("t0", 0.0)), group_of(four_turns("t1", 1.0)))
    assert metrics == {"demonstrated_tasks": 1}
    asked = requests(curriculum, groups=400)
    assert {request.index for request in asked} == {1}
    nodes = [request.start.node if request.start else 0 for request in asked]
    assert all(70 < nodes.count(node) < 130 for node in range(4))  # 0 .. 3 turns done, not all 4
    assert all(request.metadata["demonstrated_turns"] == node for request, node in zip(asked, nodes, strict=True))


def test_staged_groups_slide_from_the_end_to_the_beginning() -> None:
    curriculum = R3(form="staged", stages=4, stage_steps=10)
    show(curriculum, group_of(four_turns("t", 1.0)))
    turns = [
        [request.metadata["demonstrated_turns"] for request in requests(curriculum, step, 2)]
        for step in (0, 9, 10, 20, 30, 99)
    ]
    assert turns == [[3, 3], [3, 3], [2, 2], [1, 1], [0, 0], [0, 0]]


def test_share_of_demonstrations() -> None:
    curriculum = R3(share=0.25)
    show(curriculum, group_of(four_turns("t", 1.0)))
    taken = sum("demonstrated_turns" in request.metadata for request in requests(curriculum, groups=400))
    assert 70 < taken < 130


def test_first_success_of_a_task_stays_its_demonstration() -> None:
    curriculum = R3(form="staged")
    show(curriculum, group_of(four_turns("first", 1.0)))
    show(curriculum, group_of(four_turns("second", 1.0)))
    (request,) = requests(curriculum, groups=1)
    assert request.start is not None
    assert request.start.tree.id == "first"


def test_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        requests(R3(run=str(tmp_path / "none")))


def test_published_score_and_probabilities() -> None:
    # 2 of 8 solved: p (1 - p) = .25 * .75 = .1875
    assert variance([1, 1, 0, 0, 0, 0, 0, 0]) == pytest.approx(0.1875)
    curriculum = ExIt()
    half, quarter, none = [1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0]
    for number, rewards in enumerate((half, quarter, none)):
        trees = [chain(f"t{number}{place}", [0.0, reward]) for place, reward in enumerate(rewards)]
        show(curriculum, group_of(*reversed(trees)))
    assert curriculum.probabilities() == pytest.approx([0.367889, 0.345599, 0.286512], abs=1e-6)


def test_states_of_an_unsolved_episode_are_kept_with_the_groups_score() -> None:
    curriculum = ExIt(least=3)
    metrics = show(curriculum, group_of(four_turns("won", 1.0), four_turns("lost", 0.0)))
    assert metrics == {"states": 3.0, "mean_score": 0.25}
    asked = [request for request in requests(curriculum) if request.start is not None]
    assert {(request.start.tree.id, request.start.node) for request in asked if request.start} == {
        ("lost", node) for node in (1, 2, 3)
    }
    assert 60 < len(asked) < 140  # half of 200
    assert requests(ExIt(least=4)) == requests(Uniform())


def test_states_of_solved_groups_score_0() -> None:
    curriculum = ExIt()
    assert show(curriculum, group_of(four_turns("t", 1.0), four_turns("u", 1.0))) == {"states": 3.0, "mean_score": 0.0}


def test_group_from_a_state_scores_that_state_and_leaves_only_new_ones() -> None:
    curriculum = ExIt(capacity=20)
    tree = four_turns("t", 0.0)
    show(curriculum, group_of(tree, four_turns("u", 0.0)))
    start = StartState(tree=tree, node=2)
    further = group_of(four_turns("v", 0.0), four_turns("w", 1.0))
    metrics = show(curriculum, further, starts=[start])
    # of t: 0, .25 (the state itself) and 0; of v: the state after the third turn, with .25
    assert metrics == {"states": 4.0, "mean_score": 0.125}


def test_least_scores_leave_first_and_of_them_the_oldest() -> None:
    curriculum = ExIt(capacity=4, least=1, kappa=0.0, probability=1.0)
    show(curriculum, group_of(four_turns("old", 0.0), four_turns("old2", 0.0)))
    show(curriculum, group_of(four_turns("new", 0.0), four_turns("new2", 1.0)))
    kept = {(request.start.tree.id, request.start.node) for request in requests(curriculum) if request.start}
    assert kept == {("old", 3), ("new", 1), ("new", 2), ("new", 3)}


@pytest.mark.parametrize("build", [R3, lambda: ExIt(least=1)])
def test_state_comes_back(build: Any, tmp_path: Path) -> None:
    before, after = build(), build()
    show(before, group_of(four_turns("t", 1.0), four_turns("u", 0.0)))
    before.save(tmp_path)
    after.load(tmp_path)
    assert requests(after) == requests(before) != requests(Uniform())


def test_states_lie_between_turns() -> None:
    (episode,) = group_of(four_turns("t", 1.0)).trajectories
    assert [len(state.turns) for state in states_of(episode)] == [1, 2, 3]
