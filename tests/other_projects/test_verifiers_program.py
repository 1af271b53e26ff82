"""A taskset of verifiers trains: its rollouts are an agent program, by the example of this project."""

import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.loop.agent import AgentSettings, make_agent
from envgym.agents.models.tiny import tiny_tokenizer
from envgym.agents.protocols import FinishReason, GenerateRequest, Generation
from envgym.agents.rollout.programs.dialects.chat import ChatDialect
from envgym.agents.rollout.programs.runner import CommandProgram, ProgramEnd, run_program
from envgym.cli.main import main
from envgym.core.messages import Action
from envgym.core.trajectory import trajectories
from envgym.core.turns import Scored
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of
from envgym.trainer.train import train
from tests.agents.rollout.programs.playing import Client
from tests.support.pages import blocks_of
from tests.support.program_calls import running_host
from tests.support.program_runs import task_of
from tests.support.tiny_runs import step_metrics, tiny_settings

pytestmark = [pytest.mark.connect, pytest.mark.filterwarnings("ignore")]  # of the libraries
ROOT = Path(__file__).parents[2]
TASKSETS = Path(__file__).with_name("verifiers_tasksets")
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the example and the file of the environment, where verifiers finds the taskset."""
    shutil.copy(ROOT / "examples/verifiers_program.py", tmp_path)
    block, _ = blocks_of("docs/connect.md", "toml")  # the other one is of a task in a container
    (tmp_path / block.title).write_text(block.text.replace("my-taskset", "even-words"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TASKSETS))
    monkeypatch.setenv("VERIFIERS_ENV", "env.toml")
    monkeypatch.syspath_prepend(str(TASKSETS))
    return tmp_path


def test_a_command_plays_a_rollout_and_returns_its_reward(folder: Path) -> None:
    settings = {"max_turn_tokens": 300, "max_context_tokens": 6000, "on_length": "close"}
    agent = make_agent(AgentSettings.model_validate(settings), tiny_tokenizer())
    waiting = [agent.renderer.encode_action(Action(text)) for text in ("even", "odd")]
    client = Client(agent)

    async def generate(request: GenerateRequest) -> Generation:
        token_ids = waiting.pop(0)
        return Generation(
            token_ids=token_ids,
            behavior_logprobs=(-0.5,) * len(token_ids),
            raw_logprobs=None,
            finish_reason=FinishReason.STOP,
            policy_version=0,
        )

    with running_host([ChatDialect()]) as server:
        session = server.begin(client.conversations, generate)
        program = CommandProgram((sys.executable, "verifiers_program.py", "env.toml"))
        task = replace(task_of(server, session), id="2")
        run = server.thread.run(run_program(program, task, session, seconds=LIMIT_S))
        server.end(session)
    assert (run.end, run.error) == (ProgramEnd.RETURNED, None)
    assert run.result.reward == Scored(value=0.5, components={"even": 0.5})
    (row,) = client.episode().rows
    assert len(client.conversations.turns) == 2, "one conversation, whose replies are those that were sampled"
    assert sum(row.loss_mask) == sum(len(agent.renderer.encode_action(Action(text))) for text in ("even", "odd"))


def test_the_lines_of_the_page_evaluate_and_a_failed_rollout_is_invalid(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines with the example as a function, which spares a process for each episode; then a train step."""
    monkeypatch.syspath_prepend(str(folder))
    listed, evaluated = [
        shlex.split(line)
        for block in blocks_of("docs/connect.md", "bash")
        for line in block.commands
        if "verifiers_program.py" in line
    ]
    program: Any = import_module("verifiers_program")
    program.write_rows(program.load(listed[2]), int(listed[3]))
    text = capsys.readouterr().out
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    assert [json.loads(line)["id"] for line in text.splitlines()] == [str(index) for index in range(12)]
    words = [re.sub(r"program.run=.*", "program.run=verifiers_program.py:play", word) for word in evaluated[1:]]
    assert main([*words, "--env-set", "test_share=0.5", "--agent-set", "max_turn_tokens=8", "--out", "played"]) == 0
    (record,) = RunDirectory.open(folder / "played").evals()
    assert record["endings"].keys() == {"TERMINATED", "ERROR_ENV"}

    columns = {"id": "id", "prompt": "prompt", "answer": "answer"}
    rows = {"data": "rows.jsonl", "columns": columns, "verifier": "exact", "test_share": 0.5}
    settings: dict[str, Any] = {
        "envs": [{"id": "data/file-v0", "settings": rows}],
        "agent": {"name": "plain", "program": {"run": "verifiers_program.py:play", "reward": "result"}},
        "run": {"steps": 1},
        "rollout": {"groups": 4, "group_size": 2},
        "evaluation": {"tasks": 1},
    }
    train(tiny_settings(folder / "run", **settings))
    (row,) = step_metrics(folder / "run")
    assert row["program/rows_per_turn"] == 0.5
    assert row["logprob_gap/max_abs"] < 1e-4
    validity: set[bool] = set()
    for tree in trees_of(RunDirectory.open(folder / "run").episodes(label="train")):
        for episode in trajectories(tree):
            is_valid = isinstance(episode.reward, Scored)
            assert is_valid == (int(tree.task_id) % 3 != 1)
            validity.add(is_valid)
            if isinstance(episode.reward, Scored):
                texts = [turn.outcome.action.content for turn in episode.turns if turn.outcome is not None]
                assert episode.reward.components == {"even": sum(len(text) % 2 == 0 for text in texts) / 2}
    assert validity == {True, False}
