"""The functions at the top of the package: episodes, evaluations and runs, and what they are given."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym import Ending, Invalid, Message, Scored
from envgym.api import eval_settings
from envgym.errors import InvalidInput, SettingsError, UnknownName
from envgym.registry import id_of
from envgym.runs.directory import RunDirectory
from envgym.stats import estimate_success
from envgym.trainer.metrics.callbacks import Callback
from envgym.trainer.settings import load_train_settings
from envgym.trainer.train import TrainResult, train
from tests.support.tiny_runs import EvenWords, tiny_settings

ENV = "tests.support.tiny_runs:EvenWords"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    directory = tmp_path_factory.mktemp("api") / "run"
    return train(tiny_settings(directory, agent={"name": "plain", "max_turn_tokens": 3, "max_context_tokens": 256}))


@pytest.fixture(scope="module")
def run(trained: TrainResult) -> Path:
    return trained.directory


def test_main_functions_are_loaded_when_they_are_used() -> None:
    code = "import sys, envgym; print('envgym.api' in sys.modules); envgym.train; print('envgym.api' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_function_plays_an_episode_and_sees_the_replies() -> None:
    seen: list[int] = []

    def policy(messages: Sequence[Message]) -> str:
        seen.append(len(messages))
        return "even" if len(messages) == 1 else "odd"

    episode = envgym.play_episode(ENV, policy, split="train", index=3)
    assert seen == [1, 3]
    assert episode.tree.task_id.endswith("3")
    assert [turn.outcome.action for turn in episode.turns if turn.outcome] == ["even", "odd"]
    assert episode.reward == Scored(value=0.5)
    assert episode.ending is Ending.TERMINATED


def test_class_plays_an_episode() -> None:
    episode = envgym.play_episode(EvenWords, lambda messages: "even", split="train", index=3)
    assert (
        repr(episode) == f"<Trajectory {ENV} {episode.tree.task_id}: TERMINATED, reward 1, 2 turns, 0 sampled tokens>"
    )


def test_function_calls_tools_in_text() -> None:
    env = envgym.make("math/arithmetic-v0", level=2)
    first: list[str] = []

    def policy(messages: Sequence[Message]) -> str:
        first.append(messages[0].content)
        return env.unwrapped.oracle()

    episode = envgym.play_episode(env, policy, index=1)
    assert "calculator" in first[0]
    assert isinstance(episode.reward, Scored)
    assert episode.reward.value == 1.0
    assert len(episode.turns) == 2
    assert env.reset(seed=1).observation, "an env that was given stays open"


def test_policy_that_fails_makes_the_reward_invalid() -> None:
    def policy(messages: Sequence[Message]) -> str:
        raise ZeroDivisionError("by zero")

    reward = envgym.play_episode(ENV, policy, split="train").reward
    assert isinstance(reward, Invalid)
    assert reward.cause is Ending.ERROR_POLICY
    assert "ZeroDivisionError: by zero" in reward.reason


def test_policy_that_returns_no_text_makes_the_reward_invalid() -> None:
    reward = envgym.play_episode(ENV, lambda messages: 7, split="train").reward  # type: ignore[arg-type,return-value]  # wrong on purpose
    assert isinstance(reward, Invalid)
    assert "reply must be a str, got int" in reward.reason


def test_run_plays_with_its_newest_checkpoint_and_its_agent(run: Path) -> None:
    episode = envgym.play_episode(ENV, str(run), split="train", agent={"on_length": "close"})
    assert [turn.policy_version for turn in episode.turns] == [2, 2]
    sampled = [len(segment) for turn in episode.turns for segment in turn.segments if segment.trains]
    assert sampled
    assert max(sampled) <= 3


def test_evaluation_of_a_run_takes_paths_as_text(run: Path, tmp_path: Path) -> None:
    result = envgym.evaluate(str(run), tasks=1, samples=2, directory=str(tmp_path / "eval"))
    (record,) = result.evaluations
    assert (record.step, record.temperature, [len(rewards) for rewards in record.rewards.values()]) == (2, 1.0, [2])
    assert RunDirectory.open(str(result.directory)).evals()


def test_several_envs_are_evaluated_each_with_its_own_settings(run: Path) -> None:
    named: list[dict[str, Any]] = [{"id": "math/arithmetic-v0", "settings": {"level": 3}}, {"id": ENV}]
    envs = eval_settings(run, named, where="test").envs
    assert [(env.id, env.settings) for env in envs] == [("math/arithmetic-v0", {"level": 3}), (ENV, {})]


def test_class_is_taken_where_an_id_is(run: Path, tmp_path: Path) -> None:
    (record,) = envgym.evaluate(run, EvenWords, tasks=1, directory=tmp_path / "eval").evaluations
    settings = load_train_settings({"envs": [{"id": EvenWords}]})
    assert [record.env_id, settings.envs[0].id, settings.model_dump(mode="json")["envs"][0]["id"]] == [ENV] * 3
    assert eval_settings(run, [{"id": EvenWords}], where="test").envs[0].id == ENV
    path = tmp_path / "mine.py"
    path.write_text("from tests.support.tiny_runs import EvenWords\nclass Mine(EvenWords): ...\n")
    assert id_of(type(envgym.make(f"{path}:Mine"))) == f"{path}:Mine"


def test_class_that_no_import_path_names_is_refused_with_what_to_write() -> None:
    class Inner(EvenWords): ...

    for use in (
        lambda: envgym.play_episode(Inner, lambda messages: "even"),
        lambda: load_train_settings({"envs": [{"id": Inner}]}),
    ):
        with pytest.raises(InvalidInput, match=r'at the top level .*got .*Inner \(id\); pass "my_env.py:MyEnv", or'):
            use()


def test_checkpoint_takes_its_settings_from_its_run(run: Path) -> None:
    for place in ("checkpoints/step-000001", "checkpoints/step-000001/model"):
        settings = eval_settings(run / place, [], where="test")
        assert settings.model.train_steps == 1
        assert settings.model.name == str(run / "checkpoints/step-000001/model")
        assert settings.agent.max_turn_tokens == 3
        assert [env.id for env in settings.envs] == [ENV]


def test_unknown_checkpoint_is_refused_with_those_there_are(run: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean step-000002 or step-000001"):
        eval_settings(run / "checkpoints" / "step-000009", [], where="test")


def test_checkpoint_that_was_deleted_is_told_as_such(run: Path) -> None:
    told = r"be one that the run has kept, got step-000000, deleted as run.keep_checkpoints is 2 .*name step-000001 or"
    with pytest.raises(UnknownName, match=told):
        eval_settings(run / "checkpoints" / "step-000000", [], where="test")


def test_settings_of_the_agent_are_laid_over_those_of_the_run(run: Path) -> None:
    same = eval_settings(run, [], agent={"on_length": "truncate"}, where="test").agent
    assert (same.name, same.on_length, same.max_turn_tokens) == ("plain", "truncate", 3)
    other = eval_settings(run, [], agent={"name": "react"}, where="test").agent
    assert (other.name, other.max_turn_tokens) == ("react", 3)


def test_record_states_the_success_rate_of_its_valid_episodes_in_one_line(trained: TrainResult) -> None:
    rewards = {"a": (1.0, 1.0), "b": (0.0, None)}  # task means 1 and 0, of 3 valid samples
    record = replace(trained.evaluations[-1], rewards=rewards, endings={"TERMINATED": 3, "ERROR_ENV": 1}, step=7)
    assert record.success == estimate_success({"a": [1, 1], "b": [0]})
    assert repr(record) == (
        f"<EvalRecord {ENV}, held-out after 7 train steps: success {record.success.percent}, 2 tasks, 4 episodes>"
    )
    assert record.success.percent.startswith("50.0% [")
    assert replace(record, rewards={"a": (None,)}).success is None


def test_result_states_what_changed_in_few_words(trained: TrainResult) -> None:
    (comparison,) = trained.comparisons
    before, after = (record.success for record in trained.evaluations)
    assert (comparison.before, comparison.after) == (before, after)
    change = f"{comparison.paired.difference.points}, p = 1"  # of one task
    assert repr(trained) == (
        f"<TrainResult {trained.directory}, 2 train steps\n"
        f"  held-out: success {comparison.before.percent} -> {comparison.after.percent}, change {change}>"
    )


def test_interrupt_says_what_is_saved_and_the_line_that_goes_on(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    settings = tiny_settings(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt) as caught:
        envgym.train(settings, callbacks=[Stop()])
    go_on = f"envgym.train({str(tmp_path / 'run')!r}, resume=True)"
    assert caught.value.__notes__ == [f"the checkpoint of step 1 is saved; continue with: {go_on}"]

    def stop(phase: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        envgym.evaluate(tmp_path / "run", directory=tmp_path / "eval", on_progress=stop)
    assert caught.value.__notes__ == ["finished episodes are saved; continue with: the same call and resume=True"]


def test_settings_are_read_from_a_mapping_a_file_and_a_run(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("envs: [{id: math/arithmetic-v0}]\n")
    sources = ({"envs": [{"id": "math/arithmetic-v0"}]}, file, str(file))
    assert len({load_train_settings(source, ["optim.lr=0.5"]).model_dump_json() for source in sources}) == 1
    assert load_train_settings(sources[0], ["optim.lr=0.5"]).optim.lr == 0.5
    assert load_train_settings(str(run), resume=True).agent.max_turn_tokens == 3
    with pytest.raises(SettingsError, match="resume it with --resume, or resume=True"):
        load_train_settings(run)
