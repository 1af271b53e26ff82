"""Envs with one planted defect each: in how they repeat, fork, keep the contract, or serve Gymnasium."""

import os
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from envgym import Action, Env, ForkCapability, Reply, StepResult, Task
from envgym.core.spaces import UnicodeText
from envgym.records import ResetResult
from tests.support.toys import Counter, CounterState, Sums


class UnseededCounter(Counter):
    """Draws from the operating system."""

    def begin(self, task: Task) -> str:
        return super().begin(task) + os.urandom(4).hex()


class ForgetfulCounter(Counter):
    """Carries something from one episode into the next."""

    episodes = 0

    def begin(self, task: Task) -> str:
        self.episodes += 1
        return f"{super().begin(task)} This is episode {self.episodes}."


class GlobalRngCounter(Counter):
    """Seeds Python's generator and draws from it: repeats alone, and disturbs everything else."""

    def begin(self, task: Task) -> str:
        random.seed(task.key)
        return f"{super().begin(task)} {random.random()}"


class SharedCounter(Counter):
    """Counts turns of all instances in one place, from the last reset of any of them."""

    turns = 0

    def begin(self, task: Task) -> str:
        SharedCounter.turns = 0
        return super().begin(task)

    def respond(self, action: Action) -> Reply:
        SharedCounter.turns += 1
        reply = super().respond(action)
        return Reply(
            observation=f"{reply.observation} {SharedCounter.turns}",
            reward=reply.reward,
            terminated=reply.terminated,
        )


class MainThreadCounter(Counter):
    """Works in the main thread only, as with signals."""

    def respond(self, action: Action) -> Reply:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signal only works in main thread of the main interpreter")
        return super().respond(action)


@dataclass
class LockedState(CounterState):
    """Holds what cannot be copied."""

    lock: Any = field(default_factory=threading.Lock)  # its type has no public name


class LockedCounter(Counter):
    """Keeps a lock in its state."""

    def begin(self, task: Task) -> str:
        text = super().begin(task)
        self.state = LockedState(target=self.state.target, limit=self.state.limit)
        return text


class ForgettingPickleCounter(Counter):
    """Goes through pickle, but comes back without its count."""

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        if "state" in kept:
            kept["state"] = CounterState(target=self.state.target, limit=self.state.limit)
        return kept

    def fork(self) -> Any:  # an env of this class
        count_now = self.state.count
        twin = super().fork()
        twin.state.count = self.state.count = count_now
        return twin


class SharingCounter(Counter):
    """Its forks share one state."""

    def fork_state(self) -> CounterState:
        return self.state


class RerolledCounter(Counter):
    """Its forks roll their own dice."""

    def fork(self) -> Any:  # an env of this class
        twin = super().fork()
        twin.np_random = type(self.np_random)(type(self.np_random.bit_generator)(0))
        return twin


class LyingCounter(Counter):
    """Declares that it cannot be forked, and forks."""

    fork_capability = ForkCapability.NONE

    def fork(self) -> Any:  # an env of this class
        return self


class EndlessCounter(Counter):
    """Goes on after its end."""

    def step(self, action: str) -> StepResult:
        self._is_over = False
        return super().step(action)


class TalkativeCounter(Counter):
    """Puts its own things into info."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        result.info["debug"] = 1
        return result


class ContradictingCounter(Counter):
    """Pays something else than its record says."""

    def step(self, action: str) -> StepResult:
        return super().step(action)._replace(reward=0.5)


class TaskIgnoringCounter(Counter):
    """Plays the task it likes."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        return super().reset(seed=seed)


class CarelessCounter(Counter):
    """Reads every answer as a number."""

    def respond(self, action: Action) -> Reply:
        return Reply(observation=str(int(action.content.strip() or "0")))


class RaisingCounter(Counter):
    """Lets an exception out."""

    def step(self, action: str) -> StepResult:
        action.encode()  # a lone surrogate cannot be encoded
        return super().step(action)


class GenerousSums(Sums):
    """Pays more than it declares."""

    def respond(self, action: Action) -> Reply:
        reply = super().respond(action)
        assert isinstance(reply.reward, float)
        return Reply(observation=reply.observation, reward=2 * reply.reward, terminated=True)


class MisdeclaredSums(Sums):
    """Declares a chance above its optimum."""

    chance_score = 1.5


class LongwindedCounter(Counter):
    """Says more than its space allows."""

    def __init__(self, *, max_turns: int | None = 8, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.observation_space = UnicodeText(30)


class SeededCounter(Counter):
    """Is always the same where no seed is given, which Gymnasium's checker warns of."""

    def reset(self, *, seed: int | None = 0, options: Mapping[str, Any] | None = None) -> ResetResult:
        return super().reset(seed=seed, options=options)


class NumberedCounter(Counter):
    """Each instance shows something else."""

    made: ClassVar[Any] = count()  # an iterator

    def __init__(self, *, max_turns: int | None = 8, render_mode: str | None = None) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self.number = next(self.made)

    def begin(self, task: Task) -> str:
        return f"{super().begin(task)} I am number {self.number}."


DEFECTS: list[tuple[str, type[Env[Any]], str]] = [
    ("passes_gymnasium_checker", SeededCounter, "default seed argument"),
    ("runs_in_vector_env", NumberedCounter, "are not those of single envs"),
    ("same_seed_same_episode", UnseededCounter, "a second instance with seed 0 gives another episode"),
    ("same_seed_same_episode", ForgetfulCounter, "the same instance, reset again with seed 0"),
    ("no_global_rng", GlobalRngCounter, "changes the global random state of random"),
    ("interleaved_with_another", SharedCounter, "beside a second instance gives another episode"),
    (
        "in_two_threads",
        MainThreadCounter,
        "in a thread beside another gives another episode: turn 0 ends with ERROR_ENV",
    ),
    ("survives_pickle", LockedCounter, "cannot be pickled"),
    ("survives_pickle", ForgettingPickleCounter, "pickled after turn"),
    ("fork_agrees", RerolledCounter, "the fork after turn 0"),
    ("fork_agrees", LyingCounter, "declares fork capability none"),
    ("forks_are_independent", SharingCounter, "whose fork went another way"),
    ("order_is_enforced", EndlessCounter, "must raise ResetNeeded"),
    ("records_are_consistent", TalkativeCounter, "info must have the one key envgym"),
    ("records_are_consistent", ContradictingCounter, "record and tuple must hold one reward"),
    ("records_are_consistent", TaskIgnoringCounter, "starts another task"),
    ("hostile_actions_are_answered", CarelessCounter, "ends the episode with ERROR_ENV"),
    ("hostile_actions_are_answered", RaisingCounter, "raises UnicodeEncodeError"),
    ("rewards_in_range", GenerousSums, "pays 2, outside the declared [0, 1]"),
    ("rewards_in_range", MisdeclaredSums, "must be ordered"),
    ("observations_in_bound", LongwindedCounter, "is outside UnicodeText(30)"),
]
"""Check, the env with the defect that it is meant for, and what it says."""
