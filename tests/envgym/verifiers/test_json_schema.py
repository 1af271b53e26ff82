"""JSON schema: one value, obeying."""

import pytest

from envgym.core.json_types import JsonObject
from envgym.core.tasks import Split, Task
from envgym.errors import InvalidInput
from envgym.verifiers import JsonSchema

SCHEMA: JsonObject = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]}


def judge(answer: str, verifier: JsonSchema, payload: JsonObject) -> tuple[float, str]:
    verdict = verifier(answer, Task(id="t", prompt="", payload=payload, split=Split.TRAIN))
    return verdict.score, verdict.reason


@pytest.mark.parametrize(
    "answer, score, reason",
    [
        ('{"n": 3}', 1.0, "the schema accepts it"),
        ('```json\n{"n": 3}\n```', 1.0, "the schema accepts it"),
        ('```JSON title="a.json"\r\n{"n": 3}\r\n```', 1.0, "the schema accepts it"),
        ('~~~json\n{"n": 3}\n~~~', 1.0, "the schema accepts it"),
        ('````json\n{"n": 3}\n````', 1.0, "the schema accepts it"),
        ('```json\n{"n": 3}```', 1.0, "the schema accepts it"),
        ('```json\n{"n": 3}\n```\n```json\n{"n": 4}\n```', 0.0, "the answer is not JSON: "),
        ('```json\n{"n": 3}\n```\nand ```', 0.0, "the answer is not JSON: "),
        ('{"n": -1}', 0.0, "$.n: -1 is less than the minimum of 0"),
        ("{}", 0.0, "$: 'n' is a required property"),
        ('{"n": 3} {"n": 4}', 0.0, "the answer is not JSON: there is text after the JSON value: '{\"n\": 4}'"),
        ('{"n": 3, "n": -1}', 0.0, "the answer is not JSON: the key 'n' is written twice"),
        ('{"n": 1e400}', 0.0, "the answer is not JSON: the number 1e400 is too large"),
        ("NaN", 0.0, "the answer is not JSON: NaN is not JSON"),
        ("[" * 5000, 0.0, "the answer is not JSON: "),
        ("", 0.0, "the answer is empty"),
    ],
)
def test_json_schema_scores(answer: str, score: float, reason: str) -> None:
    for verifier, payload in ((JsonSchema(schema=SCHEMA), {}), (JsonSchema(), {"schema": SCHEMA})):
        got = judge(answer, verifier, payload)
        assert got[0] == score
        assert got[1].startswith(reason)


def test_a_schema_that_is_none_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="be a JSON schema"):
        judge("{}", JsonSchema(), {"schema": {"type": "objekt"}})


def test_a_schema_with_patterns_is_compared_as_one_without() -> None:
    verifier = JsonSchema(schema={"type": "object", "patternProperties": {"^n": {"type": "integer"}}})
    assert judge('{"n1": 3, "m": "x"}', verifier, {}) == (1.0, "the schema accepts it")
    assert judge('{"n1": "x"}', verifier, {}) == (0.0, "$.n1: 'x' is not of type 'integer'")


def test_an_answer_that_makes_a_schema_s_pattern_run_for_ever_scores_0() -> None:
    verifier = JsonSchema(schema={"type": "string", "pattern": "^(a+)+$"})
    assert judge(f'"{"a" * 60}"', verifier, {}) == (1.0, "the schema accepts it")
    told = "comparing it with the schema took more than 1 s"  # 2^60 ways to part 60 letters
    assert judge(f'"{"a" * 60}b"', verifier, {}) == (0.0, told)
