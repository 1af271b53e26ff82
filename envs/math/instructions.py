"""Write a text that meets several constraints at once: `math/instructions-v0`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from envgym.authoring import GeneratedTasks, TaskDraft, check_range
from envgym.authoring.sources import SplitTasks
from envgym.core.frozen import quick_init
from envgym.core.json_types import JsonValue
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import Env, share_state
from envgym.envs.data_files import read_toml
from envgym.envs.math._instructions.constraint import Constraint
from envgym.envs.math._instructions.drawing import draw_constraints, has_held_out_pair, held, outline_of
from envgym.envs.math._instructions.kinds import ALL_KINDS, BASE, KINDS, tell
from envgym.envs.math._instructions.writer import DATA, write_text
from envgym.envs.math._instructions.written import DEFINITIONS, WrittenText, has_copied_run, split_words
from envgym.errors import InvalidInput, check_known
from envgym.records import Reply

MAX_CONSTRAINTS, MAX_ATTEMPTS = 5, 3
REWARDS = ("all", "share")
COPIED_WORDS = 8
"""So many words in a row, taken from the task, are a copy."""
OWN_WORDS = f"Do not copy {COPIED_WORDS} words in a row from the task."
CHANCE: Mapping[str, Mapping[str, Sequence[float]]] = read_toml("math/data/instructions_chance.toml")
"""Reward -> number of constraints -> what 1 to 3 fixed texts earn at most; `base` counts for chosen kinds."""
_WHERE = "math/instructions-v0"


@dataclass(frozen=True, slots=True)
class InstructionTask:
    """What an episode does not change."""

    constraints: tuple[Constraint, ...]
    words: tuple[str, ...]
    """Of the prompt."""
    vocabulary: frozenset[str]
    """Its different words."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class TextGrade:
    """What a text is worth."""

    components: Mapping[str, float]
    """For each kind whether it holds, then `all`, `share` and `loose`."""
    failed: tuple[str, ...]
    """What does not hold, in the words of the task."""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionState:
    """A task, and the best text so far."""

    instructions: InstructionTask
    left: int
    """Attempts left."""
    best: TextGrade | None = None


class Instructions(Env[InstructionState]):
    """Every message is a text; the best one counts, and the reply says what does not hold."""

    system_prompt = (
        "Write a text that does what is asked and meets all constraints. Your whole message is the text. "
        f"{DEFINITIONS} {OWN_WORDS}"
    )

    def __init__(
        self,
        *,
        constraints: int = 3,
        kinds: str | Sequence[str] = tuple(KINDS),
        reward: str = "all",
        attempts: int = 1,
        **options: Any,  # max_turns, parties and render_mode, as Env takes them
    ) -> None:
        """Choose the constraints.

        Args:
            constraints: Number of constraints beside topic and length, 1 to 5.
            kinds: Kinds that they are drawn from; the card lists them.
            reward: `all` pays 1 where every constraint holds, `share` the share of those that hold.
            attempts: Texts that the agent may write, 1 to 3.
            **options: As in `Env`.

        Raises: InvalidInput: a value outside its range. UnknownName: a kind or reward that does not exist.
        """
        self.kinds = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
        for kind in self.kinds or ("",):
            check_known("kind", kind, KINDS, where=_WHERE)
        check_known("reward", reward, REWARDS, where=_WHERE)
        check_range("constraints", constraints, 1, MAX_CONSTRAINTS, where=_WHERE)
        check_range("attempts", attempts, 1, MAX_ATTEMPTS, where=_WHERE)
        InvalidInput.unless(
            constraints <= len(self.kinds),
            "constraints",
            f"be at most the number of kinds, {len(self.kinds)}",
            constraints,
            where=_WHERE,
            do="choose more kinds, or fewer constraints",
        )
        super().__init__(**options)
        self.num_constraints, self.attempts, self.reward = constraints, attempts, reward
        row = str(constraints) if set(self.kinds) == set(KINDS) else "base"
        self.chance_score = CHANCE[reward][row][attempts - 1]
        train, test = (
            GeneratedTasks(partial(self._draw, is_test), name="math/instructions") for is_test in (False, True)
        )
        self.tasks = SplitTasks(train, test)

    def _draw(self, may_have_held_out: bool, rng: np.random.Generator) -> TaskDraft:
        constraints = draw_constraints(rng, self.kinds, self.num_constraints, may_have_held_out=may_have_held_out)
        topic = outline_of(constraints).topic
        request = str(DATA["requests"][rng.integers(len(DATA["requests"]))]).replace("{}", topic)
        shuffled = [constraints[at] for at in rng.permutation(len(constraints))]
        lines = [request, *(f"- {tell(item)}" for item in shuffled)]
        lines += [f"Attempts left: {self.attempts}."] if self.attempts > 1 else []
        return TaskDraft(
            prompt="\n".join(lines),
            payload={"constraints": [item.to_json() for item in sorted(constraints)]},
            metadata={
                "kinds": [item.kind for item in constraints if item.kind in KINDS],
                "held_out_pair": has_held_out_pair([item.kind for item in constraints]),
            },
        )

    def begin(self, task: Task) -> str:
        words = tuple(split_words(WrittenText(task.prompt).folded))
        instructions = InstructionTask(_constraints_of(task), words, frozenset(words))
        self.state = InstructionState(instructions=instructions, left=self.attempts)
        return task.prompt

    def respond(self, action: Action) -> Reply:
        """Grade a text, and pay by how much it is better than those before."""
        before = self.state
        grade = grade_text(action.content, before.instructions)
        best = grade if before.best is None or _rank(grade) > _rank(before.best) else before.best
        self.state = InstructionState(instructions=before.instructions, left=before.left - 1, best=best)
        reward = self._gained(before.best, best)
        if not grade.failed:
            return Reply(observation="All constraints hold.", reward=reward, terminated=True)
        text = "\n- ".join(("These constraints do not hold:", *grade.failed))
        if self.state.left:
            return Reply(observation=f"{text}\nAttempts left: {self.state.left}.", reward=reward)
        return Reply(observation=text, reward=reward, terminated=True)

    def _gained(self, before: TextGrade | None, after: TextGrade) -> Scored:
        """Return by how much reward and components have grown, so that turns add up to those of the best text."""
        parts = after.components
        if before is None:
            return Scored(value=parts[self.reward], components=parts)
        grown = {name: part - before.components[name] for name, part in parts.items()}
        return Scored(value=grown[self.reward], components=grown)

    def oracle(self) -> str:
        """Write a text that meets all constraints; its prose is plain, and not about much."""
        return write_text(outline_of(self.state.instructions.constraints))

    fork_state = share_state


def grade_text(text: str, instructions: InstructionTask) -> TextGrade:
    """Check each constraint; nothing is worth anything without topic, length and words of one's own."""
    constraints, written = instructions.constraints, WrittenText(text)
    holds = held(written, constraints)
    parts = {item.kind: float(is_held) for item, is_held in zip(constraints, holds, strict=True)}
    has_own_words = bool(parts["length"]) and not has_copied_run(
        written.words, instructions.words, instructions.vocabulary, COPIED_WORDS
    )
    failed = [item for item, is_held in zip(constraints, holds, strict=True) if not is_held]
    is_about = bool(parts["topic"] and has_own_words)
    extra = [kind for kind in parts if kind not in BASE]
    share = math.fsum(parts[kind] for kind in extra) / len(extra) if is_about and extra else float(is_about)
    failures = [tell(item) for item in failed]
    if parts["length"] and not has_own_words:
        failures.append(OWN_WORDS)
    loose = float(not failures or (has_own_words and _hold_loosely(written.text, failed)))
    parts |= {"own_words": float(has_own_words), "all": float(not failures), "share": share, "loose": loose}
    return TextGrade(components=parts, failed=tuple(failures))


def _hold_loosely(text: str, failed: Sequence[Constraint]) -> bool:
    """Tell whether each of these constraints holds without the first line, the last one, both, or without asterisks."""
    lines = text.split("\n")
    cut = ["\n".join(part) for part in (lines, lines[1:], lines[:-1], lines[1:-1])]
    variants = [WrittenText(variant) for part in cut for variant in (part, part.replace("*", ""))]
    return all(any(held(variant, [item])[0] for variant in variants) for item in failed)


def _rank(grade: TextGrade) -> tuple[float, float]:
    return grade.components["all"], grade.components["share"]


def _constraints_of(task: Task) -> tuple[Constraint, ...]:
    rows = task.payload["constraints"]
    assert isinstance(rows, Sequence), "made by _draw"
    by_kind = {item.kind: item for item in map(_read_constraint, rows)}
    return tuple(by_kind[kind] for kind in ALL_KINDS if kind in by_kind)


def _read_constraint(row: JsonValue) -> Constraint:
    assert isinstance(row, Sequence), "made by to_json"
    kind, numbers, texts = tuple(row)
    assert isinstance(numbers, Sequence), "made by to_json"
    assert isinstance(texts, Sequence), "made by to_json"
    return Constraint(str(kind), tuple(int(str(number)) for number in numbers), tuple(map(str, texts)))
