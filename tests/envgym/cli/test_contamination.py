"""The overlap of a suite: by content with train split, other envs and training episodes, and by words."""

import json
from pathlib import Path

import pytest

from envgym.agents.evaluation.play import held_out_tasks
from envgym.cli.main import main
from envgym.registry import make
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import episode_rows
from tests.support.example_trees import outcome_tree

ENV = """
from envgym import Env, Reply
from envgym.authoring import ListTasks, TaskDraft


class Known(Env[int]):
    tasks = ListTasks([TaskDraft(prompt=f"One two three four five six seven eight nine, {n}.", payload={"n": n})
                       for n in range(60)])

    def begin(self, task):
        self.state = 0
        return task.prompt

    def respond(self, action):
        return Reply(reward=1.0, terminated=True)
"""
"""An env whose tasks have one wording."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.py").write_text(ENV)
    suite = {"name": "s", "envs": [{"id": "known.py:Known"}, {"id": "math/arithmetic-v0"}], "tasks": 5}
    (tmp_path / "s.yaml").write_text(json.dumps(suite))
    return tmp_path


def test_known_and_similar_tasks_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = held_out_tasks(make("known.py:Known").unwrapped.tasks, 5)
    run = RunDirectory.create(folder / "run", name="run", config={})
    rows = episode_rows([outcome_tree("t", 1.0)], step=1)
    run.write_episodes(1, [{**rows[0], "task_key": task.key} for task in tasks[:2]])
    run.write_episodes(1, [{**rows[0], "task_key": tasks[4].key}], label="held-out")
    assert main(["eval", "s.yaml", "--overlap", "--against", "run", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["known.py:Known"] == {
        "tasks": 5,
        "duplicates": 0,
        "in_train_split": 0,
        "similar_in_train_split": 5,
        "in_other_envs": 0,
        "seen_in_training": {"run": 2},
    }
    assert found["math/arithmetic-v0"]["seen_in_training"] == {"run": 0}


def test_clean_suite_ends_with_0_and_one_env_twice_is_noticed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "s.yaml", "--overlap", "--limit", "3"]) == 0
    assert "math/arithmetic-v0: 3 evaluated tasks" in capsys.readouterr().out
    twice = [{"id": "math/arithmetic-v0", "name": name} for name in ("a", "b")]
    (folder / "twice.yaml").write_text(json.dumps({"name": "s", "envs": twice, "tasks": 4}))
    assert main(["eval", "twice.yaml", "--overlap"]) == 1
    assert "in the train split 0, in other envs 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, told",
    [
        (["--overlap"], "--overlap must be used with a suite, got none"),
        (["s.yaml", "--overlap", "--samples", "2"], "options must be among --overlap, --against, --limit, --json"),
        (["s.yaml", "--overlap", "--against", "nowhere"], "run must be a directory"),
    ],
)
def test_what_is_of_no_use_is_refused(
    words: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *words]) == 2
    assert told in capsys.readouterr().err
