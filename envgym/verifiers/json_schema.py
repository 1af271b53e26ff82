"""JSON that obeys a schema."""

from collections.abc import Mapping
from dataclasses import dataclass

from envgym.core.json_types import JsonObject
from envgym.core.tasks import Task
from envgym.parsing.formats import without_fence
from envgym.parsing.strict_json import read_json
from envgym.verifiers.base import Verdict, bad_key, key_of, right, wrong
from envgym.verifiers.extract import Extractor, whole_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    """1 where the answer is one JSON value (a code fence around it is fine) that the schema accepts, else 0."""

    schema: JsonObject | None = None
    """One schema for all tasks; None: each task has its own."""
    key: str = "schema"
    """Payload field that holds a task's own schema."""
    extract: Extractor = whole_answer

    def __call__(self, answer: str, task: Task) -> Verdict:
        """Score `answer`. Raises: InvalidInput: the payload field is no schema."""
        import jsonschema  # loaded on first use: it takes as long as the rest of the package

        schema = key_of(task, self.key) if self.schema is None else self.schema
        if not isinstance(schema, Mapping):
            raise bad_key(task, self.key, "be a JSON schema with keywords", schema)
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(dict(schema))
        except jsonschema.SchemaError as error:
            raise bad_key(task, self.key, f"be a JSON schema ({error.message})", schema) from None
        extracted = self.extract(answer)
        if extracted.answer is None:
            return wrong(extracted.reason)
        try:
            value = read_json(without_fence(extracted.answer))
        except ValueError as error:
            return wrong(f"the answer is not JSON: {error}")
        problem = jsonschema.exceptions.best_match(kind(schema).iter_errors(value))
        if problem is None:
            return right("the schema accepts it")
        return wrong(f"{problem.json_path[:60]}: {problem.message[:120]}")
