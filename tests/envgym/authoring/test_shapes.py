"""The three ways to write an env: at most 15 lines, one contract."""

import asyncio
import inspect
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envgym import Action, Ending, Env, Invalid, Scored, Split, ToolCall, tool
from envgym.authoring import RubricEnv, TaskDraft, ToolObjectEnv, from_object, from_rubric
from envgym.env import NoOracle
from envgym.errors import EnvFailure, InvalidInput, UnknownName
from envgym.parsing import parse_action
from envgym.records import StepRecord
from envgym.rubric import Rubric
from envgym.verifiers import Exact, Math, Numeric, Verdict
from tests.support import env_shapes as shapes

AnyEnv = Env[Any]  # each env has its own state type
SHAPES: list[Callable[[], AnyEnv]] = [shapes.Halving, shapes.safe, shapes.products]


def call(name: str, **arguments: int) -> Action:
    return Action(f"{name} {arguments}", content="", tool_calls=[ToolCall(name=name, arguments=arguments)])


def play(env: AnyEnv, *actions: str) -> list[StepRecord]:
    """Play actions in a running episode and return their records."""
    return [env.step(action).info["envgym"] for action in actions]


@pytest.mark.parametrize("shape", ["class", "object", "rubric"])
def test_each_shape_takes_at_most_15_lines(shape: str) -> None:
    source = inspect.getsource(shapes).split(f"# [{shape}]")[1]
    lines = [line for line in source.splitlines() if line.strip()]
    assert 5 < len(lines) <= 15


@pytest.mark.parametrize("make", SHAPES)
def test_each_shape_passes_the_checker_of_gymnasium(make: Callable[[], AnyEnv]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checker warns that text is no Box
        check_env(make(), skip_render_check=True)


@pytest.mark.parametrize("make", SHAPES)
def test_each_shape_forks_and_pickles_in_the_middle(make: Callable[[], AnyEnv]) -> None:
    env = make()
    env.reset(seed=3, options={"split": "test", "index": 5})
    play(env, Action(content="", malformed=["nothing yet"]))
    for twin in (env.fork(), pickle.loads(pickle.dumps(env))):
        assert twin.task == env.task
        assert twin.step("1") == env.fork().step("1")


def test_the_class_shape_pays_at_the_end() -> None:
    env = shapes.Halving()
    env.reset(options={"task": env.tasks.task(Split.TRAIN, 0)})
    steps, number = [], env.state
    while number > 1:
        number //= 2
        steps += play(env, str(number))
    assert [step.reward for step in steps] == [Scored(value=0.0)] * (len(steps) - 1) + [Scored(value=1.0)]
    assert steps[-1].ending is Ending.TERMINATED


def test_the_object_shape_ends_when_the_object_is_over() -> None:
    env = shapes.safe()
    env.reset(options={"split": "test", "index": 0})
    code = env.state.code
    low, high, opened = play(env, call("turn", to=code - 1), call("turn", to=code + 1), call("turn", to=code))
    assert [str(step.observation) for step in (low, high, opened)] == ["Higher.", "Lower.", "It opens."]
    assert (low.ending, opened.ending, opened.reward) == (None, Ending.TERMINATED, Scored(value=1.0))


def test_the_object_shape_ends_with_a_message_without_calls() -> None:
    env = shapes.safe()
    env.reset(seed=1)
    step = play(env, "I give up.")[0]
    assert (step.ending, step.reward) == (Ending.TERMINATED, Scored(value=0.0))


def test_the_object_shape_pays_its_score_at_the_turn_limit() -> None:
    class Jar:
        def reset(self) -> str:
            self.coins = 0
            return ""

        def put(self) -> str:
            """Put a coin into the jar."""
            self.coins += 1
            return "clink"

        def score(self) -> float:
            return self.coins / 10

    env = from_object(Jar, [TaskDraft(prompt="Fill the jar.", payload={})], max_turns=2)
    split = Split.TRAIN if env.tasks.size(Split.TRAIN) else Split.TEST
    assert env.reset(options={"split": split.value}).observation == "Fill the jar."  # reset said nothing
    first, second = play(env, call("put"), call("put"))
    assert (first.reward, first.ending) == (Scored(value=0.0), None)
    assert (second.reward, second.ending) == (Scored(value=0.2), Ending.TRUNCATED_TURNS)


@pytest.mark.parametrize(
    "result, reward",
    [
        (0.25, 0.25),
        (True, 1.0),
        (np.True_, 1.0),
        (Verdict(score=0.5, reason="half of it"), 0.5),
        (1.5, None),
        (None, None),
        ("yes", None),
    ],
)
def test_score_of_an_object_has_the_forms_of_a_reward_function(result: Any, reward: float | None) -> None:
    class Jar:
        def reset(self) -> str:
            return "Fill it."

        def score(self) -> Any:
            return result

    env = from_object(Jar, [TaskDraft(prompt="Fill the jar.", payload={})])
    env.reset(options={"task": env.tasks.task(Split.TEST if env.tasks.size(Split.TEST) else Split.TRAIN, 0)})
    (step,) = play(env, "Done.")
    if reward is not None:
        assert step.reward == Scored(value=reward)
        assert type(step.reward.value) is float
    else:
        assert isinstance(step.reward, Invalid)
        must = f"Jar.score must return a number in [0, 1], a bool or a Verdict, got {result!r} (task "
        assert must in step.reward.reason


def test_a_fork_copies_the_object() -> None:
    env = shapes.safe()
    env.reset(options={"split": "train", "index": 0})
    twin = env.fork()
    play(env, call("turn", to=env.state.code))
    assert env.state.is_over
    assert not twin.state.is_over


def test_every_object_is_closed_exactly_once() -> None:
    log: list[str] = []

    class Door:
        def reset(self, name: str) -> str:
            self.name = name
            log.append(f"open {name}")
            if name == "stuck":
                raise OSError("no key")
            return "?"

        def score(self) -> float:
            return 1.0

        def close(self) -> None:
            log.append(f"close {self.name}")

    drafts = [TaskDraft(prompt="", payload={"name": name}) for name in ("a", "b", "stuck")]
    env = from_object(Door, drafts)
    tasks = {
        task.payload["name"]: task
        for split in Split
        for task in (env.tasks.task(split, index) for index in range(env.tasks.size(split) or 0))
    }
    env.reset(options={"task": tasks["a"]})
    env.reset(options={"task": tasks["b"]})
    with pytest.raises(EnvFailure, match="no key"):
        env.reset(options={"task": tasks["stuck"]})
    env.close()
    env.close()
    assert log == ["open a", "close a", "open b", "close b", "open stuck", "close stuck"]


def test_an_object_may_ask_for_the_generator_and_cannot_change_the_task() -> None:
    class Bag:
        def reset(self, items: list[int], rng: Any) -> str:  # Any: NumPy's generator
            items.append(int(rng.integers(10**9)))
            return str(items)

        def look(self) -> str:
            """Look into the bag."""
            return ""

        def score(self) -> float:
            return 1.0

    env = from_object(Bag, [TaskDraft(prompt="", payload={"items": [n]}) for n in range(20)])
    task = env.tasks.task(Split.TRAIN, 0)
    first = env.reset(seed=1, options={"task": task}).observation
    assert env.reset(seed=1, options={"task": task}).observation == first
    assert env.reset(seed=2, options={"task": task}).observation != first
    assert env.tasks.task(Split.TRAIN, 0) == task


@pytest.mark.parametrize(
    "payload, advice", [({"cod": 3}, "drop cod in the task source"), ({}, "add code in the task source")]
)
def test_a_payload_that_does_not_fit_reset_is_one_clear_sentence(payload: dict[str, int], advice: str) -> None:
    env = from_object(shapes.Safe, [TaskDraft(prompt="", payload=payload)])
    split = Split.TRAIN if env.tasks.size(Split.TRAIN) else Split.TEST
    with pytest.raises(InvalidInput, match=rf"Safe\.reset\(code\) must take each field of the payload, got .*{advice}"):
        env.reset(options={"split": split.value})


def test_a_method_that_cannot_be_a_tool_is_refused_when_the_env_is_made() -> None:
    class Silent(shapes.Safe):
        def peek(self) -> str:
            return str(self.code)

    with pytest.raises(InvalidInput, match=r"tool must have a docstring, got none \(Silent\.peek\)"):
        from_object(Silent, [])


def test_the_object_shape_can_be_subclassed() -> None:
    class SafeEnv(ToolObjectEnv[shapes.Safe]):
        object_class = shapes.Safe
        tasks = shapes.safe().tasks
        system_prompt = "Be quick."

    env = SafeEnv(max_turns=3)
    assert env.reset(seed=0).info["envgym"].system_prompt == "Be quick."
    assert (env.name, env.fresh().max_turns) == ("Safe", 3)


def test_the_rubric_shape_scores_the_first_message_without_calls() -> None:
    env = shapes.products()
    record = env.reset(options={"split": "test", "index": 1}).info["envgym"]
    a, b = record.task.payload["factors"]
    assert parse_action(env.oracle()).tool_calls == call("multiply", a=a, b=b).tool_calls
    used, answered = play(env, call("multiply", a=a, b=b), f"It is {a * b}.")
    assert (str(used.observation), used.ending) == (str(a * b), None)
    assert (answered.reward, answered.ending) == (
        Scored(value=1.0, components={"answer": 1.0}),
        Ending.TERMINATED,
    )
    assert env.oracle() == str(a * b), "after the call"


def test_the_rubric_shape_can_be_subclassed_with_tools_of_its_own() -> None:
    class Products(RubricEnv):
        tasks = shapes.products().tasks
        rubric = Numeric()
        functions = (shapes.multiply,)

        @tool
        def factors(self) -> str:
            """Tell the factors."""
            return str(self.task.payload["factors"])

    env = Products()
    record = env.reset(seed=0).info["envgym"]
    assert [spec.name for spec in record.tools] == ["multiply", "factors"]
    assert env.step(call("factors")).observation == str(record.task.payload["factors"])
    with pytest.raises(NoOracle, match="pass solve, or define oracle"):
        env.oracle()
    assert env.step(str(record.task.payload["answer"])).reward == 1.0


def test_thinking_is_not_part_of_the_final_answer() -> None:
    env = shapes.products()
    task = env.reset(seed=0).info["envgym"].task
    answer = task.payload["answer"]
    assert env.step(f"<think>maybe {answer + 1}</think>{answer}").reward == 1.0
    env.reset(options={"task": task})
    assert env.step(f"<think>{answer}</think>").reward == 0.0


@pytest.mark.parametrize("answer", ["", "{prompt}", "nan", "1 2 3", "1e400", "42"])
def test_answers_that_do_not_solve_score_zero(answer: str) -> None:
    env = shapes.products()
    for index in range(20):
        task = env.reset(options={"split": "test", "index": index}).info["envgym"].task
        if str(task.payload["answer"]) != answer:
            assert env.step(answer.format(prompt=task.prompt)).reward == 0.0


def test_a_fault_of_a_verifier_is_recorded_as_an_invalid_reward() -> None:
    tasks = [TaskDraft(prompt="?", payload={"anser": str(n)}) for n in range(20)]
    env = from_rubric(tasks, lambda answer, task: Exact()(answer.strip(), task))
    env.reset(seed=0)
    step = play(env, "4")[0]
    assert step.ending is Ending.ERROR_ENV
    assert not isinstance(step.reward, Scored)
    assert "payload field must be a known name" in step.reward.reason
    with pytest.raises(UnknownName, match="did you mean anser"):
        from_rubric(tasks, Exact()).reset(seed=0)
    with pytest.raises(NoOracle):
        env.oracle()


def test_an_env_waits_where_its_rubric_does() -> None:
    tasks = [TaskDraft(prompt="?", payload={"answer": "4"})]
    assert from_rubric(tasks, Math()).blocking
    assert not from_rubric(tasks, Rubric([(Numeric(), 1.0, "number")])).blocking


def test_options_of_the_declarations_hold_for_one_env_only() -> None:
    tasks = [TaskDraft(prompt="?", payload={"answer": "4"})]
    env = from_rubric(tasks, Exact(), system_prompt="Be brief.", chance_score=0.25, solve=lambda task: "four")
    assert (env.system_prompt, env.chance_score) == ("Be brief.", 0.25)
    assert (from_rubric(tasks, Exact()).system_prompt, from_rubric(tasks, Exact()).chance_score) == ("", 0.0)
    assert env.fresh().system_prompt == "Be brief."


@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize("make", SHAPES)
def test_vector_envs_run_each_shape(make: Callable[[], AnyEnv], vector: str) -> None:
    makers = [make, make]
    envs: gymnasium.vector.VectorEnv[Any, Any, Any]
    envs = (
        gymnasium.vector.SyncVectorEnv(makers)
        if vector == "sync"
        else gymnasium.vector.AsyncVectorEnv(makers, context="spawn", shared_memory=False)
    )
    try:
        observations, _ = envs.reset(seed=[1, 2])
        single = make()
        assert observations[0] == single.reset(seed=1).observation
        _, rewards, *_ = envs.step(("1", "1"))
        assert rewards[0] == single.step("1").reward
    finally:
        envs.close()


def test_a_reset_that_fails_is_a_failure_of_the_env() -> None:
    class Broken(shapes.Safe):
        def reset(self, code: int) -> str:
            return str(code // 0)

    env = from_object(Broken, shapes.safe().tasks)
    with pytest.raises(EnvFailure, match="reset of Broken failed: ZeroDivisionError"):
        env.reset(seed=0)


def test_envs_run_in_threads() -> None:
    async def run() -> list[float]:
        def one(index: int) -> float:
            env = shapes.products()
            env.reset(options={"split": "train", "index": index})
            env.step(env.oracle())
            return env.step(env.oracle()).reward

        return await asyncio.gather(*(asyncio.to_thread(one, index) for index in range(20)))

    assert asyncio.run(run()) == [1.0] * 20
