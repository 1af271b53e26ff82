"""Write a program that reads standard input and writes standard output, in any language: `code/stdio-v0`.

Source: Agnostics, arXiv 2508.04865: one verifier for all languages, a short file for each.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from envgym.authoring import ListTasks, TaskDraft
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task, TaskSource
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.code._answers import read_program
from envgym.envs.code._languages import Language
from envgym.envs.code._languages import language as find_language
from envgym.envs.code._stdio_classics import classics
from envgym.envs.code._stdio_outputs import bare_output, same_output
from envgym.envs.code._stdio_pipelines import pipelines
from envgym.envs.code._stdio_problems import NUM_PUBLIC, draft_of
from envgym.envs.code._stdio_rows import ProblemFiles
from envgym.envs.families import LEVELS, levels_of
from envgym.errors import EnvFailure, InvalidInput, ToolInfraFailure
from envgym.records import Reply
from envgym.sandbox import MIB, Limits, RunEnding, has_program, make_sandbox

MAX_ATTEMPTS = 10
_WHERE = "code/stdio-v0"
_GUEST_SCRIPT = Path(__file__).with_name("_stdio_guest.py")
_WALL_FACTOR = 4.0
_COMPILE_S = 20.0
_SHOWN = 500
_EXAMPLE_SHOWN = 2000
_MAX_HEAD = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioCase:
    """One test."""

    input: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramGrade:
    """How a program did on all tests."""

    passed: tuple[bool, ...]
    feedback: str = ""
    """What the agent may know: why it does not compile, the first example that fails."""


class _EndedProcess(NamedTuple):
    code: str
    """Of its exit; "time" where it took too long."""
    out: str
    err: str


class Stdio(Env[int]):
    """Each message with a program is an attempt; the state counts them."""

    blocking = True

    def __init__(
        self,
        *,
        language: str = "python",
        levels: int | Sequence[int] = LEVELS,
        attempts: int = 1,
        partial: bool = False,
        cpu_s: float = 2.0,
        source: str | None = None,
        sandbox: str = "bwrap",
        unsafe: bool = False,
        max_turns: int | None = 12,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the problems and the rules.

        Args:
            language: Name of a file in `envs/code/languages`: bash, c, cpp, javascript, python, sql.
            levels: Of the shipped problems: 1, 2, 3 or several.
            attempts: 1 to 10. After a wrong one the agent sees the first example that fails.
            partial: Pay the share of tests that pass, instead of 1 for all.
            cpu_s: CPU seconds for one test.
            source: Other problems: a JSONL or Parquet file, a directory or hub name of `datasets`, with the columns
                `prompt` and `tests`, a list of {"input", "output"}, or in the form of APPS, TACO, DeepCoder,
                LiveCodeBench or CodeContests; the first two tests are shown. Rows that cannot be run are left out.
            sandbox: Where programs run: bwrap, or local.
            unsafe: Must be written out for local.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range. UnknownName: no such language.
        """
        super().__init__(max_turns=max_turns, **options)
        must, do = f"be 1 to {MAX_ATTEMPTS}", "pass e.g. attempts=3"
        InvalidInput.unless(1 <= attempts <= MAX_ATTEMPTS, "attempts", must, attempts, where=_WHERE, do=do)
        task_levels = levels_of(levels, where=_WHERE)
        self.language_name, self.language = language, find_language(language)
        self.attempts, self.is_partial, self.cpu_s = attempts, partial, cpu_s
        self.sandbox = make_sandbox(sandbox, unsafe=unsafe)
        self.system_prompt = (
            f"Write a program in {self.language.title} that reads standard input and writes standard output. "
            f"Answer with one code block that holds the whole program. {self.language.note}"
        ).strip()
        self.tasks: TaskSource = _shipped(task_levels) if source is None else ProblemFiles(source)
        self.chance_score = max(_best_constant(self.tasks, split, partial) for split in Split)

    def begin(self, task: Task) -> str:
        self.state = 0
        examples = [
            f"Example input:\n{_shown(case.input)}\nExample output:\n{_shown(case.output)}"
            for case in _read_cases(task)[:NUM_PUBLIC]
        ]
        return "\n\n".join([task.prompt, *examples])

    def respond(self, action: Action) -> Reply:
        self.state += 1
        is_last = self.state >= self.attempts
        program = read_program(action.content, self.language_name, self.language)
        if program is None:
            return Reply(observation="There is no code block in it.", terminated=is_last)
        outcome = self._run(program, _read_cases(self.task))
        share = sum(outcome.passed) / len(outcome.passed)
        if share == 1.0:
            reward = Scored(value=1.0, components={"passed": 1.0})
            return Reply(observation="All tests pass.", reward=reward, terminated=True)
        if not is_last:
            return Reply(observation=f"{outcome.feedback}\nAttempts left: {self.attempts - self.state}.")
        reward = Scored(value=share if self.is_partial else 0.0, components={"passed": share})
        return Reply(observation=outcome.feedback, reward=reward, terminated=True)

    def _run(self, program: str, cases: Sequence[StdioCase]) -> ProgramGrade:
        """Compile a program and run it on all inputs in one sandbox, which knows no output that is expected."""
        language, wall_s = self.language, _WALL_FACTOR * self.cpu_s
        job = {
            "compile": language.compile,
            "compile_s": _COMPILE_S * _WALL_FACTOR,
            "run": language.run,
            "file": language.file,
            "seconds": wall_s,
            "num_inputs": len(cases),
            "stops": not self.is_partial,
        }
        files = {name: content.encode() for name, content in language.files.items()}
        files |= {f"input.{number}": case.input.encode() for number, case in enumerate(cases)}
        files[language.file] = program.encode(errors="replace")
        limits = Limits(
            wall_s=wall_s * len(cases) + _COMPILE_S * _WALL_FACTOR,
            cpu_s=self.cpu_s * len(cases) + _COMPILE_S,
            memory=512 * MIB,
            output=2 * MIB,
        )
        _check_installed(language)
        script = _GUEST_SCRIPT.read_text(encoding="utf-8")
        done = self.sandbox.run(["python3", "-I", "-S", "-c", script, repr(job)], b"", files, limits)
        nothing = (False,) * len(cases)
        if done.ending is not RunEnding.EXITED:
            return ProgramGrade(passed=nothing, feedback=f"The program was stopped by a limit: {done.ending.value}.")
        grade = _grade_program(done.stdout, cases, is_compiled=language.compile is not None)
        return grade or ProgramGrade(passed=nothing, feedback="The program broke what runs it.")

    def oracle(self) -> str:
        """Give a program that looks the outputs up."""
        cases = [{"input": case.input, "output": case.output.rstrip("\n")} for case in _read_cases(self.task)]
        return f"```\n{self.language.program_of(cases)}\n```"

    fork_state = share_state


def _grade_program(reply: bytes, cases: Sequence[StdioCase], *, is_compiled: bool) -> ProgramGrade | None:
    """Compare outputs; None where what came is not what our script writes: the program has got at it."""
    try:
        ran = _read_processes(reply, is_compiled + len(cases))
    except (ValueError, OverflowError):
        return None
    if is_compiled and ran and ran[0].code != "0":
        feedback = f"It does not compile.\n{ran[0].err[:_SHOWN]}"
        return ProgramGrade(passed=(False,) * len(cases), feedback=feedback)
    runs = ran[is_compiled:]
    if not runs:
        return None
    passed = [run.code == "0" and same_output(run.out, case.output) for run, case in zip(runs, cases, strict=False)]
    passed += [False] * (len(cases) - len(passed))
    return ProgramGrade(passed=tuple(passed), feedback=_describe_failure(runs, cases, passed))


def _read_processes(reply: bytes, number: int) -> list[_EndedProcess]:
    """Read at most `number` processes as `_stdio_guest` writes them. Raises: ValueError, OverflowError: it has not."""
    stream = io.BytesIO(reply)
    ended: list[_EndedProcess] = []
    while len(ended) < number and (head := stream.readline(_MAX_HEAD)):
        code, out, err = head.decode().split()
        streams = [stream.read(int(size)).decode(errors="replace") for size in (out, err)]
        ended.append(_EndedProcess(code, *streams))
    return ended


def _describe_failure(runs: Sequence[_EndedProcess], cases: Sequence[StdioCase], passed: Sequence[bool]) -> str:
    """Say what the agent may know: all about the examples, nothing about the other tests but that one fails."""
    for (code, out, err), case, is_right in zip(runs, cases[:NUM_PUBLIC], passed, strict=False):
        if is_right:
            continue
        ends = {"0": "The output is wrong.", "time": "It takes too long."}
        return (
            f"An example fails. {ends.get(code, f'It ends with code {code}.')}\n"
            f"Input:\n{_shown(case.input)}\nOutput:\n{out[:_SHOWN].rstrip()}\n"
            f"{err[:_SHOWN].rstrip()}\nExpected:\n{_shown(case.output)}"
        )
    return "The examples are right, but another test fails."


def _shown(text: str) -> str:
    text = text.rstrip()
    left_out = len(text) - _EXAMPLE_SHOWN
    return text if left_out <= 0 else f"{text[:_EXAMPLE_SHOWN]}\n... ({left_out} characters left out)"


def _check_installed(language: Language) -> None:
    """Raise ToolInfraFailure where the sandbox lacks a program: a missing compiler is not the policy's fault."""
    for name in language.needs:
        if not has_program(name):
            do = "install it where the sandbox looks, below /usr"
            raise ToolInfraFailure.of(f"program for {language.title}", "be installed", name, where=_WHERE, do=do)


def _read_cases(task: Task) -> list[StdioCase]:
    try:
        cases = [StdioCase(input=str(test["input"]), output=str(test["output"])) for test in task.payload["tests"]]  # type: ignore[index, call-overload, union-attr]  # checked here
    except (KeyError, TypeError, IndexError):
        cases = []
    if not cases:
        got, do = "none", 'write a list of {"input", "output"}'
        raise EnvFailure.of("tests", "be inputs with outputs", got, where=f"task {task.id}", do=do)
    return cases


@lru_cache(maxsize=32)
def _best_constant(tasks: TaskSource, split: Split, partial: bool) -> float:
    earned: defaultdict[str, float] = defaultdict(float)
    num_tasks = tasks.size(split) or 0
    for index in range(num_tasks):
        cases = _read_cases(tasks.task(split, index))
        for output, count in Counter(bare_output(case.output) for case in cases).items():
            if partial or count == len(cases):
                earned[output] += count / len(cases)
    return max(earned.values(), default=0.0) / max(1, num_tasks)


@cache
def _drafts() -> tuple[TaskDraft, ...]:
    return tuple(draft_of(problem) for problem in (*pipelines(), *classics()))


@lru_cache(maxsize=16)
def _shipped(levels: tuple[int, ...]) -> ListTasks:
    """Return the problems that ship with envgym; their tests are drawn once."""
    return ListTasks([draft for draft in _drafts() if draft.metadata["level"] in levels])
