"""`envgym doctor`, `envgym schema` and the filters of `envgym list`."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import yaml

from envgym import list_ids, registry
from envgym.cli import list_envs
from envgym.config.settings import read_settings_file

Command = Callable[..., tuple[int, str, str]]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_doctor_tells_what_can_be_used_and_what_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_envs, "missing_package", lambda extra, wheel: "playwright" if extra == "web" else None)
    code, out, _ = command("doctor", "--json")
    assert code == 0
    found = {(item["group"], item["name"]): item for item in json.loads(out)}
    assert found["packages", "torch"]["detail"] == version("torch")
    assert found["engines", "transformers"]["is_usable"]
    assert {name for group, name in found if group == "environments"} == set(list_ids())
    assert found["environments", "math/arithmetic-v0"]["is_usable"]
    web = found["environments", "web/miniwob-v0"]
    assert (web["is_usable"], web["detail"]) == (False, "playwright is not installed")
    assert web["do"] == "pip install 'envgym[web]'"
    assert {name for group, name in found if group == "sandboxes"} == {"bwrap", "docker"}
    assert found["environments", "code/harbor-v0"]["is_usable"] == found["sandboxes", "docker"]["is_usable"]
    lines = command("doctor")[1].splitlines()
    assert "environments" in lines
    assert any(line.split()[:2] == ["math/arithmetic-v0", "yes"] for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        "demo.yaml",
        "smollm2_arithmetic.yaml",
        "../studies/methods/guess_number.yaml",
        "pipelines/phases.yaml",
        "pipelines/rest_mcts.yaml",
    ],
)
def test_examples_fit_the_schema(command: Command, name: str) -> None:
    schema = json.loads(command("schema")[1])
    data = read_settings_file(EXAMPLES / name)
    jsonschema.validate(data, schema)
    jsonschema.validate({**data, "credit": "rloo"}, schema)
    assert schema["$defs"]["OptimSettings"]["properties"]["lr"]["description"] == "Learning rate after the warmup."
    with pytest.raises(jsonschema.ValidationError, match="stepz"):
        jsonschema.validate({**data, "run": {"stepz": 3}}, schema)


def test_schema_of_an_evaluation_is_another(command: Command) -> None:
    schema = json.loads(command("schema", "eval")[1])
    jsonschema.validate(yaml.safe_load("envs: [{id: math/arithmetic-v0}]"), schema)
    assert "optim" not in schema["properties"]


def test_list_is_filtered_by_text_and_by_what_is_installed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = command("list", "Arithmetic")[1].splitlines()
    assert "math/arithmetic-v0" in [line.split()[0] for line in lines]
    assert len(lines) < len(list_ids())
    assert command("list", "no such text") == (0, "", "")
    monkeypatch.setattr(list_envs, "missing_package", lambda extra, wheel: "playwright" if extra == "web" else None)
    usable = {entry["id"] for entry in json.loads(command("list", "--usable", "--json")[1])}
    assert "math/arithmetic-v0" in usable
    assert "web/miniwob-v0" not in usable


def test_wheel_that_is_installed_besides_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = registry.Registration(
        id="tools/x-v0", entry_point="x:X", origin="envgym", requires="search", wheel="nobody-has-this"
    )
    monkeypatch.setattr(registry, "_registrations", {lacking.id: lacking})
    monkeypatch.setattr(list_envs, "requires", lambda name: ["numpy; extra == 'search'"])
    told = "[unavailable: needs envgym[search] and nobody-has-this, nobody-has-this is not installed]"
    assert command("list")[1].strip().endswith(told)
    assert json.loads(command("list", "--usable", "--json")[1]) == []
    found = {item["name"]: item for item in json.loads(command("doctor", "--json")[1])}["tools/x-v0"]
    assert found["do"] == "pip install 'envgym[search]' && pip install --no-deps nobody-has-this"


def test_missing_program_is_named_with_its_install_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envgym.sandbox.has_program", lambda name: name != "coqtop")
    monkeypatch.setattr(list_envs, "missing_package", lambda extra, wheel: None)
    line = command("list", "proofs")[1].strip()
    assert line.endswith("[unavailable: needs envgym[code] and coqtop, coqtop is not installed]")
    assert command("list", "proofs", "--usable") == (0, "", "")
    found = {item["name"]: item for item in json.loads(command("doctor", "--json")[1])}
    assert (found["math/proofs-v0"]["is_usable"], found["math/proofs-v0"]["do"]) == (False, "apt install coq")
    monkeypatch.setattr("envgym.sandbox.has_program", lambda name: True)
    assert "unavailable" not in command("list", "proofs")[1]
