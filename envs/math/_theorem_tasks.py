"""Where theorems come from: families that are drawn without end, and files in the form of miniF2F."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from envgym.authoring import FileTasks, TaskDraft
from envgym.authoring.sampler import Sampler
from envgym.authoring.sources import MAX_DRAWS, check_index, task_from_draft
from envgym.authoring.tables import Row
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task, split_of
from envgym.envs.math._coq_proofs import theorem_command
from envgym.envs.math._coq_text import split_sentences
from envgym.envs.math._theorem import Theorem, TheoremFamily
from envgym.envs.math._theorems_induction import induction
from envgym.envs.math._theorems_logic import propositional
from envgym.envs.math._theorems_order import order
from envgym.envs.math._theorems_rewriting import arithmetic, lists
from envgym.errors import InvalidInput
from envgym.seeds import generator

FAMILIES: Mapping[str, TheoremFamily] = MappingProxyType(
    {
        "propositional": propositional,
        "order": order,
        "arithmetic": arithmetic,
        "lists": lists,
        "induction": induction,
    }
)
LIBRARIES = "Require Import Arith List. Import ListNotations."
AUTOMATION = "Require Import Lia."
_WHERE = "math/proofs-v0"
_SPLITS: Mapping[str, Split] = MappingProxyType(
    {"train": Split.TRAIN, "valid": Split.TRAIN, "validation": Split.TRAIN, "test": Split.TEST}
)


@dataclass(frozen=True, slots=True)
class TheoremTasks:
    """Theorems of some families without end; a shape is on one side of the split only.

    A shape is what is left of a theorem without its names and numbers. So a test theorem is no train theorem in other
    letters, with other constants, or about a function that differs in those.
    """

    families: tuple[str, ...]
    levels: tuple[int, ...]
    held_out: tuple[str, ...]
    """Families of the test split alone; without any, shapes are held out."""

    def size(self, split: Split) -> None:
        """Return None: the supply does not end."""
        return

    def task(self, split: Split, index: int) -> Task:
        """Draw until a shape falls into `split`. Raises: InvalidInput: a negative index."""
        check_index(index, None, f"{split} of {_WHERE}")
        names = [name for name in self.families if name not in self.held_out]
        if self.held_out and split is Split.TEST:
            names = [*self.held_out]
        draws = generator(_WHERE, split.value, index)
        name, level = names[index % len(names)], self.levels[index // len(names) % len(self.levels)]
        for _ in range(MAX_DRAWS):
            theorem = FAMILIES[name](Sampler(draws), level)
            if self.held_out or split_of({"shape": theorem.shape}) is split:
                return task_from_draft(_draft(theorem, name, level), split, f"{split}/{index}")
        raise AssertionError("a fifth of the shapes are held out")


def _draft(theorem: Theorem, family: str, level: int) -> TaskDraft:
    definitions: list[JsonValue] = [*theorem.definitions]
    proof: list[JsonValue] = [*theorem.proof]
    return TaskDraft(
        prompt=prompt_of(" ".join(theorem.definitions), theorem.statement),
        payload={"definitions": definitions, "statement": theorem.statement},
        metadata={"family": family, "level": level, "proof": proof},
    )


def prompt_of(head: str, statement: str) -> str:
    """Return what the agent reads: the commands before the theorem, and the theorem."""
    return "\n".join(["Prove this theorem.", "", *split_sentences(head), theorem_command(statement)])


class TheoremFiles(FileTasks):
    """Theorems of a file: name, statement, optional head, split and proof."""

    def _draft(self, row: Row, where: str) -> TaskDraft:
        """Read a row. Raises: InvalidInput: a field is missing, or is no text."""
        name, statement = (_text(row, field, where) for field in ("name", "statement"))
        head = _text(row, "header", where, default="")
        proof = _text(row, "proof", where, default="")
        payload: dict[str, JsonValue] = {"head": head, "statement": statement}
        metadata: dict[str, JsonValue] = {"name": name} | ({"proof": [*split_sentences(proof)]} if proof else {})
        return TaskDraft(prompt=prompt_of(head, statement), payload=payload, metadata=metadata)

    def _split_of(self, row: Row, draft: TaskDraft, where: str) -> Split:
        """Return the split that a row names, else that of its content."""
        name = _text(row, "split", where, default="")
        if not name:
            return split_of(draft.payload)
        do = f"name it {', '.join(_SPLITS)}"
        InvalidInput.unless(name in _SPLITS, "field split", "be known", name, where=where, do=do)
        return _SPLITS[name]


def _text(row: Row, field: str, where: str, *, default: str | None = None) -> str:
    value = default if row.get(field) is None else row[field]
    do = "write it into the file"
    must = "be a text that is not empty" if default is None else "be a text"
    got = repr(value) if field in row else "no such field"
    InvalidInput.unless(
        isinstance(value, str) and (value or default == ""), f"field {field}", must, got, where=where, do=do
    )
    return str(value)
