"""Statements of propositional calculus, drawn together with proofs: random rules are applied to random premises."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from types import MappingProxyType

from envgym.authoring.sampler import Sampler, Unsuitable
from envgym.envs.math._metamath.steps import RuleStep, shown_step
from envgym.envs.math._metamath.terms import Term, match, measure, substitute
from envgym.envs.math._metamath.theory import ALL, AXIOMS, Rule, Theory, propositional
from envgym.envs.math._metamath.unify import Unifier, Unsolvable, apply_rule

MAX_SIZE, MAX_VARIABLES, MAX_HYPOTHESES = 24, 6, 3
"""Variables and operators of a statement in all, different variables, and hypotheses."""
MAX_UNDETERMINED = 1
"""Variables of a drawn proof that may stand for anything; with more, parts of it serve nothing."""
_MAX_WORK = 1000
_NEAR = (1, 2, 2)
"""For each level, the height of proofs that its statements must not have, in rules whose goal tells all."""
_TRIES = 4
"""Draws of a part of a proof, before all of it is drawn again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFamily:
    uses: str
    """`axioms` or `all`."""
    hypothesis_share: float
    """How often a part of a proof that no rule makes is a hypothesis."""
    num_rules: tuple[tuple[int, int], ...]
    """For each level, how many rules with premises the drawn proof applies, from and to."""


FAMILIES: Mapping[str, StatementFamily] = MappingProxyType(
    {
        "axioms": StatementFamily(uses=AXIOMS, hypothesis_share=0.0, num_rules=((2, 3), (4, 4), (5, 6))),
        "theorems": StatementFamily(uses=ALL, hypothesis_share=0.0, num_rules=((2, 2), (3, 3), (4, 6))),
        "inferences": StatementFamily(uses=ALL, hypothesis_share=0.8, num_rules=((2, 2), (3, 3), (4, 6))),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStatement:
    """A statement with its proof; variables are named in the order in which they appear."""

    hypotheses: tuple[str, ...]
    goal: str
    proof: tuple[str, ...]
    """Steps from the goal on, as an agent says them."""


@dataclass(frozen=True, slots=True)
class _Proof:
    """A drawn part of a proof: what it proves, its steps from there on, and its hypotheses."""

    conclusion: Term
    steps: tuple[RuleStep, ...]
    hypotheses: tuple[Term, ...] = ()


@cache
def _rules(uses: str) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    theory = propositional()
    rules = [theory.rule(item) for item in theory.provable if uses == ALL or item.proof is None]
    return tuple(rule for rule in rules if not rule.premises), tuple(rule for rule in rules if rule.premises)


def draw_statement(sampler: Sampler, family: StatementFamily, level: int) -> DrawnStatement:
    """Draw a statement that takes more than one step. Raises: Unsuitable: what was drawn is none; draw again."""
    unifier = Unifier(_MAX_WORK)
    try:
        proof = _draw(sampler, unifier, family, sampler.between(*family.num_rules[level - 1]))
        hypotheses = tuple(dict.fromkeys(map(unifier.written, proof.hypotheses)))
        goal = unifier.written(proof.conclusion)
        steps = [
            RuleStep(step.label, tuple(map(unifier.written, step.values)), step.num_premises) for step in proof.steps
        ]
    except Unsolvable:
        raise Unsuitable from None
    if sum(measure(term)[0] for term in (*hypotheses, goal)) > MAX_SIZE or len(hypotheses) > MAX_HYPOTHESES:
        raise Unsuitable
    closed, rules = _rules(family.uses)
    is_vacuous = any(_is_provable(term, 0, (), closed, ()) for term in hypotheses)
    if is_vacuous or _is_provable(goal, _NEAR[level - 1], hypotheses, closed, rules):
        raise Unsuitable
    return _named(propositional(), hypotheses, goal, steps)


def _draw(sampler: Sampler, unifier: Unifier, family: StatementFamily, count: int) -> _Proof:
    closed, rules = _rules(family.uses)
    if not count:
        if sampler.rng.random() < family.hypothesis_share:
            hypothesis = unifier.new("wff")
            return _Proof(hypothesis, (RuleStep("", (hypothesis,)),), (hypothesis,))
        return _applied(unifier, sampler.one(closed), ())
    for _ in range(_TRIES):
        rule = sampler.one(rules)
        counts = [0] * len(rule.premises)
        for _ in range(count - 1):
            counts[sampler.between(0, len(counts) - 1)] += 1
        try:
            return _applied(unifier, rule, [_draw(sampler, unifier, family, part) for part in counts])
        except Unsolvable:
            if unifier.is_spent:
                break
    raise Unsolvable


def _applied(unifier: Unifier, rule: Rule, parts: Sequence[_Proof]) -> _Proof:
    conclusion, values = apply_rule(unifier, rule, [part.conclusion for part in parts])
    step = RuleStep(rule.label, values, len(parts))
    return _Proof(
        conclusion,
        (step, *(step for part in parts for step in part.steps)),
        tuple(term for part in parts for term in part.hypotheses),
    )


def _is_provable(
    goal: Term, height: int, hypotheses: Sequence[Term], closed: Sequence[Rule], rules: Sequence[Rule]
) -> bool:
    """Tell whether rules that need no substitution but that of the goal prove it, one above the other."""
    if goal in hypotheses or any(match(rule.conclusion, goal, {}) for rule in closed):
        return True
    for rule in rules if height else ():
        values: dict[str, Term] = {}
        if rule.free or not match(rule.conclusion, goal, values):
            continue
        premises = [substitute(premise, values) for premise in rule.premises]
        if all(_is_provable(premise, height - 1, hypotheses, closed, rules) for premise in premises):
            return True
    return False


def _named(theory: Theory, hypotheses: Sequence[Term], goal: Term, steps: Sequence[RuleStep]) -> DrawnStatement:
    """Name variables in the order of appearance; hypotheses stand in the order whose text comes first.

    So statements that differ in names and order alone are one. Raises: Unsuitable: too many variables.
    """
    show = theory.grammar.show
    variables = tuple(theory.types)[:MAX_VARIABLES]

    def renamed(order: Sequence[Term]) -> tuple[tuple[str, ...], str, dict[int, Term]]:
        numbers = dict.fromkeys(number for term in (*order, goal) for number in _metavariables(term))
        if len(numbers) > len(variables):
            raise Unsuitable
        names: dict[int, Term] = dict(zip(numbers, variables, strict=False))
        return tuple(show(_filled(term, names)) for term in order), show(_filled(goal, names)), names

    whole = {number for term in (*hypotheses, goal) for number in _metavariables(term)}
    others = {number for step in steps for value in step.values for number in _metavariables(value)} - whole
    if len(others) > MAX_UNDETERMINED:
        raise Unsuitable
    texts, text, names = min((renamed(order) for order in permutations(hypotheses)), key=lambda item: item[:2])
    labels = {hypothesis: f"h{number}" for number, hypothesis in enumerate(texts, start=1)}
    proof = []
    for step in steps:
        filled = tuple(_filled(value, names) for value in step.values)
        if step.label:
            proof.append(shown_step(theory, step.label, filled))
        else:
            proof.append(labels[show(filled[0])])
    return DrawnStatement(hypotheses=texts, goal=text, proof=tuple(proof))


def _metavariables(term: Term) -> Iterator[int]:
    if isinstance(term, int):
        yield term
    elif isinstance(term, tuple):
        for part in term[1:]:
            yield from _metavariables(part)


def _filled(term: Term, names: Mapping[int, Term]) -> Term:
    """Put variables in the place of metavariables; those that the statement lacks become its first one."""
    if isinstance(term, tuple):
        return (term[0], *[_filled(part, names) for part in term[1:]])
    return names.get(term, "ph") if isinstance(term, int) else term
