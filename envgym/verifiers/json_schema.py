"""JSON that obeys a schema."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    """Seconds of CPU time in a helper process for a schema with patterns, after which an answer scores 0."""

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
        if "pattern" not in repr(schema):
            problem = find_problem(schema, value)
        else:
            found = ask_within(self.cpu_s, {"schema": schema, "value": value})
            problem = (
                f"comparing it with the schema took more than {self.cpu_s} s" if found is None else found["problem"]
            )
        return right("the schema accepts it") if problem is None else wrong(problem)


def find_problem(schema: JsonObject, value: JsonValue) -> str | None:
    """Return why a schema, which is one, does not accept a value; None where it does."""
    import jsonschema

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    problem = jsonschema.exceptions.best_match(kind(schema).iter_errors(value))
    return None if problem is None else f"{problem.json_path[:60]}: {problem.message[:120]}"
