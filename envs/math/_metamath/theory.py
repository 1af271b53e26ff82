"""A database whose formulas are read as terms, and the statements that are to be proved from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from envgym.envs.math._metamath.database import Assertion, Database, Hypothesis, assertion_in, read_database
from envgym.envs.math._metamath.terms import FORMULA, PROVABLE, Grammar, Term, TermRefused
from envgym.errors import InvalidInput

AXIOMS, ALL = "axioms", "all"
"""Which assertions a proof may use."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An assertion as a rule of inference: its conclusion follows from its premises."""

    label: str
    conclusion: Term
    premises: tuple[Term, ...]
    variables: tuple[str, ...]
    """In the order of their hypotheses."""
    free: tuple[str, ...]
    """Variables that are in premises alone: a conclusion does not determine them."""
    source: Assertion


@dataclass(frozen=True, slots=True)
class Statement:
    source: Assertion
    goal: Term
    hypotheses: Mapping[str, Term]
    types: Mapping[str, str]
    """Typecode of each variable that may be used."""
    uses: str = ALL
    """`axioms` or `all`."""

    def allows(self, assertion: Assertion) -> bool:
        is_before = assertion.number < self.source.number
        return is_before and (self.uses == ALL or assertion.proof is None or assertion.statement[0] != PROVABLE)


class Theory:
    def __init__(self, database: Database) -> None:
        """Read the syntax axioms. Raises: InvalidInput: one is no rule of a grammar."""
        self.database = database
        self.grammar = Grammar(database)
        self._rules: dict[str, Rule] = {}

    @cached_property
    def types(self) -> Mapping[str, str]:
        """Typecodes of the variables that are active at the end of the file."""
        return _types(self.database.scope.floating)

    @cached_property
    def provable(self) -> tuple[Assertion, ...]:
        """The assertions that are no syntax."""
        return tuple(item for item in self.database.assertions.values() if item.statement[0] == PROVABLE)

    def rule(self, assertion: Assertion) -> Rule:
        """Return an assertion as a rule. Raises: InvalidInput: a statement of it cannot be read."""
        rule = self._rules.get(assertion.label)
        if rule is None:
            read = self._own_statement(assertion)
            free = set(assertion.variables).difference(assertion.statement)
            rule = Rule(
                assertion.label,
                read.goal,
                tuple(read.hypotheses.values()),
                assertion.variables,
                tuple(name for name in assertion.variables if name in free),
                assertion,
            )
            self._rules[assertion.label] = rule
        return rule

    def rules(self, statement: Statement) -> Iterator[Rule]:
        """Yield what the proof of a statement may use, in the order of the file."""
        return (self.rule(item) for item in self.provable if statement.allows(item))

    def theorem(self, label: str) -> Statement:
        """Return a theorem of the file, to be proved from what is before it."""
        return self._own_statement(self.database.assertions[label])

    def statement(self, hypotheses: Mapping[str, str], goal: str, uses: str = ALL) -> Statement:
        """Return a statement of one's own. Raises: TermRefused: a formula cannot be read."""
        first, database = len(self.database.hypotheses), self.database
        essential = tuple(
            Hypothesis(label, (PROVABLE, *text.split()), False, first + number)
            for number, (label, text) in enumerate(hypotheses.items())
        )
        scope = replace(database.scope, essential=essential, disjoint={})
        source = assertion_in(scope, "goal", (PROVABLE, *goal.split()), (), len(database.assertions))
        return self._read(source, self.types, uses)

    def formula(self, text: str, typecode: str, types: Mapping[str, str]) -> Term:
        """Read a formula with the variables of `types`. Raises: TermRefused: it is none of that typecode."""
        if types is self.types:
            return _parsed(self, text, typecode)  # agents write the same ones again and again
        return self.grammar.parse(text.split(), typecode, types)

    def _own_statement(self, assertion: Assertion) -> Statement:
        try:
            return self._read(assertion, _types(assertion.scope.floating), ALL)
        except TermRefused as refusal:
            must, do = "be a formula of the file's grammar", "correct the file"
            where = self.database.name
            raise InvalidInput.of(f"assertion {assertion.label}", must, str(refusal), where=where, do=do) from None

    def _read(self, source: Assertion, types: Mapping[str, str], uses: str) -> Statement:
        terms = {item.label: self._formula(item.statement, types) for item in source.essential}
        return Statement(source, self._formula(source.statement, types), terms, types, uses)

    def _formula(self, statement: tuple[str, ...], types: Mapping[str, str]) -> Term:
        if statement[0] != PROVABLE:
            raise TermRefused(f"{' '.join(statement)} begins with another typecode than {PROVABLE}")
        return self.formula(" ".join(statement[1:]), FORMULA, types)


@lru_cache(maxsize=4096)
def _parsed(theory: Theory, text: str, typecode: str) -> Term:
    return theory.grammar.parse(text.split(), typecode, theory.types)


def _types(floating: Mapping[str, Hypothesis]) -> Mapping[str, str]:
    return {variable: item.statement[0] for variable, item in floating.items()}


@lru_cache(maxsize=4)
def propositional() -> Theory:
    """Return propositional calculus: the axioms and lemmas that ship with the environment."""
    return Theory(read_database(Path(__file__).parent.parent / "data" / "propositional.mm"))
