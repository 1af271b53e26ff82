"""Forks by replay: the same actions in a new instance, and a refusal where the episode does not repeat."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from envgym import Action, ForkCapability, Message, Observation, Reply, Role, Split, Task
from envgym.errors import ForkUnsupported, InvalidInput, ResetNeeded
from envgym.forking import copy_generator
from tests.support.parrots import Parrot, parrot_task
from tests.support.toys import Counter

CALL = '<tool_call>{"name": "add", "arguments": {"amount": 5}}</tool_call>'


class Replayed(Counter):
    """A counter that pretends that its state lies in another process."""

    fork_capability = ForkCapability.REPLAY
    num_made = 0
    num_closed = 0

    def __init__(self, *, max_turns: int | None = 8) -> None:
        super().__init__(max_turns=max_turns)
        type(self).num_made += 1

    def fork_state(self) -> None:  # type: ignore[override]  # must not be called
        raise AssertionError("a replayed env is not copied")

    def close(self) -> None:
        type(self).num_closed += 1


@pytest.mark.parametrize("num_turns", [0, 1, 3])
def test_replay_reaches_the_same_state_and_continues_alike(num_turns: int) -> None:
    env = Replayed(max_turns=5)
    env.reset(seed=4)
    env.reset()  # this episode's generator is in the middle of its stream
    for _ in range(num_turns):
        env.step(CALL)
    twin = env.fork()
    assert type(twin) is Replayed
    assert (twin.state.count, twin.task, twin.max_turns) == (5 * num_turns, env.task, 5)
    for action in (CALL, "x", "DONE"):
        if num_turns < 3:
            assert twin.step(action)[:4] == env.step(action)[:4]


def test_fork_of_a_replayed_fork_is_again_a_replay() -> None:
    env = Replayed()
    env.reset(seed=4)
    env.step(CALL)
    twin = env.fork()
    twin.step(CALL)
    grandchild = twin.fork()
    assert (env.state.count, twin.state.count, grandchild.state.count) == (5, 10, 10)


def test_replay_of_an_ended_episode_is_ended() -> None:
    env = Replayed()
    env.reset(seed=4)
    env.step("DONE")
    with pytest.raises(ResetNeeded):
        env.fork().step("x")


def test_replay_needs_an_episode() -> None:
    with pytest.raises(ResetNeeded, match="fork must follow a reset"):
        Replayed().fork()


_CLOCK: Iterator[int] = count()


class ChangedFirst(Replayed):
    def begin(self, task: Task) -> str:
        return f"{super().begin(task)} It is {next(_CLOCK)} o'clock."


class ChangedText(Replayed):
    def respond(self, action: Action) -> Reply:
        return Reply(observation=f"It is {next(_CLOCK)} o'clock.")


class ChangedMessages(Replayed):
    def respond(self, action: Action) -> Reply:
        role = Role.USER if next(_CLOCK) % 2 else Role.SYSTEM
        return Reply(observation=Observation("Hm.", [Message(role=role, content="Hm.")]))


class ChangedReward(Replayed):
    def respond(self, action: Action) -> Reply:
        return Reply(reward=float(next(_CLOCK)))


class ChangedEnding(Replayed):
    def respond(self, action: Action) -> Reply:
        return Reply(terminated=next(_CLOCK) % 2 == 0)


@pytest.mark.parametrize(
    "kind, difference",
    [
        (ChangedFirst, "first observation of the replay must equal"),
        (ChangedText, 'observation of turn 1 of the replay must equal "It is'),
        (ChangedMessages, "observation of turn 1 of the replay must equal"),
        (ChangedReward, "reward of turn 1 of the replay must equal Scored"),
        (ChangedEnding, "ending of turn 1 of the replay must equal"),
    ],
)
def test_world_that_does_not_repeat_is_refused_with_its_first_difference(
    kind: type[Replayed], difference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "_CLOCK", count())
    env = kind()
    env.reset(seed=4)
    env.step(CALL)
    env.step("x")
    kind.num_closed = 0
    with pytest.raises(ForkUnsupported, match=difference):
        env.fork()
    assert kind.num_closed == 1, "the failed copy is closed, its original is not"


def test_only_a_replayed_env_keeps_a_recording() -> None:
    env, replayed = Counter(), Replayed()
    env.reset(seed=1)
    replayed.reset(seed=1)
    replayed.step("x")
    assert env.recording is None
    assert replayed.recording is not None
    assert [turn.action for turn in replayed.recording.turns] == ["x"]


def test_copied_generator_continues_with_the_same_numbers() -> None:
    for bits in (np.random.PCG64, np.random.MT19937, np.random.Philox):
        generator = np.random.Generator(bits(5))
        generator.random(3)
        twin = copy_generator(generator)
        assert twin.random(4).tolist() == generator.random(4).tolist()
        generator.random()
        assert twin.random() != generator.random()


@pytest.mark.parametrize("seed", [3, None])
def test_fork_made_before_the_first_draw_has_the_numbers_of_the_seed_to_itself(seed: int | None) -> None:
    env, options = Parrot(), {"task": parrot_task("Q")}
    env.reset(seed=3, options=options)
    env.reset(seed=seed, options=options)  # without a seed the generator goes on
    fork = env.fork()
    expected = np.random.Generator(np.random.PCG64(3)).random(4).tolist()
    assert env.np_random.random(4).tolist() == expected
    assert fork.np_random.random(4).tolist() == expected


def test_fork_of_an_env_without_a_seed_draws_the_same_numbers() -> None:
    env = Parrot()
    env.reset(options={"task": parrot_task("Q")})
    fork = env.fork()
    assert env.np_random.random(4).tolist() == fork.np_random.random(4).tolist()


def test_seed_that_is_no_natural_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="seed must be a whole number of at least 0, got -1"):
        Parrot().reset(seed=-1)


def test_generator_goes_on_after_the_draw_of_the_task_and_forks_have_it_to_themselves() -> None:
    expected = np.random.Generator(np.random.PCG64(3))
    expected.integers(Counter.tasks.size(Split.TRAIN) or 2**31)
    numbers = expected.random(4).tolist()
    env = Counter()
    env.reset(seed=3)
    forks = [env.fork(), env.fork()]
    assert forks[0].np_random.random(4).tolist() == numbers
    assert env.np_random.random(4).tolist() == numbers
    assert env.fork().np_random.random() == expected.random()
    assert forks[1].np_random.random(4).tolist() == numbers
