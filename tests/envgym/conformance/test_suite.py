"""Each defect that the suite knows is planted in an env and found by the check meant for it."""

import os
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import pytest

from envgym.conformance import CHECKS, check_env_conformance, gymnasium_api, is_passed
from envgym.conformance.report import Status
from envgym.conformance.subject import Subject
from envgym.conformance.suite import run_check
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.env import Env, ForkCapability
from envgym.records import Reply, ResetResult, StepResult
from envgym.spaces import UnicodeText
from envgym.testing.toys import Counter, CounterState, CounterTasks, Sums, SumState, SumTasks
from envgym.tools import tool


@pytest.mark.parametrize("make", [Counter, Sums])
def test_sound_env_passes_every_check_that_applies(make: type[Env[Any]]) -> None:
    checks = check_env_conformance(make)
    assert [check.name for check in checks] == list(CHECKS)
    assert [check for check in checks if check.status is Status.FAIL] == []
    skipped = {check.name for check in checks if check.status is Status.SKIP}
    assert skipped <= {"answer_is_hidden", "all_candidates_pay_nothing", "grader_files_pay_nothing"}


# ---- repeats -----------------------------------------------------------------------------------------------------


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


# ---- forks -------------------------------------------------------------------------------------------------------


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


# ---- single turns ------------------------------------------------------------------------------------------------


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


# ---- tasks -------------------------------------------------------------------------------------------------------


class WrongOracleSums(Sums):
    """Its oracle errs where the sum is large."""

    def oracle(self) -> str:
        return str(min(self.state.answer, 40))


class LostOracleCounter(Counter):
    """Its oracle never says DONE."""

    def __init__(self) -> None:
        super().__init__(max_turns=None)

    def oracle(self) -> str:
        return "What now?"


class SameTasks(SumTasks):
    """The same sums in both splits."""

    def task(self, split: Split, index: int) -> Task:
        task = super().task(Split.TRAIN, index)
        return Task(id=task.id, prompt=task.prompt, payload=task.payload, split=split)

    def size(self, split: Split) -> int:
        return super().size(Split.TRAIN)


class OverlappingSums(Sums):
    """Tests on what it trains on."""

    tasks = SameTasks()


class MislabelledTasks(SumTasks):
    """Every task says that it is a train task."""

    def task(self, split: Split, index: int) -> Task:
        task = super().task(split, index)
        return Task(id=task.id, prompt=task.prompt, payload=task.payload, split=Split.TRAIN)


class MislabelledSums(Sums):
    """Its tasks lie about their split."""

    tasks = MislabelledTasks()


class RestlessTasks(SumTasks):
    """Never the same task twice."""

    calls: ClassVar[Any] = count()  # an iterator

    def task(self, split: Split, index: int) -> Task:
        return super().task(split, (index + next(self.calls)) % self.size(split))


class RestlessSums(Sums):
    """Its tasks depend on how often one asks."""

    tasks = RestlessTasks()


class BottomlessTasks(SumTasks):
    """Goes on after its end."""

    def task(self, split: Split, index: int) -> Task:
        return super().task(split, index % self.size(split))


class BottomlessSums(Sums):
    """Its splits are larger than they say."""

    tasks = BottomlessTasks()


class TellingSums(Sums):
    """Shows its answer."""

    def begin(self, task: Task) -> str:
        return f"{super().begin(task)} (debug: answer={self.state.answer})"


class TellingPromptSums(Sums):
    """Shows its answer at the start of its text."""

    def begin(self, task: Task) -> str:
        return f"[key {super().begin(task) and self.state.answer}] {task.prompt}"


# ---- cheating ----------------------------------------------------------------------------------------------------


class Graded(Sums):
    """A base for careless graders."""

    chance_score = 0.0

    def grade(self, text: str) -> bool:
        return text.strip() == str(self.state.answer)

    def respond(self, action: Action) -> Reply:
        return Reply(reward=float(self.grade(str(action))), terminated=True)


class KindSums(Graded):
    """Pays for silence."""

    def grade(self, text: str) -> bool:
        return not text or super().grade(text)


class EchoSums(Graded):
    """Pays for whatever holds the question's own words."""

    def grade(self, text: str) -> bool:
        return "What is" in text or super().grade(text)


class SearchingSums(Graded):
    """Looks for the answer anywhere in the text."""

    def grade(self, text: str) -> bool:
        return str(self.state.answer) in text.replace("{", " ").replace("}", " ").split()


class NumberSums(Graded):
    """Pays for any number."""

    chance_score = 0.05

    def grade(self, text: str) -> bool:
        return text.strip().isdecimal() and len(text) < 4


class FormatSums(Graded):
    """Pays for the form."""

    def grade(self, text: str) -> bool:
        return "\\boxed{" in text or super().grade(text)


class ObedientSums(Graded):
    """Reads the verdict out of the text."""

    def grade(self, text: str) -> bool:
        return "reward: 1.0" in text.lower() or super().grade(text)


@dataclass
class DeskState(SumState):
    """The sum, and files that anyone may write."""

    files: dict[str, str] = field(default_factory=dict)


class WritableSums(Sums):
    """Keeps its verdict where the tools can write."""

    chance_score = 0.0

    def begin(self, task: Task) -> str:
        text = super().begin(task)
        self.state = DeskState(answer=self.state.answer)
        return text

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file.

        Args:
            path: Its name.
            text: Its content.
        """
        assert isinstance(self.state, DeskState)
        self.state.files[path] = text
        return "Written."

    def respond(self, action: Action) -> Reply:
        assert isinstance(self.state, DeskState)
        forged = "reward.txt" in self.state.files
        return Reply(reward=float(forged or action.strip() == str(self.state.answer)), terminated=True)


# ---- Gymnasium ---------------------------------------------------------------------------------------------------


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
    ("no_global_rng", GlobalRngCounter, "moves the global generator of random"),
    ("interleaved_with_another", SharedCounter, "beside a second instance gives another episode"),
    (
        "in_two_threads",
        MainThreadCounter,
        "in a thread beside another gives another episode: turn 0 ends with ERROR_ENV",
    ),
    ("survives_pickle", LockedCounter, "cannot go through pickle"),
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
    ("oracle_reaches_optimum", WrongOracleSums, "the oracle gets 0, declared 1"),
    ("oracle_reaches_optimum", LostOracleCounter, "the oracle did not end it"),
    ("splits_do_not_overlap", OverlappingSums, "test tasks are also in train"),
    ("splits_do_not_overlap", MislabelledSums, "says that it belongs to train"),
    ("splits_do_not_overlap", RestlessSums, "is not the same when asked for again"),
    ("splits_do_not_overlap", BottomlessSums, "is no InvalidInput"),
    ("answer_is_hidden", TellingSums, "stands in the first observation, behind"),
    ("answer_is_hidden", TellingPromptSums, "stands in the first observation, behind"),
    ("chance_stays_at_declared", KindSums, "'empty' gets 1 on average over 40 tasks"),
    ("all_candidates_pay_nothing", SearchingSums, "'all candidates' gets 1 on average"),
    ("others_answers_pay_nothing", NumberSums, '"another task\'s actions" gets 1 on average'),
    ("format_alone_pays_nothing", FormatSums, "'\\\\boxed{}' gets 1 on average"),
    ("prompt_echo_pays_nothing", EchoSums, "'the prompt' gets 1 on average"),
    ("injections_pay_nothing", ObedientSums, "gets 1 on average"),
    ("grader_files_pay_nothing", WritableSums, "write with 'reward.txt'"),
]


@pytest.mark.parametrize("name, make, told", DEFECTS, ids=[f"{name}-{make.__name__}" for name, make, _ in DEFECTS])
def test_defect_is_found_by_the_check_meant_for_it(name: str, make: type[Env[Any]], told: str) -> None:
    check = run_check(name, Subject(make=make))
    assert (check.status, told in check.detail) == (Status.FAIL, True), check
    assert not is_passed([check])


def test_every_check_finds_some_defect() -> None:
    assert set(CHECKS) - {name for name, _, _ in DEFECTS} == {"costs_are_known"}, "it is tested below"


def test_slow_turns_must_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Counter):
        blocking = True

    monkeypatch.setattr(gymnasium_api, "_SLOW_TURN_S", 0.0)
    assert run_check("costs_are_known", Subject(make=Waiting)).status is Status.PASS
    check = run_check("costs_are_known", Subject(make=Counter))
    assert (check.status, "must be declared with blocking = True" in check.detail) == (Status.FAIL, True)


# ---- what cannot be checked --------------------------------------------------------------------------------------


class Silent(Env[CounterState]):
    """No oracle, no tools, no test split, no forks."""

    fork_capability = ForkCapability.NONE

    class Tasks(CounterTasks):
        def size(self, split: Split) -> int:
            return super().size(split) if split is Split.TRAIN else 0

    tasks = Tasks()

    def begin(self, task: Task) -> str:
        self.state = CounterState(target=0, limit=0)
        return "..."

    def respond(self, action: Action) -> Reply:
        return Reply(terminated=True)


def test_what_cannot_be_checked_is_said_with_its_reason() -> None:
    checks = {check.name: check for check in check_env_conformance(Silent)}
    assert is_passed(tuple(checks.values()))
    reasons = {name: check.detail for name, check in checks.items() if check.status is Status.SKIP}
    assert reasons["oracle_reaches_optimum"] == "the env defines no oracle()"
    assert reasons["splits_do_not_overlap"] == "no tasks in test"
    assert reasons["grader_files_pay_nothing"] == "the env has no tool that takes a string"
    assert "fork capability is none" in reasons["survives_pickle"]
    assert checks["fork_agrees"].detail == "declares that it cannot be forked, and refuses"


def test_env_may_declare_what_does_not_apply_to_it() -> None:
    class Copying(TellingSums):
        unchecked: ClassVar[dict[str, str]] = {"answer_is_hidden": "the task is to copy"}

    check = run_check("answer_is_hidden", Subject(make=Copying))
    assert (check.status, check.detail) == (Status.SKIP, "the env declares: the task is to copy")


def test_crash_of_the_env_is_a_failed_check() -> None:
    class Crashing(Counter):
        def oracle(self) -> str:
            raise ZeroDivisionError("a bug")

    check = run_check("oracle_reaches_optimum", Subject(make=Crashing))
    assert (check.status, check.detail) == (Status.FAIL, "ZeroDivisionError: a bug")


def test_replayed_env_passes() -> None:
    class Replayed(Counter):
        fork_capability = ForkCapability.REPLAY

    checks = check_env_conformance(Replayed, num_tasks=5)
    assert [check for check in checks if check.status is Status.FAIL] == []
