"""`math/z3-v0`: facts that follow are accepted, others are not, and no goal is proved at once."""

import importlib.util

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.core.turns import Invalid
from envgym.envs.math import solver
from envgym.envs.math._solver_formulas import MAX_NUMBER, FormulaRefused, read_formula, write_smt
from envgym.envs.math._solver_statements import FAMILIES
from envgym.envs.math.solver import SolverFacts
from envgym.errors import InvalidInput
from envgym.verifiers.processes import Worker, WorkerHung, WorkerPool
from tests.envs.episodes import conformance

needs_z3 = pytest.mark.skipif(importlib.util.find_spec("z3") is None, reason="no z3-solver")
NAMES = ("x0", "y0")


TestSolverFacts = needs_z3(conformance("math/z3-v0", num_tasks=2, levels=1))


def started(*premises: str, goal: str, **options: object) -> SolverFacts:
    """Begin an episode with a statement of one's own."""
    env = envgym.make("math/z3-v0", **options).unwrapped
    assert isinstance(env, SolverFacts)
    payload: dict[str, JsonValue] = {"premises": [*premises], "goal": goal}
    task = Task(id="own", prompt=goal, payload=payload, split=Split.TRAIN, metadata={"variables": [*NAMES]})
    env.reset(options={"task": task})
    return env


@needs_z3
@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_facts_lead_to_goals_that_are_not_proved_at_once(family: str, level: int) -> None:
    env = envgym.make("math/z3-v0", families=family, levels=level)
    for split in Split:
        for index in range(2):
            task = env.unwrapped.tasks.task(split, index)
            env.reset(options={"task": task})
            at_once = env.step(str(task.payload["goal"]))
            assert "within its limit" in str(at_once.observation)
            episode = play(env, oracle_of(env), seed=0, task=task)
            assert episode.reward == 1.0
            assert all(turn.observation == "Accepted." for turn in episode.turns[:-1])


@needs_z3
def test_facts_are_kept_and_what_does_not_follow_is_told_with_an_example() -> None:
    env = started("x0 >= 3", "y0 = 2*x0", goal="y0 > 5")
    refused = str(env.step("x0 = 3").observation)
    said, _, value = refused.removesuffix(".").rpartition(" = ")
    assert said == "Not accepted: it does not follow, as with x0"
    assert int(value) > 3
    assert env.step("y0 >= 6").observation == "Accepted."
    fork = env.fork()
    assert fork.state is env.state
    result = fork.step("y0 > 5")
    assert (result.observation, result.reward, result.terminated) == ("The goal is proved.", 1.0, True)
    assert result.info["envgym"].reward.components == {"proved": 1.0, "facts": 1.0, "failed_facts": 0.0}
    assert len(env.state.facts) == 1


@needs_z3
def test_a_solver_that_dies_makes_the_reward_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: Worker, timeout_s: float) -> None:
        self.close()
        raise WorkerHung("no answer")

    env = started("x0 >= 3", goal="x0 > 1")
    monkeypatch.setattr(solver, "_POOL", WorkerPool("envgym.envs.math._solver_worker", 1))
    env.step("x0 > 0")
    monkeypatch.setattr(Worker, "receive", die)
    result = env.step("x0 > 1")
    assert isinstance(result.info["envgym"].reward, Invalid)
    assert result.truncated


def test_formulas_are_read_by_precedence() -> None:
    text = "not x0 = 1 and y0 - 2*x0 < -3 or x0 != y0 -> x0 >= 1 -> y0 <= 2"
    smt = "(=> (or (and (not (= x0 1)) (< (- y0 (* 2 x0)) (- 3))) (distinct x0 y0)) (=> (>= x0 1) (<= y0 2)))"
    assert write_smt(read_formula(text, NAMES)) == smt
    assert write_smt(read_formula("x0 - y0 - 1 = -(x0 + 1)*3", NAMES)) == "(= (- (- x0 y0) 1) (* (* (- 1) (+ x0 1)) 3))"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is missing before the end"),
        ("x0", "this is a number"),
        ("x0 * y0 = 1", "a product must have a number as a factor"),
        ("x0 < y0 < 3", "comparisons cannot be chained"),
        ("x0 = 1 + (y0 = 2)", "\\+ stands between numbers"),
        ("x0 and y0 = 1", "and stands between statements"),
        ("x1 = 1", "x1 is no variable of the statement"),
        ("(x0 = 1", "a parenthesis is not closed"),
        ("x0 = 1)", "the formula ends before \\)"),
        (f"x0 = {MAX_NUMBER + 1}", "a number is at most"),
        ("(" * 200, "nested more than 20 deep|at most 150"),
        ("x0 = " + "1 + " * 200 + "1", "at most 150 words and signs"),
        ("x0 = 1)) (exit", "exit is no variable"),
        ("x0 = 1; (check-sat)", "cannot be read"),
        ("__import__('os')", "cannot be read"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormulaRefused, match=message):
        read_formula(text, NAMES)


def test_a_missing_wheel_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"z3-solver must be installed.*pip install 'envgym\[proofs\]'"):
        SolverFacts()
