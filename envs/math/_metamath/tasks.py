"""Where statements come from: families that are drawn without end, and the theorems of a `.mm` file."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from envgym.authoring import ListTasks, TaskDraft
from envgym.authoring.sampler import Sampler
from envgym.authoring.sources import step_metadata, task_from_draft
from envgym.core.json_types import JsonValue
from envgym.core.tasks import Split, Task, split_of
from envgym.envs.families import DrawnTask, FamilyTasks, choose_families
from envgym.envs.math._metamath.database import Assertion, read_database
from envgym.envs.math._metamath.statements import FAMILIES, draw_statement
from envgym.envs.math._metamath.theory import AXIOMS, Theory
from envgym.envs.math._metamath.verifier import ProofRefused, read_proof, verify
from envgym.errors import InvalidInput

_WHERE = "math/metamath-v0"
_ONLY = {AXIOMS: "\nOnly the axioms may be used: ax-mp, ax-1, ax-2 and ax-3."}


def statement_tasks(
    families: str | Sequence[str], levels: int | Sequence[int], held_out: str | Sequence[str]
) -> FamilyTasks:
    """Return statements of some families without end; one that differs in names or order alone is on the same side.

    Raises: UnknownName, InvalidInput: as `choose_families`.
    """
    return choose_families(families, levels, held_out, all_families=FAMILIES, draw=_draw, where=_WHERE)


def _draw(sampler: Sampler, family: str, level: int) -> DrawnTask:
    statement, uses = draw_statement(sampler, FAMILIES[family], level), FAMILIES[family].uses
    hypotheses: list[JsonValue] = [*statement.hypotheses]
    proof: list[JsonValue] = [*statement.proof]
    labelled = {f"h{number}": text for number, text in enumerate(statement.hypotheses, start=1)}
    content: dict[str, JsonValue] = {"hypotheses": hypotheses, "goal": statement.goal}
    draft = TaskDraft(
        prompt=prompt_of(labelled, statement.goal) + _ONLY.get(uses, ""),
        payload={**content, "uses": uses},
        metadata={"family": family, "level": level, "proof": proof, **step_metadata(statement.proof)},
    )
    return DrawnTask(draft, content)


def prompt_of(hypotheses: dict[str, str], goal: str) -> str:
    """Return the agent's prompt: the statement with its hypotheses."""
    lines = [f"{label}: {text}" for label, text in hypotheses.items()]
    return "\n".join([f"Prove {goal}", *(["from"] if lines else []), *lines])


class FileTheorems:
    """The theorems of a `.mm` file; each is proved from what is before it."""

    def __init__(self, path: str, *, verify_file: bool) -> None:
        """Prepare to read; `verify_file` verifies every proof of the file first."""
        self.path, self._verify_file = path, verify_file

    def theory(self) -> Theory:
        """Return the theory of the file. Raises: InvalidInput: it cannot be read, or a proof of it is wrong."""
        return _theory(self.path, self._verify_file, _version(self.path))

    def size(self, split: Split) -> int:
        return self._tasks().size(split)

    def task(self, split: Split, index: int) -> Task:
        """Return a theorem. Raises: InvalidInput: beyond the end, or the file cannot be read."""
        return self._tasks().task(split, index)

    def _tasks(self) -> ListTasks:
        return _file_tasks(self.path, self._verify_file, _version(self.path))


def _version(path: str) -> tuple[int, int]:
    """Return time of change and size of a file; zeros where there is none."""
    file = Path(path)
    return (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else (0, 0)


@lru_cache(maxsize=4)
def _theory(path: str, verify_file: bool, version: tuple[int, int]) -> Theory:
    theory = Theory(read_database(path))
    for theorem in theory.database.assertions.values() if verify_file else ():
        if theorem.proof is None:
            continue
        try:
            verify(theorem, read_proof(theory.database, theorem, theorem.proof))
        except ProofRefused as refusal:
            must, do = "be proved by the file", "correct the proof, or pass verify_file=False"
            raise InvalidInput.of(f"theorem {theorem.label}", must, str(refusal), where=path, do=do) from None
    return theory


@lru_cache(maxsize=4)
def _file_tasks(path: str, verify_file: bool, version: tuple[int, int]) -> ListTasks:
    theory = _theory(path, verify_file, version)
    sides: dict[Split, list[Task]] = {split: [] for split in Split}
    for item in theory.provable:
        if item.proof is None:
            continue
        hypotheses = {one.label: " ".join(one.statement[1:]) for one in item.essential}
        goal = " ".join(item.statement[1:])
        split = split_of({"shape": shape_of(item)})
        payload: dict[str, JsonValue] = {"label": item.label, "hypotheses": {**hypotheses}, "goal": goal}
        draft = TaskDraft(prompt=prompt_of(hypotheses, goal), payload=payload, metadata={"label": item.label})
        sides[split].append(task_from_draft(draft, split, item.label))
    do = "name a file with theorems ($p) about |-"
    InvalidInput.unless(any(sides.values()), "Metamath file", "hold theorems", "none", where=path, do=do)
    return ListTasks([task for side in sides.values() for task in side])


def shape_of(theorem: Assertion) -> list[JsonValue]:
    """Return the statements of a theorem with variables numbered in the order in which they appear."""
    names: dict[str, str] = {}
    floating = theorem.scope.floating

    def rename(symbol: str) -> str:
        return (
            names.setdefault(symbol, f"{floating[symbol].statement[0]} {len(names)}") if symbol in floating else symbol
        )

    statements = [theorem.statement, *(item.statement for item in theorem.essential)]
    return [" ".join(map(rename, statement)) for statement in statements]
