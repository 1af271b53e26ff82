"""Any generator of the reasoning-gym package, judged by its own scorer: `puzzles/reasoning_gym-v0`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from envgym.authoring import GeneratedTasks, RubricEnv, TaskDraft
from envgym.core.json_types import JsonObject, JsonValue, canonical
from envgym.core.messages import Action
from envgym.core.tasks import Task
from envgym.core.turns import Scored
from envgym.env import NoOracle
from envgym.envs.data_files import read_toml
from envgym.envs.puzzles._reasoning_client import ItemGenerator, config_keys, dataset_names
from envgym.errors import EnvFailure, InvalidInput, check_known, sentence
from envgym.records import Reply
from envgym.verifiers import Verdict, right, wrong

NUM_ITEMS = 20_000
"""Items of a data set that tasks are drawn from, unless `config` names another `size`."""
MEASURED = read_toml("puzzles/data/reasoning_gym.toml")
WITHOUT_SOLUTION: Sequence[str] = tuple(MEASURED["without_solution"])
CHANCE: Mapping[str, float] = {name: row["mean"] or row["high"] for name, row in MEASURED["full"].items()}
"""Data set -> share of the items that one answer solves; where it solved none, the upper end of the interval."""
CHANCE_PARTIAL: Mapping[str, float] = {
    **CHANCE,
    **{name: row["mean"] or row["high"] for name, row in MEASURED["partial"].items()},
}
"""The same with partial credit."""
MAX_PASSED_OVER = 1000
"""Items in a row that are no problem, before the settings are taken to make none."""
_NAN = re.compile(r"(?<![a-z])nan(?![a-ik-z])", re.IGNORECASE)
"""NaN, alone or in a complex number: some scorers take it for any number."""
_WHERE = "puzzles/reasoning_gym-v0"


def extract(text: str) -> str | None:
    """Return the text between `<answer>` and `</answer>`, else the whole text; None for different answers."""
    pieces = text.split("</answer>")
    marked = {piece.rpartition("<answer>")[2].strip() for piece in pieces[:-1] if "<answer>" in piece}
    if len(marked) > 1:
        return None
    return marked.pop() if marked else text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymScore:
    """The verdict of the data set's scorer on the final answer; 0 where it is below 1, unless `partial_credit`."""

    blocking: ClassVar[bool] = True
    partial_credit: bool = False

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: EnvFailure: the scorer failed, and not because of this answer."""
        final_answer = extract(answer)
        if final_answer is None:
            return wrong("there are different answers between tags")
        if _NAN.search(final_answer) and not _NAN.search(str(task.payload["answer"])):
            return wrong("NaN is no answer")
        if final_answer == task.payload["answer"]:
            return right("the scorer accepted this answer when the item was made")
        origin = task.metadata
        index = origin["index"]
        assert isinstance(index, int), "put there by ReasoningGym"
        verdict = ItemGenerator(dataset=str(origin["dataset"]), config=str(origin["config"])).score(index, final_answer)
        return verdict if self.partial_credit or verdict.score == 1.0 else wrong(verdict.reason)


class ReasoningGym(RubricEnv):
    """One item of a data set; every message is an answer. Right, or out of attempts: the episode ends."""

    system_prompt = "Solve the problem. Reply with the answer alone, or put it between <answer> and </answer>."

    def __init__(
        self,
        *,
        dataset: str = "leg_counting",
        config: Mapping[str, JsonValue] | None = None,
        attempts: int = 1,
        discount: float = 0.5,
        partial_credit: bool = False,
        max_turns: int | None = None,
        **options: Any,  # parties and render_mode, as Env takes them
    ) -> None:
        """Choose the problems.

        Args:
            dataset: Name of a generator.
            config: Its settings; `seed` and `size` among them choose the items that tasks are drawn from.
            attempts: Answers that the agent may give; each turn is an attempt.
            discount: What a right answer is worth less at every further attempt: attempt k pays `discount ** k`.
            partial_credit: Pay what the scorer gives instead of only a full score.
            max_turns: A lower limit than `attempts`.
            **options: As in `Env`.

        Raises: InvalidInput: reasoning-gym is not installed or refuses the settings; a value outside its range.
            UnknownName: no such data set or setting; near names are listed.
        """
        InvalidInput.unless(attempts >= 1, "attempts", "be at least 1", attempts, where=_WHERE, do="pass e.g. 3")
        if not 0.0 <= discount <= 1.0:
            raise InvalidInput.of("discount", "lie in [0, 1]", discount, where=_WHERE, do="pass e.g. 0.5")
        super().__init__(
            rubric=ReasoningGymScore(partial_credit=partial_credit),
            max_turns=attempts if max_turns is None else min(attempts, max_turns),
            **options,
        )
        self.source = _source(dataset, dict(config or {}))
        self.attempts, self.discount = attempts, discount
        chance = (CHANCE_PARTIAL if partial_credit else CHANCE).get(dataset, 1.0)
        self.chance_score = min(1.0, sum(chance * discount**attempt for attempt in range(attempts)))
        self.tasks = GeneratedTasks(self._draw, name=f"{_WHERE} {dataset} {self.source.config}")

    def _draw(self, rng: np.random.Generator) -> TaskDraft:
        """Draw an item; passed over are those whose answer its scorer does not accept, or its question ends with."""
        size = json.loads(self.source.config)["size"]
        for _ in range(MAX_PASSED_OVER):
            index = int(rng.integers(size))
            item = self.source.item(index)
            if item.ends_with_answer:
                continue
            if item.solution is not None or self.source.dataset in WITHOUT_SOLUTION:
                return TaskDraft(
                    prompt=item.question.strip(),
                    payload={"dataset": self.source.dataset, "question": item.question, "answer": item.solution},
                    metadata={"dataset": self.source.dataset, "config": self.source.config, "index": index},
                )
        must, got = "make an item with an answer that its scorer accepts and its question does not end with", "none"
        do = "choose other settings"
        raise EnvFailure.of("settings", must, got, where=f"{self.source.dataset}, {self.source.config}", do=do)

    def begin(self, task: Task) -> str:
        """Ask the question. Raises: InvalidInput: the task is of another environment."""
        if not {"dataset", "config", "index"} <= set(task.metadata):
            got, do = sorted(task.metadata), "take the task from this environment"
            raise InvalidInput.of("metadata", "say dataset, config and index", got, where=task.id, do=do)
        return super().begin(task)

    def respond(self, action: Action) -> Reply:
        """Score the answer; a wrong one may be followed by another."""
        scored = super().respond(action).reward
        assert isinstance(scored, Scored), "a rubric scores or raises"
        left = self.attempts - self._turn - 1
        if scored.value < 1.0 and left > 0:
            return Reply(observation=f"That is not right. Attempts left: {left}.")
        value = scored.value * self.discount**self._turn
        return Reply(reward=Scored(value=value, components=scored.components), terminated=True)

    def oracle(self) -> str:
        """Say the answer. Raises: NoOracle: the generator tells none."""
        answer = self.task.payload["answer"]
        if answer is None:
            do = "use another data set where an oracle is needed"
            raise NoOracle(sentence("oracle", "know an answer", "none", where=self.source.dataset, do=do))
        return str(answer)


def _source(dataset: str, config: JsonObject) -> ItemGenerator:
    names = dataset_names()
    check_known("dataset", dataset, names, where=_WHERE)
    for key in config:
        keys = config_keys(dataset)
        check_known("setting", key, keys, where=f"config of {dataset}")
    try:
        text = canonical({"seed": 0, "size": NUM_ITEMS, **config})
    except (TypeError, ValueError) as error:
        do = "pass numbers, texts and lists"
        raise InvalidInput.of("config", "be JSON", str(error), where=_WHERE, do=do) from None
    source = ItemGenerator(dataset=dataset, config=text)
    source.check()
    return source
