"""`puzzles/knights_knaves-v0`: the statements fit one assignment alone, and a wrong claim ends the game."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.conformance.env_under_test import ObservedEpisode, oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._statements import (
    Statement,
    canonical_statements,
    consistent_assignments,
    draw_statement,
    is_true,
    words,
)
from envgym.envs.puzzles.knights_knaves import KnightsKnaves
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

TestKnightsKnaves = conformance("puzzles/knights_knaves-v0", num_tasks=6)
TestKnightsKnavesPaidByTurn = conformance("puzzles/knights_knaves-v0", num_tasks=2, persons=5, turn_reward=True)


ISLAND = Task(
    id="t",
    prompt="Ada: ...",
    payload={"statements": [], "kinds": ["knight", "knave", "knight", "knave"]},
    split=Split.TRAIN,
    metadata={"names": ["Ada", "Ben", "Cleo", "Dan"]},
)


def say(env: KnightsKnaves, *claims: str) -> ObservedEpisode:
    return play_actions(env, ISLAND, *claims)


def test_hand_played_island_pays_right_claims_and_the_last_one_the_rest() -> None:
    env = KnightsKnaves(turn_reward=True)
    # Each of 4 right claims is worth 0.5 / 4; two in the second turn; the last pays 1 - 3 x 0.125.
    episode = say(
        env, "Ben is a knave.", "Ada: knight, and Cleo is a knight", "ben knave", "<answer>DAN = knave</answer>"
    )
    assert [turn.observation for turn in episode.turns] == [
        "Right so far. Left: Ada, Cleo, Dan.",
        "Right so far. Left: Dan.",
        "Right so far. Left: Dan.",
        "Correct.",
    ]
    assert rewards_of(episode) == pytest.approx([0.125, 0.25, 0.0, 0.625])
    assert episode.ending is Ending.TERMINATED


def test_a_wrong_claim_ends_the_game_with_what_was_right_before_it() -> None:
    env = KnightsKnaves(turn_reward=True)
    episode = say(env, "Ada is a knight, Ben is a knight, Cleo is a knight, Dan is a knave")
    assert (episode.turns[0].observation, episode.ending) == ("Wrong: Ben is not a knight.", Ending.TERMINATED)
    assert episode.reward == pytest.approx(0.125)
    assert say(KnightsKnaves(), "Ada is a knight, Ben is a knave, Cleo is a knight, Dan is a knight").reward == 0.0


def test_claiming_both_ends_the_game() -> None:
    names = ("Ada", "Ben", "Cleo", "Dan")
    both = ", ".join(f"{name} is a {kind}" for name in names for kind in ("knight", "knave"))
    assert say(KnightsKnaves(), both).reward == 0.0


@pytest.mark.parametrize("claims", ["", "Ada", "Ada is a liar", "Eve is a knight", "knight Ada", "Ada is not a knight"])
def test_what_is_no_claim_is_answered(claims: str) -> None:
    episode = say(KnightsKnaves(), claims)
    told = "Say NAME is a knight, or NAME is a knave. Left: Ada, Ben, Cleo, Dan."
    assert (episode.turns[0].observation, episode.ending) == (told, None)


def test_a_known_island_has_one_assignment() -> None:
    # 0: "1 is a knave."  1: "0 and 2 are the same kind."  2: "Exactly 1 of us is a knight."
    # If 0 is a knight, 1 lies, so 2 is a knave, and exactly one is a knight: true, but 2 lies. So 0 is a knave, 1 a
    # knight, and 2 a knave as 0 is, but says what is true. No assignment; with "Exactly 2 of us" both are assignments.
    statements: list[Statement] = [("is", 1, 0), ("same", 0, 2), ("exactly", 1)]
    assert consistent_assignments(statements) == []
    assert consistent_assignments([*statements[:2], ("exactly", 2)]) == [(0, 1, 0), (1, 0, 0)]
    assert [words(statement, ("Ada", "Ben", "Cleo")) for statement in statements] == [
        "Ben is a knave.",
        "Ada and Cleo are of the same kind.",
        "Exactly 1 of us is a knight.",
    ]


@pytest.mark.parametrize(
    "statement, truths",
    [
        (("or", 0, 1, 1, 1), (False, True, True, True)),
        (("and", 0, 1, 1, 0), (False, False, True, False)),
        (("if", 0, 1, 1, 1), (True, True, False, True)),
        (("different", 0, 1), (False, True, True, False)),
        (("exactly", 2), (False, False, False, True)),
    ],
)
def test_truth_of_every_form(statement: tuple[str, *tuple[int, ...]], truths: tuple[bool, ...]) -> None:
    assert tuple(is_true(statement, assignment) for assignment in ((0, 0), (0, 1), (1, 0), (1, 1))) == truths


@pytest.mark.parametrize("persons", [3, 4, 5])
def test_every_task_has_one_assignment_and_the_oracle_names_it(persons: int) -> None:
    env = KnightsKnaves(persons=persons)
    for index in range(10):
        task = env.tasks.task(Split.TEST, index)
        found: Any = task.payload["statements"]  # JSON, checked by what follows
        statements = [tuple(item) for item in found]
        (assignment,) = consistent_assignments(statements)
        assert [("knave", "knight")[kind] for kind in assignment] == task.payload["kinds"]
        assert play(env, oracle_of(env), seed=0, task=task).reward == 1.0


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.permutations(range(4)))
def test_other_names_and_another_order_are_the_same_task(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    statements = [draw_statement(rng, 4, speaker) for speaker in range(4)]
    place = {person: index for index, person in enumerate(order)}

    def renamed(form: str, *parts: int) -> tuple[str, *tuple[int, ...]]:
        if form == "exactly":
            return (form, *parts)
        if form in ("same", "different"):
            return (form, *(place[part] for part in parts))
        return (form, *(place[part] if index % 2 == 0 else part for index, part in enumerate(parts)))

    others = [renamed(*statements[person]) for person in order]
    assert canonical_statements(others)[0] == canonical_statements(statements)[0]


def test_no_fixed_claims_beat_the_declared_chance() -> None:
    # Kinds are drawn evenly before the statements, so any fixed claims are right for one assignment in eight.
    env = KnightsKnaves()
    counts = dict.fromkeys({tuple(item) for item in permutations(("knight", "knave") * 3, 3)}, 0)
    for index in range(160):
        task = env.tasks.task(Split.TRAIN, index)
        names: Any = task.metadata["names"]  # JSON, a list of texts
        kinds: Any = task.payload["kinds"]  # likewise
        counts[tuple(kind for _, kind in sorted(zip(names, kinds, strict=True)))] += 1
    assert env.chance_score == 0.125
    assert max(counts.values()) < 20 + 5 * (160 * 0.125 * 0.875) ** 0.5


def test_fork_goes_its_own_way() -> None:
    _, own = step_after_fork(KnightsKnaves(), ISLAND, "Ada is a knave", "Ada is a knight")
    assert own.observation == "Right so far. Left: Ben, Cleo, Dan."
