"""The process in which reasoning-gym runs: started by `_reasoning_client`, never imported by it.

Why a process: several generators iterate over sets of strings (so they depend on PYTHONHASHSEED, which a worker fixes)
or draw from the global generators; nine scorers evaluate the answer as Python; some answers keep a scorer busy without
end. Here what evaluates is replaced by what only reads literals and formulas, memory is bounded, and the kernel ends
the process when an answer uses more than its share of CPU time.

A request is a line of JSON: `op` with the arguments of the function of that name. A reply is a line that holds
`result` or `error`.
"""

import ast
import contextlib
import copy
import dataclasses
import hashlib
import importlib
import json
import random
import resource
import sys
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from envgym.runtime.processes.helper import limit_process, limit_request, limit_softly, take_output

MEMORY_BYTES = 4 * 1024**3
EVALUATING = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
"""Data sets whose scorer calls `eval` on the answer; five others call sympy's `parse_expr`, which evaluates too."""
TRUTH_VALUES = ("game_of_life_halting",)
"""Data sets whose scorer takes any text for the right truth value; here the answer must be it."""
PART_STARTS = ("\n\n", ":\n", "\n", ": ")
"""What the last part of a question stands after."""
SOLUTION_KEYS = ("example_answer", "possible_answer", "example_correct_answer")
"""Where items without an answer keep a solution, in their metadata."""
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc asin acos atan sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs".split()  # noqa: SIM905  # a list of words
)
"""What a formula may call."""
PLOTTING = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d"),
)
"""What a dependency imports to draw with, which nobody asks for here: half of the time that starting takes."""
MAX_EXPONENT = 1000
_FORMULA_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.operator,
    ast.unaryop,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Call,
)


def check_formula(text: str) -> None:
    """Accept numbers, names, operators and elementary functions. Raises: ValueError, SyntaxError: anything else."""
    for node in ast.walk(ast.parse(text.strip(), mode="eval")):
        if not isinstance(node, _FORMULA_NODES):
            raise ValueError(f"a formula cannot hold {type(node).__name__}")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int | float):
            raise ValueError("a formula cannot hold text")
        if isinstance(node, ast.Name) and "_" in node.id:
            raise ValueError(f"a formula cannot hold the name {node.id}")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_small(node.right):
            raise ValueError(f"a formula cannot hold an exponent above {MAX_EXPONENT}")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS):
            raise ValueError("a formula cannot call this")


def _is_small(exponent: ast.expr) -> bool:
    parts = list(ast.walk(exponent))
    return not any(isinstance(part, ast.Pow) for part in parts) and all(
        part.value <= MAX_EXPONENT
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float)
    )


class StubModule(ModuleType):
    """Stands for a module of which nothing is used: whatever is imported from it is None."""

    def __getattr__(self, name: str) -> None:
        """Return None."""


@cache
def package() -> Any:  # Any: an untyped package
    """Import reasoning-gym with its evaluation of answers made harmless, and without what draws."""
    for name in PLOTTING:
        sys.modules.setdefault(name, StubModule(name))
    sympy = importlib.import_module("sympy")
    sympy_parser = importlib.import_module("sympy.parsing.sympy_parser")
    parse: Callable[..., object] = sympy_parser.parse_expr

    def parse_formula(text: str, *args: object, **kwargs: object) -> object:
        check_formula(text)
        return parse(text, *args, **kwargs)

    for module in (sympy, sympy_parser):
        vars(module)["parse_expr"] = parse_formula
    gym = importlib.import_module("reasoning_gym")
    factory = importlib.import_module("reasoning_gym.factory")
    for name in EVALUATING:
        vars(sys.modules[factory.DATASETS[name][0].__module__])["eval"] = ast.literal_eval
    return gym


def names() -> list[str]:
    """Return the names of the generators; `composite` only mixes others."""
    package()
    factory = sys.modules["reasoning_gym.factory"]
    return sorted(set(factory.DATASETS) - {"composite"})


def keys(dataset: str) -> list[str]:
    """Return the settings that a generator knows."""
    package()
    config_class = sys.modules["reasoning_gym.factory"].DATASETS[dataset][1]
    return [field.name for field in dataclasses.fields(config_class)]


@lru_cache(maxsize=8)
def _dataset(name: str, config: str) -> Any:  # Any: an untyped package
    return package().create_dataset(name, **json.loads(config))


@lru_cache(maxsize=2048)
def _item(name: str, config: str, index: int) -> dict[str, Any]:  # Any: as the generator made it
    dataset = _dataset(name, config)
    seed = int.from_bytes(hashlib.sha256(f"{name} {config} {index}".encode()).digest()[:4])
    random.seed(seed)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy").random.seed(seed)
    item: dict[str, Any] = dataset[index]
    return item


def check(dataset: str, config: str) -> None:
    """Make the generator, so that settings it refuses are reported."""
    _dataset(dataset, config)


def item(dataset: str, config: str, index: int) -> dict[str, str | bool | None]:
    """Return question, answer, solution (an answer that scores 1, None where no one knows any), and whether the
    question ends with an answer."""
    entry = _item(dataset, config, index)
    candidates = (entry["answer"], *(entry["metadata"].get(key) for key in SOLUTION_KEYS))
    texts = (one if isinstance(one, str) else json.dumps(one) for one in candidates if one is not None)
    solution = next((text for text in texts if _score(dataset, config, index, text) >= 1), None)
    parts = last_parts(entry["question"])
    is_echoed = solution in parts or any(_is_solution(dataset, config, index, part) for part in parts)
    return {
        "question": entry["question"],
        "answer": entry["answer"],
        "solution": solution,
        "ends_with_answer": is_echoed,
    }


def last_parts(question: str) -> set[str]:
    """Return the parts at the end of a question, after a blank line, a line or a colon."""
    text = question.strip()
    return {text.rpartition(start)[2].strip() for start in PART_STARTS} - {text}


def _is_solution(dataset: str, config: str, index: int, text: str) -> bool:
    try:
        return _score(dataset, config, index, text) >= 1
    except Exception:  # noqa: BLE001  # whatever the scorer raises
        return False


def score(dataset: str, config: str, index: int, answer: str, cpu_s: int) -> dict[str, float | str]:
    """Return `score`, or `unreadable` where the scorer fails on this answer though it can score this item.

    The kernel ends the process (SIGXCPU) when scoring takes more than `cpu_s` seconds of CPU time.

    Raises: Exception: what the scorer raises on the item's solution too, or on a plain word where none is known.
    """
    _item(dataset, config, index)
    limit_request(cpu_s)
    try:
        return {"score": _score(dataset, config, index, answer)}
    except Exception as error:  # noqa: BLE001  # whatever the scorer raises
        limit_softly(resource.RLIMIT_CPU, None)
        _score(dataset, config, index, str(item(dataset, config, index)["solution"] or "unknown"))
        return {"unreadable": f"{type(error).__name__}: {error}"}
    finally:
        limit_softly(resource.RLIMIT_CPU, None)


def _score(dataset: str, config: str, index: int, answer: str) -> float:
    if dataset in TRUTH_VALUES:
        return float(answer.strip().rstrip(".").lower() == str(_item(dataset, config, index)["answer"]).lower())
    entry = copy.deepcopy(_item(dataset, config, index))
    return float(_dataset(dataset, config).score_answer(answer, entry))


OPERATIONS: dict[str, Callable[..., object]] = {
    operation.__name__: operation for operation in (names, keys, check, item, score)
}


def main() -> None:
    """Answer requests until the input ends."""
    say = take_output()
    warnings.simplefilter("ignore")
    limit_process(MEMORY_BYTES)
    try:
        package()
    except ImportError as error:
        say(failed=f"reasoning-gym cannot be imported: {error}")
        return
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        operation = OPERATIONS[request.pop("op")]
        try:
            reply = {"result": operation(**request)}
        except Exception as error:  # noqa: BLE001  # whatever it is, the caller decides what it means
            reply = {"error": f"{type(error).__name__}: {error}"}
        say(**reply)


if __name__ == "__main__":
    main()
