"""`code/stdio-v0`: programs in every language read and write, tests stay hidden, and nothing but right output pays."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envgym
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Scored
from envgym.envs.code import _languages, stdio
from envgym.envs.code import _stdio_references as references
from envgym.envs.code._stdio_classics import classics
from envgym.envs.code._stdio_pipelines import pipelines
from envgym.envs.code.stdio import Stdio
from envgym.errors import InvalidInput, UnknownName
from envgym.records import StepRecord
from envgym.sandbox import has_program
from envgym.seeds import generator
from envgym.stats import estimate_mean
from tests.envs.episodes import conformance

TESTS: list[JsonValue] = [
    {"input": f"{a} {b}\n", "output": str(a + b)} for a, b in ((1, 2), (30, 4), (-5, 5), (7, -9), (100, 200))
]
SUM = Task(id="sum", prompt="Print the sum of two integers.", payload={"tests": TESTS}, split=Split.TEST)


# It starts ten times faster than Python.
TestStdio = pytest.mark.slow(conformance("code/stdio-v0", num_tasks=2, language="bash"))


def said(text: str, **settings: Any) -> StepRecord:  # Any: the env's own arguments
    env = Stdio(**settings)
    env.reset(options={"task": SUM})
    record: StepRecord = env.step(text).info["envgym"]
    return record


def block(program: str) -> str:
    return f"This is it:\n```\n{program}\n```\nDone."


PROGRAMS = {
    "python": "print(sum(map(int, input().split())))",
    "javascript": "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ');\nconsole.log(a * 1 + b * 1);",
    "bash": "read a b; echo $((a + b))",
    "c": '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); }',
    "cpp": "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << std::endl; }",
    "sql": "SELECT substr(line, 1, instr(line, ' ')) + substr(line, instr(line, ' ')) FROM input;",
}


def needs(language: str) -> None:
    missing = [name for name in _languages.language(language).needs if not has_program(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_program_in_each_language_reads_its_input_and_a_wrong_one_fails(language: str) -> None:
    needs(language)
    right = said(block(PROGRAMS[language]), language=language)
    assert right.reward == Scored(value=1.0, components={"passed": 1.0}), right
    wrong = said(block(PROGRAMS[language].replace("sum", "min").replace("+", "-")), language=language)
    assert wrong.reward == Scored(value=0.0, components={"passed": 0.0})


@pytest.mark.parametrize("language", PROGRAMS)
def test_oracle_reaches_1_in_each_language(language: str) -> None:
    needs(language)
    env = Stdio(language=language)
    for index in (0, 7):
        env.reset(options={"split": "test", "index": index})
        assert env.step(env.oracle()).reward == 1.0, (language, env.task.id)


def test_every_language_has_a_program_here() -> None:
    assert set(_languages.names()) == set(PROGRAMS)
    with pytest.raises(UnknownName, match="did you mean python"):
        Stdio(language="pyton")


FORGED = json.dumps({"compiled": None, "runs": [{"code": 0, "stdout": "3", "stderr": ""}] * 5})
TRICKS = {
    "no end": "while True: pass",
    "sleep": "import time; time.sleep(99)",
    "fork bomb": "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "endless output": "while True: print('3')",
    "memory": "x = bytearray(10**10)",
    "exit": "import sys; sys.exit(0)",
    "one answer for all": "print(3)",
    "all answers": "print('3 34 0 -2 300')",
    "forged results": f"import os; open(f'/proc/{{os.getppid()}}/fd/1', 'w').write('''{FORGED}''')",
    "forged results, and the end of what reads them": f"import os, signal\nopen(f'/proc/{{os.getppid()}}/fd/1', 'w')"
    f".write('''{FORGED}''')\nos.kill(os.getppid(), signal.SIGKILL)",
    "the end of what runs it": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "no results": "import os\nfor p in os.listdir('.'): os.remove(p)",
    "other inputs": "open('input.0', 'w').write('1 1')\nprint(2)",
    "a link in place of the output": "import os; os.remove('stdout'); os.symlink('/usr/bin/env', 'stdout')",
    "bytes that are no text": "import os; os.write(1, bytes(range(256)))",
    "no program": "",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_trick_pays_nothing_and_is_a_score(trick: str) -> None:
    record = said(block(TRICKS[trick]), cpu_s=0.2)
    assert isinstance(record.reward, Scored)
    assert record.reward.value == 0.0
    assert (record.ending, record.error) == (Ending.TERMINATED, None)


def test_no_expected_output_is_in_the_sandbox() -> None:
    look = (
        "import glob, os\ntext = ''.join(open(p, errors='replace').read() for p in glob.glob('/tmp/**', recursive=True)"
        " if os.path.isfile(p))\ntext += open(f'/proc/{os.getppid()}/cmdline').read()\n"
        "print(str(3 * 100) in text, '100 200' in text)"
    )
    shown = said(block(look), attempts=2).observation
    assert "Output:\nFalse True\n" in shown


def test_a_failed_attempt_tells_about_examples_only() -> None:
    lines = said(block("a, b = map(int, input().split())\nprint(a + b if b != 4 else 0)"), attempts=2).observation
    assert lines == (
        "An example fails. The output is wrong.\nInput:\n30 4\nOutput:\n0\n\nExpected:\n34\nAttempts left: 1."
    )
    hidden = said(block("a, b = map(int, input().split())\nprint(a + b if a > 0 else 7)"), attempts=2)
    assert hidden.observation == "The examples are right, but another test fails.\nAttempts left: 1."
    assert hidden.ending is None


def test_a_program_that_does_not_compile_is_told_why() -> None:
    needs("c")
    shown = said(block("int main(void) { return x; }"), language="c").observation
    assert shown.startswith("It does not compile.\nmain.c")
    assert "undeclared" in shown


def test_partial_credit_is_the_share_of_tests() -> None:
    program = "a, b = map(int, input().split())\nprint(a + b if a > 1 else 3)"  # -5 + 5 is wrong
    assert said(block(program), partial=True).reward == Scored(value=0.8, components={"passed": 0.8})


@pytest.mark.parametrize("outputs, partial, full", [(("1", "1 \n", "0", "1"), 0.75, 0.0), (("1", "1"), 1.0, 1.0)])
def test_chance_is_what_the_best_constant_output_earns(
    tmp_path: Path, outputs: tuple[str, ...], partial: float, full: float
) -> None:
    tests = [{"input": str(number), "output": output} for number, output in enumerate(outputs)]
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"prompt": "Print it.", "tests": tests}) + "\n", encoding="utf-8")
    assert Stdio(source=str(path), partial=True).chance_score == partial
    assert Stdio(source=str(path)).chance_score == full


def test_declared_chance_is_what_printing_none_earns_with_partial_credit() -> None:
    env = Stdio(language="bash", partial=True)
    assert Stdio().chance_score == 0.0  # no constant passes all tests of a problem
    assert env.chance_score == pytest.approx(6.0 / 76)  # 60 of the 760 tests of the test split
    paid = []
    for index in range(12):
        env.reset(options={"split": "test", "index": index})
        paid.append(env.step(block("echo none")).reward)
    measured = estimate_mean({str(at): [reward] for at, reward in enumerate(paid)}, rng=generator("chance")).interval
    assert measured.low <= env.chance_score <= measured.high


def test_a_missing_compiler_makes_the_reward_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "has_program", lambda name: False)
    record = said(block(PROGRAMS["python"]))
    assert record.ending is Ending.ERROR_TOOL_INFRA
    assert "program for Python must be installed, got python3" in str(record.error)


def test_problems_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({"prompt": "Print the sum.", "tests": TESTS}) + "\n", encoding="utf-8")
    env = Stdio(source=str(path))
    split = next(split.value for split in Split if env.tasks.size(split))
    first = env.reset(options={"split": split, "index": 0}).observation
    assert first.startswith("Print the sum.\n\nExample input:\n1 2\nExample output:\n3\n\nExample input:\n30 4\n")
    assert "100 200" not in first
    assert env.step(block(PROGRAMS["python"])).reward == 1.0


def test_300_problems_and_more_have_ten_tests_that_no_constant_passes() -> None:
    drafts = stdio._drafts()
    assert len(drafts) == len({draft.prompt for draft in drafts}) >= 300
    for draft in drafts:
        tests: Any = draft.payload["tests"]
        assert len(tests) == len({test["input"] for test in tests}) == 10, draft.metadata
        assert len({test["output"] for test in tests}) >= 4, draft.metadata
    shipped = Stdio().tasks
    assert min(shipped.size(split) or 0 for split in Split) > 50


SOLVED = {problem.name: problem for problem in (*pipelines(), *classics())}


@pytest.mark.parametrize(
    "name, text, output",
    [
        ("numbers_even_square_sum", "4\n1 2 -4 3", "20"),  # 4 + 16
        ("numbers_rising_same_sorted", "5\n1 3 2 5 4", "3 5"),
        ("numbers_places_double_alternating", "4\n1 9 3 9", "-4"),  # 3 - 7
        ("words_vowel_reverse_joined", "apple bat egg", "elppa gge"),
        ("words_long_squeeze_letters", "aabb cc dddde", "4"),  # ab, de
        ("words_distinct_same_common", "ba ab ba", "a"),  # ba, ab: two of each letter
        ("grid_turned_printed", "2 3\n1 2 3\n4 5 6", "4 1\n5 2\n6 3"),
        ("grid_summed_columns", "2 2\n1 2\n5 1", "5 6"),  # 1 3 and 5 6
        ("grid_emptied_border", "3 3\n1 2 1\n2 8 2\n1 2 1", "8"),
        ("grid_flipped_corner", "2 2\n1 2\n3 4", "9"),  # rows 3 4 and 1 2: 3 + 4 + 2
        ("circle_2", "5", "3"),  # 2, 4, 1, 5 leave
        ("coins_7", "3", "none"),
        ("base_16", "255", "ff"),
        ("roman", "1994", "MCMXCIV"),
        ("collatz", "6", "8"),  # 3 10 5 16 8 4 2 1
        ("day_of_year", "2024 3 1", "61"),
        ("rotate_3", "4\n1 2 3 4", "4 1 2 3"),
        ("best_run", "5\n-1 4 -1 5 -9", "8"),
        ("rising_length", "5\n3 1 2 5 4", "3"),
        ("caesar_3", "xyz a", "abc d"),
        ("runs", "aab", "a2b1"),
        ("depth", "(()())", "2"),
        ("distance", "abc bd", "2"),
        ("stack", "2 3 + 4 *", "20"),
        ("islands", "2 3\n1 0 1\n0 1 0", "3"),
        ("way", "2 2\n0 1\n0 0", "2"),
        ("diagonals", "2 2\n1 2\n3 4", "5 5"),
    ],
)
def test_references_by_hand(name: str, text: str, output: str) -> None:
    assert SOLVED[name].solve(text) == output


@settings(max_examples=20)
@given(st.integers(1, 5000))
def test_references_agree_with_laws(n: int) -> None:
    assert int(references.in_base(n, 7), 7) == n
    product = 1
    for factor in references.factors(n) if n > 1 else []:
        assert references.is_prime(factor)
        product *= factor
    assert product == n


def test_values_out_of_range_are_refused() -> None:
    refused: list[dict[str, Any]] = [{"attempts": 0}, {"levels": 4}, {"levels": ()}, {"sandbox": "local"}]
    for arguments in refused:  # the env's own
        with pytest.raises(InvalidInput):
            envgym.make("code/stdio-v0", **arguments)


@pytest.mark.parametrize(
    "program",
    [
        "a, b = map(int, input().split())\nprint(a + b)\nexit()",
        "a, b = map(int, input().split())\nprint(a + b)\nquit(0)",
        "if __name__ == '__main__':\n    print(float(sum(map(int, input().split()))))\n    exit(0)",
        "a, b = map(int, input().split())\nprint(a + b + len(str(3**10000)) - 4772 + int('9' * 5000) % 9)",
    ],
)
def test_programs_may_leave_and_use_long_integers_and_print_floats(program: str) -> None:
    assert said(block(program)).reward == Scored(value=1.0, components={"passed": 1.0})


def test_a_program_that_leaves_with_an_error_code_has_failed() -> None:
    assert said(block("a, b = map(int, input().split())\nprint(a + b)\nexit(1)")).reward == Scored(
        value=0.0, components={"passed": 0.0}
    )
