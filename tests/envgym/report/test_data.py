"""Tests of the report's records and their JSON form."""

import dataclasses
import json
from collections.abc import Mapping
from importlib.resources import files

import jsonschema
import pytest
from pydantic import TypeAdapter

from envgym.core.segments import Origin
from envgym.core.turns import Ending
from envgym.errors import InvalidInput
from envgym.report.data import SCHEMA_VERSION, EpisodeData, Meta, MetricRow, ReportData, SegmentData, to_json

EMPTY = Meta(name="", env_ids=(), model="")
SCHEMA = json.loads(files("envgym.report").joinpath("schema.json").read_text())


def schema_text() -> str:
    """Return the text of `schema.json`: the JSON schema of what `to_json` makes of a `ReportData`."""
    schema = TypeAdapter(ReportData).json_schema(mode="serialization")
    for record in (schema, *schema["$defs"].values()):
        if "properties" in record:
            # Every field is always written, and no other.
            record["required"] = sorted(record["properties"])
            record["additionalProperties"] = False
    schema["$comment"] = f"Schema version {SCHEMA_VERSION} of the data that report, tree view and app read."
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def test_published_schema_is_that_of_the_records() -> None:
    # After a change of the records, write schema_text() there, and raise SCHEMA_VERSION.
    assert files("envgym.report").joinpath("schema.json").read_text() == schema_text()


def records(value: object) -> set[str]:
    if isinstance(value, Mapping):
        return records([*value.values()])
    if isinstance(value, tuple | list):
        return set().union(*map(records, value))
    if not dataclasses.is_dataclass(value):
        return set()
    return {type(value).__name__, *records([getattr(value, item.name) for item in dataclasses.fields(value)])}


def test_every_record_of_the_demo_and_the_empty_report_meet_the_schema(report: ReportData) -> None:
    check = jsonschema.Draft202012Validator(SCHEMA)
    assert [error.message for error in check.iter_errors(to_json(report))] == []
    assert [error.message for error in check.iter_errors(to_json(ReportData(meta=EMPTY)))] == []
    # The demo holds every record that the schema knows, so none of its definitions went unchecked.
    known = {name for name, record in SCHEMA["$defs"].items() if record["type"] == "object"}
    assert records(report) == {"ReportData", *known}


def test_schema_refuses_another_field_a_missing_one_and_another_type() -> None:
    good = to_json(ReportData(meta=Meta(name="n", env_ids=(), model="m")))
    assert isinstance(good, dict)
    for bad in (
        {**good, "extra": 1},
        {key: value for key, value in good.items() if key != "meta"},
        {**good, "episodes": [{"id": 3}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, SCHEMA)


def test_json_form_is_plain() -> None:
    row = MetricRow(step=3, values={"loss/kl": float("nan"), "train/success": 0.5, "loss/x": float("-inf")})
    assert to_json(row) == {"step": 3, "values": {"loss/kl": None, "train/success": 0.5, "loss/x": None}}
    assert to_json({Ending.TERMINATED: (1, True)}) == {"TERMINATED": [1, True]}


def test_an_episode_keeps_every_field() -> None:
    segment = SegmentData(origin=Origin.POLICY, token_ids=(5,), token_strings=("a",), logprobs=(-0.5,), trained=(True,))
    episode = EpisodeData(
        id="e",
        tree_id="e",
        env_id="math/x-v0",
        task_id="t",
        step=1,
        source="train",
        ending=Ending.ERROR_ENV,
        reward=None,
        prompt=(segment,),
    )
    data = to_json(episode)
    assert isinstance(data, dict)
    assert (data["ending"], data["reward"], data["turns"]) == ("ERROR_ENV", None, [])
    assert data["prompt"] == [
        {
            "origin": "POLICY",
            "token_ids": [5],
            "token_strings": ["a"],
            "logprobs": [-0.5],
            "trained": [True],
            "advantages": [],
            "learner_logprobs": [],
            "entropies": [],
            "ratios": [],
            "policy_version": None,
        }
    ]


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="token_strings must match the 2 ids, got 1"):
        SegmentData(origin=Origin.TOOL, token_ids=(1, 2), token_strings=("a",))
    with pytest.raises(InvalidInput, match="advantages must be empty or match the 2 ids, got 3"):
        SegmentData(origin=Origin.POLICY, token_ids=(1, 2), token_strings=("a", "b"), advantages=(0.0, 1.0, 2.0))
