"""The env under test, episodes of it as comparable values, and the results of its checks."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from envgym.conformance.agents import Agent, random_actions
from envgym.core.tasks import Split, Task, distinct_tasks
from envgym.core.turns import Ending, Invalid, total
from envgym.env import NoOracle
from envgym.errors import InvalidInput
from envgym.records import ResetRecord, StepRecord
from envgym.tools import ToolSpec
from envgym.wrappers import AnyEnv


class CheckStatus(StrEnum):
    """How a check went."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    """It could not be made; the detail says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    status: CheckStatus
    detail: str
    """What was seen, what is wrong, or why it could not be checked."""
    seconds: float


class CheckFailed(Exception):  # an outcome of a check, not an error of the program
    """The env breaks the rule; the message says how."""


class CheckSkipped(Exception):  # likewise
    """The rule cannot be checked on this env; the message says why."""


def is_passed(checks: Sequence[Check]) -> bool:
    """Tell whether no check failed."""
    return all(check.status is not CheckStatus.FAIL for check in checks)


def as_text(title: str, checks: Sequence[Check]) -> str:
    """Write the results for a person: one line per check, then what could not be checked."""
    width = max((len(check.name) for check in checks), default=0)
    lines = [title]
    lines += [f"  {check.status}  {check.name:<{width}}  {check.seconds:5.2f} s  {check.detail}" for check in checks]
    counts = Counter(check.status for check in checks)
    skipped = [check.name for check in checks if check.status is CheckStatus.SKIP]
    passed, failed = counts[CheckStatus.PASS], counts[CheckStatus.FAIL]
    lines.append(f"  {passed} passed, {failed} failed, {len(skipped)} not checked")
    if skipped:
        lines.append(f"  not checked: {', '.join(skipped)}")
    return "\n".join(lines)


MAX_TURNS = 60
"""Turns after which an agent that gets nowhere is stopped."""
MAX_ORACLE_TURNS = 1000
MAX_SCRIPT_TURNS = 20
MIN_CANDIDATE_TASKS = 20
"""Of each split: fewer candidates than this at once may be what a game with several guesses allows."""
NUM_SCRIPTS = 3
RANDOM_TURNS = 6
_REPEATED = ("action", "observation", "observation.messages", "reward", "ending", "tool_calls", "tool_errors")
"""Of a turn's record: what must repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEpisode:
    """One episode; `first_difference` compares two of them."""

    first: ResetRecord
    turns: tuple[StepRecord, ...]

    @property
    def task_key(self) -> str:
        return self.first.task.key

    @property
    def observation(self) -> str:
        """What the agent saw at the start."""
        return str(self.first.observation)

    @property
    def actions(self) -> tuple[str, ...]:
        """What was said."""
        return tuple(str(turn.action) for turn in self.turns)

    @property
    def ending(self) -> Ending | None:
        """How it ended; None where it was left."""
        return self.turns[-1].ending if self.turns else None

    @property
    def reward(self) -> float:
        """Sum of the rewards. Raises: CheckFailed: infrastructure broke."""
        reward = total(turn.reward for turn in self.turns)
        if isinstance(reward, Invalid):
            raise CheckFailed(f"task {self.first.task.id}: {reward.cause}: {reward.reason}")
        return reward.value


def play(
    env: AnyEnv, agent: Agent, *, seed: int, task: Task | None = None, max_turns: int = MAX_TURNS
) -> ObservedEpisode:
    """Play one episode."""
    result = env.reset(seed=seed, options={"task": task} if task is not None else None)
    first: ResetRecord = result.info["envgym"]
    return ObservedEpisode(
        first=first, turns=tuple(continue_episode(env, agent, str(first.observation), max_turns=max_turns))
    )


def continue_episode(
    env: AnyEnv, agent: Agent, observation: str, *, start: int = 0, max_turns: int = MAX_TURNS
) -> Iterator[StepRecord]:
    """Play the running episode from turn `start` until it ends."""
    for index in range(start, max_turns):
        result = env.step(agent(index, observation))
        yield result.info["envgym"]
        if result.terminated or result.truncated:
            return
        observation = str(result.observation)


def first_difference(expected: ObservedEpisode, got: ObservedEpisode) -> str | None:
    """Describe where two episodes part for the agent, or return None where they are the same to it."""
    if expected.task_key != got.task_key:
        return f"the task is {got.first.task.id}, not {expected.first.task.id}"
    observation, expected_observation = got.first.observation, expected.first.observation
    if (observation, observation.messages) != (expected_observation, expected_observation.messages):
        return f"the first observation is {str(observation)!r:.120}, not {str(expected_observation)!r:.120}"
    for index, (before, now) in enumerate(zip(expected.turns, got.turns, strict=False)):
        if now.error is not None and before.error is None:
            return f"turn {index} ends with {now.ending}: {now.error:.120}"
        for name in _REPEATED:
            was, is_now = attrgetter(name)(before), attrgetter(name)(now)
            if was != is_now:
                return f"{name.rpartition('.')[2]} of turn {index} is {is_now!r:.120}, not {was!r:.120}"
    if len(got.turns) == len(expected.turns):
        return None
    return f"it has {len(got.turns)} turns, not {len(expected.turns)}"


@dataclass(frozen=True)
class EnvUnderTest:
    """The env under test."""

    make: Callable[[], AnyEnv]
    """Makes a new instance at each call."""
    num_tasks: int = 20
    """Tasks per split that are played."""
    seed: int = 0

    def tasks(self, split: Split, count: int | None = None) -> list[Task]:
        """Return up to `count` distinct tasks of a split; fewer where it holds fewer."""
        tasks: list[Task] = []
        with closing(self.make()) as env, suppress(InvalidInput):  # of a small split, what it holds is checked
            for task in distinct_tasks(env.unwrapped.tasks, split, self.num_tasks if count is None else count):
                tasks.append(task)
        return tasks

    @cached_property
    def played_tasks(self) -> tuple[Task, ...]:
        """The tasks that are played, of both splits."""
        return tuple(task for split in Split for task in self.tasks(split))

    @cached_property
    def oracle_episodes(self) -> tuple[ObservedEpisode, ...]:
        """The oracle's episode on each played task. Raises: CheckSkipped: the env has no oracle."""
        return self._oracle_on(self.played_tasks)

    @cached_property
    def candidates(self) -> tuple[str, ...]:
        """Distinct last actions of the oracle, of many tasks. Raises: CheckSkipped: no oracle."""
        count = max(self.num_tasks, MIN_CANDIDATE_TASKS)
        episodes = self._oracle_on([task for split in Split for task in self.tasks(split, count)])
        return tuple(dict.fromkeys(episode.actions[-1] for episode in episodes if episode.actions))

    def _oracle_on(self, tasks: Sequence[Task]) -> tuple[ObservedEpisode, ...]:
        if not self.has_oracle:
            raise CheckSkipped("the env defines no oracle()")
        with closing(self.make()) as env:
            return tuple(
                play(env, oracle_of(env), seed=self.seed + index, task=task, max_turns=MAX_ORACLE_TURNS)
                for index, task in enumerate(tasks)
            )

    @cached_property
    def tools(self) -> tuple[ToolSpec, ...]:
        with closing(self.make()) as env:
            record: ResetRecord = env.reset(seed=self.seed).info["envgym"]
            return record.tools

    @cached_property
    def unchecked(self) -> Mapping[str, str]:
        """Checks that the env declares not to apply, with the reasons."""
        with closing(self.make()) as env:
            return env.unwrapped.unchecked

    @cached_property
    def has_oracle(self) -> bool:
        """True where the env has an oracle, right or wrong."""
        with closing(self.make()) as env:
            env.reset(seed=self.seed)
            try:
                env.oracle()
            except NoOracle:
                return False
            except Exception:  # noqa: BLE001  # a broken oracle is one; the check of the oracle shows how it breaks
                return True
            return True

    @cached_property
    def scripts(self) -> tuple["ActionScript", ...]:
        """Action sequences that exercise the env: the oracle's and random ones, on drawn tasks."""
        scripts: list[ActionScript] = []
        for seed in range(self.seed, self.seed + NUM_SCRIPTS):
            with closing(self.make()) as env:
                scripts.append(ActionScript(seed=seed, actions=tuple(random_actions(self.tools, seed, RANDOM_TURNS))))
                if self.has_oracle:
                    episode = play(env, oracle_of(env), seed=seed, max_turns=MAX_SCRIPT_TURNS)
                    scripts.append(ActionScript(seed=seed, actions=episode.actions))
        return tuple(scripts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionScript:
    """A reset seed and what is said after it."""

    seed: int
    actions: tuple[str, ...]

    def agent(self, turn: int, observation: str) -> str:
        """Return action number `turn`."""
        return self.actions[turn]

    def play(self, env: AnyEnv, num_turns: int | None = None, agent: Agent | None = None) -> ObservedEpisode:
        """Play the first `num_turns` of the script, all by default, or as many turns with another `agent`."""
        count = len(self.actions) if num_turns is None else num_turns
        return play(env, agent or self.agent, seed=self.seed, max_turns=count)

    def continue_episode(self, env: AnyEnv, begun: ObservedEpisode) -> ObservedEpisode:
        """Play the rest of an episode whose beginning is `begun`."""
        start = len(begun.turns)
        rest = continue_episode(env, self.agent, "", start=start, max_turns=len(self.actions))
        return replace(begun, turns=(*begun.turns, *rest))


def oracle_of(env: AnyEnv) -> Agent:
    """Return the agent that says what the env's oracle says."""
    return lambda turn, observation: env.oracle()
