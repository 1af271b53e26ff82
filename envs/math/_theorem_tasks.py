"""Where theorems come from: families that are drawn without end, and files in the form of miniF2F."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from envgym.authoring import FileTasks, TaskDraft
from envgym.authoring.sampler import Sampler
from envgym.authoring.sources import step_metadata
from envgym.authoring.tables import Row
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, split_of_key
from envgym.envs.families import DrawnTask, FamilyTasks, choose_families
from envgym.envs.math._coq_proofs import theorem_command
from envgym.envs.math._coq_text import split_sentences
from envgym.envs.math._theorem import TheoremFamily
from envgym.envs.math._theorems_induction import induction
from envgym.envs.math._theorems_logic import propositional
from envgym.envs.math._theorems_order import order
from envgym.envs.math._theorems_rewriting import arithmetic, lists
from envgym.errors import InvalidInput

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


def theorem_tasks(
    families: str | Sequence[str], levels: int | Sequence[int], held_out: str | Sequence[str]
) -> FamilyTasks:
    """Return theorems of some families without end; a shape is on one side of the split only.

    A shape is what is left of a theorem without its names and numbers. So a test theorem is no train theorem in other
    letters, with other constants, or about a function that differs in those.

    Raises: UnknownName, InvalidInput: as `choose_families`.
    """
    return choose_families(families, levels, held_out, all_families=FAMILIES, draw=_draw, where=_WHERE)


def _draw(sampler: Sampler, family: str, level: int) -> DrawnTask:
    theorem = FAMILIES[family](sampler, level)
    definitions: list[JsonValue] = [*theorem.definitions]
    proof: list[JsonValue] = [*theorem.proof]
    draft = TaskDraft(
        prompt=prompt_of(" ".join(theorem.definitions), theorem.statement),
        payload={"definitions": definitions, "statement": theorem.statement},
        metadata={"family": family, "level": level, "proof": proof, **step_metadata(theorem.proof)},
    )
    return DrawnTask(draft, {"shape": theorem.shape})


def prompt_of(head: str, statement: str) -> str:
    """Return the agent's prompt: the commands before the theorem, and the theorem."""
    return "\n".join(["Prove this theorem.", "", *split_sentences(head), theorem_command(statement)])


class TheoremFiles(FileTasks):
    """Theorems of a file: name, statement, optional head, split and proof."""

    def _draft(self, row: Row, where: str) -> TaskDraft:
        name, statement = (_text(row, field, where) for field in ("name", "statement"))
        head = _text(row, "header", where, default="")
        proof = _text(row, "proof", where, default="")
        payload: dict[str, JsonValue] = {"head": head, "statement": statement}
        tactics = split_sentences(proof)
        metadata: dict[str, JsonValue] = {"name": name, **({"proof": [*tactics]} if proof else {})}
        metadata |= step_metadata(tactics)
        return TaskDraft(prompt=prompt_of(head, statement), payload=payload, metadata=metadata)

    def _split_of(self, row: Row, key: str, where: str) -> Split:
        name = _text(row, "split", where, default="")
        if not name:
            return split_of_key(key)
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
