"""The class that TRL is given, without TRL: its methods are the tools, and its rewards are those of the episode."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym import Action, Reply, Task
from envgym.authoring.openings import opening_messages
from envgym.connect.trl import IS_OVER, UNAVAILABLE, TrlEnvironment, TrlFactory, environment
from envgym.core.tasks import Split
from envgym.core.turns import Scored, total
from envgym.errors import EnvFailure, InvalidInput, ToolInfraFailure, UnknownName
from envgym.parsing import parse_action
from envgym.tools import Tool, tool
from tests.support.toys import Counter

COUNTER, SUMS = "tests.support.toys:Counter", "tests.support.toys:Sums"
Make = Callable[..., TrlFactory]


@pytest.fixture
def make() -> Iterator[Make]:
    factories: list[TrlFactory] = []

    def made(env_id: str, **options: Any) -> TrlFactory:
        factories.append(environment(env_id if ":" in env_id or "/" in env_id else f"{__name__}:{env_id}", **options))
        return factories[-1]

    yield made
    for factory in factories:
        factory.close()
        factory.close()


def public_methods(cls: type) -> list[str]:
    """Return what TRL takes for tools, found as it finds them."""
    members = inspect.getmembers(cls, predicate=inspect.isfunction)
    return sorted(name for name, _ in members if not name.startswith("_") and name not in ("reset", "get_reward"))


def play_oracle(env: TrlEnvironment) -> list[str]:
    """Play the oracle through the methods of an instance; return their answers."""
    answers = []
    while env._episode.result().ending is None:
        action = env._episode.oracle()
        calls = parse_action(action).tool_calls
        assert len(calls) <= 1
        name, arguments = (calls[0].name, calls[0].arguments) if calls else ("say", {"text": action})
        answers.append(getattr(env, name)(**arguments))
    return answers


@pytest.mark.parametrize("env_id", [COUNTER, SUMS, "puzzles/guess_number-v0", "tools/office-v0", "math/arithmetic-v0"])
def test_the_oracle_is_paid_as_in_local_play_and_shown_the_same(make: Make, env_id: str) -> None:
    factory = make(env_id)
    env, local = factory(), envgym.make(env_id)
    for row in factory.rows(3, seed=5):
        first = env.reset(**row)
        options = {"split": "train", "index": row["index"]}
        record = local.reset(seed=row["seed"], options=options).info["envgym"]
        assert first == "\n\n".join(message.content for message in record.observation.messages)
        answers = play_oracle(env)
        rewards, shown = [], []
        is_over = False
        while not is_over:
            turn = local.step(local.oracle()).info["envgym"]
            rewards.append(turn.reward)
            shown.append(str(turn.observation))
            is_over = turn.ending is not None
        assert answers[:-1] == shown[:-1]
        assert answers[-1] == (f"{shown[-1]}\n\n{IS_OVER}" if shown[-1] else IS_OVER)
        value = total(rewards)
        assert isinstance(value, Scored)
        assert env.get_reward() == value.value
    local.close()


def test_the_methods_are_the_tools_and_say(make: Make) -> None:
    factory = make("puzzles/guess_number-v0")
    assert public_methods(factory.environment_class) == ["guess", "say"]
    assert factory.environment_class.__name__ == "GuessNumber"
    assert public_methods(make(COUNTER, say="answer").environment_class) == ["add", "answer"]
    assert public_methods(make(COUNTER, say=None).environment_class) == ["add"]
    assert make(COUNTER, name="Mine").environment_class.__name__ == "Mine"
    assert make("gymnasium://FrozenLake-v1", settings={"render": True})().reset(index=0, seed=0)
    assert make("gymnasium://FrozenLake-v1", settings={"render": True}).environment_class.__name__ == "FrozenLake"


def test_rows_name_tasks_and_hold_the_standing_instructions_once(make: Make) -> None:
    factory = make(COUNTER, split="test")
    (first, second) = factory.rows(2, start=3, seed=7)
    assert (first["split"], first["index"], first["seed"]) == ("test", 3, 10)
    assert (second["index"], second["seed"]) == (4, 11)
    assert first["prompt"] == [{"role": "system", "content": Counter.system_prompt}, {"role": "user", "content": ""}]
    env = factory()
    with_system = env.reset(**first)
    assert with_system.startswith("Count to ")
    prompt = [{"role": "user", "content": "Hello. "}]
    assert env.reset(**{**first, "prompt": prompt}) == f"{Counter.system_prompt}\n\n{with_system}"
    assert factory.dataset(2).column_names == ["prompt", "split", "index", "seed"]
    again = factory().reset(**factory.dataset(2, start=3, seed=7)[0])
    assert again == with_system, "a row means the same in every instance"


def data_file(folder: Path, *conversations: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Write a row for each conversation of roles and texts; return the settings of `data/file-v0`."""
    prompts = [[{"role": role, "content": text} for role, text in turns] for turns in conversations]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "4"}) + "\n" for prompt in prompts))
    return {"data": {"train": str(path)}, "verifier": "math"}


@pytest.mark.parametrize(
    "systems", [("Be brief.", "Be exact.", ""), ("", "Be exact."), ("Be brief.",) * 5 + ("Be exact.",)]
)
def test_different_system_messages_of_tasks_come_with_the_reset(
    make: Make, tmp_path: Path, systems: tuple[str, ...]
) -> None:
    turns = [[("system", text)] * bool(text) + [("user", f"{n} + 1?")] for n, text in enumerate(systems)]
    factory = make("data/file-v0", settings=data_file(tmp_path, *turns))
    env = factory()
    num_tasks = factory._tasks.size(Split.TRAIN)  # the other rows are held out
    assert num_tasks is not None
    for row in factory.rows(num_tasks):
        assert row["prompt"] == [{"role": "user", "content": ""}]
        own = opening_messages(factory._tasks.task(Split.TRAIN, row["index"]))
        assert env.reset(**row) == "\n\n".join(message.content for message in own)


def test_earlier_turns_of_a_prompt_are_shown_with_their_roles(make: Make, tmp_path: Path) -> None:
    turns = [("system", "Add."), ("user", "1 + 1?"), ("assistant", "2"), ("user", "And 2 + 2?")]
    factory = make("data/file-v0", settings=data_file(tmp_path, turns))
    (row,) = factory.rows(1)
    assert row["prompt"] == [{"role": "system", "content": "Add."}, {"role": "user", "content": ""}]
    text = "user: 1 + 1?\n\nassistant: 2\n\nuser: And 2 + 2?"
    assert factory().reset(**row) == text
    assert factory().reset(**{**row, "prompt": None}) == f"Add.\n\n{text}"


def test_an_episode_that_the_model_left_has_its_value_so_far_and_nothing_is_played_after_the_end(make: Make) -> None:
    env = make(COUNTER)()
    env.reset(index=0, seed=0)
    assert env.get_reward() == 0.0
    assert "Use the tool" in env.say(text="hello")  # type: ignore[attr-defined]  # made from the tools
    play_oracle(env)
    assert env.get_reward() == 1.0
    assert env.add(amount=1) == env.say(text="x") == IS_OVER  # type: ignore[attr-defined]  # made from the tools
    assert env.get_reward() == 1.0


def test_wrong_arguments_are_answered_with_advice(make: Make) -> None:
    env: Any = make(COUNTER)()
    env.reset(index=0, seed=0)
    assert "did you mean 'amount'?" in env.add(amuont=1)
    assert "argument 'amount' is missing" in env.add()
    for arguments in ({}, {"text": 3}, {"text": "a", "tone": "b"}):
        assert env.say(**arguments) == "say was not run: it takes one argument, text, which must be a string."
    assert env._episode.result().num_turns == 2


class Breaking(Counter):
    """Its tool needs a service that is down; some of its tasks cannot be set up."""

    def begin(self, task: Task) -> str:
        if task.id == "train/7":
            raise EnvFailure("the disk is full")
        return super().begin(task)

    @tool
    def add(self, amount: int) -> str:
        """Add."""
        raise ToolInfraFailure("the service is down")


def test_a_failure_of_infrastructure_has_no_reward(make: Make) -> None:
    env: Any = make("Breaking")()
    env.reset(index=0, seed=0)
    assert env.add(amount=1) == IS_OVER
    assert env.get_reward() is None
    assert env.reset(index=7, seed=0) == UNAVAILABLE
    assert env.say(text="x") == IS_OVER
    assert env.get_reward() is None
    env.reset(index=8, seed=0)
    assert env.get_reward() == 0.0


class ReservedName(Counter):
    """Its tool has any name."""

    def toolset(self) -> Mapping[str, Tool]:
        item = super().toolset()["add"]
        return {self.tool_name: replace(item, spec=replace(item.spec, name=self.tool_name))}

    def __init__(self, *, tool_name: str) -> None:
        super().__init__()
        self.tool_name = tool_name


class Changing(Counter):
    """The second task, or a later one, has no tools."""

    def __init__(self, *, since: int = 1) -> None:
        super().__init__()
        self.since = since

    def toolset(self) -> Mapping[str, Tool]:
        tools = super().toolset()
        return tools if self._task is None or int(self._task.id.split("/")[1]) < self.since else {}


class Plain(Counter):
    """Has no tools."""

    def toolset(self) -> Mapping[str, Tool]:
        return {}

    def respond(self, action: Action) -> Reply:
        return Reply(reward=1.0, terminated=True)


@pytest.mark.parametrize(
    "env_id, options, sentence",
    [
        ("Plain", {"say": None}, "environment must have tools, or a tool for text, got none"),
        ("ReservedName", {"settings": {"tool_name": "reset"}}, "name of a tool must not be reset, get_reward"),
        ("ReservedName", {"settings": {"tool_name": "get_reward"}}, "name of a tool must not be reset, get_reward"),
        ("ReservedName", {"settings": {"tool_name": "_add"}}, "nor begin with an underscore, got _add"),
        ("ReservedName", {"settings": {"tool_name": "say"}}, "say must be no tool of the environment, got say"),
        ("ReservedName", {"settings": {"tool_name": "a-b"}}, "tool must have a name that Python can write, got a-b"),
        ("Changing", {}, "every task must have the tools of the first task, got train/1 with none"),
        (COUNTER, {"split": "dev"}, "split must be a known name"),
        (COUNTER, {"settings": {"turns": 3}}, "keyword argument must be a known name, got 'turns'"),
        (COUNTER, {"say": "reset"}, "name of a tool must not be reset"),
    ],
)
def test_what_trl_cannot_call_is_refused_when_the_class_is_made(
    env_id: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=r"\A[^\n]*\Z") as caught:
        environment(env_id if ":" in env_id else f"{__name__}:{env_id}", **options)
    assert sentence in str(caught.value)
    with pytest.raises(UnknownName, match="env id"):
        environment("puzzles/guess_numbr-v0")


def test_a_row_without_a_task_and_a_task_with_other_tools_are_refused(make: Make) -> None:
    env = make(COUNTER)()
    with pytest.raises(InvalidInput, match=r"row of the data set must hold index.*got \['text'\]"):
        env.reset(prompt=[], text="x")
    with pytest.raises(InvalidInput, match=r"every task must have the tools of the first task, got train/9 with none"):
        make("Changing", settings={"since": 8})().reset(index=9)
    with pytest.raises(InvalidInput, match=r"tasks must lie among the \d+ tasks of train, got start=0, count=9999"):
        make(COUNTER).rows(9999)
    with pytest.raises(InvalidInput, match=r"tasks must be at least 0 and at least 1, got start=0, count=0"):
        make("math/arithmetic-v0").rows(0)
