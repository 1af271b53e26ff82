"""`puzzles/reasoning_gym-v0`: the scorers' verdicts, attempts, refusals; what a scorer cannot do to this process."""

import json
import random
from pathlib import Path

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task, distinct_tasks
from envgym.core.turns import Ending
from envgym.env import NoOracle
from envgym.envs.puzzles import _reasoning_client as client
from envgym.envs.puzzles._reasoning_client import ItemGenerator, dataset_names
from envgym.envs.puzzles.reasoning_gym import (
    CHANCE,
    CHANCE_PARTIAL,
    MEASURED,
    NUM_ITEMS,
    WITHOUT_SOLUTION,
    ReasoningGym,
    extract,
)
from envgym.errors import EnvFailure, InvalidInput
from envgym.seeds import generator
from envgym.stats import estimate_mean, estimate_success
from envgym.verifiers.processes import WorkerPool
from tests.envs.episodes import conformance, play_actions

pytest.importorskip("reasoning_gym")


TestReasoningGym = conformance("puzzles/reasoning_gym-v0")
# A yes/no data set with three attempts: a coin wins often, and the declaration says how often.
TestReasoningGymAttempts = conformance("puzzles/reasoning_gym-v0", num_tasks=8, dataset="course_schedule", attempts=3)


def source(dataset: str, **config: int) -> ItemGenerator:
    return ItemGenerator(dataset=dataset, config=json.dumps({"seed": 0, "size": NUM_ITEMS, **config}))


@pytest.mark.parametrize("dataset, count", [("leg_counting", 200), ("graph_color", 40), ("countdown", 5)])
@pytest.mark.parametrize("split", Split)
def test_oracle_solves_the_tasks_of_each_split(dataset: str, count: int, split: Split) -> None:
    env = ReasoningGym(dataset=dataset)
    tasks = list(distinct_tasks(env.tasks, split, count))
    assert [play(env, oracle_of(env), seed=0, task=task).reward for task in tasks] == [1.0] * count


def test_wrong_and_hedged_answers_pay_nothing() -> None:
    env = ReasoningGym()
    for task in distinct_tasks(env.tasks, Split.TEST, 20):
        right = str(task.payload["answer"])
        assert play_actions(env, task, f"<answer>{right}</answer>").reward == 1.0
        assert play_actions(env, task, f"Counting legs ... so <answer> {right} </answer>.").reward == 1.0
        wrong = str(int(right) + 1)
        for text in (
            wrong,
            "",
            f"{right} {wrong}",
            f"{wrong}\n{right}",
            f"<answer>{wrong}</answer>{right}",
            task.prompt,
        ):
            assert play_actions(env, task, text).reward == 0.0, text
        assert play_actions(env, task, f"<answer>{wrong}</answer> <answer>{right}</answer>").reward == 0.0


@pytest.mark.parametrize(
    "text, expected",
    [
        (" 12 ", "12"),
        ("so <answer> 12 </answer> it is", "12"),
        ("<answer>1 2\n3 4</answer>", "1 2\n3 4"),
        ("<answer>5</answer> and again <answer>5</answer>", "5"),
        ("<answer>5</answer> or <answer>6</answer>", None),
        ("<answer> not closed", "<answer> not closed"),
        ("<answer>draft <answer>7</answer>", "7"),
        ("", ""),
    ],
)
def test_answer_is_what_stands_between_tags_or_everything(text: str, expected: str | None) -> None:
    assert extract(text) == expected


def test_each_further_attempt_halves_the_reward() -> None:
    env = ReasoningGym(attempts=3, discount=0.5)
    task = env.tasks.task(Split.TRAIN, 0)
    right = str(task.payload["answer"])
    assert [play_actions(env, task, *["no"] * late, right).reward for late in range(3)] == [1.0, 0.5, 0.25]
    episode = play_actions(env, task, "no", "no", "no")
    assert [turn.observation for turn in episode.turns] == [
        "That is not right. Attempts left: 2.",
        "That is not right. Attempts left: 1.",
        "",
    ]
    assert (episode.ending, episode.reward) == (Ending.TERMINATED, 0.0)


@pytest.mark.parametrize(
    "dataset", ["string_insertion", "pool_matrix", "rotate_matrix", "string_manipulation", "binary_matrix"]
)
def test_the_last_part_of_a_question_is_never_its_answer(dataset: str) -> None:
    env = ReasoningGym(dataset=dataset, partial_credit=True)
    tasks = list(distinct_tasks(env.tasks, Split.TRAIN, 20))
    for task in tasks:
        parts = {task.prompt.rpartition(end)[2].strip() for end in ("\n\n", "\n", ": ", ":\n")}
        assert task.payload["answer"] not in parts
        assert all(play_actions(env, task, part).reward < 1.0 for part in parts)


def test_settings_that_make_no_problem_are_a_fault_of_the_env() -> None:
    env = ReasoningGym(dataset="rotate_matrix", config={"min_rotations": 4, "max_rotations": 4, "size": 20})
    with pytest.raises(
        EnvFailure, match=r"settings must make an item with an answer .* its question does not end with"
    ):
        env.tasks.task(Split.TRAIN, 0)


def test_only_the_right_truth_value_says_whether_a_game_of_life_halts() -> None:
    env = ReasoningGym(dataset="game_of_life_halting")
    for task in distinct_tasks(env.tasks, Split.TRAIN, 6):
        right = str(task.payload["answer"])
        other = "False" if right == "True" else "True"
        assert play_actions(env, task, f"It is <answer> {right.lower()}. </answer>").reward == 1.0
        for text in (other, "", "xxxx", "\ud800", "0", "1", "True or False", "None", f"not {right}"):
            assert play_actions(env, task, text).reward == 0.0, text


def test_partial_credit_pays_what_the_scorer_gives() -> None:
    # prime_factorization of a number: the right product of factors that are not prime scores in between.
    task = next(task for task in distinct_tasks(ReasoningGym(dataset="prime_factorization").tasks, Split.TRAIN, 1))
    number = 1
    for factor in str(task.payload["answer"]).split(" \u00d7 "):
        number *= int(factor)
    full = source("prime_factorization").score(int(str(task.metadata["index"])), f"{number}").score
    assert 0.0 < full < 1.0
    paid = play_actions(ReasoningGym(dataset="prime_factorization", partial_credit=True), task, f"{number}").reward
    assert paid == full
    assert play_actions(ReasoningGym(dataset="prime_factorization"), task, f"{number}").reward == 0.0


def test_same_index_is_the_same_task_in_another_process() -> None:
    # ransom_note and knight_swap iterate over sets of strings, list_functions draws from the global generator.
    before = {name: source(name).item(11) for name in ("ransom_note", "list_functions", "pool_matrix", "word_ladder")}
    state = random.getstate()
    client._pool().close()
    assert {name: source(name).item(11) for name in before} == before
    assert random.getstate() == state


def test_adjacent_seeds_share_items_but_not_tasks_across_the_split() -> None:
    first, second = (ReasoningGym(dataset="chain_sum", config={"seed": seed, "size": 100}) for seed in (0, 1))
    assert source("chain_sum", seed=0).item(1) == source("chain_sum", seed=1).item(0)
    train = {first.tasks.task(Split.TRAIN, index).key for index in range(100)}
    test = {second.tasks.task(Split.TEST, index).key for index in range(30)}
    assert not train & test


@pytest.mark.parametrize("dataset", ["string_insertion", "n_queens", "countdown", "simple_integration", "puzzle24"])
def test_no_answer_is_executed(dataset: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    attack = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for answer in (
        attack,
        f"[{attack}]",
        f"({attack},)[0]",
        f"S({attack!r})",
        f"sympify({attack!r})",
        f"24 + 0*{attack}",
    ):
        assert source(dataset).score(3, answer).score < 1.0
    assert not mark.exists()


def test_an_unevaluated_integral_is_no_answer() -> None:
    # Some items of this generator carry one as their own answer; they are passed over.
    verdict = source("simple_integration").score(0, "Integral(x, x) + C")
    assert verdict.score == 0.0
    env = ReasoningGym(dataset="intermediate_integration")
    assert "Integral" not in str([env.tasks.task(Split.TRAIN, index).payload["answer"] for index in range(12)])


def test_nan_is_no_number() -> None:
    assert source("complex_arithmetic").score(0, "nan").score == 1.0  # the scorer's own mistake
    env = ReasoningGym(dataset="complex_arithmetic")
    task = env.tasks.task(Split.TRAIN, 0)
    for text in ("nan", "NaN + nanj", "-nan", "nanj"):
        assert play_actions(env, task, text).reward == 0.0
    assert play_actions(env, task, str(task.payload["answer"])).reward == 1.0


def test_an_answer_that_the_scorer_cannot_read_scores_0_and_says_why() -> None:
    verdict = source("prime_factorization").score(0, "two and three")
    assert verdict.score == 0.0
    assert verdict.reason.startswith("the scorer cannot read this answer: ValueError")


def test_a_scorer_that_fails_on_its_own_answer_makes_the_turn_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ReasoningGym()
    task = env.tasks.task(Split.TRAIN, 0)
    broken = Task(
        id=task.id,
        prompt=task.prompt,
        payload=task.payload,
        split=task.split,
        metadata={**task.metadata, "config": json.dumps({"min_animals": -1})},
    )
    env.reset(options={"task": broken})
    record = env.step("12").info["envgym"]
    assert record.ending is Ending.ERROR_ENV
    assert "min_animals must be positive" in record.error


def test_an_answer_that_keeps_the_scorer_busy_scores_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SCORE_CPU_SECONDS", 1)
    verdict = source("countdown").score(0, "((((9**999)**999)**999)**999)")
    assert (verdict.score, verdict.reason) == (0.0, "the scorer needed more than 1 s for this answer")
    assert source("countdown").score(0, str(source("countdown").item(0).solution)).score == 1.0


def test_data_set_without_a_known_solution_has_no_oracle() -> None:
    env = ReasoningGym(dataset="rush_hour")
    env.reset(seed=0)
    with pytest.raises(NoOracle, match="oracle must know an answer, got none"):
        env.oracle()


@pytest.mark.parametrize(
    "kwargs, said",
    [
        ({"dataset": "leg_count"}, "did you mean leg_counting"),
        ({"config": {"min_animal": 2}}, "did you mean min_animals"),
        ({"config": {"min_animals": -2}}, "min_animals must be positive"),
        ({"config": {"min_animals": {1, 2}}}, "config must be JSON"),
        ({"attempts": 0}, "attempts must be at least 1, got 0"),
        ({"discount": 1.5}, "discount must lie in [0, 1], got 1.5"),
    ],
)
def test_bad_settings_are_refused_with_one_sentence(kwargs: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        envgym.make("puzzles/reasoning_gym-v0", **kwargs)
    assert said in str(caught.value)


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'envgym\[puzzles\]'"):
        envgym.make("puzzles/reasoning_gym-v0")


def test_task_of_another_env_is_refused() -> None:
    env = ReasoningGym()
    stranger = envgym.make("math/arithmetic-v0").unwrapped.tasks.task(Split.TRAIN, 0)
    with pytest.raises(InvalidInput, match="take the task from this environment"):
        env.reset(options={"task": stranger})


def test_a_generator_that_does_not_answer_is_a_failure_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAKE_SECONDS", 0.05)
    with pytest.raises(EnvFailure, match=r"reasoning-gym: no answer after 0.05 s"):
        source("acre").item(0)  # makes 20,000 items at once, in seconds


def test_a_process_that_cannot_start_is_no_fault_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("envgym.no_such_module", 1)
    monkeypatch.setattr(client, "_pool", lambda: pool)
    with pytest.raises(EnvFailure, match=r"^helper process must start, got exit code 1 \("):
        source("leg_counting").check()


def test_facts_name_generators_that_exist() -> None:
    names = dataset_names()
    assert len(names) == 105
    assert "composite" not in names
    assert set(WITHOUT_SOLUTION) <= set(CHANCE) == set(CHANCE_PARTIAL) == set(names)
    for row in (*MEASURED["full"].values(), *MEASURED["partial"].values()):
        assert 0.0 <= row["low"] <= row["mean"] <= row["high"] <= 1.0
        assert row["num_items"] >= 20


@pytest.mark.parametrize(
    "dataset, kind",
    [
        ("leg_counting", "full"),
        ("course_schedule", "full"),
        ("gcd", "full"),
        ("count_bits", "full"),
        ("rectangle_count", "partial"),
        ("time_intervals", "partial"),
    ],
)
def test_declared_chance_lies_in_the_interval_of_a_fresh_measurement(dataset: str, kind: str) -> None:
    env = ReasoningGym(dataset=dataset, partial_credit=kind == "partial")
    answer = MEASURED[kind][dataset]["answer"]
    tasks = distinct_tasks(env.tasks, Split.TEST, 40)
    paid = [play_actions(env, task, f"<answer>{answer}</answer>").reward for task in tasks]
    by_task = {str(at): [reward] for at, reward in enumerate(paid)}
    estimate = estimate_success(by_task) if kind == "full" else estimate_mean(by_task, rng=generator("chance"))
    measured = estimate.interval
    assert measured.low <= env.chance_score <= measured.high


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_generator_gives_items_that_its_scorer_accepts() -> None:
    for dataset in dataset_names():
        env = ReasoningGym(dataset=dataset)
        task = env.tasks.task(Split.TRAIN, 0)
        env.reset(options={"task": task})
        if dataset in WITHOUT_SOLUTION:
            assert task.payload["answer"] is None
        else:
            assert env.step(env.oracle()).reward == 1.0, dataset
