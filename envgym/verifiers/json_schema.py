"""JSON that obeys a schema."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from envgym.core.json_types import JsonObject, JsonValue
from envgym.core.tasks import Task
from envgym.parsing.formats import without_fence
from envgym.parsing.strict_json import read_json
from envgym.verifiers.base import Verdict, bad_key, key_of, right, wrong
from envgym.verifiers.extract import Extractor, whole_answer
from envgym.verifiers.pattern import ask_within


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    """1 where the answer is one JSON value (a code fence around it is fine) that the schema accepts, else 0."""

    schema: JsonObject | None = None
    """One schema for all tasks; None: each task has its own."""
    key: str = "schema"
    """Payload field that holds a task's own schema."""
    extract: Extractor = whole_answer
    cpu_s: int = 1
    """Seconds of CPU time in a helper process for a schema with patterns, references or unique items, after which an
    answer scores 0."""

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field is no schema."""
        schema = self._schema(task)
        extracted = self.extract(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        try:
            value = read_json(without_fence(extracted.answer))
        except ValueError as error:
            return wrong(f"the answer is not JSON: {error}")
        if not _COSTLY.search(repr(schema)):
            problem = find_problem(schema, value)
        else:
            reply = ask_within(self.cpu_s, {"schema": schema, "value": value})
            problem = (
                f"comparing it with the schema took more than {self.cpu_s} s" if reply is None else reply["problem"]
            )
        return right("the schema accepts it") if problem is None else wrong(problem)

    def check_key(self, task: Task) -> None:
        """Raises: InvalidInput: the payload field is no schema."""
        self._schema(task)

    def _schema(self, task: Task) -> JsonObject:
        """Return the schema of a task. Raises: InvalidInput: it is none, or one that fails on some values."""
        schema = key_of(task, self.key) if self.schema is None else self.schema
        if not isinstance(schema, Mapping):
            raise bad_key(task, self.key, "be a JSON schema with keywords", schema)
        problem = _schema_problem(json.dumps(schema))
        if problem is not None:
            raise bad_key(task, self.key, f"be a JSON schema ({problem})", schema)
        return schema


_COSTLY = re.compile(r"pattern|uniqueItems|\$ref|\$dynamicRef|\$recursiveRef")
"""Keywords that may take more than linear time."""
_DATA = ("enum", "const", "default", "examples")
"""Keywords whose values are no schemas."""


@lru_cache(maxsize=4096)
def _schema_problem(text: str) -> str | None:
    """Return why a text in JSON is no usable schema: one that is malformed, or fails on some values only."""
    import jsonschema  # loaded on first use: it takes as long as the rest of the package
    import referencing.exceptions
    import referencing.jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it has no stubs

    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return str(error.message)
    specification = referencing.jsonschema.specification_with(kind.META_SCHEMA["$schema"])
    resolver = REGISTRY.resolver_with_root(specification.create_resource(schema))
    try:
        for name, value in _keywords(schema):
            if name in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str):
                resolver.lookup(value)
            patterns = value if name == "patternProperties" and isinstance(value, Mapping) else ()
            for pattern in (value,) if name == "pattern" and isinstance(value, str) else patterns:
                re.compile(str(pattern))
        for value in (None, {}, [], "", 0):
            kind(schema).is_valid(value)
    except referencing.exceptions.Unresolvable as error:
        return f"the reference {error.ref!r} leads nowhere"
    except re.error as error:
        return f"the pattern {error.pattern!r} is malformed: {error}"
    except RecursionError:
        return "it refers to itself without end"
    return None


def _keywords(node: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield name, value
            if name not in _DATA:
                yield from _keywords(value)
    elif isinstance(node, list):
        for item in node:
            yield from _keywords(item)


def find_problem(schema: JsonObject, value: JsonValue) -> str | None:
    """Return why a schema, which is one, does not accept a value; None where it does."""
    import jsonschema

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        problem = jsonschema.exceptions.best_match(kind(schema).iter_errors(value))
    except (ArithmeticError, RecursionError) as error:  # of numbers that are too large, or nested too deep
        return f"comparing it with the schema failed: {type(error).__name__}"
    return None if problem is None else f"{problem.json_path[:60]}: {problem.message[:120]}"
