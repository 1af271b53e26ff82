"""Theorems of propositional logic: a goal is drawn and proved, and what the proof needs becomes a premise."""

from dataclasses import dataclass, field

from envgym.authoring.sampler import Sampler
from envgym.envs.math._theorem import Theorem

_ATOMS = "ABCDEF"
_DEPTHS = {1: (1, 1), 2: (1, 2), 3: (2, 2)}
"""Level -> depth of the goal, and of the proofs of its atoms."""
_STEPS = ("imply", "imply", "imply_two", "and", "or", "absurd", "iff")


@dataclass(frozen=True, slots=True)
class _Formula:
    """A formula: an atom, or a connective with its parts."""

    kind: str
    parts: tuple["_Formula", ...] = ()

    def __str__(self) -> str:
        inner = [str(part) if not part.parts or part.kind == "~" else f"({part})" for part in self.parts]
        if self.kind == "~":
            return f"~ {inner[0]}"
        return f" {self.kind} ".join(inner) or self.kind


@dataclass(slots=True)
class _Derivation:
    """A proof that is being drawn, and the premises that it has used."""

    sampler: Sampler
    atoms: list[_Formula]
    premises: list[tuple[str, _Formula]] = field(default_factory=list)
    num_names: int = 0

    def fresh(self) -> str:
        self.num_names += 1
        return f"H{self.num_names}"

    def premise(self, formula: _Formula) -> str:
        self.premises.append((self.fresh(), formula))
        return self.premises[-1][0]

    def formula(self, depth: int) -> _Formula:
        kind = self.sampler.one(("/\\", "\\/", "->", "~")) if depth else ""
        if not kind:
            return self.sampler.one(self.atoms)
        return _Formula(kind, tuple(self.formula(depth - 1) for _ in range(1 if kind == "~" else 2)))

    def prove(self, goal: _Formula, depth: int) -> list[str]:
        match goal.kind:
            case "/\\":
                return ["split.", *self.prove(goal.parts[0], depth), *self.prove(goal.parts[1], depth)]
            case "\\/":
                side = self.sampler.between(0, 1)
                return [("left.", "right.")[side], *self.prove(goal.parts[side], depth)]
            case "->":
                return [f"intros {self.fresh()}.", *self.prove(goal.parts[1], depth)]
            case "~":
                return [f"intros {self.fresh()}.", *self.prove_atom(_Formula("False"), max(depth, 1))]
        return self.prove_atom(goal, depth)

    def prove_atom(self, goal: _Formula, depth: int) -> list[str]:
        if depth == 0:
            names = [name for name, formula in self.premises if formula == goal]
            return [f"exact {names[0] if names else self.premise(goal)}."]
        step = self.sampler.one(_STEPS if goal.kind != "False" else ("absurd",))
        others = [atom for atom in self.atoms if atom != goal]
        one, two = self.sampler.some(others, 2)
        if step in ("and", "or"):
            return self._eliminate(step, goal, one, two)
        if step == "absurd":
            start = [] if goal.kind == "False" else ["exfalso."]
            return [*start, f"apply {self.premise(_Formula('~', (one,)))}.", *self.prove_atom(one, depth - 1)]
        if step == "imply_two":
            name = self.premise(_Formula("->", (one, _Formula("->", (two, goal)))))
            return [f"apply {name}.", *self.prove_atom(one, depth - 1), *self.prove_atom(two, depth - 1)]
        if step == "iff":
            name = self.premise(_Formula("<->", self.sampler.one(((one, goal), (goal, one)))))
            return [f"apply {name}.", *self.prove_atom(one, depth - 1)]
        need = self.sampler.one((one, _Formula("/\\", (one, two)), _Formula("\\/", (one, two))))
        return [f"apply {self.premise(_Formula('->', (need, goal)))}.", *self.prove(need, depth - 1)]

    def _eliminate(self, step: str, goal: _Formula, one: _Formula, two: _Formula) -> list[str]:
        """Take a premise apart: one that holds the goal, or two cases that each imply it."""
        here, there = self.fresh(), self.fresh()
        if step == "and":
            side = self.sampler.between(0, 1)
            name = self.premise(_Formula("/\\", ((goal, one), (one, goal))[side]))
            return [f"destruct {name} as [{here} {there}].", f"exact {(here, there)[side]}."]
        name = self.premise(_Formula("\\/", (one, two)))
        cases = [self.premise(_Formula("->", (case, goal))) for case in (one, two)]
        split = f"destruct {name} as [{here}|{there}]."
        return [split, f"apply {cases[0]}.", f"exact {here}.", f"apply {cases[1]}.", f"exact {there}."]


def propositional(sampler: Sampler, level: int) -> Theorem:
    depth, atom_depth = _DEPTHS[level]
    atoms = [_Formula(letter) for letter in sampler.some(_ATOMS, 4)]
    derivation = _Derivation(sampler, atoms)
    goal = derivation.formula(depth)
    proof = derivation.prove(goal, atom_depth)
    premises = sampler.some(derivation.premises, len(derivation.premises))
    formulas = [str(formula) if formula.kind in _ATOMS else f"({formula})" for _, formula in premises]
    used = sorted(
        {letter for letter in _ATOMS for text in (*formulas, str(goal)) if letter in text.replace("False", "")}
    )
    statement = f"forall {' '.join(used)} : Prop, {' -> '.join([*formulas, f'({goal})'])}"
    names = [*used, *(name for name, _ in premises)]
    return Theorem(statement=statement, proof=(f"intros {' '.join(names)}.", *proof))
