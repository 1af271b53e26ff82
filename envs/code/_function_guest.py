"""What runs inside the sandboxes of a function's tests; sent there as a file, so it imports the standard library only.

The function that an agent wrote and the tests never meet. The tests run once with the reference, and their calls are
noted; the agent's function gets those calls in a sandbox of its own; the tests run again, with its results in place of
the calls. Only plain data goes between: an object that claims to equal everything arrives as nothing.
"""

import ast
import copy
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

Data = Any  # what JSON holds
Function = Callable[..., object]
CONSTANTS: Sequence[Data] = (None, True, False, 0, 1, -1, 0.0, "", [], {"t": []}, {"d": []}, [0])
"""Packed; what the reference returns is tried besides."""
MAX_CONSTANTS = 40
MAX_DEPTH = 60
MAX_BITS = 10_000
_MARKS: dict[type, str] = {tuple: "t", set: "s", frozenset: "z"}


class Calls(NamedTuple):
    arguments: list[Data]
    """One list of positional arguments and one mapping of named ones, for each call."""
    num_checks: int
    num_trivial: int
    """Checks that hold for the best program that always returns the same, or its first argument."""


def packed(value: object, depth: int = 0) -> Data:
    """Return plain data as JSON; anything else by the name of its type."""
    if type(value) is int and value.bit_length() > MAX_BITS:
        return {"i": hex(value)}  # JSON has decimal digits, which take long to read where there are many
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > MAX_DEPTH:
        return {"o": "too deep"}
    if type(value) is list:
        return [packed(item, depth + 1) for item in list.__iter__(value)]
    if type(value) in (tuple, set, frozenset):
        assert isinstance(value, tuple | set | frozenset)
        return {_MARKS[type(value)]: [packed(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        items = dict.items(value)
        return {"d": [[packed(key, depth + 1), packed(item, depth + 1)] for key, item in items]}
    if type(value) is complex:
        return {"c": [value.real, value.imag]}
    if type(value) is bytes:
        return {"b": value.hex()}
    return {"o": type(value).__name__}


def unpacked(data: Data) -> object:
    """Return the value of `packed` data; what was no plain data equals nothing."""
    if isinstance(data, list):
        return [unpacked(item) for item in data]
    if not isinstance(data, dict):
        return data
    fields: dict[str, Any] = data  # what JSON holds
    mark, content = next(iter(fields.items()))
    for kind, kind_mark in _MARKS.items():
        if mark == kind_mark:
            return kind(unpacked(item) for item in content)
    if mark == "d":
        return {unpacked(key): unpacked(item) for key, item in content}
    if mark == "c":
        return complex(*content)
    if mark == "i":
        return int(content, 16)
    return bytes.fromhex(content) if mark == "b" else object()


def answer(function: Function, calls: str, answers: str) -> None:
    """Call an agent's function with the arguments in a file; write each result, or the error's name."""
    _save(answers, answers_to(function, _load(calls)))


def judge(name: str, job: str, answers: str, result: str) -> None:
    """Do `note_calls` or `num_passed` with what is in files."""
    sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)  # answers come from the agent's process
    fields = _load(job)
    prompt, solution, test, function = fields["problem"]
    if name == "note_calls":
        _save(result, note_calls(prompt, solution, test, function))
    else:
        _save(result, num_passed(prompt, solution, test, fields["calls"], _load(answers)))


def answers_to(function: Function, calls: Sequence[Data]) -> list[Data]:
    """Call a function with noted arguments; return for each call its result, or the error's name."""
    answers: list[Data] = []
    for positional, named in calls:
        arguments: Any = unpacked(positional)  # what `packed` made of a call: a list
        names: Any = unpacked(named)  # and a mapping
        try:
            answers.append({"result": packed(function(*arguments, **names))})
        except BaseException as error:  # noqa: BLE001  # the agent's function may raise anything
            answers.append({"raised": type(error).__name__})
    return answers


def note_calls(prompt: str, solution: str, test: str, name: str) -> Calls:
    """Run the tests with the reference, and note what they call. Raises: AssertionError: the reference fails."""
    space = _defined(prompt, solution)
    reference: Function = space[name]
    calls: list[Data] = []
    results: list[Data] = []

    def noting(*positional: object, **named: object) -> object:
        calls.append([packed(list(positional)), packed(named)])
        result = reference(*positional, **named)
        results.append(packed(result))
        return result

    checks = _checks(space, test, noting)
    assert all(checks), "the reference must pass its own tests"
    constants = [*CONSTANTS, *(json.loads(text) for text in dict.fromkeys(map(json.dumps, results)))]
    trivial = [[value] * len(calls) for value in constants[:MAX_CONSTANTS]]
    trivial.append([positional[0] if positional else None for positional, _ in calls])
    passed = (num_passed(prompt, solution, test, calls, [{"result": value} for value in values]) for values in trivial)
    return Calls(calls, len(checks), min(max(passed), len(checks)))


def num_passed(prompt: str, solution: str, test: str, calls: Sequence[Data], answers: Sequence[Data]) -> int:
    """Run the tests on an agent's answers; return how many checks hold."""
    space = _defined(prompt, solution)
    waiting: Iterator[tuple[Data, Data]] = iter(zip(calls, answers, strict=False))

    def answering(*positional: object, **named: object) -> object:
        call, answer = next(waiting, (None, None))
        if not isinstance(answer, dict) or call != [packed(list(positional)), packed(named)] or "result" not in answer:
            raise ValueError("no result")
        return copy.deepcopy(unpacked(answer["result"]))

    return sum(_checks(space, test, answering))


def _defined(prompt: str, solution: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "tests"}
    exec(prompt + solution, space)
    return space


def _checks(space: dict[str, Any], test: str, candidate: Function) -> list[bool]:
    """Run `check(candidate)`; return whether each assertion held, up to the first error outside of one."""
    results: list[bool] = []
    tree = ast.fix_missing_locations(_CountAsserts().visit(ast.parse(test)))
    space["_held"] = results
    random.seed(0)
    exec(compile(tree, "tests", "exec"), space)
    try:
        space["check"](candidate)
    except Exception:  # noqa: BLE001  # a wrong result may break the tests anywhere
        results.append(False)
    return results


class _CountAsserts(ast.NodeTransformer):
    """Lets every assertion be counted instead of ending the tests; constant ones do not count."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return ast.Pass()
        noted = ast.parse("try:\n  _held.append(bool(0))\nexcept Exception:\n  _held.append(False)").body[0]
        assert isinstance(noted, ast.Try)
        statement = noted.body[0]
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        statement.value.args = [ast.Call(func=ast.Name(id="bool", ctx=ast.Load()), args=[node.test], keywords=[])]
        return noted


def _load(path: str) -> Data:
    with open(path, encoding="ascii") as file:
        return json.load(file)


def _save(path: str, data: Data) -> None:
    with open(path, "w", encoding="ascii") as file:
        json.dump(data, file)
