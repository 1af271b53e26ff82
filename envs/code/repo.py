"""Fix and extend small repositories with shell and edit tools, graded by hidden tests: `code/repo-v0`.

Source of the guidance: Agent-RLVR, arXiv 2506.11425: attempts that fail are made again with hints.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from envgym.core.json_types import well_formed
from envgym.core.messages import GUIDE, Action, Message, Observation, Role
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env
from envgym.envs.code._repo_grading import RepoGrade, grade
from envgym.envs.code._repo_lines import count_lines, find_lines, read_lines
from envgym.envs.code._repo_patch import Hunk, read_patch
from envgym.envs.code._repo_tasks import RepoTask, checkout, read_repo_task, shipped_tasks
from envgym.envs.families import LEVELS, levels_of
from envgym.errors import InvalidInput, ToolError
from envgym.parsing import tool_call_action
from envgym.records import Reply
from envgym.sandbox import MIB, BwrapSandbox, Limits, RunEnding
from envgym.sandbox.shell import ShellResult, ShellSession
from envgym.tools import tool

KINDS = ("bug", "feature")
MAX_ATTEMPTS = 10
MAX_GUIDANCE = 3
MAX_VIEW = 400
"""Lines shown at once."""
MAX_HITS = 100
MAX_COMMAND_S = 600.0
"""Seconds of all commands of an episode."""
_WHERE = "code/repo-v0"
_LIMITS = Limits(wall_s=40.0, cpu_s=10.0, output=65536, disk=16 * MIB)
_SHOWN = 4000
"""Characters of an output's beginning, and as many of its end."""
_RUN_TESTS = "python3 -m unittest discover -s tests -t ."
_SECONDS = re.compile(r"(Ran \d+ tests?) in [0-9.]+s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoState:
    """An episode so far; commands and edits change what is in the shell."""

    shell: ShellSession
    repair: RepoTask
    num_attempts: int = 0
    seconds: float = 0.0
    """That commands have taken."""


class Repositories(Env[RepoState]):
    """Any number of tool calls; a message without one hands the work in, and hidden tests grade it."""

    system_prompt = (
        "You are a software engineer in a small repository. Look around, change the source so that the issue is "
        "settled, and run the tests. The tests that count are hidden; only Python files of the package are graded. When"
        " you are done, say so in a message without a tool call."
    )
    blocking = True

    def __init__(
        self,
        *,
        kinds: str | Sequence[str] = KINDS,
        levels: int | Sequence[int] = LEVELS,
        attempts: int = 1,
        guidance: int = 0,
        coached: bool = False,
        max_turns: int | None = 40,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the tasks and the help.

        Args:
            kinds: bug, feature, or both.
            levels: 1, 2, 3 or several: from a line to several places.
            attempts: 1 to 10: how often work may be handed in.
            guidance: 0 to 3 hints given with the issue: a plan, where to look, what to change.
            coached: Give a hint after each failed attempt: the guide's words where there is a party `guide`, else the
                next hint of the task. They are a guide's words in the context, of origin INJECTED, and do not train.
            max_turns: Turns until the episode is cut, which pays nothing.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range.
        """
        super().__init__(max_turns=max_turns, **options)
        names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        _check("kinds", bool(names) and set(names) <= set(KINDS), "be bug or feature", kinds, "pass e.g. kinds='bug'")
        numbers = levels_of(levels, where=_WHERE)
        _check("attempts", 1 <= attempts <= MAX_ATTEMPTS, f"be 1 to {MAX_ATTEMPTS}", attempts, "pass e.g. attempts=2")
        _check("guidance", 0 <= guidance <= MAX_GUIDANCE, f"be 0 to {MAX_GUIDANCE}", guidance, "pass e.g. guidance=1")
        self.attempts, self.guidance, self.is_coached = attempts, guidance, coached
        self.tasks = shipped_tasks(names, numbers)
        self._sandbox = BwrapSandbox()

    def begin(self, task: Task) -> str:
        repair = read_repo_task(task)
        self.state = RepoState(shell=checkout(repair.repository, repair.patch, _LIMITS).fork(), repair=repair)
        hints = "".join(f"\n\nHint: {hint}" for hint in repair.hints[: self.guidance])
        return f"{task.prompt}{hints}\n\nFiles:\n{_list_files(self.state.shell, '')}"

    # ---- tools -------------------------------------------------------------------------------------------------

    @tool
    def view(self, path: str, first: int = 1, last: int | None = None) -> str:
        """Show a file with line numbers, or list a directory.

        Args:
            path: As in src/main.py; "." is the whole repository.
            first: First line, counted from 1.
            last: Last line; without it, as many as can be shown.
        """
        shell = self.state.shell
        folder = "" if path.strip("./") == "" else f"{path.rstrip('/')}/"
        if not folder or any(name.startswith(folder) for name in shell.files()):
            return _list_files(shell, folder)
        content = shell.read(path)
        num_lines = count_lines(content)
        last = num_lines if last is None else min(last, num_lines)
        if not 1 <= first <= max(last, 1):
            raise ToolError(f"{path} has {num_lines} lines; there is none from {first} to {last}.")
        end = min(last, first - 1 + MAX_VIEW)
        with _refused_unless_text(path):
            lines = [f"{number:>4}  {line}" for number, line in enumerate(read_lines(content, first, end), first)]
        more = [f"({last - end} lines more: view from line {end + 1})"] if end < last else []
        return "\n".join([*lines, *more]) or "(an empty file)"

    @tool
    def search(self, text: str, path: str = ".") -> str:
        """Find a text in all files: plain text, not a pattern.

        Args:
            text: What to find; capital letters count.
            path: Directory or file to look in.
        """
        if not text or "\n" in text:
            raise ToolError("Search for a text that is not empty and has no line break.")
        folder = "" if path.strip("./") == "" else path.rstrip("/")
        shell, query = self.state.shell, text.encode(errors="surrogatepass")
        names = (name for name in _names(shell) if not folder or name == folder or name.startswith(f"{folder}/"))
        matches = (f"{name}:{number}: {line}" for name in names for number, line in find_lines(shell.read(name), query))
        hits = list(islice(matches, MAX_HITS + 1))
        more = ["(more than these: look for a longer text, or in one directory)"] if len(hits) > MAX_HITS else []
        return well_formed("\n".join([*hits[:MAX_HITS], *more])) or f"{text!r} is nowhere in {path}."

    @tool
    def replace(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file by another; it must be there exactly once.

        Args:
            path: The file.
            old: Text as it is in the file, spaces and line breaks included, long enough to be there only once.
            new: What takes its place.
        """
        content = _text(self.state.shell, path)
        count = content.count(old) if old else 0
        if count != 1:
            do = "Take more lines around it." if count > 1 else "Copy it from view, without the line numbers."
            times = f"{count} times" if count else "not"
            raise ToolError(f"The old text is found {times} in {path}; it must be there once. {do}")
        self.state.shell.write(path, content.replace(old, new).encode(errors="replace"))
        line = content[: content.index(old)].count("\n") + 1
        return f"Replaced in {path}, line {line}."

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a whole file: a new one, or in place of what is there.

        Args:
            path: The file.
            text: All of it.
        """
        content = text.encode(errors="replace")
        self.state.shell.write(path, content)
        return f"Wrote {path}, {count_lines(content)} lines."

    @tool
    def run_tests(self) -> str:
        """Run the tests that are in the repository, on a copy of it."""
        copy = self.state.shell.fork()
        copy.cwd = "."
        return _SECONDS.sub(r"\1", self._run(copy, _RUN_TESTS))

    @tool
    def shell(self, command: str) -> str:
        """Run a command with bash in the repository; files and the current directory are kept, variables are not.

        Args:
            command: As in git diff, or python3 -c 'print(1)'.
        """
        return self._run(self.state.shell, command)

    def _run(self, shell: ShellSession, command: str) -> str:
        """Run a command. Raises: ToolError: those before it took too long together."""
        if self.state.seconds >= MAX_COMMAND_S:
            raise ToolError(
                f"Your commands took {MAX_COMMAND_S:g} seconds: there are no more. Edit, or hand the work in."
            )
        result = shell.run(command)
        self.state = replace(self.state, seconds=self.state.seconds + result.seconds)
        return format_result(result)

    # ---- the end -----------------------------------------------------------------------------------------------

    def respond(self, action: Action) -> Reply:
        """Grade what was handed in; where attempts are left, let the work go on."""
        shell, repair = self.state.shell, self.state.repair
        self.state = replace(self.state, num_attempts=self.state.num_attempts + 1)
        result = grade(repair, {path: shell.read(path) for path in shell.files()}, self._sandbox)
        left = self.attempts - self.state.num_attempts
        if result.is_passed or left <= 0:
            return Reply(observation=result.reason, reward=_reward(result), terminated=True)
        text = f"{result.reason} Attempts left: {left}."
        return Reply(observation=self._coached(text) if self.is_coached else text)

    def _coached(self, text: str) -> Observation:
        """Add a hint; all of it is the guide's."""
        guide, hints = self.parties.get("guide"), self.state.repair.hints
        if guide is not None:
            prompt = f"{self.task.prompt}\n\nWork was handed in and failed. {text}\n\nGive a hint, not the solution."
            hint = guide.reply([Message(role=Role.USER, content=prompt)]).content
        else:
            hint = hints[min(self.guidance + self.state.num_attempts, len(hints)) - 1]
        whole = f"{text}\n\nHint: {hint}"
        return Observation(whole, [Message(role=Role.USER, content=whole, name=GUIDE)])

    def oracle(self) -> str:
        """Look at the file, make the reference's edits one by one, run the tests, and hand the work in."""
        shell, repair = self.state.shell, self.state.repair
        hunks = read_patch(repair.patch)
        if self._turn == 0:
            return tool_call_action("view", path=hunks[0].path)
        for path in dict.fromkeys(hunk.path for hunk in hunks):
            now = shell.read(path).decode(errors="replace") if path in shell.files() else ""
            if now != repair.goal[path]:
                return _next_edit(repair, hunks, path, now)
        has_run = self._last.messages[-1].name == "run_tests" if self._last.messages else False
        return "The issue is settled." if has_run else tool_call_action("run_tests")

    def fork_state(self) -> RepoState:
        """Fork the shell; the rest is immutable."""
        return replace(self.state, shell=self.state.shell.fork())


def _next_edit(repair: RepoTask, hunks: Sequence[Hunk], path: str, now: str) -> Action:
    text = repair.files[path]
    for hunk in (hunk for hunk in hunks if hunk.path == path):
        old, new = "".join(hunk.old), "".join(hunk.new)
        if now == text and text.count(old) == 1:
            return tool_call_action("replace", path=path, old=old, new=new)
        text = text.replace(old, new, 1)
    return tool_call_action("write", path=path, text=repair.goal[path])


def _check(name: str, is_right: bool, must: str, got: object, do: str) -> None:
    InvalidInput.unless(is_right, name, must, got, where=_WHERE, do=do)


def _reward(result: RepoGrade) -> Scored:
    return Scored(value=float(result.is_passed), components={"issue": result.issue_share, "kept": result.other_share})


def _names(shell: ShellSession) -> list[str]:
    return [name for name in shell.files() if not name.startswith(".git/")]


def _list_files(shell: ShellSession, folder: str) -> str:
    names = [name for name in _names(shell) if name.startswith(folder)]
    more = [f"({len(names) - MAX_HITS} more)"] if len(names) > MAX_HITS else []
    return well_formed("\n".join([*names[:MAX_HITS], *more])) or "(no files)"


def _text(shell: ShellSession, path: str) -> str:
    with _refused_unless_text(path):
        return shell.read(path).decode()


@contextmanager
def _refused_unless_text(path: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not text.") from None


def format_result(result: ShellResult) -> str:
    """Return the output of a command, and how it ended unless it just exited with 0."""
    text = result.output.decode(errors="replace").rstrip("\n")
    if len(text) > 2 * _SHOWN:
        text = f"{text[:_SHOWN]}\n... ({len(text) - 2 * _SHOWN} characters left out) ...\n{text[-_SHOWN:]}"
    notes = []
    if result.ending is not RunEnding.EXITED:
        notes.append(f"[ended by {result.ending.value}]")
    elif result.exit_code:
        notes.append(f"[exit code {result.exit_code}]")
    if result.undone:
        notes.append(f"[the directory is as before: {result.undone}]")
    return "\n".join(part for part in (text, *notes) if part) or "(no output)"
