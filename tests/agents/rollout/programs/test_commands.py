"""Programs that are commands, and how programs are loaded."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.rollout.programs import runner as runner_module
from envgym.agents.rollout.programs.results import ProgramResult
from envgym.agents.rollout.programs.runner import (
    CommandProgram,
    FunctionProgram,
    ProgramEnd,
    ProgramRun,
    load_program,
    no_call_error,
)
from envgym.agents.rollout.programs.task import ProgramTask
from envgym.core.messages import Message, Role
from envgym.core.turns import Scored
from envgym.errors import InvalidInput
from tests.support.env_server import wait_until
from tests.support.program_calls import FakeMatcher, RunningHost, running_host
from tests.support.program_runs import python, run, run_until, shell, task_of


@pytest.fixture
def server() -> Iterator[RunningHost]:
    with running_host() as running:
        yield running


# ---- commands --------------------------------------------------------------------------------------------------------

AGENT = """
import json, os, urllib.request
task = json.loads(os.environ["ENVGYM_TASK"])
body = {"model": task["model"], "messages": task["messages"]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
with open(os.environ["ENVGYM_RESULT"], "w") as file:
    json.dump({"answer": reply, "reward": 1, "components": {"seed": int(os.environ["ENVGYM_SEED"])}}, file)
"""


def test_a_command_calls_the_model_and_writes_its_result(server: RunningHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    matcher = FakeMatcher()
    outcome = run(server, python(AGENT), matcher)
    reward = Scored(value=1.0, components={"seed": 11.0})
    assert outcome == ProgramRun(
        end=ProgramEnd.RETURNED, result=ProgramResult(answer="re: What is 1 + 1?", reward=reward)
    )
    assert [message.role for message in matcher.recorded[0].messages] == [Role.SYSTEM, Role.USER]


def test_a_command_gets_what_it_needs_and_no_more(server: RunningHost, tmp_path: Path) -> None:
    names = (
        "OPENAI_BASE_URL OPENAI_API_BASE OPENAI_API_KEY ANTHROPIC_BASE_URL ANTHROPIC_API_KEY ENVGYM_MCP_URL ENVGYM_SEED"
    )
    lines = "\\n".join(f"${name}" for name in names.split())
    script = f'printf "{lines}\\n" > {tmp_path}/seen; cat "$ENVGYM_TASK_FILE" > {tmp_path}/task'
    run(server, shell(script), mcp_url="http://127.0.0.1:1/mcp")
    base, also, key, root, other_key, mcp, seed = (tmp_path / "seen").read_text().splitlines()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/s/[0-9a-f]{32}/v1", base)
    assert (also, f"{root}/v1", other_key, mcp, seed) == (base, base, key, "http://127.0.0.1:1/mcp", "11")
    assert json.loads((tmp_path / "task").read_text()) == {
        "id": "sums/7",
        "prompt": "What is 1 + 1?",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 1?"}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Add.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "model": "policy",
        "seed": 11,
    }


def test_a_command_that_fails_is_a_crash_with_its_last_lines(server: RunningHost) -> None:
    outcome = run(server, shell("for i in 1 2 3 4 5 6 7; do echo line $i; done; echo broken >&2; exit 3"))
    assert outcome.end is ProgramEnd.CRASHED
    assert outcome.error is not None
    assert "got exit code 3 after: line 4 | line 5 | line 6 | line 7 | broken (/bin/sh" in outcome.error
    killed = run(server, shell("kill -9 $$"))
    assert killed.error is not None
    assert "got the signal SIGKILL after: no output" in killed.error


@pytest.mark.parametrize(
    "text, result, error",
    [
        ("", ProgramResult(), None),
        ('"four"', ProgramResult(answer="four"), None),
        ("0.5", ProgramResult(reward=Scored(value=0.5)), None),
        ("NaN", ProgramResult(), "reward must be a finite number"),
        ("four", ProgramResult(), "result file must hold JSON"),
    ],
)
def test_the_result_file_is_read_as_a_result(
    server: RunningHost, text: str, result: ProgramResult, error: str | None
) -> None:
    outcome = run(server, shell(f"""printf '%s' '{text}' > "$ENVGYM_RESULT" """))
    assert (outcome.end, outcome.result) == (ProgramEnd.RETURNED, result)
    assert (outcome.error or "").startswith(error or "")
    assert (outcome.error is None) == (error is None)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    "ending, end",
    [("exit 0", ProgramEnd.RETURNED), ("exit 1", ProgramEnd.CRASHED), ("wait", ProgramEnd.POLICY_FAILED)],
)
def test_what_a_command_started_ends_with_it(server: RunningHost, tmp_path: Path, ending: str, end: ProgramEnd) -> None:
    file, fifo = tmp_path / "pids", tmp_path / "fifo"
    file.touch()
    os.mkfifo(fifo)
    script = f"sleep 300 & echo $! >> {file}; (sleep 300 & echo $! >> {file}; wait) & echo $$ >> {file}"
    script += f"; setsid sh -c 'echo $$ >> {file}; read line < {fifo}' &"  # in a session of its own
    ready = f"while [ $(wc -l < {file}) -lt 4 ]; do sleep 0.01; done"
    program = shell(f"{script} {ready}; {ending}")
    if ending == "wait":
        assert run_until(server, program, lambda: file.read_text().count("\n") == 4) is end
    else:
        assert run(server, program).end is end
    pids = [int(line) for line in file.read_text().split()]
    assert len(pids) == 4
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_command_that_ignores_the_request_to_end_is_killed(
    server: RunningHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_TERM_S", 0.05)
    file = tmp_path / "pid"
    file.touch()
    program = shell(f"trap '' TERM; echo $$ > {file}; while true; do sleep 0.05; done")
    assert run_until(server, program, lambda: file.read_text().endswith("\n")) is ProgramEnd.POLICY_FAILED
    pid = int(file.read_text())
    wait_until(lambda: not is_running(pid))


def test_the_folder_of_a_command_is_removed(server: RunningHost, tmp_path: Path) -> None:
    run(server, shell(f'echo "$ENVGYM_TASK_FILE" > {tmp_path}/name'))
    assert not Path((tmp_path / "name").read_text().strip()).parent.exists()


def test_a_task_that_is_too_long_for_a_variable_is_in_its_file(server: RunningHost, tmp_path: Path) -> None:
    long = Message(role=Role.USER, content="x" * 300_000)

    class LongTask:
        def start(self, task: ProgramTask) -> Any:
            values = {name: getattr(task, name) for name in task.__slots__} | {"messages": (long,)}
            return shell(
                f'echo "${{ENVGYM_TASK-none}}" > {tmp_path}/v; wc -c < "$ENVGYM_TASK_FILE" > {tmp_path}/n'
            ).start(ProgramTask(**values))

    assert run(server, LongTask()).end is ProgramEnd.RETURNED
    assert (tmp_path / "v").read_text() == "none\n"
    assert int((tmp_path / "n").read_text()) > 300_000


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_programs_are_loaded_by_file_by_module_and_as_commands(server: RunningHost, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def run(task):\n    return task.chat(task.messages).message.content\n")
    program = load_program(f"{tmp_path}/agent.py:run")
    assert run(server, program).result.answer == "re: What is 1 + 1?"
    assert isinstance(load_program("json:dumps"), FunctionProgram)
    command = load_program(["sh", "-c", "exit 0"])
    assert isinstance(command, CommandProgram)
    assert os.path.isabs(command.words[0])
    assert run(server, command).end is ProgramEnd.RETURNED


@pytest.mark.parametrize(
    "program, sentence",
    [
        ("missing.py:run", "program must be a function that exists, got missing.py:run (no file missing.py"),
        ("no_such_module:run", "program must be a function that exists, got no_such_module:run"),
        ("json:dunps", "program must be a function that exists, got json:dunps"),
        ("agent", "program must be a function that exists, got agent (no module and class with a colon"),
        ("os:sep", "program must be a function, got os:sep"),
        ("operator:add", "program must take the task as its one argument, got operator:add"),
        (["no-such-command-here"], "command must exist and be executable, got no-such-command-here"),
        ([], "command must be words that are not empty"),
        (["sh", ""], "command must be words that are not empty"),
    ],
)
def test_a_program_that_cannot_be_loaded_is_one_sentence(program: str | Sequence[str], sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load_program(program)
    assert str(error.value).startswith(sentence)


def test_a_command_that_cannot_be_executed_is_one_sentence(server: RunningHost, tmp_path: Path) -> None:
    file = tmp_path / "agent"
    file.write_text("no program")
    file.chmod(0o700)
    with pytest.raises(InvalidInput, match=r"command must be one that can run, got .*agent \(Exec format error\)"):
        run(server, CommandProgram((str(file),)))


def test_a_program_without_a_call_is_told_the_address(server: RunningHost) -> None:
    session = server.begin(FakeMatcher())
    task = task_of(server, session)
    assert f"let it use the base URL {task.base_url} with the API key" in no_call_error(task)
