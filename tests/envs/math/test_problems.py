"""Problems with one answer: what is right, what only looks so, other data, Python, several attempts."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import envgym
from envgym.conformance.env_under_test import oracle_of, play
from envgym.core.tasks import Split, Task
from envgym.core.turns import Scored
from envgym.envs.math._judging import WorkedOut
from envgym.envs.math._notation import polynomial, root, times
from envgym.envs.math._problem import FAMILIES
from envgym.envs.math._problem_sets import PRESETS
from envgym.envs.math.problems import Problems
from envgym.errors import InvalidInput, UnknownName
from envgym.parsing import tool_call_action
from envgym.sandbox import BwrapSandbox, why_unusable
from envgym.verifiers.math import Math
from envgym.wrappers import TryAgain
from tests.envs.episodes import conformance

needs_sandbox = pytest.mark.skipif((_why := why_unusable(BwrapSandbox())) is not None, reason=str(_why))


TestProblems = conformance("math/problems-v0", num_tasks=6)
# One family, a second attempt, and Python.
TestProblemsWithPython = pytest.mark.slow(
    needs_sandbox(conformance("math/problems-v0", num_tasks=2, tools="python", attempts=2, families="roots"))
)


def task_of(answer: str) -> Task:
    return Task(id="train/0", prompt="?", payload={"question": "?", "answer": answer}, split=Split.TRAIN)


def score(answer: str, key: str) -> float:
    return WorkedOut(math=Math(worked_out=True))(answer, task_of(key)).score


def test_oracle_is_right_on_all_2100_shipped_problems() -> None:
    env = Problems()
    tasks = [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]
    assert len(tasks) == 2100
    assert {play(env, oracle_of(env), seed=0, task=task).reward for task in tasks} == {1.0}
    assert 0.15 < (env.tasks.size(Split.TEST) or 0) / 2100 < 0.25


@pytest.mark.parametrize(
    "key, said",
    [
        ("-\\frac{7}{4}", "\\boxed{-\\frac{7}{4}}"),
        ("-\\frac{7}{4}", "\\boxed{\\frac{-7}{4}}"),
        ("-\\frac{7}{4}", "So it is $-1.75$."),
        ("-\\frac{7}{4}", "<answer>x = -7/4</answer>"),
        ("1480", "#### 1,480 dollars"),
        ("1480", "The theater earns \\boxed{1480 \\text{ dollars}}."),
        ("(-3, 5)", "\\boxed{(x, y) = (-3, 5)}"),
        ("\\{-9, 2\\}", "\\boxed{2, -9}"),
        ("(-\\infty, \\frac{19}{7})", "\\boxed{\\left(-\\infty, \\frac{19}{7}\\right)}"),
        ("480\\pi", "\\boxed{480 \\pi \\text{ cm}^2}"),
        ("(12x^2 + 5x - 28) e^{3x}", "\\boxed{f'(x) = e^{3x}(12x^2 + 5x - 28)}"),
        ("3 \\ln(\\frac{13}{6})", "\\boxed{3\\ln 13 - 3\\ln 6}"),
        ("\\begin{pmatrix}19&-86\\\\-79&8\\end{pmatrix}", "\\boxed{\\begin{bmatrix}19&-86\\\\-79&8\\end{bmatrix}}"),
    ],
)
def test_right_answers_pay_in_many_forms(key: str, said: str) -> None:
    assert score(said, key) == 1.0


@pytest.mark.parametrize(
    "key, said",
    [
        ("84", ""),
        ("84", "\\boxed{}"),
        ("84", "\\boxed{12 \\cdot 7}"),  # not worked out
        ("84", "\\boxed{12 * 7}"),
        ("84", "\\boxed{2 = 84}"),
        ("84", "\\boxed{83} or \\boxed{84}"),
        ("84", ", ".join(map(str, range(100)))),
        ("84", f"\\boxed{{{', '.join(map(str, range(100)))}}}"),
        ("84", "The answer is in the range from 0 to 100."),
        ("84", "\\boxed{[0, 100]}"),
        ("84", "\\boxed{0 < x < 100}"),
        ("84", "\\boxed{\\{83, 84\\}}"),
        ("84", "\\boxed{84!}"),
        ("24", "\\boxed{4!}"),
        ("24", "4!"),
        ("\\frac{7}{4}", "\\boxed{-\\frac{7}{4}}"),
        ("5", "\\boxed{- 5}"),
        ("\\frac{8}{3}", "\\boxed{\\int_0^2 x^2 dx}"),
        ("3x^2", "\\boxed{\\frac{d}{dx} x^3}"),
        ("3x^2", "\\boxed{(x^3)'}"),
        ("(3, -2)", "\\boxed{\\{-2, 3\\}}"),  # a set has no order
        ("(3, -2)", "\\boxed{(-2, 3)}"),
        ("[2, 10]", "\\boxed{(2, 10)}"),
        ("[2, 10]", "\\boxed{(-\\infty, \\infty)}"),
        ("\\begin{pmatrix}7&0\\\\0&7\\end{pmatrix}", "\\boxed{7\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}"
         "\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}}"),
        ("84", "9" * 5000),
    ],
)  # fmt: skip
def test_what_only_looks_like_an_answer_pays_nothing(key: str, said: str) -> None:
    assert score(said, key) == 0.0


NUMBERS = {
    "\\frac{1}{2}": (
        "1/2",
        "0.5",
        ".5",
        "\\dfrac{1}{2}",
        "\\frac12",
        "\\frac 1 2",
        "\\left(\\frac{1}{2}\\right)",
        "\\frac{2}{4}",
    ),
    "50": ("50\\%", "50\\,\\%", "50%", "\\$50", "50^\\circ", "50.0", "50 \\text{ km/h}", "x = 50"),
    "1000": ("1{,}000", "1,000", "1\\,000", "\\$1{,}000.00", "1 \\times 10^3", "1.0 \\cdot 10^{3}"),
    "-\\frac{7}{4}": ("-1.75", "-7/4", "-1\\frac{3}{4}", "\\frac{-7}{4}", "\\left(-\\frac{7}{4}\\right)"),
    "(\\frac{1}{2}, 1000)": ("(0.5, 1{,}000)", "(1/2, 1\\,000)", "(x, y) = (\\frac12, 1000)"),
}


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_pay_in_every_form_in_which_they_are_written(key: str) -> None:
    assert {said: score(f"\\boxed{{{said}}}", key) for said in NUMBERS[key]} == dict.fromkeys(NUMBERS[key], 1.0)


def test_with_take_last_a_corrected_answer_is_right_and_a_cut_off_one_is_none() -> None:
    for take, corrected in (("last", 1.0), ("only", 0.0)):
        env = envgym.make("math/problems-v0", take=take)
        env.reset(seed=0)
        right = env.oracle()
        assert env.step(f"\\boxed{{-1}}. No, it is {right}").reward == corrected
        env.reset(seed=0)
        assert env.step(f"{right}. No, it is \\boxed{{").reward == 0.0
    with pytest.raises(UnknownName, match="take must be a known name"):
        envgym.make("math/problems-v0", take="first")


def test_sentence_with_one_number_pays_and_a_sum_of_unknowns_does_not() -> None:
    for said in ("It is 12.", "The well-known answer is 12 km/h.", "12 - a fine number"):
        assert score(said, "12") == 1.0, said
    for said in ("12 + x - x", "x - x + 12", "12 - y + y", "y*0 + 12", "x + 12 - x"):
        assert score(said, "12") == score(f"\\boxed{{{said}}}", "12") == 0.0, said


def test_no_key_of_any_family_accepts_its_value_with_an_operation_left() -> None:
    env = Problems(count=2)
    tasks = [env.tasks.task(split, index) for split in Split for index in range(env.tasks.size(split) or 0)]
    for task in tasks:
        key = str(task.payload["answer"])
        undone = re.sub(r"(?<![\d.^_])\d+", lambda number: f"({int(number[0]) - 1} + 1)", key, count=1)
        if undone != key:
            assert env.grade(f"\\boxed{{{undone}}}", task).score == 0.0, undone


def test_an_expression_that_does_not_end_is_wrong_within_its_limit() -> None:
    judge = WorkedOut(math=Math(cpu_s=1, worked_out=True))
    verdict = judge("\\boxed{(x+y+z+u+v+w+1)^{999}}", task_of("x^2 + 1"))
    assert verdict.score == 0.0
    assert judge("\\boxed{1 + x^2}", task_of("x^2 + 1")).score == 1.0


@needs_sandbox
def test_python_computes_keeps_its_variables_and_forks() -> None:
    env = Problems(tools="python")
    task = env.tasks.task(Split.TRAIN, 3)
    env.reset(options={"task": task})
    env.step(tool_call_action("python", code="n = 41"))
    twin = env.fork()
    assert twin.step(tool_call_action("python", code="n = 0\nn")).observation.strip() == "0"
    assert env.step(tool_call_action("python", code="n + 1")).observation.strip() == "42"
    printed = tool_call_action("python", code=f"print(r'\\boxed{{{task.payload['answer']}}}')")
    assert env.step(printed).reward == 0.0  # printing is not answering
    assert env.step("```python\nprint('the answer')\n```").reward == 0.0
    assert twin.step(twin.oracle()).reward == 1.0
    for done in (env, twin):
        done.close()


@needs_sandbox
def test_the_line_of_work_of_every_kind_gives_the_answer_in_the_sandbox() -> None:
    env = Problems(tools="python", count=1, levels=(1, 3))
    for split in Split:
        for index in range(env.tasks.size(split) or 0):
            episode = play(env, oracle_of(env), seed=0, task=env.tasks.task(split, index))
            assert "Error" not in episode.turns[0].observation, episode
            assert (len(episode.turns), episode.reward) == (2, 1.0)
    env.close()


def test_a_wrong_answer_may_be_tried_again_and_is_told_nothing_more() -> None:
    env = Problems(attempts=3)
    env.reset(seed=1)
    assert env.step("\\boxed{-123456}").observation == "That is not right. Try again. Attempts left: 2."
    assert env.step(env.oracle()).reward == 1.0
    wrapped = TryAgain(envgym.make("math/problems-v0"), attempts=2, discount=0.5)
    wrapped.reset(seed=1)
    assert not wrapped.step("\\boxed{-123456}").terminated
    assert wrapped.step(wrapped.unwrapped.oracle()).reward == 0.5


def test_held_out_families_are_the_test_split() -> None:
    env = Problems(held_out=("roots", "matrices"), count=2)
    sides = {
        split: {env.tasks.task(split, index).metadata["family"] for index in range(env.tasks.size(split) or 0)}
        for split in Split
    }
    assert sides[Split.TEST] == {"roots", "matrices"}
    assert sides[Split.TRAIN] == set(FAMILIES) - sides[Split.TEST]


def test_more_problems_begin_with_the_same_ones() -> None:
    few, many = (Problems(families="roots", levels=1, count=count) for count in (3, 9))
    keys = [
        {env.tasks.task(split, index).key for split in Split for index in range(env.tasks.size(split) or 0)}
        for env in (few, many)
    ]
    assert [len(found) for found in keys] == [3, 9]
    assert keys[0] < keys[1]


def test_data_sets_are_read_by_their_presets(tmp_path: Path) -> None:
    rows: dict[str, dict[str, str | float | None]] = {
        "gsm8k": {"question": "How many?", "answer": "3 * 400 = <<3*400=1200>>1200.\n#### 1,200"},
        "math": {"problem": "Solve.", "solution": "First \\boxed{x}, so \\boxed{\\frac{1}{2}}.", "level": "Level 3"},
        "aime24": {"problem": "Find it.", "answer": "033", "year": "2024"},
        "plain": {"prompt": "Half?", "answer": 0.5},
    }
    keys = {"gsm8k": "1,200", "math": "\\frac{1}{2}", "aime24": "033", "plain": "0.5"}
    said = {"gsm8k": "1200", "math": "\\boxed{0.5}", "aime24": "33", "plain": "1/2"}
    for preset, row in rows.items():
        path = tmp_path / f"{preset}.jsonl"
        path.write_text(json.dumps(row) + "\n" + json.dumps({**row, list(row)[1]: None}) + "\n")
        env = Problems(data={"test": str(path)}, preset=preset)
        assert env.tasks.size(Split.TEST) == 1  # a row without an answer is left out
        task = env.tasks.task(Split.TEST, 0)
        assert task.payload["answer"] == keys[preset]
        env.reset(options={"task": task})
        assert env.step(said[preset]).info["envgym"].reward == Scored(value=1.0, components={"answer": 1.0})
    assert PRESETS["gsm8k"].hub == "openai/gsm8k"


@pytest.mark.parametrize(
    "preset, answer, reason",
    [
        ("plain", None, "no answer"),
        ("plain", "", "no answer"),
        ("plain", " \n", "no answer"),
        ("plain", True, "no answer"),
        ("gsm8k", "1,200", "no answer after ####"),
        ("math", "So it is 5.", r"no answer in \boxed{}"),
    ],
)
def test_rows_without_an_answer_are_counted_in_the_log_and_a_file_of_nothing_else_is_refused(
    preset: str, answer: str | bool | None, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    column, usual = {"math": ("solution", "\\boxed{5}"), "gsm8k": ("answer", "#### 5")}.get(preset, ("answer", "5"))
    path = tmp_path / "rows.jsonl"
    blank = [{"question": f"{n}?", column: answer} for n in range(3)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [*blank, {"question": "5?", column: usual}]))
    tasks = Problems(data=str(path), preset=preset).tasks
    assert sum(tasks.size(split) or 0 for split in Split) == 1
    assert f"3 of 4 rows of {path} are left out: {reason} (3)." in caplog.text
    path = tmp_path / "hidden.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in blank))
    refusal = f"rows must have an answer, got {reason} (3) (none of 3 rows of {path} is left); "
    with pytest.raises(InvalidInput, match=f"^{re.escape(refusal)}"):
        Problems(data=str(path), preset=preset)


def test_bad_settings_and_rows_are_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task": "?", "answer": "1"}\n')
    with pytest.raises(InvalidInput, match="must have a column question or problem or prompt, got answer, task"):
        Problems(data=str(path))
    for kwargs, said in (({"attempts": 0}, "attempts must be 1 to 10"), ({"levels": 4}, "levels must be 1, 2 or 3")):
        with pytest.raises(InvalidInput, match=said):
            envgym.make("math/problems-v0", **kwargs)
    for name, value in (("families", "root"), ("preset", "gsm"), ("tools", "pyton"), ("held_out", "age")):
        with pytest.raises(UnknownName):
            envgym.make("math/problems-v0", **{name: value})
    with pytest.raises(InvalidInput, match="leave some to train on"):
        Problems(families="ages", held_out="ages")


def test_how_numbers_are_written() -> None:
    assert [root(n) for n in (25, 7, 12, 1)] == ["5", "\\sqrt{7}", "2\\sqrt{3}", "1"]
    assert [times(n, "\\pi") for n in (3, 1, -1, 0)] == ["3\\pi", "\\pi", "-\\pi", "0"]
    assert polynomial((2, 0, -1, 5)) == "2x^3 - x + 5"
    assert polynomial((-1, 1, 0)) == "-x^2 + x"


def test_the_judge_reads_a_task_that_is_told_otherwise_alike() -> None:
    task = task_of("84")
    assert WorkedOut(math=Math(worked_out=True))("84", replace(task, prompt="What?")).score == 1.0
