"""Sub-goals are paid once an episode, by hand and by law, and a potential leaves every return as it was."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym import Action, Ending, Env, Invalid, Reply, Scored, Split, Task
from envgym.authoring import ListTasks
from envgym.config.plugins import Choice
from envgym.envs.puzzles.household import Household
from envgym.errors import EnvFailure, InvalidInput
from envgym.wrappers import SubgoalRewards, TurnLimit
from envgym.wrappers.base import WRAPPER, AnyEnv

AMOUNTS = {"key": 0.25, "door": 0.5}
TASKS = {split: Task(id=f"{split}/0", prompt="Leave.", payload={"side": str(split)}, split=split) for split in Split}


class Doors(Env[None]):
    """An action names what it reaches; `out` ends the episode and pays 1, `crash` breaks the env."""

    tasks = ListTasks(list(TASKS.values()))

    def begin(self, task: Task) -> str:
        self.state = None
        return task.prompt

    def respond(self, action: Action) -> Reply:
        if action == "crash":
            raise EnvFailure("the house burned down")
        words = action.split()
        reward = Scored(value=float("out" in words), components=dict.fromkeys(words, 1.0) | {"steps": 1.0})
        return Reply(observation="So.", reward=reward, terminated="out" in words)


def play(env: AnyEnv, actions: Sequence[str], split: Split = Split.TRAIN) -> list[float]:
    env.reset(seed=0, options={"task": TASKS[split]})
    return [env.step(action).reward for action in actions]


def test_each_subgoal_is_paid_at_the_first_turn_that_reaches_it() -> None:
    env = SubgoalRewards(Doors(), AMOUNTS)
    assert play(env, ["look", "key", "key", "key door", "out"]) == [0.0, 0.25, 0.0, 0.5, 1.0]
    assert play(env, ["key door", "out key"]) == [0.75, 1.0], "a new episode begins"
    env.reset(options={"task": TASKS[Split.TRAIN]})
    reward = env.step("key").info["envgym"].reward
    assert reward == Scored(value=0.25, components={"key": 1.0, "steps": 1.0, "subgoal_rewards": 0.25})


def test_potential_is_taken_back_by_the_turn_that_ends_the_episode() -> None:
    # discount 0.5: .5 · .25 = .125 | .5 · .75 - .25 = .125 | .5 · .75 - .75 = -.375 | 1 - .75
    env = SubgoalRewards(Doors(), AMOUNTS, potential=True, discount=0.5)
    assert play(env, ["key", "door", "look", "out"]) == [0.125, 0.125, -0.375, 0.25]
    assert play(SubgoalRewards(Doors(max_turns=2), AMOUNTS, potential=True), ["key", "door"]) == [0.25, -0.25]
    assert play(SubgoalRewards(Doors(), AMOUNTS, potential=True), ["key door out"]) == [1.0]


@given(
    st.lists(st.sampled_from(["look", "key", "door", "key door", "none"]), max_size=6),
    st.sampled_from(["out", "key out", "look"]),
    st.floats(0.1, 1.0),
)
def test_potential_changes_no_discounted_return(actions: list[str], last: str, discount: float) -> None:
    actions = [*actions, last]
    envs: list[AnyEnv] = [
        Doors(max_turns=len(actions)),
        SubgoalRewards(Doors(max_turns=len(actions)), AMOUNTS, potential=True, discount=discount),
    ]
    returns = [math.fsum(discount**turn * reward for turn, reward in enumerate(play(env, actions))) for env in envs]
    assert returns[0] == pytest.approx(returns[1], abs=1e-12)


@given(st.lists(st.sampled_from(["look", "key", "door", "key door", "none"]), max_size=8))
def test_what_is_added_is_the_sum_of_what_was_reached(actions: list[str]) -> None:
    reached = {word for action in actions for word in action.split() if word in AMOUNTS}
    added = sum(play(SubgoalRewards(Doors(), AMOUNTS), actions))
    assert added == pytest.approx(math.fsum(AMOUNTS[name] for name in reached))


def test_fork_goes_on_with_what_was_reached() -> None:
    env = SubgoalRewards(Doors(), AMOUNTS)
    assert play(env, ["key"]) == [0.25]
    twin = env.fork()
    assert [env.step("door").reward, twin.step("key door").reward, env.step("door").reward] == [0.5, 0.5, 0.0]


def test_test_tasks_are_paid_by_the_env_alone() -> None:
    assert play(SubgoalRewards(Doors(), AMOUNTS), ["key", "out"], Split.TEST) == [0.0, 1.0]
    assert play(SubgoalRewards(Doors(), AMOUNTS, on_test=True), ["key", "out"], Split.TEST) == [0.25, 1.0]


def test_invalid_reward_stays_invalid() -> None:
    env = SubgoalRewards(Doors(), AMOUNTS, potential=True)
    env.reset(options={"task": TASKS[Split.TRAIN]})
    env.step("key")
    reward = env.step("crash").info["envgym"].reward
    assert isinstance(reward, Invalid)
    assert reward.cause is Ending.ERROR_ENV


def test_limit_within_is_seen_and_two_of_them_add_up() -> None:
    env = SubgoalRewards(TurnLimit(Doors(), 2), AMOUNTS, potential=True)
    assert play(env, ["key", "look"]) == [0.25, -0.25]
    twice = SubgoalRewards(SubgoalRewards(Doors(), {"key": 1.0}), {"key": 2.0})
    twice.reset(options={"task": TASKS[Split.TRAIN]})
    assert twice.step("key").info["envgym"].reward.components["subgoal_rewards"] == 3.0


def test_household_tells_its_milestones_without_paying_for_them() -> None:
    def rewards(env: AnyEnv) -> list[float]:
        env.reset(seed=3)
        found = [env.step(env.oracle())]
        while not found[-1].terminated:
            found.append(env.step(env.oracle()))
        return [result.reward for result in found]

    plain = rewards(Household(kinds="clean"))
    assert plain == [*[0.0] * (len(plain) - 1), 1.0]
    paid = rewards(SubgoalRewards(Household(kinds="clean"), {"processed": 0.125}))
    assert len(paid) == len(plain)
    assert [reward for reward in paid if reward] == [0.125, 1.0]


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"amounts": {}}, "amounts must name a sub-goal, got none"),
        ({"amounts": {"key": 0.0}}, "amount of key must be above 0, got 0.0"),
        ({"amounts": {"key": math.nan}}, "amount of key must be above 0, got nan"),
        ({"amounts": AMOUNTS, "potential": True, "discount": 0.0}, "discount must be above 0 and at most 1, got 0.0"),
        ({"amounts": AMOUNTS, "discount": 0.9}, "discount must be 1 without potential, got 0.9"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        WRAPPER.build(Choice.model_validate({"name": "subgoal_rewards", **settings}), Doors())
