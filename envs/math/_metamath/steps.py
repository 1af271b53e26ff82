"""Proofs that grow backward: a step applies an assertion to the first open goal, and its premises are the new goals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envgym.envs.math._metamath.database import Assertion, Hypothesis
from envgym.envs.math._metamath.terms import PROVABLE, Term, match, measure, substitute, variables_of
from envgym.envs.math._metamath.theory import Rule, Statement, Theory
from envgym.envs.math._metamath.verifier import SAVE, ProofRefused, check_disjoint, read_proof, verify

MAX_SIZE, MAX_DEPTH = 1000, 120
"""Of a goal: variables and syntax axioms in it, and how deep they are nested."""


@dataclass(frozen=True, slots=True)
class RuleStep:
    """A hypothesis, or an assertion with what its variables stand for."""

    label: str
    values: tuple[Term, ...] = ()
    num_premises: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    step: RuleStep | None
    """None: the start."""
    goals: tuple[Term, ...]
    """The first one is next."""


def apply(
    theory: Theory, statement: Statement, goals: Sequence[Term], label: str, substitutions: Mapping[str, Term]
) -> Position:
    """Apply a hypothesis or an assertion to the first goal.

    Args:
        theory: What assertions are there.
        statement: What is being proved.
        goals: Open goals, at least one.
        label: Of the hypothesis or assertion.
        substitutions: What variables of the assertion stand for; those that the goal determines may be left out.

    Raises: ProofRefused: it does not fit, or more must be given.
    """
    goal, rest = goals[0], goals[1:]
    show = theory.grammar.show
    if label in statement.hypotheses:
        if statement.hypotheses[label] != goal:
            raise ProofRefused(f"{label} is {show(statement.hypotheses[label])}, and the goal is {show(goal)}")
        return Position(RuleStep(label), (*rest,))
    rule = rule_named(theory, statement, label)
    values = {**substitutions}
    if not match(rule.conclusion, goal, values):
        wants = ", ".join(f"{name} := {show(term)}" for name, term in substitutions.items())
        raise ProofRefused(
            f"{label} proves {show(rule.conclusion)}, which does not fit the goal{wants and f' with {wants}'}"
        )
    missing = [name for name in rule.free if name not in values]
    if missing:
        raise ProofRefused(f"the goal does not determine {' '.join(missing)}: write {_example(label, missing)}")
    if rule.source.disjoint:
        used = {name: variables_of(term) for name, term in values.items()}
        check_disjoint(rule.source, used, statement.source, free_dummies=True)
    premises = tuple([substitute(premise, values) for premise in rule.premises])
    for premise in premises:
        size, depth = measure(premise)
        if size > MAX_SIZE or depth > MAX_DEPTH:
            raise ProofRefused(f"a goal may have {MAX_SIZE} variables and operators, nested {MAX_DEPTH} deep")
    step = RuleStep(label, tuple([values[name] for name in rule.variables]), len(premises))
    return Position(step, (*premises, *rest))


def shown_step(theory: Theory, label: str, values: Sequence[Term]) -> str:
    """Write a step of an assertion, with the substitutions that a goal does not determine."""
    rule = theory.rule(theory.database.assertions[label])
    pairs = zip(rule.variables, values, strict=True)
    substitutions = ", ".join(f"{name} := {theory.grammar.show(value)}" for name, value in pairs if name in rule.free)
    return f"{label} with {substitutions}" if substitutions else label


def rule_named(theory: Theory, statement: Statement, label: str) -> Rule:
    """Return a rule that a proof may use. Raises: ProofRefused: there is none of that name."""
    assertion = theory.database.assertions.get(label)
    if assertion is None or not statement.allows(assertion) or assertion.statement[0] != PROVABLE:
        raise ProofRefused(f"{label} is no hypothesis, axiom or theorem that may be used here")
    return theory.rule(assertion)


def _example(label: str, missing: Sequence[str]) -> str:
    return f"{label} with {', '.join(f'{name} := FORMULA' for name in missing)}"


def complete_proof(
    theory: Theory, statement: Statement, steps: Sequence[RuleStep]
) -> Iterator[Assertion | Hypothesis | int]:
    """Yield the proof that steps make, in the order in which they were applied, as the verifier follows it."""
    assertions, source = theory.database.assertions, statement.source
    essential = {item.label: item for item in source.essential}
    saved: dict[Term, int] = {}
    following = iter(steps)
    waiting: list[Term | Assertion | None] = [None]  # None: what the next step proves
    while waiting:
        item = waiting.pop()
        if isinstance(item, Assertion):
            yield item
        elif item is not None:
            yield from _syntax(assertions, source, item, saved)
        else:
            step = next(following)
            if step.label in essential:
                yield essential[step.label]
                continue
            assertion, values = assertions[step.label], iter(step.values)
            parts = [next(values) if one.is_floating else None for one in assertion.hypotheses]
            waiting += [assertion, *reversed(parts)]


def _syntax(
    assertions: Mapping[str, Assertion], source: Assertion, term: Term, saved: dict[Term, int]
) -> Iterator[Assertion | Hypothesis | int]:
    """Yield the steps that build a term; one that was built before is taken again."""
    if isinstance(term, str):
        yield source.scope.floating[term]
    elif term in saved:
        yield saved[term]
    else:
        assert isinstance(term, tuple), "no metavariable in a proof"
        for part in term[1:]:
            yield from _syntax(assertions, source, part, saved)
        yield assertions[str(term[0])]
        yield SAVE
        saved[term] = len(saved)


def steps_of(theory: Theory, label: str) -> list[RuleStep]:
    """Return the proof of a theorem of the file as steps from the goal on; its syntax is left out.

    Raises: ProofRefused: the file's proof is incomplete or wrong.
    """
    database, theorem = theory.database, theory.database.assertions[label]
    proof = theorem.proof or ()
    verify(theorem, read_proof(database, theorem, proof))
    stack: list[Term | list[RuleStep]] = []
    saved: list[Term | list[RuleStep]] = []
    for item in read_proof(database, theorem, proof):
        if item == SAVE:
            saved.append(stack[-1])
        elif isinstance(item, int):
            stack.append(saved[item])
        elif isinstance(item, Hypothesis):
            stack.append(item.statement[1] if item.is_floating else [RuleStep(item.label)])
        else:
            size = len(stack) - len(item.hypotheses)
            parts, stack = stack[size:], stack[:size]
            terms = [part for part in parts if not isinstance(part, list)]
            if item.statement[0] == PROVABLE:
                proofs = [part for part in parts if isinstance(part, list)]
                first = RuleStep(item.label, tuple(terms), len(proofs))
                stack.append([first, *(step for part in proofs for step in part)])
            else:
                types = {name: one.statement[0] for name, one in item.scope.floating.items()}
                term = theory.grammar.parse(item.statement[1:], item.statement[0], types)
                stack.append(substitute(term, dict(zip(item.variables, terms, strict=True))))
    (steps,) = stack
    assert isinstance(steps, list), "verified"
    return steps
