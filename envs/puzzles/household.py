"""Do chores in a household of text: `puzzles/household-v0`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.authoring.sources import SplitTasks
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.data_files import read_toml
from envgym.envs.puzzles._household import (
    MILESTONES,
    HouseholdState,
    admissible_commands,
    apply_command,
    milestones,
)
from envgym.envs.puzzles._household_commands import HouseholdCommand, read_command
from envgym.envs.puzzles._household_layouts import draw_household, opening, read_household
from envgym.envs.puzzles._household_oracle import plan_commands
from envgym.errors import InvalidInput, check_known
from envgym.records import Reply

KINDS = tuple(MILESTONES)
MAX_ROOMS, MAX_DISTRACTORS = 3, 12
MEASURED_TURNS = 50
"""Turns in which `CHANCE` was measured."""
CHANCE: Mapping[str, Mapping[str, Mapping[str, float]]] = read_toml("puzzles/data/household/chance.toml")
"""Without or with rewards for subgoals -> number of rooms -> kind of task -> what random commands earn at most."""
_IDLE_VERBS = ("look", "inventory", "examine", "close")
_WHERE = "puzzles/household-v0"
HINT = "Say one command, such as go to desk 1, open drawer 1, take pen 1 from drawer 1 or put pen 1 on desk 1."


class Household(Env[HouseholdState]):
    """The agent says one command per message; the episode ends when the task is done."""

    system_prompt = (
        "You are in a household and do a task by saying one command per message:\n"
        "go to PLACE, open PLACE, close PLACE, take THING from PLACE, put THING in/on PLACE, clean THING with PLACE, "
        "heat THING with PLACE, cool THING with PLACE, turn on THING, examine THING, look, inventory.\n"
        "A place is a piece of furniture, such as fridge 1, or another room. You see what lies at a place when you are "
        "there, and inside when it is open. You can carry one thing at a time. Clean with a sinkbasin, heat with a "
        "microwave, cool with a fridge."
    )

    def __init__(
        self,
        *,
        rooms: int = 1,
        kinds: str | Sequence[str] = KINDS,
        distractors: int = 8,
        admissible: bool = False,
        subgoals: bool = False,
        test_layouts: str = "unseen",
        max_turns: int | None = 50,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the households.

        Args:
            rooms: 1 to 3.
            kinds: Kinds of tasks: `place`, `light`, `clean`, `heat`, `cool`, `two`.
            distractors: Things that the task is not about, 0 to 12.
            admissible: List the commands that can be done in every observation.
            subgoals: Pay for finding, taking, processing and placing, instead of only at the end.
            test_layouts: `unseen`, so that no room of a test task occurs in training, or `seen`.
            max_turns: Turns until the episode is cut.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range. UnknownName: a kind or a value that does not exist.
        """
        check_range("rooms", rooms, 1, MAX_ROOMS, where=_WHERE)
        check_range("distractors", distractors, 0, MAX_DISTRACTORS, where=_WHERE)
        check_known("test_layouts", test_layouts, ("unseen", "seen"), where=_WHERE)
        super().__init__(max_turns=max_turns, **options)
        self.rooms, self.kinds, self.distractors = rooms, _kind_names(kinds), distractors
        self.admissible, self.subgoals = admissible, subgoals
        self.chance_score = _chance(rooms, self.kinds, subgoals, max_turns)
        self.tasks = SplitTasks(
            train=GeneratedTasks(partial(self._draw, False), name=_WHERE),
            test=GeneratedTasks(partial(self._draw, test_layouts == "unseen"), name=_WHERE),
        )

    def _draw(self, is_held_out: bool, rng: np.random.Generator) -> TaskDraft:
        kind = self.kinds[rng.integers(len(self.kinds))]
        return draw_household(rng, kind, self.rooms, self.distractors, is_held_out)

    def begin(self, task: Task) -> str:
        self.state = read_household(task.payload)
        return self._with_commands(opening(self.state))

    def respond(self, action: Action) -> Reply:
        command = read_command(action.content)
        if command is None:
            return Reply(observation=self._with_commands(HINT))
        before = self.state
        after, text, _ = apply_command(before, command)
        names = MILESTONES[before.layout.goal.kind]
        reached = before.reached if after is before else before.reached | milestones(after)
        self.state = after if reached == before.reached else after._replace(reached=reached)
        is_solved = bool(reached >> len(names) - 1)
        if reached == before.reached:
            return Reply(observation=self._with_commands(text))
        reward = _share(names, reached ^ before.reached)
        if not self.subgoals:
            reward = replace(reward, value=float(is_solved))
        if not is_solved:
            return Reply(observation=self._with_commands(text), reward=reward)
        return Reply(observation=f"{text} The task is done.", reward=reward, terminated=True)

    def _with_commands(self, text: str) -> str:
        if not self.admissible:
            return text
        return f"{text}\nYou can: {', '.join(map(self.write, admissible_commands(self.state)))}."

    def write(self, command: HouseholdCommand) -> str:
        """Write a command as the agent says it."""
        layout = self.state.layout
        if command.place in layout.rooms_by_name:
            return f"go to {layout.rooms[layout.rooms_by_name[command.place]]}"
        place = layout.places_by_name.get(command.place)
        return command.text("" if place is None else layout.furniture[place].kind.relation)

    def chance_agents(self, rng: np.random.Generator) -> Mapping[str, Callable[[int, str], str]]:
        """Return agents that draw among the commands that can be done: of all alike, or of a drawn verb."""

        def draw_command(turn: int, observation: str) -> str:
            commands = list(admissible_commands(self.state))
            return self.write(commands[rng.integers(len(commands))])

        def draw_verb(turn: int, observation: str) -> str:
            commands = list(admissible_commands(self.state))
            verbs = sorted({command.verb for command in commands} - set(_IDLE_VERBS))
            verb = verbs[rng.integers(len(verbs))]
            commands = [command for command in commands if command.verb == verb]
            return self.write(commands[rng.integers(len(commands))])

        return {"any command": draw_command, "any verb": draw_verb}

    def oracle(self) -> str:
        """Say the first command of a short way to the goal; it knows where everything is."""
        commands = plan_commands(self.state)
        return self.write(commands[0]) if commands else "look"

    fork_state = share_state


def _share(names: Sequence[str], reached: int) -> Scored:
    parts: dict[str, float] = {}
    for number, name in enumerate(names):
        if reached >> number & 1:
            parts[name] = parts.get(name, 0.0) + 1 / len(names)
    return Scored(value=sum(parts.values()), components=parts)


def _chance(rooms: int, kinds: Sequence[str], subgoals: bool, max_turns: int | None) -> float:
    """Return the most that random commands earn; in k times as many turns at most k times as much."""
    row = CHANCE["subgoals" if subgoals else "solved"][str(rooms)]
    times = math.inf if max_turns is None else max(1.0, max_turns / MEASURED_TURNS)
    return min(1.0, times * sum(row[kind] for kind in kinds) / len(kinds))


def _kind_names(kinds: str | Sequence[str]) -> tuple[str, ...]:
    names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for name in names:
        check_known("kind", str(name), KINDS, where=_WHERE)
    InvalidInput.unless(names, "kinds", "name at least one", kinds, where=_WHERE, do="pass e.g. place")
    return names
