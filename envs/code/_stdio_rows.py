"""Problems of files and data sets: rows in the forms of APPS, TACO, DeepCoder, LiveCodeBench and others."""

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envgym.authoring import FileTasks, TaskDraft
from envgym.authoring.files import RowLeftOut
from envgym.authoring.tables import Row
from envgym.core.json_types import JsonValue
from envgym.errors import InvalidInput

PROMPTS = ("prompt", "question", "problem", "question_content", "description")
TESTS = (
    "tests",
    "input_output",
    "test_cases",
    "public_test_cases",
    "private_test_cases",
    "public_tests",
    "private_tests",
    "generated_tests",
    "verification_info",
    "ground_truth",
    "reward_model",
)
"""Columns; of the prompt the first one that a row has counts, of the tests all from the first one's data set."""
_TOGETHER = (("public_test_cases", "private_test_cases"), ("public_tests", "private_tests", "generated_tests"))
_FUNCTION_NAMES = ("fn_name", "func_name", "entry_point")
_MAX_BYTES = 256 << 20
"""Of tests that a data set has compressed, after decompression."""
Value = Any  # what a cell or decoded JSON holds


class ProblemFiles(FileTasks):
    """Problems of a file or data set; rows that cannot be graded are left out and counted."""

    _rule = "read standard input and have tests"
    _remedy = "see the card of code/stdio-v0 for the forms that are read"

    def _draft(self, row: Row, where: str) -> TaskDraft:
        """Make the task of a row. Raises: InvalidInput: it has no column of tests. RowLeftOut: it cannot be graded."""
        if not any(name in row for name in TESTS) or not any(name in row for name in PROMPTS):
            missing = "prompt" if any(name in row for name in TESTS) else "tests"
            must, do = (
                f"have the columns prompt and tests, or those of a known data set, but {missing} is missing",
                "rename it",
            )
            raise InvalidInput.of("row", must, f"the columns {', '.join(row)}", where=where, do=do)
        prompt = _prompt(row)
        tests: list[JsonValue] = [{"input": entry, "output": output} for entry, output in read_row(row)]
        return TaskDraft(prompt=prompt, payload={"prompt": prompt, "tests": tests})


def read_row(row: Row) -> list[tuple[str, str]]:
    """Return the inputs and outputs of a row's tests. Raises: RowLeftOut: it has none that can be run."""
    first = next(name for name in TESTS if name in row)
    columns = next((names for names in _TOGETHER if first in names), (first,))
    metadata = (
        _decoded(row["metadata"]) if isinstance(row.get("metadata"), str) and row["metadata"] else row.get("metadata")
    )
    if isinstance(metadata, Mapping):
        _refuse_function(metadata)
    tests = [test for name in columns if name in row for test in _tests(row[name])]
    if not tests:
        raise RowLeftOut("no tests")
    return tests


def _prompt(row: Row) -> str:
    value = next(row[name] for name in PROMPTS if name in row)
    if isinstance(value, Sequence) and not isinstance(value, str) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content")
    if not isinstance(value, str) or not value.strip():
        raise RowLeftOut("no prompt")
    return value


def _tests(value: Value, depth: int = 0) -> list[tuple[str, str]]:
    if isinstance(value, str):
        value = _decoded(value) if value.strip() else None
    if value is None or depth > 3:
        return []
    if isinstance(value, Mapping):
        return _tests_of_mapping(value, depth)
    if not isinstance(value, Sequence):
        raise RowLeftOut("tests in an unknown form")
    return [_test(item) for item in value]


def _tests_of_mapping(value: Mapping[str, Value], depth: int) -> list[tuple[str, str]]:
    _refuse_function(value)
    for inputs, outputs in (("inputs", "outputs"), ("input", "output")):
        if inputs in value and outputs in value:
            if not all(
                isinstance(value[name], Sequence) and not isinstance(value[name], str) for name in (inputs, outputs)
            ):
                return [_test(value)]
            if len(value[inputs]) != len(value[outputs]):
                raise RowLeftOut("not as many outputs as inputs")
            return [(_text(entry), _text(output)) for entry, output in zip(value[inputs], value[outputs], strict=True)]
    nested = next((value[name] for name in ("test_cases", "tests", "ground_truth") if name in value), None)
    if nested is None:
        raise RowLeftOut("tests in an unknown form")
    return _tests(nested, depth + 1)


def _test(item: Value) -> tuple[str, str]:
    """Read one test: a mapping with input and output, or a pair. Raises: RowLeftOut."""
    if isinstance(item, Mapping) and "input" in item and "output" in item:
        _refuse_function(item)
        return _text(item["input"]), _text(item["output"])
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
        return _text(item[0]), _text(item[1])
    raise RowLeftOut("tests in an unknown form")


def _refuse_function(fields: Mapping[str, Value]) -> None:
    kind = str(fields.get("type") or fields.get("testtype") or "")
    if any(fields.get(name) for name in _FUNCTION_NAMES) or kind.startswith("func"):
        raise RowLeftOut("tests that call a function")


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None or isinstance(value, Mapping):
        raise RowLeftOut("inputs or outputs that are not text")
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Sequence):
        return "\n".join(" ".join(map(_text, line)) if isinstance(line, list) else _text(line) for line in value)
    raise RowLeftOut("inputs or outputs that are not text")


def _decoded(text: str) -> Value:
    """Decode JSON, a Python literal, or a compressed text as LiveCodeBench has it. Raises: RowLeftOut: none of them."""
    decoders: Sequence[Callable[[str], Value]] = (json.loads, ast.literal_eval, _decompressed)
    for decode in decoders:
        try:
            return decode(text)
        except (
            ValueError,
            SyntaxError,
            RecursionError,
            MemoryError,
            TypeError,
            zlib.error,
            pickle.UnpicklingError,
            EOFError,
        ):
            continue
    raise RowLeftOut("tests that are no JSON")


def _decompressed(text: str) -> Value:
    """Decode JSON in a pickled text in zlib in base64. Raises: ValueError, zlib.error, pickle.UnpicklingError."""
    try:
        compressed = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    plain = zlib.decompressobj().decompress(compressed, _MAX_BYTES)
    return json.loads(_TextUnpickler(io.BytesIO(plain)).load())


class _TextUnpickler(pickle.Unpickler):
    """Reads plain values; whatever names a class or a function is refused, so nothing is called."""

    def find_class(self, module: str, name: str) -> Value:
        raise pickle.UnpicklingError(f"{module}.{name} is not read")
