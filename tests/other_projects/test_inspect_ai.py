"""inspect-ai evaluates models on our environments: its scores are the rewards."""

import shlex
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import closing
from typing import Any

import inspect_ai
import pytest
from inspect_ai._util.config import parse_cli_args
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import ChatMessageAssistant, ModelOutput, get_model
from inspect_ai.tool import ToolCall

import envgym
from envgym import Task
from envgym.cli.main import main
from envgym.connect.inspect_task import reward
from envgym.errors import EnvFailure
from envgym.parsing import parse_action, tool_call_action
from envgym.tools import tool
from tests.other_projects.inspect_tasks import spoken
from tests.support.pages import program_of_the_page
from tests.support.toys import Counter, OftenBroken

pytestmark = [
    pytest.mark.connect,
    pytest.mark.usefixtures("inspect_folder"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]


class Down(Counter):
    """Its service is down."""

    def begin(self, task: Task) -> str:
        raise EnvFailure("the service is down")


class Slow(Counter):
    """Exceeds a time limit of 1 s: the first task when it begins, the others in their first turn."""

    blocking = True

    def begin(self, task: Task) -> str:
        if task.id == "test/0":
            time.sleep(1.2)
        return super().begin(task)

    @tool
    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much to add.
        """
        time.sleep(1.2)
        return super().add(amount)


class SlowInTheLoop(Slow):
    """Does not say that it blocks."""

    blocking = False


def output_of(action: str) -> ModelOutput:
    parsed = parse_action(action)
    calls = [
        ToolCall(id=f"call-{number}", function=call.name, arguments=dict(call.arguments))
        for number, call in enumerate(parsed.tool_calls)
    ]
    return spoken(ChatMessageAssistant(content=parsed.content, tool_calls=calls or None))


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
    env_id = f"{OftenBroken.__module__}:OftenBroken"

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


@pytest.mark.parametrize("stop_reason", ["model_length", "max_tokens"])
@pytest.mark.parametrize("num_whole", [0, 1])
def test_a_reply_that_was_cut_is_not_played(stop_reason: Any, num_whole: int) -> None:
    whole, cut = (output_of(tool_call_action("guess", number=1)) for _ in range(2))
    cut.choices[0].stop_reason = stop_reason
    outputs = [whole] * num_whole + [cut]
    log = evaluate("puzzles/guess_number-v0", lambda *_: outputs.pop(0), task_args={"limit": 1})
    (sample,) = log.samples
    score = sample.scores["reward"]
    assert (score.value, score.metadata["ending"], score.metadata["turns"]) == (0.0, "TRUNCATED_TOKENS", num_whole)


@pytest.mark.parametrize("env", [Slow, SlowInTheLoop])
def test_the_time_that_an_env_takes_is_no_fault_of_the_model(env: type[Counter]) -> None:
    log = evaluate(
        f"{__name__}:{env.__name__}",
        lambda *_: output_of(tool_call_action("add", amount=1)),
        task_args={"limit": 2},
        time_limit=1,
    )
    assert log.status == "success"
    assert [sample.limit.type for sample in log.samples] == ["time", "time"]
    scores = [sample.scores["reward"] for sample in log.samples]
    assert all(score.value != score.value for score in scores), "NaN is what inspect-ai leaves out"
    assert scores[0].explanation == "No turn was played."


def test_an_eval_that_allows_no_turn_is_unscored() -> None:
    log = evaluate("puzzles/guess_number-v0", lambda *_: pytest.fail("not called"), message_limit=1)
    assert metrics_of(log)[1:] == (0, 4)


@pytest.mark.parametrize(
    "limit", [{"message_limit": 6}, {"token_limit": 50}, {"token_limit": 10}, {"turn_limit": 2}], ids=str
)
def test_a_limit_of_an_eval_ends_the_episode_with_the_reward_so_far(limit: dict[str, int]) -> None:
    def guess(messages: list[Any], *_: Any) -> ModelOutput:
        return output_of(tool_call_action("guess", number=1))

    log = evaluate("puzzles/guess_number-v0", guess, task_args={"limit": 1}, **limit)
    (sample,) = log.samples
    assert log.status == "success"
    assert sample.limit.type == next(iter(limit)).partition("_")[0]
    score = sample.scores["reward"]
    is_of_tokens = "token_limit" in limit
    assert (score.value, score.metadata["ending"]) == (0.0, "TRUNCATED_TOKENS" if is_of_tokens else None)
    assert score.metadata["turns"] in ((0,) if limit.get("token_limit") == 10 else (1, 2))


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
        (
            {"env": "math/arithmetic-v0", "settings": "level"},
            "settings must be a mapping of names",
        ),
        ({"env": "math/arithmetic-v0", "settings": {"level": 99}}, "level"),
        ({"env": "tests.support.toys:Sums", "limit": 10**6}, "limit must be between 1 and"),
    ],
)
def test_a_task_that_cannot_be_made_is_refused(args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PrerequisiteError, match=sentence):
        inspect_ai.eval("envgym/env", task_args=args, model="mockllm/model", display="none")
