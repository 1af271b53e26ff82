"""`puzzles/twenty_four-v0`: expressions are read exactly, every task can be solved, rules can be held out."""

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending
from envgym.envs.puzzles._expressions import UnreadableExpression, find_solution, read_expression
from envgym.envs.puzzles.twenty_four import NAMES, RULES, TwentyFour
from envgym.errors import InvalidInput, UnknownName
from tests.envs.episodes import conformance, play_actions, rewards_of, step_after_fork

TestTwentyFour = conformance("puzzles/twenty_four-v0", num_tasks=6)
TestTwentyFourWithHeldOutRulesPaidByTurn = conformance(
    "puzzles/twenty_four-v0", num_tasks=2, rules=["standard", "no_division"], test_rules="faces_ten", turn_reward=True
)


def task_of(*numbers: int, operators: str = "+-*/") -> Task:
    payload: JsonObject = {"numbers": list(numbers), "target": 24, "operators": operators}
    return Task(id="t", prompt="Make 24.", payload=payload, split=Split.TRAIN)


def test_hand_played_table_pays_the_form_once_and_the_answer_the_rest() -> None:
    env = TwentyFour(turn_reward=True)
    episode = play_actions(
        env, task_of(3, 3, 8, 8), "3 * 8", "(8 - 3) * (8 - 3)", "<answer>8 / (3 - 8 / 3) = 24</answer>"
    )
    assert [turn.observation for turn in episode.turns] == [
        "Use 3 3 8 8, each once. Attempts left: 2.",
        "That makes 25, not 24. Attempts left: 1.",
        "Correct.",
    ]
    assert rewards_of(episode) == pytest.approx([0.0, 0.1, 0.9])  # 8 / (1/3) = 24 exactly
    assert episode.ending is Ending.TERMINATED


def test_out_of_attempts_ends_the_episode_without_reward() -> None:
    episode = play_actions(TwentyFour(attempts=2), task_of(3, 3, 8, 8), "24", "3 + 3 + 8 + 8")
    assert (episode.turns[-1].observation, episode.reward) == ("No attempts left.", 0.0)
    assert episode.ending is Ending.TERMINATED


def test_an_operator_that_the_rule_forbids_is_refused() -> None:
    episode = play_actions(TwentyFour(), task_of(3, 3, 8, 8, operators="+-*"), "8 / (3 - 8 / 3)")
    assert episode.turns[0].observation == "Use no other operators than + - *. Attempts left: 2."


@pytest.mark.parametrize(
    "words",
    [
        "",
        "twenty-four",
        "3 +",
        "8 ** 3",
        "8 // 3 + 3 + 8",
        "-3 + 3 + 8",
        "3(8)",
        "012 + 1",
        "(3 * 8\n(8 * 3)",
        "(" * 70,
        "3 / (8 - 8)",
    ],
)
def test_what_is_no_expression_costs_no_attempt(words: str) -> None:
    episode = play_actions(TwentyFour(), task_of(3, 3, 8, 8), words)
    assert episode.turns[0].observation.endswith("Attempts left: 3.")
    assert episode.ending is None


@settings(max_examples=30)
@given(
    st.recursive(
        st.integers(0, 13).map(str),
        lambda part: st.tuples(part, st.sampled_from("+-*"), part).map(lambda item: f"({' '.join(item)})"),
        max_leaves=6,
    )
)
def test_reading_agrees_with_python(text: str) -> None:
    value, numbers, _ = read_expression(text)
    assert value == Fraction(eval(text))
    assert sorted(str(number) for number in numbers) == sorted(
        text.replace("(", " ").replace(")", " ").replace("+", " ").replace("-", " ").replace("*", " ").split()
    )


@pytest.mark.parametrize("numbers, is_solvable", [((3, 3, 8, 8), True), ((1, 1, 1, 1), False), ((1, 5, 5, 5), True)])
def test_solver_on_known_hands(numbers: tuple[int, ...], is_solvable: bool) -> None:
    found = {find_solution(order, 24, "+-*/") is not None for order in permutations(numbers)}
    assert found == {is_solvable}
    text = find_solution(numbers, 24, "+-*/")
    assert text is None or read_expression(text)[:2] == (Fraction(24), list(numbers))


def test_division_by_zero_is_unreadable() -> None:
    with pytest.raises(UnreadableExpression, match="divides by zero"):
        read_expression("1 / (2 - 2)")


@pytest.mark.parametrize("rule", RULES)
def test_oracle_solves_every_task_under_every_rule_and_the_cards_have_its_values(rule: str) -> None:
    env = TwentyFour(rules=rule)
    for index in range(5):
        task = env.tasks.task(Split.TRAIN, index)
        assert play(env, oracle_of(env), seed=0, task=task).reward == 1.0
        ranks = [NAMES.index(card) + 1 for card in str(task.metadata["cards"]).split()]
        assert sorted(RULES[rule].value(rank) for rank in ranks) == task.payload["numbers"]
        assert RULES[rule].text in task.prompt


def test_held_out_rules_are_those_of_the_test_split_alone() -> None:
    env = TwentyFour(rules=["standard", "thirty_six"], test_rules=["faces_ten"])
    seen = {split: {env.tasks.task(split, index).metadata["rule"] for index in range(20)} for split in Split}
    assert seen == {Split.TRAIN: {"standard", "thirty_six"}, Split.TEST: {"faces_ten"}}


def test_the_order_of_the_cards_is_not_part_of_the_task() -> None:
    env = TwentyFour()
    tasks = [env.tasks.task(Split.TRAIN, index) for index in range(60)]
    assert all(task.payload["numbers"] == sorted(task.payload["numbers"]) for task in tasks)  # type: ignore[type-var, arg-type]  # numbers
    assert any(str(task.metadata["cards"]).startswith(("J", "Q", "K")) for task in tasks)


def test_fork_goes_its_own_way() -> None:
    twin, own = step_after_fork(TwentyFour(attempts=2), task_of(3, 3, 8, 8), "8 / (3 - 8 / 3)", "3 + 3 + 8 + 8")
    assert twin.reward == 1.0
    assert own.observation == "That makes 22, not 24. Attempts left: 1."


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean standard"):
        envgym.make("puzzles/twenty_four-v0", rules="standart")
    with pytest.raises(InvalidInput, match="rules must name at least one"):
        envgym.make("puzzles/twenty_four-v0", rules=[])
    with pytest.raises(InvalidInput, match="attempts must be a whole number from 1 to 10, got 0"):
        envgym.make("puzzles/twenty_four-v0", attempts=0)
