"""Inequalities of natural numbers from premises: chains, sums and products."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envgym.authoring.sampler import Sampler
from envgym.envs.math._theorem import Theorem

_VARIABLES = "abcdmnpq"


@dataclass(frozen=True, slots=True)
class _Term:
    """A variable, or a sum or product of two terms."""

    text: str
    parts: tuple["_Term", ...] = ()

    def __str__(self) -> str:
        return f" {self.text} ".join(part.text if not part.parts else f"({part})" for part in self.parts) or self.text


@dataclass(slots=True)
class _Chain:
    """A proof of an inequality that is being drawn, and the premises that it has used."""

    sampler: Sampler
    variables: Sequence[str]
    premises: dict[str, str] = field(default_factory=dict)

    def variable(self) -> _Term:
        return _Term(self.sampler.one(self.variables))

    def prove(self, low: _Term, high: _Term, depth: int) -> list[str]:
        if low == high:
            return ["apply Nat.le_refl."]
        if depth and (not low.parts or self.sampler.between(0, 2) == 0):
            middle = self._between(low, high)
            there = f"({middle})" if middle.parts else str(middle)
            return [
                f"apply (Nat.le_trans _ {there}).",
                *self.prove(low, middle, depth - 1),
                *self.prove(middle, high, depth - 1),
            ]
        if low.parts and low.text == high.text:
            lemma = "Nat.add_le_mono" if low.text == "+" else "Nat.mul_le_mono"
            pairs = zip(low.parts, high.parts, strict=True)
            return [f"apply {lemma}.", *(step for one, two in pairs for step in self.prove(one, two, depth))]
        relation = self.sampler.one(("<=", "<=", "<"))
        fact = f"{low} {relation} {high}"
        name = self.premises.setdefault(fact, f"H{len(self.premises) + 1}")
        return [*(["apply Nat.lt_le_incl."] if relation == "<" else []), f"exact {name}."]

    def _between(self, low: _Term, high: _Term) -> _Term:
        while True:
            is_alike = low.parts and low.text == high.text
            term = _Term(low.text, (self.variable(), self.variable())) if is_alike else self.variable()
            if term not in (low, high):
                return term


def order(sampler: Sampler, level: int) -> Theorem:
    """Draw an inequality of natural numbers with the premises that it needs."""
    chain = _Chain(sampler, sampler.some(_VARIABLES, 3 + level))
    operator = sampler.one("+*")
    while True:
        chain.premises = {}
        if level == 1:
            sides = (chain.variable(), chain.variable())
        else:
            sides = (
                _Term(operator, (chain.variable(), chain.variable())),
                _Term(operator, (chain.variable(), chain.variable())),
            )
        proof = chain.prove(*sides, level if level < 3 else 2)
        if sides[0] != sides[1] and len(chain.premises) >= 2:
            break
    goal = f"{sides[0]} <= {sides[1]}"
    premises = sampler.some(list(chain.premises.items()), len(chain.premises))
    text = " -> ".join([*(fact for fact, _ in premises), goal])
    used = sorted({letter for letter in _VARIABLES if letter in text})
    names = [*used, *(name for _, name in premises)]
    return Theorem(statement=f"forall {' '.join(used)} : nat, {text}", proof=(f"intros {' '.join(names)}.", *proof))
