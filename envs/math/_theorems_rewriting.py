"""Equations of numbers and of lists: a term is rewritten by lemmas of Coq's library, and each lemma is a tactic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from envgym.authoring.sampler import Sampler
from envgym.envs.math._theorem import Theorem

_MAX_DRAWS = 1000
_MAX_LEAVES = 9
"""Of a side of an equation."""
_SYMBOLS: Mapping[str, str] = MappingProxyType({"add": "+", "mul": "*", "app": "++"})


@dataclass(frozen=True, slots=True)
class _Term:
    """A variable, or an operation on terms."""

    name: str
    parts: tuple["_Term", ...] = ()

    def __str__(self) -> str:
        if self.name in _SYMBOLS:
            return f" {_SYMBOLS[self.name]} ".join(_enclosed(part) for part in self.parts)
        return " ".join([self.name, *map(_enclosed, self.parts)])

    def all(self) -> Iterator["_Term"]:
        yield self
        for part in self.parts:
            yield from part.all()

    def with_all(self, old: "_Term", new: "_Term") -> "_Term":
        if self == old:
            return new
        return _Term(self.name, tuple(part.with_all(old, new) for part in self.parts))


def _enclosed(term: _Term) -> str:
    return f"({term})" if term.parts else term.name


def _parsed(text: str) -> _Term:
    name, bracket, rest = text.partition("(")
    if not bracket:
        return _Term(text.strip())
    parts, depth, start = [], 0, 0
    inner = rest[:-1]
    for place, letter in enumerate(inner):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(inner[start:place])
            start = place + 1
    return _Term(name.strip(), tuple(_parsed(part.strip()) for part in [*parts, inner[start:]]))


@dataclass(frozen=True, slots=True)
class _Lemma:
    name: str
    variables: Sequence[str]
    sides: tuple[_Term, _Term]

    def use(self, term: _Term, direction: int) -> "_Use | None":
        """Return the rewriting of a term by the lemma, from left to right (0) or from right to left (1)."""
        if direction and self.name in _ONE_WAY:
            return None
        values: dict[str, _Term] = {}
        pattern, result = self.sides[direction], self.sides[1 - direction]
        if not _matches(pattern, term, self.variables, values) or set(values) != set(self.variables):
            return None
        new = _filled(result, values)
        arguments = " ".join(_enclosed(values[name]) for name in self.variables)
        return _Use(f"rewrite {'<- ' * direction}({self.name} {arguments}).", term, new) if new != term else None


@dataclass(frozen=True, slots=True)
class _Use:
    tactic: str
    old: _Term
    new: _Term


def _matches(pattern: _Term, term: _Term, variables: Sequence[str], values: dict[str, _Term]) -> bool:
    if pattern.name in variables:
        return values.setdefault(pattern.name, term) == term
    pairs = zip(pattern.parts, term.parts, strict=False)
    is_same = pattern.name == term.name and len(pattern.parts) == len(term.parts)
    return is_same and all(_matches(one, two, variables, values) for one, two in pairs)


def _filled(pattern: _Term, values: Mapping[str, _Term]) -> _Term:
    return values.get(pattern.name) or _Term(pattern.name, tuple(_filled(part, values) for part in pattern.parts))


def _lemma(name: str, variables: str, left: str, right: str) -> _Lemma:
    return _Lemma(name, variables.split(), (_parsed(left), _parsed(right)))


_NUMBERS = (
    _lemma("Nat.add_comm", "n m", "add(n, m)", "add(m, n)"),
    _lemma("Nat.add_assoc", "n m p", "add(n, add(m, p))", "add(add(n, m), p)"),
    _lemma("Nat.mul_comm", "n m", "mul(n, m)", "mul(m, n)"),
    _lemma("Nat.mul_assoc", "n m p", "mul(n, mul(m, p))", "mul(mul(n, m), p)"),
    _lemma("Nat.mul_add_distr_l", "n m p", "mul(n, add(m, p))", "add(mul(n, m), mul(n, p))"),
    _lemma("Nat.mul_add_distr_r", "n m p", "mul(add(n, m), p)", "add(mul(n, p), mul(m, p))"),
)
_ONE_WAY = ("Nat.add_comm", "Nat.mul_comm", "rev_involutive")
"""Lemmas that say the same, or anything, from right to left."""
_LISTS = (
    _lemma("app_assoc", "l m n", "app(l, app(m, n))", "app(app(l, m), n)"),
    _lemma("rev_app_distr", "x y", "rev(app(x, y))", "app(rev(y), rev(x))"),
    _lemma("rev_involutive", "l", "rev(rev(l))", "l"),
    _lemma("map_app", "f l m", "map(f, app(l, m))", "app(map(f, l), map(f, m))"),
    _lemma("map_rev", "f l", "map(f, rev(l))", "rev(map(f, l))"),
)
_LENGTHS = (
    _lemma("app_length", "l m", "length(app(l, m))", "add(length(l), length(m))"),
    _lemma("map_length", "f l", "length(map(f, l))", "length(l)"),
    _lemma("rev_length", "l", "length(rev(l))", "length(l)"),
)


def arithmetic(sampler: Sampler, level: int) -> Theorem:
    """Draw an equation of sums and products."""
    variables = sampler.some("abcdnmpq", level + 2)
    return _equation(sampler, _Subject("nat", _NUMBERS, lambda: _number(sampler, variables, level + 1)), level + 1)


def lists(sampler: Sampler, level: int) -> Theorem:
    """Draw an equation of lists, or of their lengths."""
    variables = sampler.some(("l", "m", "k", "xs", "ys", "zs"), level + 1)
    is_length = sampler.between(0, 2) == 0

    def draw() -> _Term:
        term = _list(sampler, variables, level + 1)
        return _Term("length", (term,)) if is_length else term

    lemmas = (*_LISTS, *_LENGTHS, _NUMBERS[0]) if is_length else _LISTS
    return _equation(sampler, _Subject("list nat", lemmas, draw), level + 1)


def _number(sampler: Sampler, variables: Sequence[str], depth: int) -> _Term:
    if depth == 0 or sampler.between(0, 3) == 0:
        return _Term(sampler.one(variables))
    parts = tuple(_number(sampler, variables, depth - 1) for _ in range(2))
    return _Term(sampler.one(("add", "add", "mul")), parts)


def _list(sampler: Sampler, variables: Sequence[str], depth: int) -> _Term:
    if depth == 0 or sampler.between(0, 4) == 0:
        return _Term(sampler.one(variables))
    name = sampler.one(("app", "app", "rev", "map"))
    if name == "app":
        return _Term(name, tuple(_list(sampler, variables, depth - 1) for _ in range(2)))
    inner = _list(sampler, variables, depth - 1)
    return _Term(name, (inner,)) if name == "rev" else _Term(name, (_Term("f"), inner))


@dataclass(frozen=True, slots=True)
class _Subject:
    type: str
    """Of the variables."""
    lemmas: Sequence[_Lemma]
    draw: Callable[[], _Term]


def _equation(sampler: Sampler, subject: _Subject, count: int) -> Theorem:
    for _ in range(_MAX_DRAWS):
        start = subject.draw()
        chain = _rewritten(sampler, start, subject.lemmas, count)
        if chain is not None:
            break
    else:
        raise AssertionError("some term can be rewritten")
    uses, end = chain
    names = {term.name for side in (start, end) for term in side.all() if not term.parts}
    used = sorted(names - {"f"})
    functions = ["f"] if "f" in names else []
    binders = " ".join([*(f"({name} : nat -> nat)" for name in functions), f"({' '.join(used)} : {subject.type})"])
    proof = (f"intros {' '.join([*functions, *used])}.", *(use.tactic for use in uses), "reflexivity.")
    return Theorem(statement=f"forall {binders}, {start} = {end}", proof=proof)


def _rewritten(sampler: Sampler, start: _Term, lemmas: Sequence[_Lemma], count: int) -> tuple[list[_Use], _Term] | None:
    """Rewrite a term `count` times; None where the equation of start and end is not proved so.

    Coq rewrites both sides, and all places where the term is.
    """
    uses: list[_Use] = []
    term, seen = start, {start}
    for _ in range(count):
        options = [
            use
            for part, lemma, direction in product(dict.fromkeys(term.all()), lemmas, (0, 1))
            if (use := lemma.use(part, direction)) is not None and term.with_all(use.old, use.new) not in seen
        ]
        if not options:
            return None
        uses.append(sampler.one(options))
        term = term.with_all(uses[-1].old, uses[-1].new)
        seen.add(term)
    left, right = start, term
    for use in uses:
        left, right = left.with_all(use.old, use.new), right.with_all(use.old, use.new)
    is_small = all(sum(not part.parts for part in side.all()) <= _MAX_LEAVES for side in (start, term))
    return (uses, term) if left == right and is_small else None
