"""Runs one program: a function in a thread, a coroutine on an event loop of that thread, or a command."""

import asyncio
import inspect
import json
import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from envgym.agents.rollout.programs.results import ProgramResult, read_result
from envgym.agents.rollout.programs.sessions import ProgramSession
from envgym.agents.rollout.programs.task import ProgramTask
from envgym.config.file_imports import NoSuchClass
from envgym.config.plugins import import_path
from envgym.core.json_types import visible
from envgym.errors import InvalidInput, sentence
from envgym.runtime.error_log import log_error
from envgym.runtime.event_loop import in_daemon_thread
from envgym.runtime.processes.handles import LocalProcess, LocalStarter, kill_marked

_WHERE: Final = "agent.program.run"
GRACE_S: Final = 10.0
"""From the first call beyond the turn limit until the program is ended."""
_TERM_S: Final = 2.0
"""From the request to end until a program is killed."""
_LAST_LINES_S: Final = 1.0
"""From the end of a command until its output is taken as read."""
_NUM_LINES: Final = 5
_LINE_CHARS: Final = 300
_VARIABLE_BYTES: Final = 100_000
"""Longest task that fits into an environment variable; the kernel's limit is 128 KiB."""


class ProgramEnd(StrEnum):
    """How the run of a program ended."""

    RETURNED = "RETURNED"
    CRASHED = "CRASHED"
    TURN_LIMIT = "TURN_LIMIT"
    """It had all its turns, and did not end by itself within the grace time."""
    TIME_LIMIT = "TIME_LIMIT"
    POLICY_FAILED = "POLICY_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """The run of a program."""

    end: ProgramEnd
    result: ProgramResult = field(default_factory=ProgramResult)
    error: str | None = None
    """Why it crashed, or why its result cannot be used, in one sentence."""


class StartedProgram(Protocol):
    """A program that was started."""

    async def wait(self) -> ProgramRun:
        """Wait until it ends."""
        ...

    async def stop(self) -> None:
        """End it and what it started; it may have ended."""
        ...


class AgentProgram(Protocol):
    """A program that can be run, several times at once."""

    def start(self, task: ProgramTask) -> StartedProgram:
        """Start it. Raises: InvalidInput: it cannot be started."""
        ...


async def run_program(
    program: AgentProgram, task: ProgramTask, session: ProgramSession, *, seconds: float, grace_s: float = GRACE_S
) -> ProgramRun:
    """Run a program to its end, and end it when a limit is reached or the policy fails.

    Args:
        program: What is run.
        task: Its argument.
        session: Answers its calls. It stays open.
        seconds: Time limit.
        grace_s: From the first call beyond the turn limit until the program is ended.

    Raises: InvalidInput: it cannot be started.
    """
    running = program.start(task)
    work = asyncio.ensure_future(running.wait())
    limit, failed = (asyncio.ensure_future(event.wait()) for event in (session.at_limit, session.failed))
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        await asyncio.wait({work, limit, failed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if limit.done() and not (work.done() or failed.done()):
            grace_s = min(grace_s, deadline - asyncio.get_running_loop().time())
            await asyncio.wait({work, failed}, timeout=max(0.0, grace_s), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if failed.done():
            return ProgramRun(end=ProgramEnd.POLICY_FAILED)
        return ProgramRun(end=ProgramEnd.TURN_LIMIT if limit.done() else ProgramEnd.TIME_LIMIT)
    finally:
        for waiting in (work, limit, failed):
            waiting.cancel()
        await running.stop()


def no_call_error(task: ProgramTask) -> str:
    """Return the sentence about a program that ended without a call of the model."""
    do = f"let it use the base URL {task.base_url} with the API key of its task"
    return sentence("program", "call the model at least once", "no call", where=task.id, do=do)


def load_program(run: str | Sequence[str]) -> AgentProgram:
    """Load a program: `file.py:function`, `module:function`, or a command as a list of words.

    Raises: InvalidInput: there is no such function or command. Whatever the imported code raises.
    """
    if not isinstance(run, str):
        return _load_command(run)
    do = "write file.py:function, module:function, or a command as a list of words"
    try:
        function = import_path(run)
    except (ImportError, NoSuchClass) as error:
        raise InvalidInput.of(
            "program", "be a function that exists", f"{run} ({error})", where=_WHERE, do=do
        ) from error
    InvalidInput.unless(callable(function), "program", "be a function", run, where=_WHERE, do=do)
    _check_takes_task(function, run)
    return FunctionProgram(function, name=run)


def _check_takes_task(function: Callable[..., Any], run: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtins have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        must, do = "take the task as its one argument", "define it as def run(task)"
        raise InvalidInput.of("program", must, f"{run} ({error})", where=_WHERE, do=do) from error


def _load_command(words: Sequence[str]) -> "CommandProgram":
    do = "write the command as a list of words, its name first"
    InvalidInput.unless(words and all(words), "command", "be words that are not empty", [*words], where=_WHERE, do=do)
    path = shutil.which(words[0])
    if path is None:
        do = "install it, or write its path"
        raise InvalidInput.of("command", "exist and be executable", words[0], where=_WHERE, do=do)
    return CommandProgram((str(Path(path).absolute()), *words[1:]))


# ---- functions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionProgram:
    """A function of the task, or a coroutine function."""

    function: Callable[[ProgramTask], Any]  # what a program returns is checked
    name: str

    def start(self, task: ProgramTask) -> "RunningFunction":
        return RunningFunction(self, task)


class RunningFunction:
    """A function in a daemon thread. A thread cannot be ended: its next call of the model raises, and it is left."""

    def __init__(self, program: FunctionProgram, task: ProgramTask) -> None:
        self._program, self._task = program, task
        self._lock = threading.Lock()
        self._work: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._is_stopped = False

    async def wait(self) -> ProgramRun:
        return await in_daemon_thread(self._run)

    async def stop(self) -> None:
        """Cancel a coroutine."""
        with self._lock:
            self._is_stopped, work = True, self._work
            if work is not None:
                work[0].call_soon_threadsafe(work[1].cancel)

    def _run(self) -> ProgramRun:
        try:
            value = self._program.function(self._task)
            if inspect.isawaitable(value):
                with asyncio.Runner() as runner:
                    value = runner.run(self._await(value))
        except BaseException as error:  # noqa: BLE001  # also sys.exit: the run is over, not this process
            return ProgramRun(end=ProgramEnd.CRASHED, error=self._describe(error))
        return _returned(value, self._program.name)

    async def _await(self, value: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None, "a runner makes one"
        with self._lock:
            self._work = asyncio.get_running_loop(), task
            if self._is_stopped:
                task.cancel()
        try:
            return await value
        finally:
            with self._lock:
                self._work = None

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, Exception) and not self._is_stopped:
            log_error(error, f"the program {self._program.name} raised {type(error).__name__}")
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else self._program.name
        got, do = f"{type(error).__name__}: {error}", f"look into the log, or at {place}"
        return sentence("program", "return", got, where=self._program.name, do=do)


def _returned(value: object, name: str) -> ProgramRun:
    try:
        return ProgramRun(end=ProgramEnd.RETURNED, result=read_result(value, where=name))
    except InvalidInput as error:
        return ProgramRun(end=ProgramEnd.RETURNED, error=str(error))


# ---- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandProgram:
    """A command, which finds the model by environment variables."""

    words: tuple[str, ...]
    """The first is an absolute path."""

    def start(self, task: ProgramTask) -> "RunningCommand":
        """Start it. Raises: InvalidInput: it cannot be executed."""
        folder = tempfile.TemporaryDirectory(prefix="envgym-program-", ignore_cleanup_errors=True)
        try:
            variables = _variables(task, Path(folder.name), os.environ)
            process = LocalStarter().start("program", self.words, variables)
        except OSError as error:
            folder.cleanup()
            must, got = "be one that can run", f"{self.words[0]} ({error.strerror or error})"
            raise InvalidInput.of("command", must, got, where=_WHERE, do="make it executable") from error
        return RunningCommand(self.words, process, folder)


class RunningCommand:
    """A command in a process group of its own, which ends with it, as does all else that inherited its variables."""

    def __init__(self, words: Sequence[str], process: LocalProcess, folder: "tempfile.TemporaryDirectory[str]") -> None:
        self._words, self._process, self._folder = words, process, folder
        self._result_path = _result_path(Path(folder.name))
        self._lines: deque[str] = deque(maxlen=_NUM_LINES)
        self._reader = threading.Thread(target=self._read, name="program-output", daemon=True)
        self._reader.start()
        self._exit = asyncio.ensure_future(in_daemon_thread(process.wait))

    async def wait(self) -> ProgramRun:
        await asyncio.wait([self._exit])
        self._process.send_signal(signal.SIGKILL)  # what it left holds its output open
        await in_daemon_thread(self._end_rest)
        name = " ".join(self._words)
        if self._process.returncode != 0:
            lines = " | ".join(self._lines) or "no output"
            got = f"{self._process.describe_ending()} after: {lines}"
            return ProgramRun(
                end=ProgramEnd.CRASHED,
                error=sentence("program", "end with exit code 0", got, where=name, do="correct the program"),
            )
        try:
            value = _read_result_file(Path(self._result_path))
        except InvalidInput as error:
            return ProgramRun(end=ProgramEnd.RETURNED, error=str(error))
        return _returned(value, name)

    async def stop(self) -> None:
        """Ask its group to end, and kill it."""
        try:
            if not self._exit.done():
                self._process.send_signal(signal.SIGTERM)
                await asyncio.wait([self._exit], timeout=_TERM_S)
        finally:
            self._process.send_signal(signal.SIGKILL)
            try:
                await in_daemon_thread(self._end_rest)  # which goes on where this is cancelled
            finally:
                self._folder.cleanup()
        await asyncio.wait([self._exit])

    def _end_rest(self) -> None:
        """End what has left the group of the command."""
        kill_marked(_RESULT_VARIABLE, self._result_path)
        self._reader.join(_LAST_LINES_S)

    def _read(self) -> None:
        for line in self._process.lines():
            text = visible(line.decode(errors="replace").strip())
            if text:
                self._lines.append(text if len(text) <= _LINE_CHARS else f"{text[:_LINE_CHARS]}...")


_RESULT_VARIABLE: Final = "ENVGYM_RESULT"
"""Its value is another one for every command, so that its processes are known by it."""
_TASK_FILE: Final = "task.json"


def _result_path(folder: Path) -> str:
    return str(folder / "result.json")


def _variables(task: ProgramTask, folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a command; a task that is too long for one is only in a file."""
    text = task.to_json()
    (folder / _TASK_FILE).write_text(text, encoding="utf-8")
    local = ",".join(filter(None, (inherited.get("NO_PROXY", inherited.get("no_proxy", "")), "127.0.0.1,localhost")))
    variables = {
        "OPENAI_BASE_URL": task.base_url,
        "OPENAI_API_BASE": task.base_url,
        "OPENAI_API_KEY": task.api_key,
        "ANTHROPIC_BASE_URL": task.root_url,
        "ANTHROPIC_API_KEY": task.api_key,
        "NO_PROXY": local,
        "no_proxy": local,
        "ENVGYM_TASK_FILE": str(folder / _TASK_FILE),
        _RESULT_VARIABLE: _result_path(folder),
        "ENVGYM_SEED": str(task.seed),
    }
    if len(text) <= _VARIABLE_BYTES:
        variables["ENVGYM_TASK"] = text
    if task.mcp_url is not None:
        variables["ENVGYM_MCP_URL"] = task.mcp_url
    return variables


def _read_result_file(path: Path) -> object:
    """Read what a command wrote; None: nothing. Raises: InvalidInput: it is no JSON."""
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if text.strip() else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        do = "write a text, a number, or an object of answer, reward and components"
        raise InvalidInput.of("result file", "hold JSON", str(error), where=_RESULT_VARIABLE, do=do) from None
