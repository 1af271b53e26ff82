"""inspect-ai plays our environments, and we play its tasks: rewards and scores agree."""

import gc
import io
import random
import shlex
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from inspect_ai._util.config import parse_cli_args
from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage, get_model
from inspect_ai.tool import ToolCall

import envgym
from envgym import Env, Split, Task
from envgym.cli.main import main
from envgym.connect.inspect_task import reward
from envgym.core.turns import Ending, Invalid, Reward, Scored
from envgym.errors import EnvFailure, InvalidInput, UnknownName
from envgym.parsing import parse_action, tool_call_action
from envgym.party import ScriptedParty
from envgym.records import ResetRecord, StepRecord
from envgym.tools import tool
from tests.other_projects import inspect_tasks
from tests.support.pages import blocks_of, program_of_the_page, read_blocks
from tests.support.toys import Counter

pytestmark = [
    pytest.mark.connect,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
TASKS = f"inspect://{inspect_tasks.__file__}@"
USAGE = ModelUsage(input_tokens=10, output_tokens=10, total_tokens=20)


class Down(Counter):
    """Its service is down."""

    def begin(self, task: Task) -> str:
        raise EnvFailure("the service is down")


class OftenBroken(Counter):
    """Its service is down for the tasks of even numbers."""

    @tool
    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much to add.
        """
        if int(self.task.id.split("/")[1]) % 2 == 0:
            raise EnvFailure("the service is down")
        return super().add(amount)


@pytest.fixture(autouse=True)
def entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bring the entry point of this tree, whenever the package was installed; work in an empty folder."""
    info = tmp_path / "envgym_test_inspect-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envgym_test_inspect\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inspect_ai]\nenvgym = envgym.connect.inspect_task\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()  # what an eval leaves open is reported here, where it is ignored


# ---- its evaluations, our environments -------------------------------------------------------------------------------


def output_of(action: str) -> ModelOutput:
    parsed = parse_action(action)
    calls = [
        ToolCall(id=f"call-{number}", function=call.name, arguments=dict(call.arguments))
        for number, call in enumerate(parsed.tool_calls)
    ]
    return spoken(ChatMessageAssistant(content=parsed.content, tool_calls=calls or None))


def spoken(message: ChatMessageAssistant) -> ModelOutput:
    output = ModelOutput.from_message(message)
    output.usage = USAGE  # without, tokens are counted with a vocabulary from the network
    return output


class Oracle:
    """A model that answers with the oracle's actions; a conversation is known by its first message of the user."""

    def __init__(self, env_id: str, count: int, **settings: Any) -> None:
        self.outputs: dict[str, deque[ModelOutput]] = defaultdict(deque)
        with closing(envgym.make(env_id, **settings)) as env:
            for index in range(count):
                text = str(env.reset(seed=index, options={"split": "test", "index": index}).observation)
                is_over = False
                while not is_over:
                    action = env.oracle()
                    self.outputs[text].append(output_of(action))
                    result = env.step(action)
                    is_over = result.terminated or result.truncated

    def __call__(self, messages: list[Any], *_: Any) -> ModelOutput:
        text = next(message.text for message in messages if message.role == "user")
        return self.outputs[text].popleft()


def evaluate(env_id: str, model: Callable[..., ModelOutput], **options: Any) -> Any:
    task_args = {"env": env_id, "limit": 4} | options.pop("task_args", {})
    (log,) = inspect_ai.eval(
        "envgym/env",
        task_args=task_args,
        model=get_model("mockllm/model", custom_outputs=model),
        display="none",
        **options,
    )
    return log


def metrics_of(log: Any) -> tuple[float, int, int]:
    (score,) = log.results.scores
    return score.metrics["mean"].value, score.scored_samples, score.unscored_samples


@pytest.mark.parametrize("env_id", ["math/arithmetic-v0", "puzzles/guess_number-v0"])
def test_the_oracle_is_paid_in_full(env_id: str) -> None:
    log = evaluate(env_id, Oracle(env_id, 4))
    assert (log.status, metrics_of(log)) == ("success", (1.0, 4, 0))
    for index, sample in enumerate(log.samples):
        score = sample.scores["reward"]
        assert sample.metadata == {"split": "test", "index": index, "seed": index}
        assert (score.value, score.metadata["ending"], sample.target) == (1.0, "TERMINATED", "")
        assert score.metadata["components"] != {}
        roles = [message.role for message in sample.messages]
        assert score.metadata["turns"] == roles.count("assistant")
    again = inspect_ai.score(log, reward(), display="none")
    assert [sample.scores["reward"].value for sample in again.samples] == [1.0] * 4


def test_an_invalid_reward_is_unscored() -> None:
    env_id = f"{__name__}:OftenBroken"

    def add(messages: list[Any], *_: Any) -> ModelOutput:
        return output_of(tool_call_action("add", amount=1000))

    log = evaluate(env_id, add)
    broken = [sample for sample in log.samples if int(sample.id.split("/")[1]) % 2 == 0]
    mean, scored, unscored = metrics_of(log)
    assert (log.status, scored, unscored) == ("success", 4 - len(broken), len(broken))
    assert 0 < len(broken) < 4
    assert mean == mean
    for sample in broken:
        score = sample.scores["reward"]
        assert score.value != score.value, "NaN is what inspect-ai leaves out"
        assert (score.reason, "the service is down" in score.explanation) == ("ERROR_ENV", True)


def test_an_env_that_cannot_begin_is_unscored() -> None:
    log = evaluate(f"{__name__}:Down", lambda *_: pytest.fail("the model is not called"), task_args={"limit": 1})
    (sample,) = log.samples
    score = sample.scores["reward"]
    assert (log.status, score.reason, score.metadata["turns"]) == ("success", "ERROR_ENV", 0)


def test_a_full_context_ends_the_episode_with_the_reward_so_far() -> None:
    def talk(*_: Any) -> ModelOutput:
        output = spoken(ChatMessageAssistant(content="I cannot go on."))
        output.choices[0].stop_reason = "model_length"
        return output

    log = evaluate("puzzles/guess_number-v0", talk, task_args={"limit": 1})
    (sample,) = log.samples
    score = sample.scores["reward"]
    assert (score.value, score.metadata["ending"], score.metadata["turns"]) == (0.0, None, 0)


@pytest.mark.parametrize("limit", [{"message_limit": 6}, {"token_limit": 50}, {"turn_limit": 2}])
def test_a_limit_of_an_eval_ends_the_episode_with_the_reward_so_far(limit: dict[str, int]) -> None:
    def guess(messages: list[Any], *_: Any) -> ModelOutput:
        return output_of(tool_call_action("guess", number=1))

    log = evaluate("puzzles/guess_number-v0", guess, task_args={"limit": 1}, **limit)
    (sample,) = log.samples
    assert log.status == "success"
    assert sample.limit.type == next(iter(limit)).partition("_")[0]
    score = sample.scores["reward"]
    assert (score.value, score.metadata["ending"]) == (0.0, None)
    assert 1 <= score.metadata["turns"] <= 2


def test_a_call_that_cannot_be_read_is_answered_with_its_id() -> None:
    call = ToolCall(id="bad", function="guess", arguments={}, parse_error="Expecting value")
    outputs = [
        spoken(ChatMessageAssistant(content="", tool_calls=[call])),
        *Oracle("puzzles/guess_number-v0", 1).outputs.popitem()[1],
    ]
    log = evaluate("puzzles/guess_number-v0", lambda *_: outputs.pop(0), task_args={"limit": 1})
    (sample,) = log.samples
    reply = next(message for message in sample.messages if message.role == "tool")
    assert (reply.tool_call_id, reply.error.message) == ("bad", "guess: Expecting value")
    assert sample.scores["reward"].value == 1.0


def test_the_command_that_is_printed_names_the_env_and_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "inspect", "math/arithmetic-v0", "--set", "level=2"]) == 0
    words = shlex.split(capsys.readouterr().out, comments=True)
    assert words[:3] == ["inspect", "eval", "envgym/env"]
    args = parse_cli_args([words[i + 1] for i, word in enumerate(words) if word == "-T"])
    assert args == {"env": "math/arithmetic-v0", "split": "test", "limit": 20, "settings": {"level": 2}}
    log = evaluate("", Oracle("math/arithmetic-v0", 2, level=2), task_args=args | {"limit": 2})
    assert metrics_of(log) == (1.0, 2, 0)


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = program_of_the_page("inspect_ai")
    for shown, small in (('"openai/gpt-4o-mini"', 'model, display="none"'), ('"limit": 20', '"limit": 2')):
        assert shown in text
        text = text.replace(shown, small)
    model = get_model("mockllm/model", custom_outputs=Oracle("puzzles/guess_number-v0", 2))
    exec(text, {"model": model})
    assert "scored_samples=2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "args, sentence",
    [
        ({"env": "math/arithmetic-v1"}, "did you mean math/arithmetic-v0"),
        ({"env": "math/arithmetic-v0", "limit": 0}, "limit must be at least 1, got 0"),
        ({"env": "math/arithmetic-v0", "split": "dev"}, "split"),
        ({"env": "tests.support.toys:Sums", "limit": 10**6}, "limit must be between 1 and"),
    ],
)
def test_a_task_that_cannot_be_made_is_refused(args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        inspect_ai.eval("envgym/env", task_args=args, model="mockllm/model", display="none")


# ---- its tasks, our environment --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "task, sentence",
    [
        ("own_model", "solver must call the model once, by generate, got a call of a model of its own"),
        ("twice", "solver must call the model once, by generate, got a second call"),
        ("swallows", "got a second call"),
        ("silent", "solver must call the model once, by generate, got no call"),
        ("critique", "got a call of a model of its own"),
        ("agent", "its solver must not be an agent"),
        ("broken", "solver must run without an error, got KeyError: 'question'"),
        ("own_loop", "solver must let generate run the tools"),
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


def task_module(env: Env[Any]) -> Any:
    """Return the module of the tasks as the environment has imported it."""
    return sys.modules[env.unwrapped._loaded.task.scorer[0].__module__]  # type: ignore[attr-defined]  # of this env


def test_an_episode_that_is_left_ends_its_solver() -> None:
    with closing(envgym.make(f"{TASKS}yes_or_no", test_share=1.0)) as env:
        play(env)
        work = env.unwrapped._run._work  # type: ignore[attr-defined]  # of this env
        play(env)
        assert work.cancelled()


def test_the_command_line_checks_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{TASKS}yes_or_no", "--set", "deterministic=true", "-n", "3"]) == 0, capsys.readouterr().out
