"""Formulas as terms: how symbols are parsed by the syntax axioms of a database, shown, matched and unified.

A term is a variable (its symbol), a metavariable (a number) or a syntax axiom's label with the terms of its variables,
in the order of their hypotheses.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from envgym.envs.math._metamath.database import Assertion, Database
from envgym.errors import InvalidInput

Term: TypeAlias = "str | int | tuple[Term, ...]"
PROVABLE, FORMULA = "|-", "wff"
"""Typecode of what is proved, and of its formula."""
MAX_NESTING = 100
"""Of a formula."""


class TermRefused(Exception):
    """Symbols that are no formula, or terms that do not fit, and why."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A syntax axiom as a rule of a grammar."""

    label: str
    typecode: str
    symbols: tuple[str | int, ...]
    """Constants, and for a variable its place among the parts."""
    typecodes: tuple[str, ...]
    """Of the parts."""


class Grammar:
    """The syntax axioms of a database: those with another typecode than `|-`."""

    def __init__(self, database: Database) -> None:
        """Read the rules. Raises: InvalidInput: one has no symbol, or an essential hypothesis."""
        self._rules: dict[str, _Rule] = {}
        self.by_constant: dict[str, list[_Rule]] = {}
        self._constants: set[str] = set()
        self.by_typecode: dict[str, list[_Rule]] = {}
        for item in database.assertions.values():
            if item.statement[0] != PROVABLE and item.proof is None:
                self._add(item, database.name)

    def _add(self, axiom: Assertion, where: str) -> None:
        variables = axiom.variables
        symbols = tuple(variables.index(part) if part in variables else part for part in axiom.statement[1:])
        places = [part for part in symbols if isinstance(part, int)]
        is_rule = bool(symbols) and not axiom.essential and len(set(places)) == len(places)
        must, do = "have symbols, each variable once, and no $e", "correct the file"
        InvalidInput.unless(is_rule, f"syntax axiom {axiom.label}", must, axiom.statement, where=where, do=do)
        typecodes = tuple(item.statement[0] for item in axiom.hypotheses)
        rule = _Rule(axiom.label, axiom.statement[0], symbols, typecodes)
        self._rules[axiom.label] = rule
        self._constants.update(part for part in symbols if isinstance(part, str))
        first = symbols[0]
        if isinstance(first, int):
            self.by_typecode.setdefault(typecodes[first], []).append(rule)
        else:
            self.by_constant.setdefault(first, []).append(rule)

    def parse(self, symbols: Sequence[str], typecode: str, types: Mapping[str, str]) -> Term:
        """Read a formula; of several readings the first counts.

        Args:
            symbols: Separated.
            typecode: Of the whole.
            types: Typecodes of the variables that may occur.

        Raises: TermRefused: it is no such formula.
        """
        return _Parse(self, symbols, types).whole(typecode)

    def knows(self, symbol: str, types: Mapping[str, str]) -> bool:
        return symbol in types or symbol in self._constants

    def typecode(self, term: Term, types: Mapping[str, str]) -> str:
        return types[term] if isinstance(term, str) else self._rules[self._label(term)].typecode

    def show(self, term: Term) -> str:
        return _shown(self, term)

    def write(self, term: Term) -> str:
        """Write a term as symbols, uncached."""
        if not isinstance(term, tuple):
            return str(term)
        rule = self._rules[self._label(term)]
        return " ".join(part if isinstance(part, str) else _shown(self, term[part + 1]) for part in rule.symbols)

    @staticmethod
    def _label(term: Term) -> str:
        assert isinstance(term, tuple), "a metavariable has no typecode of its own"
        return str(term[0])


@lru_cache(maxsize=65_536)
def _shown(grammar: Grammar, term: Term) -> str:
    return grammar.write(term)


class _Parse:
    """One formula that is being read: at every place, all terms that begin there."""

    def __init__(self, grammar: Grammar, symbols: Sequence[str], types: Mapping[str, str]) -> None:
        self._grammar, self._symbols, self._types = grammar, symbols, types
        self._terms: dict[int, dict[tuple[str, int], Term]] = {}
        """Place -> typecode and end of a term that begins there -> the term."""
        self._nesting = self._furthest = 0

    def whole(self, typecode: str) -> Term:
        unknown = [symbol for symbol in self._symbols if not self._grammar.knows(symbol, self._types)]
        if unknown:
            raise TermRefused(f"{unknown[0]} is no symbol; symbols are separated by spaces")
        term = self._at(0).get((typecode, len(self._symbols)))
        if term is None:
            read = " ".join(self._symbols[: self._furthest]) or "nothing"
            raise TermRefused(f"{' '.join(self._symbols) or 'nothing'} is no {typecode}: only {read} can be read")
        return term

    def _at(self, place: int) -> Mapping[tuple[str, int], Term]:
        """Return the terms that begin at a place: a variable or a constant, then whatever begins with such a term."""
        terms = self._terms.get(place)
        if terms is not None:
            return terms
        terms = self._terms[place] = {}
        if place == len(self._symbols):
            return terms
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise TermRefused(f"a formula is nested more than {MAX_NESTING} deep")
        symbol = self._symbols[place]
        waiting: list[tuple[str, int]] = []

        def add(typecode: str, end: int, term: Term) -> None:
            if terms.setdefault((typecode, end), term) is term:
                waiting.append((typecode, end))

        self._furthest = max(self._furthest, place)
        if symbol in self._types:
            add(self._types[symbol], place + 1, symbol)
        for rule in self._grammar.by_constant.get(symbol, ()):
            for end, term in self._rest(rule, 1, place + 1, {}):
                add(rule.typecode, end, term)
        while waiting:
            typecode, middle = waiting.pop()
            for rule in self._grammar.by_typecode.get(typecode, ()):
                for end, term in self._rest(rule, 1, middle, {int(rule.symbols[0]): terms[typecode, middle]}):
                    add(rule.typecode, end, term)
        self._nesting -= 1
        return terms

    def _rest(self, rule: _Rule, at: int, place: int, parts: dict[int, Term]) -> Iterator[tuple[int, Term]]:
        symbols = rule.symbols
        while at < len(symbols) and isinstance(symbols[at], str):
            if place == len(self._symbols) or self._symbols[place] != symbols[at]:
                return
            at, place = at + 1, place + 1
            self._furthest = max(self._furthest, place)
        if at == len(symbols):
            yield place, (rule.label, *(parts[number] for number in range(len(rule.typecodes))))
            return
        part = int(symbols[at])
        for (typecode, end), term in [*self._at(place).items()]:
            if typecode == rule.typecodes[part]:
                self._furthest = max(self._furthest, end)
                yield from self._rest(rule, at + 1, end, {**parts, part: term})


def match(pattern: Term, term: Term, values: dict[str, Term]) -> bool:
    """Find what the variables of a pattern stand for in a term; `values` gets them, in part if nothing fits."""
    if isinstance(pattern, str):
        value = values.setdefault(pattern, term)
        return value is term or value == term
    if not isinstance(term, tuple) or not isinstance(pattern, tuple) or pattern[0] != term[0]:
        return False
    for number in range(1, len(pattern)):  # noqa: SIM110  # `all` of a generator takes twice as long
        if not match(pattern[number], term[number], values):
            return False
    return True


def substitute(pattern: Term, values: Mapping[str, Term]) -> Term:
    """Put terms in the place of variables."""
    if isinstance(pattern, str):
        return values[pattern]
    assert isinstance(pattern, tuple), "no metavariable in an assertion"
    return (pattern[0], *(substitute(pattern[number], values) for number in range(1, len(pattern))))


def variables_of(term: Term) -> frozenset[str]:
    if isinstance(term, str):
        return frozenset((term,))
    assert isinstance(term, tuple), "no metavariable in a goal"
    return frozenset().union(*map(variables_of, term[1:]))


@lru_cache(maxsize=65_536)
def measure(term: Term) -> tuple[int, int]:
    """Return how many variables and axioms a term has, and how deep it is nested."""
    if not isinstance(term, tuple):
        return 1, 1
    parts = [measure(part) for part in term[1:]]
    return 1 + sum(size for size, _ in parts), 1 + max((depth for _, depth in parts), default=0)
