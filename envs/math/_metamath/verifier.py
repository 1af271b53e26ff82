"""The verifier: whether a proof proves a theorem, by the rules of the Metamath specification and nothing else."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from envgym.envs.math._metamath.database import Assertion, Database, Hypothesis

Symbols = tuple[str, ...]
SAVE = -1
"""Among the steps of a proof: keep the statement that was proved last."""


class ProofRefused(Exception):
    """A proof that proves nothing, and why."""


def verify(
    theorem: Assertion,
    proof: Iterable[Assertion | Hypothesis | int],
    *,
    free_dummies: bool = False,
    max_symbols: float = math.inf,
) -> None:
    """Follow a proof, and compare what it proves.

    Args:
        theorem: What is to be proved.
        proof: What its steps apply, in reverse Polish notation; `SAVE` keeps the statement that was proved last, and a
            number from 0 on takes such a one. `read_proof` reads it.
        free_dummies: Take variables that only the proof uses as distinct from all others. Adding such a `$d` to the
            theorem never makes it say less.
        max_symbols: In all statements that the steps take and give.

    Raises: ProofRefused: it is no proof of the theorem.
    """
    stack = _Stack(theorem, free_dummies, max_symbols)
    saved: list[Symbols] = []
    for step in proof:
        if not isinstance(step, int):
            stack.push(step)
        elif step == SAVE:
            saved.append(stack.statements[-1])
        else:
            stack.statements.append(saved[step])
    if len(stack.statements) != 1:
        raise ProofRefused(f"the proof leaves {len(stack.statements)} statements, not one")
    if stack.statements[0] != theorem.statement:
        raise ProofRefused(f"the proof proves {' '.join(stack.statements[0])}, not {' '.join(theorem.statement)}")


def read_proof(database: Database, theorem: Assertion, proof: Sequence[str]) -> Iterator[Assertion | Hypothesis | int]:
    """Yield what the steps of a proof apply: labels, or labels in parentheses and the letters of the compressed form.

    Raises: ProofRefused: a label names nothing, or the compressed form is broken.
    """
    if proof and proof[0] == "(":
        return _decompressed(database, theorem, proof)
    return (named(database, theorem, label) for label in proof)


def named(database: Database, theorem: Assertion, label: str) -> Assertion | Hypothesis:
    """Return the step that a label of a proof names. Raises: ProofRefused: nothing that may be used."""
    for item in theorem.scope.essential:
        if item.label == label:
            return item
    assertion = database.assertions.get(label)
    if assertion is not None and assertion.number < theorem.number:
        return assertion
    hypothesis = database.hypotheses.get(label)
    is_floating = hypothesis is not None and hypothesis.is_floating
    if hypothesis is not None and is_floating and theorem.scope.floating.get(hypothesis.statement[1]) is hypothesis:
        return hypothesis
    if label == "?":
        raise ProofRefused("the proof has a step ?, and is incomplete")
    raise ProofRefused(f"{label} is no hypothesis of the theorem, and no assertion before it")


@dataclass(slots=True)
class _Stack:
    """The statements that the steps of a proof have left."""

    theorem: Assertion
    free_dummies: bool
    max_symbols: float
    statements: list[Symbols] = field(default_factory=list)

    def push(self, step: Assertion | Hypothesis) -> None:
        if isinstance(step, Hypothesis):
            self.statements.append(step.statement)
            return
        count, size = len(step.hypotheses), len(self.statements)
        if count > size:
            raise ProofRefused(f"{step.label} needs {count} statements, and the stack has {size}")
        if not count:
            self.statements.append(step.statement)
            return
        arguments = self.statements[size - count :]
        del self.statements[size - count :]
        values: dict[str, Symbols] = {}
        for hypothesis, got in zip(step.hypotheses, arguments, strict=True):
            if hypothesis.is_floating:
                values[hypothesis.statement[1]] = got[1:]
                is_right = got[0] == hypothesis.statement[0]
            else:
                is_right = substituted(hypothesis.statement, values) == got
            if not is_right:
                want = " ".join(substituted(hypothesis.statement, values))
                raise ProofRefused(f"{step.label} needs {hypothesis.label}: {want}, and gets {' '.join(got)}")
        used = {name: frozenset(value) for name, value in values.items()} if step.disjoint else {}
        check_disjoint(step, used, self.theorem, self.free_dummies)
        self.statements.append(substituted(step.statement, values))
        self.max_symbols -= sum(map(len, arguments)) + len(self.statements[-1])
        if self.max_symbols < 0:
            raise ProofRefused("the statements of the proof are too many or too long")


def substituted(statement: Symbols, values: Mapping[str, Symbols]) -> Symbols:
    symbols: list[str] = []
    for part in statement:
        value = values.get(part)
        if value is None:
            symbols.append(part)
        else:
            symbols += value
    return tuple(symbols)


def check_disjoint(step: Assertion, used: Mapping[str, frozenset[str]], theorem: Assertion, free_dummies: bool) -> None:
    """Check the disjoint-variable conditions of a step.

    Args:
        step: What is applied.
        used: Variable of `step` -> symbols that are put in its place.
        theorem: What is being proved.
        free_dummies: As in `verify`.

    Raises: ProofRefused: two that must be disjoint share a variable, or need a `$d` that the theorem lacks.
    """
    floating, mandatory = theorem.scope.floating, theorem.variables
    for one, two in step.disjoint:
        left, right = (sorted(name for name in used[part] if name in floating) for part in (one, two))
        shared = [name for name in left if name in right]
        apart = [
            f"{first} and {second}"
            for first, second in product(left, right)
            if not theorem.scope.are_disjoint(first, second)
            and not (free_dummies and not (first in mandatory and second in mandatory))
        ]
        if shared or apart:
            raise ProofRefused(f"{step.label} needs {one} and {two} disjoint, which {[*shared, *apart][0]} breaks")


def _decompressed(
    database: Database, theorem: Assertion, proof: Sequence[str]
) -> Iterator[Assertion | Hypothesis | int]:
    if ")" not in proof:
        raise ProofRefused("the labels of a compressed proof must end with )")
    end = list(proof).index(")")
    labels = proof[1:end]
    if {item.label for item in theorem.hypotheses}.intersection(labels):
        raise ProofRefused("a compressed proof lists no mandatory hypothesis")
    steps: list[Assertion | Hypothesis] = [*theorem.hypotheses, *(named(database, theorem, name) for name in labels)]
    number, num_saved, can_save = 0, 0, False
    for letter in "".join(proof[end + 1 :]):
        if "U" <= letter <= "Y":
            number, can_save = number * 5 + ord(letter) - ord("T"), False
        elif "A" <= letter <= "T":
            number, can_save = number * 20 + ord(letter) - ord("A"), True
            if number >= len(steps) + num_saved:
                raise ProofRefused(f"step {number + 1} of the compressed proof is not defined")
            yield steps[number] if number < len(steps) else number - len(steps)
            number = 0
        elif letter == "Z" and can_save:
            num_saved, can_save = num_saved + 1, False
            yield SAVE
        else:
            raise ProofRefused(f"{letter} is out of place in the compressed proof")
    if number:
        raise ProofRefused("the compressed proof ends within a step")
