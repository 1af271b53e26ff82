"""Elementary science in a world of text, by the simulator ScienceWorld: `puzzles/science-v0`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from envgym.authoring.sources import check_index, names_of
from envgym.core.messages import Action
from envgym.core.tasks import Split, Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.data_files import read_toml
from envgym.envs.puzzles._java_games import action_in, check_installed, next_action
from envgym.envs.puzzles._science_simulator import (
    FIRST,
    ScienceStep,
    ScienceVariation,
    gold_actions,
    shared_games,
    task_description,
)
from envgym.errors import InvalidInput, check_known
from envgym.records import Reply

VARIATIONS: Mapping[str, Sequence[int]] = read_toml("puzzles/data/science.toml")
"""Type of task -> how many of its variations are train, dev and test."""
KINDS = tuple(VARIATIONS)
SIMPLIFICATIONS = ("teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction")
REWARDS = ("score", "solved")
_WHERE = "puzzles/science-v0"
_HINT = "Say one action, such as open door to kitchen, go to kitchen, look around or pick up thermometer."


@dataclass(frozen=True, slots=True)
class ScienceTasks:
    """The simulator's own variations, with its own splits: type by type, then the next variation of each."""

    kinds: tuple[str, ...]
    simplifications: str
    test_split: str
    """What makes up the test split: `test` or `dev`."""

    def size(self, split: Split) -> int:
        return len(_variations(self.kinds, self._part(split)))

    def task(self, split: Split, index: int) -> Task:
        """Return a variation. Raises: InvalidInput: beyond the end. EnvFailure: the simulator does not work."""
        variations = _variations(self.kinds, self._part(split))
        kind, number = variations[check_index(index, len(variations), f"{split} of {_WHERE}")]
        return Task(
            id=f"{kind}/{number}",
            prompt=task_description(ScienceVariation(kind, number, self.simplifications)),
            payload={"kind": kind, "variation": number, "simplifications": self.simplifications},
            split=split,
            metadata={"kind": kind, "variation": number},
        )

    def _part(self, split: Split) -> int:
        return 0 if split is Split.TRAIN else ("train", "dev", "test").index(self.test_split)


@cache
def _variations(kinds: tuple[str, ...], part: int) -> tuple[tuple[str, int], ...]:
    """Return the variations of a split; the first ones are one of each type."""
    ranges = {kind: range(sum(VARIATIONS[kind][:part]), sum(VARIATIONS[kind][: part + 1])) for kind in kinds}
    longest = max(map(len, ranges.values()))
    return tuple((kind, numbers[at]) for at in range(longest) for kind, numbers in ranges.items() if at < len(numbers))


@dataclass(frozen=True, slots=True)
class ScienceState:
    """A game so far; a simulator is brought to it when it is needed."""

    variation: ScienceVariation
    steps: tuple[ScienceStep, ...]


class Science(Env[ScienceState]):
    """A message is an action; the episode ends when the task is done or has failed."""

    blocking = True
    system_prompt = (
        "You do a task of elementary science in a world of text. Each of your messages is one action, and you see what "
        "it does. Actions are: look around, look at X, look in X, inventory, task, go to PLACE, open X, close X, "
        "pick up X, put down X, move X to Y, pour X in Y, dunk X in Y, mix X, use X on Y, read X, eat X, activate X, "
        "deactivate X, connect X to Y, disconnect X, flush X, wait, wait1, focus on X. Focus only on what the task "
        "asks you to focus on: another thing ends the episode. If an action is ambiguous, answer with the number of "
        "the one that you mean."
    )

    def __init__(
        self,
        *,
        kinds: str | Sequence[str] = KINDS,
        simplifications: str | Sequence[str] = (),
        reward: str = "score",
        test_split: str = "test",
        admissible: bool = False,
        max_turns: int | None = 200,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the tasks.

        Args:
            kinds: Types of tasks, such as boil, find-plant or power-component: one or several of 30.
            simplifications: teleportAction, selfWateringFlowerPots, openContainers, openDoors, noElectricalAction:
                none, one or several.
            reward: `score` pays what the simulator's score gains in a turn, of 1 in all; `solved` pays 1 for all of it.
            test_split: `test` or `dev`: which variations make up the test split.
            admissible: List the actions that can be done in every observation, which takes most of the time.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: scienceworld or Java is not installed. UnknownName: a value that does not exist.
        """
        check_installed("scienceworld", "science", _WHERE)
        super().__init__(max_turns=max_turns, **options)
        task_kinds, simpler = names_of(kinds), names_of(simplifications)
        for kind in task_kinds or ("",):
            check_known("kind", kind, KINDS, where=_WHERE)
        for name in simpler:
            check_known("simplification", name, SIMPLIFICATIONS, where=_WHERE)
        check_known("reward", reward, REWARDS, where=_WHERE)
        check_known("test_split", test_split, ("test", "dev"), where=_WHERE)
        electric = [kind for kind in task_kinds if "power-component" in kind or "conductivity" in kind]
        is_possible = not electric or "noElectricalAction" not in simpler
        do = "leave one of the two out"
        InvalidInput.unless(is_possible, "noElectricalAction", "be left out", electric[:1], where=_WHERE, do=do)
        self.reward, self.admissible = reward, admissible
        self.tasks = ScienceTasks(task_kinds, ",".join(name for name in SIMPLIFICATIONS if name in simpler), test_split)
        self.chance_score = _chance_of(task_kinds, reward)

    def begin(self, task: Task) -> str:
        payload = task.payload
        number = payload["variation"]
        assert isinstance(number, int), "written by ScienceTasks"
        variation = ScienceVariation(str(payload["kind"]), number, str(payload["simplifications"]))
        self.state = ScienceState(variation, (shared_games().step(variation, (), FIRST),))
        return f"{task.prompt}\n\n{self._shown()}"

    def respond(self, action: Action) -> Reply:
        """Do the action, and pay what the score has gained; a task that has failed pays nothing in all."""
        text = action_in(action.content)
        if text is None:
            return Reply(observation=_HINT)
        before = max(self.state.steps[-1].score, 0) if len(self.state.steps) > 1 else 0  # the first room may score
        done = shared_games().step(self.state.variation, self.state.steps, text)
        self.state = replace(self.state, steps=(*self.state.steps, done))
        gained = (max(done.score, 0) - before) / 100
        solved = float(done.score >= 100)
        value = solved if self.reward == "solved" else gained
        reward = Scored(value=value, components={"score": gained, "solved": solved, "failed": float(done.score < 0)})
        if not done.is_over:
            return Reply(observation=self._shown(), reward=reward)
        ending = "The task is done." if solved else "The task has failed." if done.score < 0 else "The task is over."
        return Reply(observation=f"{done.observation}\n{ending}", reward=reward, terminated=True)

    def _shown(self) -> str:
        """Return the last observation, and the actions that can be done where they are to be listed."""
        text = self.state.steps[-1].observation.strip()
        if not self.admissible:
            return text
        return f"{text}\nYou can: {', '.join(shared_games().admissible(self.state.variation, self.state.steps))}."

    def oracle(self) -> str:
        """Say the next action of the simulator's own solution, after those of it that were done in order."""
        return next_action(gold_actions(self.state.variation), self.state.steps[1:], otherwise=FIRST)

    fork_state = share_state


@cache
def _chance_of(kinds: tuple[str, ...], reward: str) -> float:
    """Return the chance score of random actions: the mean over types, or over variations if that is more."""
    table = read_toml("puzzles/data/science_chance.toml")
    if reward == "solved":
        return float(table["solved"])
    scores, sizes = [table["score"][kind] for kind in kinds], [sum(VARIATIONS[kind]) for kind in kinds]
    by_size = sum(score * size for score, size in zip(scores, sizes, strict=True)) / sum(sizes)
    return float(max(by_size, sum(scores) / len(scores)))
