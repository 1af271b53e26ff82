"""Scoring again: rewards of today for recorded actions, by a verified replay; what a run held before is kept."""

import json
from pathlib import Path

import pytest

import envgym
from envgym.agents.evaluation.rescore import rescore_run
from envgym.cli.main import main
from envgym.core.trajectory import trajectories
from envgym.errors import RunError
from envgym.runs.directory import RunDirectory
from envgym.runs.episodes import trees_of

ENV = """
from pathlib import Path

from envgym import Env, Reply
from envgym.authoring import ListTasks, TaskDraft

HERE = Path(__file__).parent


class Scored(Env[int]):
    tasks = ListTasks([TaskDraft(prompt=f"Say {n}.", payload={"n": n}) for n in range(40)])

    def begin(self, task):
        self.state = 0
        return task.prompt

    def respond(self, action):
        value, words = (HERE / "reward.txt").read_text().split()
        self.state += 1
        is_last = self.state == 2
        return Reply(observation=words, reward=float(value) if is_last else 0.0, terminated=is_last)
"""
"""Two turns, the second paid by what stands in a file."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.py").write_text(ENV)
    pay("0.25")
    envgym.evaluate(
        "tiny",
        "game.py:Scored",
        tasks=3,
        samples=2,
        directory="run",
        agent={"name": "plain", "max_turn_tokens": 4, "on_length": "close"},
        on_progress=lambda phase, done, total: None,
    )
    return tmp_path / "run"


def pay(value: str, words: str = "on") -> None:
    Path("reward.txt").write_text(f"{value} {words}")


def rewards(run: Path) -> list[float]:
    (record,) = RunDirectory.open(run).evals()
    return [reward for own in record["rewards"].values() for reward in own]


def test_rewards_of_today_replace_those_of_the_record_and_both_are_kept(run: Path) -> None:
    assert rewards(run) == [0.25] * 6
    before = trees_of(RunDirectory.open(run).episodes())
    pay("1")
    (found,) = rescore_run(run, metrics=["success"])
    assert (found.num_episodes, len(found.changed), found.not_repeated) == (6, 6, {})
    assert {(item.before, item.after) for item in found.changed} == {(0.25, 1.0)}
    assert rewards(run) == [1.0] * 6
    (record,) = RunDirectory.open(run).evals()
    assert record["metrics"]["metric/success"] == 1.0
    after = trees_of(RunDirectory.open(run).episodes())
    assert [tree.id for tree in after] == [tree.id for tree in before]
    assert [tree.cost for tree in after] == [tree.cost for tree in before], "nothing was sampled"
    assert [str(o.action) for tree in after for e in trajectories(tree) for o in e.outcomes if o] == [
        str(o.action) for tree in before for e in trajectories(tree) for o in e.outcomes if o
    ]
    saved = json.loads(next((Path(found.saved) / "evals").iterdir()).read_text())
    assert {reward for own in saved["rewards"].values() for reward in own} == {0.25}
    assert json.loads((run / "config.json").read_text())["evaluation"]["metrics"] == [{"name": "success"}]


def test_same_env_changes_nothing_and_threshold_can_change(run: Path) -> None:
    (found,) = rescore_run(run, success_at=0.25)
    assert found.changed == ()
    (record,) = RunDirectory.open(run).evals()
    assert (record["success_at"], rewards(run)) == (0.25, [0.25] * 6)


def test_episodes_that_do_not_repeat_keep_their_reward(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pay("1", "off")
    assert main(["eval", "--out", "run", "--rescore"]) == 0
    out = capsys.readouterr().out
    assert "6 episodes, 0 of another reward, 6 kept as their replay differs" in out
    assert "observation of turn 0 of the replay must equal" in out
    assert rewards(run) == [0.25] * 6


def test_broken_episodes_are_named_and_nothing_is_written(run: Path) -> None:
    (file,) = (run / "episodes").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:100])
    with pytest.raises(RunError, match=r"run file must be as envgym wrote it"):
        rescore_run(run)
    assert not (run / "rescored").exists()
    rows = RunDirectory(run)
    file.write_bytes(content)
    broken = [{**row, "tree": "{" if number == 1 else row["tree"]} for number, row in enumerate(rows.episodes())]
    rows.write_episodes(0, broken, label="held-out")
    with pytest.raises(RunError, match="episodes of held-out"):
        rescore_run(run)
    assert rewards(run) == [0.25] * 6


@pytest.mark.parametrize(
    "words, told",
    [
        (["--rescore"], "--out must alone say what is scored again, got nothing"),
        (["--rescore", "--out", "x", "--tasks", "3"], "options must be among --out, --rescore, --metric"),
        (["--rescore", "--out", "nowhere"], "run must be a directory"),
    ],
)
def test_what_is_of_no_use_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *words]) == 2
    assert told in capsys.readouterr().err
