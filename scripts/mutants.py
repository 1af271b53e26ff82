"""Mutants of a Python module: its source with one small fault each.

Left alone are texts, annotations, decorators, imports, patterns, and what stands in a `raise` or an `assert`: a fault
there is a worse sentence, not a wrong number.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, NamedTuple

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_PAIRS = ("min max", "amin amax", "argmin argmax", "minimum maximum", "any all", "floor ceil", "append extend")
_SWAPS = {name: other for pair in _PAIRS for name, other in (pair.split(), pair.split()[::-1])}
"""Functions, methods and keywords -> what they are mistaken for."""
_MATHS = ("abs", "ceil", "exp", "fmean", "fsum", "log", "neg", "sigmoid", "sqrt", "square", "tanh")
_TRANSPARENT = frozenset({*_MATHS, "clamp", "detach", "reversed", "sorted"})
"""Functions and methods that give back what they were given, changed."""
_READ_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.ClassDef: ("body",),
    ast.FunctionDef: ("args", "body"),
    ast.AsyncFunctionDef: ("args", "body"),
    ast.arguments: ("defaults", "kw_defaults"),
    ast.AnnAssign: ("value",),
    ast.match_case: ("guard", "body"),
}
"""Nodes of which not every field may hold a fault."""
_SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class _Change(NamedTuple):
    function: str
    operator: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault in one module."""

    KEY: ClassVar = ("path", "function", "operator", "before", "after", "repeat")
    """The fields that name a mutant, also after changes elsewhere in the module."""

    path: str
    function: str
    """Where it is, as `Class.method`; empty at the module's level."""
    operator: str
    before: str
    """The statement, or of a compound statement the expression, that holds the fault."""
    after: str
    repeat: int
    """Number of earlier mutants of the module that read the same."""
    number: int
    """Its place among all mutants of the module."""

    @property
    def key(self) -> tuple[str, ...]:
        """The fields of `KEY`, as text."""
        return tuple(str(getattr(self, name)) for name in self.KEY)

    @property
    def place(self) -> tuple[str, ...]:
        """What stands where, and what it is changed to."""
        return (self.path, self.function, self.before, self.after)

    def __str__(self) -> str:
        """Return one line for people: the change with a little of what stands around it."""
        pairs = enumerate(zip(self.before, self.after, strict=False))
        first = max(next((at for at, (old, new) in pairs if old != new), 0) - 40, 0)
        before, after = (text[first : first + 100] for text in (self.before, self.after))
        return f"{self.path} {self.function}: {before!r} -> {after!r}"


@dataclass(frozen=True, slots=True)
class _Position:
    """a node's position: a field of its parent, and the entry where that is a list."""

    parent: ast.AST
    field: str
    index: int | None

    def get(self) -> ast.AST:
        value = getattr(self.parent, self.field)
        node = value if self.index is None else value[self.index]
        assert isinstance(node, ast.AST), "places are those of nodes"
        return node

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text."""
    results: list[Mutant] = []
    seen: Counter[_Change] = Counter()
    for change in _changes(ast.parse(source)):
        results.append(Mutant(path, *change, repeat=seen[change], number=len(results)))
        seen[change] += 1
    return results


def faulty_source(source: str, number: int) -> str:
    """Return the module with the fault of one of its mutants."""
    tree = ast.parse(source)
    next(islice(_changes(tree), number, None))
    return ast.unparse(tree)


def _changes(tree: ast.Module) -> Iterator[_Change]:
    """Yield every change of a module, which is made while it is looked at."""
    for place, context, function in _positions(tree, None, ""):
        original, before = place.get(), ast.unparse(context.get())
        for operator, changed in _faults(original, place):
            place.put(ast.fix_missing_locations(changed))
            after = ast.unparse(context.get())
            if after != before:
                yield _Change(function, operator, before, after)
            place.put(original)


def _positions(node: ast.AST, context: _Position | None, function: str) -> Iterator[tuple[_Position, _Position, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    for place in _children(node):
        child = place.get()
        is_compound = isinstance(child, ast.arguments) or (hasattr(child, "body") and not isinstance(child, ast.expr))
        of_child = None if is_compound else context or place
        if of_child is not None:
            yield place, of_child, function
        yield from _positions(child, of_child, function)


def _children(node: ast.AST) -> Iterator[_Position]:
    for name in _READ_FIELDS.get(type(node), node._fields):
        value = getattr(node, name)
        places = [_Position(node, name, at) for at in range(len(value))] if isinstance(value, list) else []
        for place in places or [_Position(node, name, None)]:
            child = getattr(node, name) if place.index is None else value[place.index]
            if isinstance(child, ast.AST) and not isinstance(child, _SKIPPED) and not _is_for_types(child):
                yield place


def _is_for_types(node: ast.AST) -> bool:
    """Return whether a node is there for the type checker, or is `strict=True`."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="strict"):
            return True
        case ast.Assign(value=ast.BinOp(op=ast.BitOr())):
            return True  # a union of types, at a module's level
        case _:
            return False


def _faults(node: ast.AST, place: _Position) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in _COMPARISONS[type(op)]:
                    yield (
                        "comparison",
                        ast.Compare(node.left, [*node.ops[:at], other(), *node.ops[at + 1 :]], node.comparators),
                    )
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
        case ast.AugAssign() if type(node.op) in _ARITHMETIC:
            yield "arithmetic", ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
        case ast.BoolOp():
            yield "boolean", ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()) if getattr(place.parent, "arg", "") != "dim":
            yield "unary", node.operand  # of a matrix, dim=-1 is dim=1
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "statement", ast.Pass()
        case ast.Subscript(ctx=ast.Load(), slice=ast.Slice() as part):
            for name in ("lower", "upper", "step"):
                if getattr(part, name) is not None:
                    fewer = copy.copy(part)
                    setattr(fewer, name, None)
                    yield "slice", ast.Subscript(node.value, fewer, ast.Load())
        case ast.Subscript(ctx=ast.Load(), slice=ast.Name()):
            yield "slice", node.value
        case ast.Call():
            yield from _faults_of_call(node)
    is_negated_above = isinstance(node, ast.Compare | ast.UnaryOp)
    if isinstance(node, ast.expr) and isinstance(place.parent, ast.If | ast.IfExp) and place.field == "test":
        if not is_negated_above:
            yield "condition", ast.UnaryOp(ast.Not(), node)
    elif isinstance(node, ast.expr) and place.field == "ifs":
        yield "condition", ast.Constant(True)


def _faults_of_call(call: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    is_method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _SWAPS:
        other = _SWAPS[name]
        func = (
            ast.Attribute(call.func.value, other, ast.Load())
            if isinstance(call.func, ast.Attribute)
            else ast.Name(other)
        )
        yield "call", ast.Call(func, call.args, call.keywords)
    if name in _TRANSPARENT:
        of_module = not isinstance(call.func, ast.Attribute) or getattr(call.func.value, "id", "") in ("math", "torch")
        if of_module and call.args:
            yield "call", call.args[0]
        elif isinstance(call.func, ast.Attribute):
            yield "call", call.func.value
    if len(call.args) > 1 and name not in _SWAPS and not any(isinstance(part, ast.Starred) for part in call.args[:2]):
        yield "argument", ast.Call(call.func, [call.args[1], call.args[0], *call.args[2:]], call.keywords)
    for at, keyword in enumerate(call.keywords):
        others = [*call.keywords[:at], *call.keywords[at + 1 :]]
        if keyword.arg in _SWAPS:
            yield "argument", ast.Call(call.func, call.args, [*others, ast.keyword(_SWAPS[keyword.arg], keyword.value)])
        elif is_method and keyword.arg not in (None, "strict", "device"):  # only an accelerator shows a lost device
            yield "argument", ast.Call(call.func, call.args, others)
