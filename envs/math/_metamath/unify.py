"""Unification: proofs that leave out what their variables stand for (condensed detachment, for any rules)."""

from collections.abc import Iterable, Mapping, Sequence

from envgym.envs.math._metamath.steps import MAX_DEPTH, RuleStep, rule_named
from envgym.envs.math._metamath.terms import Term, substitute
from envgym.envs.math._metamath.theory import Rule, Statement, Theory
from envgym.envs.math._metamath.verifier import ProofRefused

MAX_WORK = 20_000
"""Pairs of terms that are unified, and parts of terms that are written out, in one proof."""


class Unsolvable(Exception):
    """Terms that cannot be made equal, or only by terms that are too large."""


class Unifier:
    """Metavariables, numbered from 0, and what they stand for."""

    def __init__(self, max_work: int = MAX_WORK) -> None:
        """Begin without metavariables; after `max_work` pairs and parts nothing is solvable."""
        self._values: list[Term | None] = []
        self._typecodes: list[str] = []
        self._left = max_work

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def new(self, typecode: str) -> int:
        self._values.append(None)
        self._typecodes.append(typecode)
        return len(self._values) - 1

    def fresh(self, rule: Rule) -> dict[str, Term]:
        floating = rule.source.scope.floating
        return {name: self.new(floating[name].statement[0]) for name in rule.variables}

    def unify(self, one: Term, two: Term) -> None:
        pairs = [(one, two)]
        while pairs:
            self._work()
            left, right = (self._reached(term) for term in pairs.pop())
            if left == right and not isinstance(left, tuple):
                continue
            if isinstance(left, int) or isinstance(right, int):
                number, term = (left, right) if isinstance(left, int) else (right, left)
                assert isinstance(number, int), "one of both"
                self._bind(number, term)
            elif isinstance(left, tuple) and isinstance(right, tuple) and left[0] == right[0]:
                pairs += zip(left[1:], right[1:], strict=True)
            else:
                raise Unsolvable

    def _bind(self, number: int, term: Term) -> None:
        """Let a metavariable stand for a term. Raises: Unsolvable: the metavariable is in it."""
        waiting = [term]
        while waiting:
            self._work()
            part = self._reached(waiting.pop())
            if part == number and isinstance(part, int):
                raise Unsolvable
            if isinstance(part, tuple):
                waiting += part[1:]
        self._values[number] = term

    def _reached(self, term: Term) -> Term:
        while isinstance(term, int):
            value = self._values[term]
            if value is None:
                return term
            term = value
        return term

    def _work(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Unsolvable

    def written(self, term: Term, depth: int = 0) -> Term:
        """Return a term with all metavariables replaced that stand for something. Raises: Unsolvable: too large."""
        self._work()
        if depth > MAX_DEPTH:
            raise Unsolvable
        term = self._reached(term)
        if isinstance(term, tuple):
            return (term[0], *[self.written(part, depth + 1) for part in term[1:]])
        return term

    def unsolved(self) -> Iterable[tuple[int, str]]:
        """Return the metavariables that stand for nothing, with their typecodes."""
        return [(at, self._typecodes[at]) for at, value in enumerate(self._values) if value is None]

    def name(self, number: int, term: Term) -> None:
        """Let a metavariable that stands for nothing stand for a term without metavariables."""
        self._values[number] = term


def apply_rule(unifier: Unifier, rule: Rule, premises: Sequence[Term]) -> tuple[Term, tuple[Term, ...]]:
    """Infer from premises. Raises: Unsolvable: they do not fit.

    Returns: The conclusion, and what the variables of the rule stand for.
    """
    values = unifier.fresh(rule)
    for want, premise in zip(rule.premises, premises, strict=True):
        unifier.unify(substitute(want, values), premise)
    return substitute(rule.conclusion, values), tuple(values.values())


def complete_steps(theory: Theory, statement: Statement, labels: Sequence[str]) -> list[RuleStep]:
    """Return the steps of a proof that names hypotheses, axioms and theorems alone, in reverse Polish notation.

    What the proof leaves open is the first variable of its typecode.

    Raises: ProofRefused: there is no such proof.
    """
    unifier = Unifier()
    stack: list[tuple[Term, list[RuleStep]]] = []
    for at, label in enumerate(labels, start=1):
        if label in statement.hypotheses:
            stack.append((statement.hypotheses[label], [RuleStep(label)]))
            continue
        rule = rule_named(theory, statement, label)
        count = len(rule.premises)
        if count > len(stack):
            raise ProofRefused(f"label {at}, {label}, needs {count} proofs before it, and there are {len(stack)}")
        parts, stack = stack[len(stack) - count :], stack[: len(stack) - count]
        try:
            conclusion, values = apply_rule(unifier, rule, [term for term, _ in parts])
        except Unsolvable:
            raise ProofRefused(f"label {at}, {label}, does not fit what was proved before it") from None
        steps = [RuleStep(label, values, count), *(step for _, part in parts for step in part)]
        stack.append((conclusion, steps))
    if len(stack) != 1:
        raise ProofRefused(f"the proof leaves {len(stack)} statements, not one")
    ((conclusion, steps),) = stack
    try:
        unifier.unify(conclusion, statement.goal)
    except Unsolvable:
        raise ProofRefused(f"the proof does not prove {theory.grammar.show(statement.goal)}") from None
    _settle(unifier, statement.types)
    try:
        return [RuleStep(step.label, tuple(map(unifier.written, step.values)), step.num_premises) for step in steps]
    except Unsolvable:
        raise ProofRefused("the formulas of the proof are too many or too long") from None


def _settle(unifier: Unifier, types: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for variable, typecode in types.items():
        first.setdefault(typecode, variable)
    for number, typecode in unifier.unsolved():
        if typecode not in first:
            raise ProofRefused(f"the proof leaves open what a variable of type {typecode} stands for")
        unifier.name(number, first[typecode])
