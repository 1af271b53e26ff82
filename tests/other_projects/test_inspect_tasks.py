"""Tasks of inspect-ai as environments: rewards are the scores of its own evaluations."""

import io
import random
import shlex
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from inspect_ai.model import ChatMessageAssistant, ModelOutput, get_model

import envgym
from envgym import Env, Split
from envgym.cli.main import main
from envgym.connect import inspect_sample
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.errors import InvalidInput, UnknownName
from envgym.parsing import tool_call_action
from envgym.party import ScriptedParty
from envgym.records import ResetRecord, StepRecord
from tests.other_projects import inspect_tasks
from tests.other_projects.inspect_tasks import spoken
from tests.support.pages import blocks_of, read_blocks

pytestmark = [
    pytest.mark.connect,
    pytest.mark.usefixtures("inspect_folder"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
TASKS = f"inspect://{inspect_tasks.__file__}@"


def play(env: Env[Any], *actions: str, index: int = 0) -> tuple[ResetRecord, list[StepRecord]]:
    first: ResetRecord = env.reset(seed=0, options={"split": "test", "index": index}).info["envgym"]
    return first, [env.step(action).info["envgym"] for action in actions]


def reward_for(task: str, *actions: str, **settings: Any) -> Reward:
    with closing(envgym.make(TASKS + task, test_share=1.0, **settings)) as env:
        return play(env, *actions)[1][-1].reward


def answers(target: str, draws: random.Random) -> str:
    """Return a right, wrong, verbose or empty answer."""
    forms = [
        "{0}",
        "ANSWER: {0}",
        "{0}.",
        "It may be {0}, or 7.",
        "answer: {0}\nThat is all.",
        "**{0}**",
        "",
        "No",
        "B",
    ]
    wrong = draws.choice(["3", "A", "C", "Yes", "twelve"])
    return draws.choice(forms).format(draws.choice([target, target, wrong]))


@pytest.mark.parametrize("name", ["word_problems", "capitals", "yes_or_no"])
def test_rewards_are_the_scores_of_its_own_eval(name: str) -> None:
    draws = random.Random(name)
    task = getattr(inspect_tasks, name)()
    by_prompt: dict[str, str] = {}
    ours: dict[str, float] = {}
    with closing(envgym.make(TASKS + name, test_share=1.0)) as env:
        assert env.unwrapped.tasks.size(Split.TEST) == inspect_tasks.ROWS
        for index, sample in enumerate(task.dataset):
            first = env.reset(options={"split": "test", "index": index}).info["envgym"]
            text = by_prompt[str(first.observation)] = answers(str(sample.target), draws)
            scored = env.step(envgym.Action(text)).info["envgym"].reward
            assert isinstance(scored, Scored)
            ours[first.task.id] = scored.value

    def reply(messages: list[Any], *_: Any) -> ModelOutput:
        return spoken(ChatMessageAssistant(content=by_prompt[messages[-1].text]))

    model = get_model("mockllm/model", custom_outputs=reply)
    (log,) = inspect_ai.eval(task, model=model, display="none")
    (score,) = log.results.scores
    values = {str(sample.id): float(next(iter(sample.scores.values())).value == "C") for sample in log.samples}
    assert values == ours
    assert 0.1 < sum(ours.values()) / len(ours) < 0.9
    assert score.metrics["accuracy"].value == pytest.approx(sum(ours.values()) / len(ours))


def test_the_prompt_is_what_the_solver_writes() -> None:
    with closing(envgym.make(f"{TASKS}word_problems", test_share=1.0, task_args={"shots": 1})) as env:
        first, _ = play(env, index=3)
        assert first.system_prompt == "Ann has 0 pens and buys 1 more. How many?\nANSWER: 1"
        assert str(first.observation).startswith("Solve.\n\nAnn has 3 pens")
        assert "7" not in str(first.observation), "the target is hidden"
    with closing(envgym.make(f"{TASKS}continued", test_share=1.0)) as env:
        first, turns = play(env, "Two")
        assert [message.role for message in first.observation.messages] == ["user", "assistant", "user"]
        assert turns[-1].reward == Scored(value=1.0, components={"match": 1.0})


def test_tools_run_until_the_answer() -> None:
    with closing(envgym.make(f"{TASKS}shop", test_share=1.0, scorer="match")) as env:
        calls = [tool_call_action("price", item="cup", count=4), tool_call_action("price", item="cup", count="x")]
        first, turns = play(env, *calls, tool_call_action("price", item="crash"), tool_call_action("buy"), "20")
        assert [(spec.name, spec.parameters["required"]) for spec in first.tools] == [("price", ["item"])]
        assert str(turns[0].observation) == "20"
        assert "'x' is not of type 'integer'" in str(turns[1].observation)
        assert "the table is lost" in str(turns[2].observation)
        assert [turn.tool_errors for turn in turns] == [0, 1, 1, 1, 0]
        paid = Scored(value=1.0, components={"match": 1.0, "num_asked": 1.0})
        assert (turns[-1].reward, turns[-1].ending) == (paid, Ending.TERMINATED)
        assert play(env, "20")[1][-1].reward == Scored(value=1.0, components={"match": 1.0, "num_asked": 0.0})
        assert task_module(env).CLEANED[-2:] == ["1", "1"]
    with closing(envgym.make(f"{TASKS}shop", test_share=1.0, scorer="match", deterministic=True)) as env:
        play(env, calls[0])
        with closing(env.fork()) as fork:
            assert [it.step("20").reward for it in (fork, env)] == [1.0, 1.0]


@pytest.mark.parametrize("text, value", [("'C'", 1.0), ("'P'", 0.5), ("'I'", 0.0), ("'N'", 0.0), ("0.25", 0.25)])
def test_a_value_is_a_reward(text: str, value: float) -> None:
    assert reward_for("values", text) == Scored(value=value, components={"any_value": value})


@pytest.mark.parametrize("text", ["raise", "none", "unscored", "'maybe'", "[1.0]", "{'a': 1.0}"])
def test_what_is_no_value_makes_the_reward_invalid(text: str) -> None:
    reward = reward_for("values", text)
    assert isinstance(reward, Invalid)
    assert reward.cause is Ending.ERROR_ENV


def test_settings_choose_the_scorer_and_the_entry_that_pay() -> None:
    reward = reward_for("two_scorers", "3", scorer="match")
    assert reward == Scored(value=1.0, components={"match": 1.0, "any_value": 3.0})
    reward = reward_for("values", "{'a': 1.0, 'b': 0.5}", value="b")
    assert reward == Scored(value=0.5, components={"any_value/a": 1.0, "any_value/b": 0.5})
    with pytest.raises(InvalidInput, match="scorer must name the one that pays, got match, any_value"):
        envgym.make(f"{TASKS}two_scorers")
    with pytest.raises(UnknownName, match="did you mean match"):
        envgym.make(f"{TASKS}two_scorers", scorer="mach")


def test_a_grader_grades() -> None:
    with pytest.raises(InvalidInput, match=r"scorer model_graded_qa must have a model to ask, got no grader"):
        envgym.make(f"{TASKS}graded")
    for grade, value in (("C", 1.0), ("I", 0.0)):
        reward = reward_for("graded", "3", parties={"grader": ScriptedParty([f"GRADE: {grade}"])})
        assert reward == Scored(value=value, components={"model_graded_qa": value})
    failed = reward_for("graded", "3", parties={"grader": ScriptedParty([])})
    assert isinstance(failed, Invalid)
    assert failed.cause is Ending.ERROR_PARTY


def test_a_grader_that_only_wrong_answers_need_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"scorer graded_if_wrong must have a model to ask, got no grader"):
        envgym.make(f"{TASKS}seldom_graded")
    reward = reward_for("seldom_graded", "4", parties={"grader": ScriptedParty(["I"])})
    assert reward == Scored(value=0.0, components={"graded_if_wrong": 0.0})


def test_metadata_without_a_form_in_json_does_not_move_a_sample() -> None:
    keys = []
    for timeout_s in (50.0, 51.0):  # other settings: it is read again
        with closing(envgym.make(f"{TASKS}odd_metadata", test_share=1.0, timeout_s=timeout_s)) as env:
            tasks = env.unwrapped.tasks
            assert tasks.size(Split.TEST) == 8
            keys.append([tasks.task(Split.TEST, index).key for index in range(8)])
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "task, sentence",
    [
        ("own_model", "solver must call the model once, by generate, got a call of the model by itself"),
        ("twice", "solver must call the model once, by generate, got a second call"),
        ("swallows", "got a second call"),
        ("silent", "solver must call the model once, by generate, got no call"),
        ("critique", "got a call of the model by itself"),
        ("agent", "its solver must not be an agent"),
        ("broken", "solver must run without an error, got KeyError: 'question'"),
        ("own_loop", "solver must let generate run the tools until the answer, got tool_calls='none'"),
        ("own_turns", "got tool_calls='single'"),
        ("sandbox_tool", "solver must have tools that are plain functions, got inspect_ai/bash"),
    ],
)
def test_a_solver_that_does_more_than_write_prompts_is_refused(task: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        envgym.make(f"{TASKS}refused", task_args={"name": task})


@pytest.mark.parametrize(
    "task, args, sentence",
    [
        ("odd", {"name": "sandbox"}, "task must run without a sandbox, got sandbox local"),
        ("odd", {"name": "files"}, "must run without a sandbox, got files"),
        ("odd", {"name": "image"}, "message must hold only text, got image"),
        ("odd", {"name": "unscored"}, "task must have a scorer, got none"),
        ("odd", {"name": "empty"}, "dataset is empty"),
        ("odd", {"name": "other"}, "task must be made by its function, got ValueError: there is no such task"),
        ("values", {"size": 1}, "unexpected keyword argument 'size'"),
        ("shopp", {}, "did you mean shop"),
        ("ROWS", {}, "task must be made by its function"),
    ],
)
def test_a_task_that_cannot_be_played_is_refused(task: str, args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        envgym.make(TASKS + task, task_args=args)


def test_the_task_of_the_page_is_played(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = (block.text for block in read_blocks("docs/connect.md") if block.title == "sums.py")
    Path("sums.py").write_text(file)
    blocks = blocks_of("docs/connect.md", "bash")
    played, evaluated = (line for block in blocks for line in block.commands if "inspect://sums.py" in line)
    monkeypatch.setattr("sys.stdin", io.StringIO("It is 8\n"))
    for line in (played, f"{evaluated} --tasks 2"):
        assert main(shlex.split(line)[1:]) == 0
    assert "End with the number." in capsys.readouterr().out


def test_an_id_without_a_task_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nowhere/nothing was not found in the registry"):
        envgym.make("inspect://nowhere/nothing")


def test_a_scorer_that_blocks_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(envgym.make(f"{TASKS}values", test_share=1.0)) as env:
        play(env)
        monkeypatch.setattr(env.unwrapped._run, "_timeout_s", 0.1)  # type: ignore[attr-defined]  # of this env
        record = env.step("wait").info["envgym"]
        assert isinstance(record.reward, Invalid)
        assert "task must answer within 0.1 s" in record.reward.reason
        assert play(env, "0.5")[1][-1].reward == Scored(value=0.5, components={"any_value": 0.5})
    task_module(env).RELEASED.set()


def test_a_scorer_that_waits_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(envgym.make(f"{TASKS}values", test_share=1.0)) as env:
        play(env)
        monkeypatch.setattr(env.unwrapped._run, "_timeout_s", 0.1)  # type: ignore[attr-defined]  # of this env
        record = env.step("sleep").info["envgym"]
        assert isinstance(record.reward, Invalid)
        assert "task must answer within 0.1 s" in record.reward.reason


class LateFuture(Future[str]):
    """Has its result at the fourth time."""

    def __init__(self, progress: Callable[[], None]) -> None:
        super().__init__()
        self.progress, self.times = progress, 0

    def result(self, timeout: float | None = None) -> str:
        self.times += 1
        if self.times == 4:
            return "late"
        self.progress()
        raise TimeoutError


def test_the_time_of_other_samples_hardly_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(envgym.make(f"{TASKS}values", test_share=1.0)) as env:
        play(env)
        run = env.unwrapped._run  # type: ignore[attr-defined]  # of this env
        assert run._wait(LateFuture(lambda: inspect_sample._progress.update([run._loop])), 1.0) == "late"
        with pytest.raises(TimeoutError):
            run._wait(LateFuture(lambda: None), 1.0)
        monkeypatch.setattr(run, "_timeout_s", 0.1)
        monkeypatch.setattr(run, "_wait", lambda future, seconds: future.result())
        reward = env.step("__import__('time').sleep(0.3) or 0.5").info["envgym"].reward
        assert reward == Scored(value=0.5, components={"any_value": 0.5})


def test_a_task_that_exits_ends_its_episode_alone() -> None:
    reward = reward_for("values", "exit")
    assert isinstance(reward, Invalid)
    assert "got SystemExit: 3" in reward.reason
    with closing(envgym.make(f"{TASKS}shop", test_share=1.0, scorer="match")) as env:
        _, (turn,) = play(env, tool_call_action("price", item="exit"))
        assert turn.ending is Ending.ERROR_ENV
        assert "SystemExit(3)" in str(turn.error)
        assert play(env, "20")[1][-1].reward == Scored(value=1.0, components={"match": 1.0, "num_asked": 0.0})


def task_module(env: Env[Any]) -> Any:
    """Return the module of the tasks as the environment has imported it."""
    return sys.modules[env.unwrapped._loaded.task.scorer[-1].__module__]  # type: ignore[attr-defined]  # of this env


def test_an_episode_that_is_left_ends_its_solver() -> None:
    with closing(envgym.make(f"{TASKS}yes_or_no", test_share=1.0)) as env:
        play(env)
        work = env.unwrapped._run._work  # type: ignore[attr-defined]  # of this env
        play(env)
        assert work.cancelled()


def test_the_command_line_checks_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{TASKS}yes_or_no", "--set", "deterministic=true", "-n", "3"]) == 0, capsys.readouterr().out
