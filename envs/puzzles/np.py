"""Hard problems of optimization, judged against the exact optimum: `puzzles/np-v0`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.core.frozen import quick_init
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.data_files import read_toml
from envgym.envs.puzzles._np.problem import Answer, HardProblem, Instance, quality_of
from envgym.envs.puzzles._np.problems import MAX_ATTEMPTS, PROBLEMS, SIZES
from envgym.errors import check_known
from envgym.records import Reply
from envgym.verifiers.extract import plain_answer

CHANCE: Mapping[str, Mapping[str, Sequence[float]]] = read_toml("puzzles/data/np.toml")
"""Kind -> size -> what 1 to 5 answers earn at most that do not look at the instance; see the card."""
NOTHING = Scored(value=0.0, components={"feasible": 0.0, "optimal": 0.0, "ratio": 0.0})
"""For a turn that reaches nothing new."""
_NUMBERS = re.compile(r"[\[({ ]*(-?\d{1,3}(?:[ ,]+-?\d{1,3})*)[\])} ]*\.?")
_WHERE = "puzzles/np-v0"


@dataclass(frozen=True, slots=True)
class HardInstance:
    """What an episode does not change."""

    kind: str
    rows: Instance
    optimum: int
    baseline: float

    @property
    def problem(self) -> HardProblem:
        """The problem of its kind."""
        return PROBLEMS[self.kind]


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class HardProblemState:
    """An instance, and the best answer so far."""

    instance: HardInstance
    left: int
    """Attempts left."""
    best: int | None = None
    """Value of the best feasible answer."""
    quality: float = 0.0
    """Rewards of the turns so far."""


class HardProblems(Env[HardProblemState]):
    """Every well-formed message is an answer; a turn pays by how much it is better than those before."""

    system_prompt = (
        "Solve the problem as well as you can. Each message is one answer: numbers alone, or between <answer> and "
        "</answer>. Your best answer counts."
    )

    def __init__(
        self,
        *,
        kinds: str | Sequence[str] = tuple(PROBLEMS),
        size: str = "medium",
        attempts: int = 3,
        max_turns: int | None = 10,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the problems.

        Args:
            kinds: One or several of the problems that the card lists.
            size: `easy`, `medium` or `hard`.
            attempts: Answers that the agent may give, 1 to 5.
            max_turns: Turns until the episode is cut; messages that are no answer count too.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range. UnknownName: a kind or size that does not exist.
        """
        self.kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in self.kinds or ("",):
            check_known("kind", kind, PROBLEMS, where=_WHERE)
        check_known("size", size, SIZES, where=_WHERE)
        check_range("attempts", attempts, 1, MAX_ATTEMPTS, where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.size, self.attempts = size, attempts
        self.chance_score = sum(CHANCE[kind][size][attempts - 1] for kind in self.kinds) / len(self.kinds)
        self.tasks = GeneratedTasks(self._draw, name="puzzles/np")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        kind = self.kinds[rng.integers(len(self.kinds))]
        problem = PROBLEMS[kind]
        instance = problem.draw_improvable(rng, problem.sizes[SIZES.index(self.size)])
        return TaskDraft(
            prompt=f"{problem.show(instance)}\n{problem.hint(instance)}\nAttempts left: {self.attempts}.",
            payload={
                "kind": kind,
                "instance": _rows(problem.canonical(instance)),
                "optimum": problem.optimum(instance),
            },
            metadata={"kind": kind, "shown": _rows(instance)},
        )

    def begin(self, task: Task) -> str:
        kind, optimum = str(task.payload["kind"]), task.payload["optimum"]
        rows = _instance(task.metadata.get("shown", task.payload["instance"]))
        assert isinstance(optimum, int), "made by _draw"
        instance = HardInstance(kind, rows, optimum, PROBLEMS[kind].baseline(rows))
        self.state = HardProblemState(instance=instance, left=self.attempts)
        return task.prompt

    def respond(self, action: Action) -> Reply:
        before, instance = self.state, self.state.instance
        problem, best, quality = instance.problem, before.best, before.quality
        match = _NUMBERS.fullmatch(action.content) or _NUMBERS.fullmatch(plain_answer(action.content))
        answer: Answer = tuple(map(int, match[1].replace(",", " ").split())) if match else ()
        if not answer or not problem.is_well_formed(instance.rows, answer):
            return Reply(observation=problem.hint(instance.rows), reward=NOTHING)
        value = problem.evaluate(instance.rows, answer)
        if isinstance(value, int) and (best is None or problem.is_better(value, best)):
            best, quality = value, quality_of(value, instance.optimum, instance.baseline)
        self.state = after = HardProblemState(instance=instance, left=before.left - 1, best=best, quality=quality)
        reward = NOTHING if best == before.best else _gained(before, after)
        verdict = f"Value {value}." if isinstance(value, int) else f"Not feasible: {value}"
        if best == instance.optimum:
            return Reply(observation=f"{verdict} It is optimal.", reward=reward, terminated=True)
        if not after.left:
            return Reply(observation=f"{verdict} The optimum is {instance.optimum}.", reward=reward, terminated=True)
        so_far = "" if best is None else f" Best {best}."
        return Reply(observation=f"{verdict}{so_far} Attempts left: {after.left}.", reward=reward)

    def oracle(self) -> str:
        return " ".join(map(str, self.state.instance.problem.solve(self.state.instance.rows)))

    fork_state = share_state


def _gained(before: HardProblemState, after: HardProblemState) -> Scored:
    """Return by how much reward and components have grown: so turns add up to what the best answer is worth."""
    instance, best = after.instance, after.best
    assert best is not None, "it has grown"
    ratio, feasible = instance.problem.ratio(best, instance.optimum), 1.0
    if before.best is not None:
        ratio, feasible = ratio - instance.problem.ratio(before.best, instance.optimum), 0.0
    components = {"feasible": feasible, "optimal": float(best == instance.optimum), "ratio": ratio}
    return Scored(value=after.quality - before.quality, components=components)


def _rows(instance: Instance) -> list[JsonValue]:
    return [list(row) for row in instance]


def _instance(rows: JsonValue) -> Instance:
    assert isinstance(rows, Sequence), "made by _draw"
    return tuple(tuple(int(str(number)) for number in row) for row in rows if isinstance(row, Sequence))
