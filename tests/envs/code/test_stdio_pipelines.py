"""Problems composed of steps: the hidden tests kill every mutant, and those declared equivalent are."""

from dataclasses import replace
from typing import Any

import pytest

from envgym.envs.code import _stdio_pipelines
from envgym.envs.code._stdio_pipelines import pipelines
from envgym.envs.code._stdio_problems import NUM_PUBLIC, StdioProblem, draft_of
from envgym.errors import EnvFailure
from envgym.seeds import generator


def test_hidden_tests_of_300_pipelines_kill_every_mutant() -> None:
    problems = list(pipelines())
    assert len(problems) == 300
    for problem in problems:
        tests: Any = draft_of(problem).payload["tests"]
        hidden = [(test["input"].removesuffix("\n"), test["output"]) for test in tests[NUM_PUBLIC:]]
        assert all(problem.solve(text) == output for text, output in hidden)
        for name, program in problem.mutants.items():
            assert any(program(text) != output for text, output in hidden), (problem.name, name)


def test_each_pipeline_has_a_mutant_for_every_step_and_for_an_input_read_short() -> None:
    misses = {problem.name: set(problem.mutants) for problem in pipelines()}
    assert misses["numbers_rising_square_sum"] == {
        "without the first", "without the last", "without rising", "without square", "square first",
        "rising: equal too", "rising: first too", "rising: larger than all before", "square: twice",
        "rising: only the first", "rising: not the first", "rising: not the last", "square: only the first",
        "square: not the first", "square: not the last", "sum: of different ones", "sum: nothing if none",
        "the count is a value",
    }  # fmt: skip
    assert "square first" not in misses["numbers_even_square_sum"]  # a number is even where its square is
    assert all("without same" not in names for names in misses.values())


def test_every_clause_of_a_problem_applies_to_one_of_its_tests() -> None:
    """What happens where there is no value is asked for only where it occurs, and then one test has none."""
    for problem in pipelines():
        asks_for_none = "if there are none" in problem.statement or ", or none" in problem.statement
        kills = [name for name in problem.mutants if "if none" in name]
        can_be_empty = not any(word in problem.name for word in ("_places_", "words_distinct_"))
        assert asks_for_none == bool(kills) or problem.name.startswith("grid"), problem.name
        assert not asks_for_none or can_be_empty, problem.name
    statements = {problem.name: problem.statement for problem in pipelines()}
    assert statements["numbers_places_same_sum"].endswith("of them. Print their sum.")
    assert statements["numbers_positive_digits_sum"].endswith("decimal digits. Print their sum (0 if there are none).")
    assert statements["words_distinct_upper_common"].endswith("the alphabetically first of several.")


def test_mutants_declared_equivalent_are_right_on_every_input_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {problem.name: set(problem.mutants) for problem in pipelines()}
    for table in ("_IDLE", "_EXCHANGEABLE", "_EQUIVALENT"):
        monkeypatch.setattr(_stdio_pipelines, table, {})
    num_idle = num_right = 0
    for problem in pipelines():
        if problem.name not in kept:  # one of its steps never matters
            assert any(name.startswith("without ") for name in _right_on_60_inputs(problem)), problem.name
            num_idle += 1
        elif declared := set(problem.mutants) - kept[problem.name]:
            assert declared <= _right_on_60_inputs(problem), problem.name
            num_right += len(declared)
    assert (num_idle, num_right) == (55, 190)


def _right_on_60_inputs(problem: StdioProblem) -> set[str]:
    """Return the mutants that give the right output for all inputs drawn."""
    rng = generator("declared", problem.name)
    inputs = [problem.draw(rng) for _ in range(60)]
    expected = [problem.solve(text) for text in inputs]
    return {name for name, program in problem.mutants.items() if [program(text) for text in inputs] == expected}


def test_a_mutant_that_no_input_kills_is_refused_after_a_bounded_number_of_draws() -> None:
    problem = next(pipelines())
    with pytest.raises(EnvFailure) as caught:
        draft_of(replace(problem, mutants={"the same": problem.solve}))
    assert str(caught.value) == (
        "mutants must fail one of 8 hidden tests, got the same (problem numbers_even_same_sum); "
        "declare them equivalent, or draw inputs that kill them."
    )
    many = {f"only {number}": _differs_on_sum(problem, number) for number in range(9)}
    with pytest.raises(EnvFailure, match="must fail one of 8 hidden tests, got "):
        draft_of(replace(problem, mutants=many))


def _differs_on_sum(problem: StdioProblem, digit: int) -> Any:
    return lambda text: "" if problem.solve(text)[-1] == str(digit) else problem.solve(text)
