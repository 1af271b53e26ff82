"""Metamath databases: what a `.mm` file declares, by the rules of its specification (https://us.metamath.org)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

from envgym.errors import InvalidInput

_LABEL = re.compile(r"[A-Za-z0-9._-]+")
_KEYWORDS = frozenset({"$c", "$v", "$d", "$f", "$e", "$a", "$p", "${", "$}", "$.", "$="})


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A floating hypothesis (`$f`: a variable and its typecode) or an essential one (`$e`)."""

    label: str
    statement: tuple[str, ...]
    is_floating: bool
    number: int
    """Place among the hypotheses of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """An axiom or definition (`$a`) or a theorem (`$p`), with its frame."""

    label: str
    statement: tuple[str, ...]
    """Its typecode, then its symbols."""
    hypotheses: tuple[Hypothesis, ...]
    """The mandatory ones, in the order of the file."""
    essential: tuple[Hypothesis, ...]
    """Those of them that are essential."""
    variables: tuple[str, ...]
    """The mandatory variables, in the order of their hypotheses."""
    disjoint: tuple[tuple[str, str], ...] = ()
    """Pairs of mandatory variables, each in alphabetical order, whose substitutions may share no variable."""
    scope: "Scope"
    """What was active where it stands."""
    proof: tuple[str, ...] | None = None
    """As the file has it; None for an axiom."""
    number: int = 0
    """Place in the file, from 0."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is active at a place of the file."""

    variables: frozenset[str] = frozenset()
    floating: Mapping[str, Hypothesis] = field(default_factory=dict)
    """Variable -> its hypothesis."""
    essential: tuple[Hypothesis, ...] = ()
    disjoint: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Variable -> those that it must be distinct from."""

    def are_disjoint(self, one: str, two: str) -> bool:
        """Tell whether a `$d` names both."""
        return two in self.disjoint.get(one, ())


@dataclass(slots=True)
class Database:
    name: str
    constants: set[str] = field(default_factory=set)
    assertions: dict[str, Assertion] = field(default_factory=dict)
    """Label -> assertion, in the order of the file."""
    hypotheses: dict[str, Hypothesis] = field(default_factory=dict)
    """Label -> hypothesis, active or not."""
    scope: Scope = field(default_factory=Scope)
    """What is active at the end of the file."""


def read_database(path: str | Path) -> Database:
    """Read a `.mm` file; proofs are kept, and not verified.

    Raises: InvalidInput: the file cannot be read, or breaks a rule of the language.
    """
    return _Reader(Path(path)).read()


class _Reader:
    """Reads one file and those that it includes, statement by statement."""

    def __init__(self, path: Path) -> None:
        self._path, self._line = path, 0
        self._included: set[Path] = set()
        self._symbols: set[str] = set()
        self._scopes = [Scope()]
        self.database = Database(path.name)

    def read(self) -> Database:
        tokens = self._without_comments(self._path)
        label = ""
        for token in tokens:
            if token not in _KEYWORDS:
                if label or not _LABEL.fullmatch(token):
                    self._refuse("statement", "begin with a keyword, or a label and a keyword", token)
                label = token
                continue
            if (token in ("$f", "$e", "$a", "$p")) != bool(label):
                self._refuse("label", "stand before $f, $e, $a and $p alone", f"{label or 'none'} before {token}")
            self._statement(token, label, tokens)
            label = ""
        if label or len(self._scopes) > 1:
            self._refuse("file", "end after a statement, outside all blocks", label or "an open ${")
        self.database.scope = self._scopes[0]
        return self.database

    # ---- tokens ----------------------------------------------------------------------------------------------

    def _tokens(self, path: Path) -> Iterator[str]:
        self._included.add(path.resolve())
        try:
            with path.open(encoding="ascii") as lines:
                for self._line, line in enumerate(lines, start=1):  # where an error is
                    yield from line.split()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput.of(
                "Metamath file", "be a file in ASCII that can be read", error, where=str(path), do="name a .mm file"
            ) from None

    def _without_comments(self, path: Path) -> Iterator[str]:
        tokens = self._tokens(path)
        for token in tokens:
            if token == "$(":
                self._skip_comment(tokens)
            elif token == "$[":
                name, end = next(tokens, ""), next(tokens, "")
                if end != "$]" or len(self._scopes) > 1:
                    self._refuse("$[", "name one file, and end with $], outside all blocks", f"{name} {end}")
                included, line = path.parent / name, self._line
                if included.resolve() not in self._included:
                    yield from self._without_comments(included)
                self._line = line
            else:
                yield token

    def _skip_comment(self, tokens: Iterator[str]) -> None:
        for token in tokens:
            if token == "$)":
                return
            if "$(" in token or "$)" in token:
                self._refuse("comment", "hold no other one", token)
        self._refuse("comment", "end with $)", "the end of the file")

    def _until(self, end: str, tokens: Iterator[str]) -> tuple[str, ...]:
        symbols: list[str] = []
        for token in tokens:
            if token == end:
                return tuple(symbols)
            if "$" in token:
                self._refuse("statement", f"end with {end}", token)
            symbols.append(token)
        return self._refuse("statement", f"end with {end}", "the end of the file")

    def _refuse(self, what: str, must: str, got: object) -> NoReturn:
        where = f"{self._path.name}, line {self._line}"
        raise InvalidInput.of(what, must, got, where=where, do="correct the file") from None

    # ---- statements ------------------------------------------------------------------------------------------

    def _statement(self, keyword: str, label: str, tokens: Iterator[str]) -> None:
        match keyword:
            case "${":
                self._scopes.append(self._scopes[-1])
            case "$}" if len(self._scopes) > 1:
                self._scopes.pop()
            case "$c":
                self._constants(self._until("$.", tokens))
            case "$v":
                self._variables(self._until("$.", tokens))
            case "$d":
                self._disjoint(self._until("$.", tokens))
            case "$f" | "$e":
                self._hypothesis(label, self._until("$.", tokens), is_floating=keyword == "$f")
            case "$a":
                self._assertion(label, self._until("$.", tokens), None)
            case "$p":
                statement = self._until("$=", tokens)
                self._assertion(label, statement, self._until("$.", tokens))
            case _:
                self._refuse("keyword", "belong to a statement", keyword)

    def _change(self, **fields: Any) -> None:  # of a scope
        self._scopes[-1] = replace(self._scopes[-1], **fields)

    def _constants(self, symbols: Sequence[str]) -> None:
        if len(self._scopes) > 1:
            self._refuse("$c", "stand outside all blocks", "one in a block")
        for symbol in symbols:
            if symbol in self._symbols or self._is_label(symbol):
                self._refuse("constant", "be a new symbol", symbol)
            self.database.constants.add(symbol)
            self._symbols.add(symbol)

    def _variables(self, symbols: Sequence[str]) -> None:
        scope = self._scopes[-1]
        for symbol in symbols:
            if symbol in self.database.constants or symbol in scope.variables or self._is_label(symbol):
                self._refuse("variable", "be no constant, label or active variable", symbol)
            self._symbols.add(symbol)
        self._change(variables=scope.variables | frozenset(symbols))

    def _disjoint(self, names: Sequence[str]) -> None:
        scope = self._scopes[-1]
        if len(names) < 2 or len(set(names)) < len(names) or not scope.variables.issuperset(names):
            self._refuse("$d", "name two or more active variables, each once", " ".join(names))
        disjoint = dict(scope.disjoint)
        for name in names:
            disjoint[name] = disjoint.get(name, frozenset()) | (frozenset(names) - {name})
        self._change(disjoint=disjoint)

    def _is_label(self, name: str) -> bool:
        return name in self.database.hypotheses or name in self.database.assertions

    def _new_label(self, label: str) -> None:
        if self._is_label(label) or label in self._symbols:
            self._refuse("label", "be new, and no symbol", label)

    def _hypothesis(self, label: str, statement: tuple[str, ...], *, is_floating: bool) -> None:
        self._new_label(label)
        scope = self._scopes[-1]
        hypothesis = Hypothesis(label, statement, is_floating, len(self.database.hypotheses))
        if is_floating:
            is_pair = len(statement) == 2 and statement[0] in self.database.constants
            if not is_pair or statement[1] not in scope.variables or statement[1] in scope.floating:
                self._refuse("$f", "be a constant and an active variable without typecode", " ".join(statement))
            self._change(floating={**scope.floating, statement[1]: hypothesis})
        else:
            self._check_symbols(statement)
            self._change(essential=(*scope.essential, hypothesis))
        self.database.hypotheses[label] = hypothesis

    def _check_symbols(self, statement: Sequence[str]) -> None:
        if not statement or statement[0] not in self.database.constants:
            self._refuse("statement", "begin with a constant, its typecode", " ".join(statement) or "nothing")
        for symbol in statement:
            if symbol not in self.database.constants and symbol not in self._scopes[-1].floating:
                self._refuse("symbol", "be a constant, or an active variable with a $f", symbol)

    def _assertion(self, label: str, statement: tuple[str, ...], proof: tuple[str, ...] | None) -> None:
        self._new_label(label)
        self._check_symbols(statement)
        number = len(self.database.assertions)
        self.database.assertions[label] = assertion_in(self._scopes[-1], label, statement, proof, number)


def assertion_in(
    scope: Scope, label: str, statement: tuple[str, ...], proof: tuple[str, ...] | None, number: int
) -> Assertion:
    """Return an assertion with its frame: the hypotheses and pairs of disjoint variables that are mandatory."""
    used = {symbol for item in scope.essential for symbol in item.statement} | {*statement}
    floating = [scope.floating[symbol] for symbol in used if symbol in scope.floating]
    floating.sort(key=lambda item: item.number)
    variables = tuple(item.statement[1] for item in floating)
    return Assertion(
        label=label,
        statement=statement,
        hypotheses=tuple(sorted([*floating, *scope.essential], key=lambda item: item.number)),
        essential=scope.essential,
        variables=variables,
        disjoint=tuple(pair for pair in combinations(sorted(variables), 2) if scope.are_disjoint(*pair)),
        scope=scope,
        proof=proof,
        number=number,
    )
