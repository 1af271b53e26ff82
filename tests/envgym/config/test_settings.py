"""Settings from outside: what is read, what is put in place, and the sentence for everything that cannot be."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from pydantic import Field

from envgym.config.settings import (
    Settings,
    apply_overrides,
    build_settings,
    places,
    read_settings_file,
    read_yaml,
    read_yaml_value,
)
from envgym.errors import SettingsError

KEYS = st.text("abcdefgh_", min_size=1, max_size=6)
VALUES = st.one_of(st.integers(), st.booleans(), st.text("xyz", min_size=1, max_size=5))


class Engine(Settings):
    power: int = Field(default=1, ge=1)
    fuel: str = "none"


class Car(Settings):
    """A settings model with a section and a list of sections."""

    name: str
    weight: float = 1.0
    is_new: bool = True
    engine: Engine = Engine()
    spares: tuple[Engine, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)


# ---- files ---------------------------------------------------------------------------------------------------


def test_missing_file_is_one_sentence_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings_file(tmp_path / "none.yaml")
    assert str(caught.value) == (
        f"settings file must be readable, got No such file or directory ({tmp_path / 'none.yaml'}); "
        "give the path of a YAML file."
    )


def test_directory_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="settings file must be readable, got Is a directory"):
        read_settings_file(tmp_path)


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_bytes(b"\x80\x81 name: car")
    with pytest.raises(SettingsError, match="settings file must be UTF-8 text"):
        read_settings_file(path)


def test_malformed_yaml_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "car.yaml"
    path.write_text("name: car\nengine: {power: 1\nspares: []\n")
    with pytest.raises(
        SettingsError, match=r"settings must be YAML, got .* \(.*car\.yaml, line 3\); correct that line\."
    ):
        read_settings_file(path)


def test_key_that_stands_twice_is_refused_with_its_line() -> None:
    text = "optim: {lr: 1}\nrun: {steps: 3}\noptim: {grad_clip: 2}\n"
    with pytest.raises(SettingsError) as caught:
        read_yaml(text, where="run.yaml")
    assert str(caught.value) == (
        "settings must be YAML, got the key 'optim' a second time (run.yaml, line 3); correct that line."
    )
    for deep in ("envs:\n- {id: a, id: b}", "run: {a: [{b: {c: 1, 'c': 2}}]}"):
        with pytest.raises(SettingsError, match="a second time"):
            read_yaml(deep, where="run.yaml")
    with pytest.raises(SettingsError, match="value must be YAML"):
        apply_overrides({}, ["optim={lr: 1, lr: 2}"])


def test_merged_key_may_be_replaced() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: *b, x: 4}\nd: *b\n"
    assert read_yaml(text, where="run.yaml")["c"] == {"x": 4, "y": 3}
    assert read_yaml(text, where="run.yaml")["d"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    "text,must",
    [
        ("- a\n- b", "be a mapping of keys, got list"),
        ("7", "be a mapping of keys, got int"),
        ("just words", "be a mapping of keys, got str"),
        ("name: \x00", "be YAML"),
        ("name: 2020-13-01", r"be YAML, got month must be in 1..12 .*quote that value"),
        ("[" * 2000, "be YAML, got lists nested too deep"),
    ],
)
def test_yaml_that_is_no_mapping_or_cannot_be_read_is_refused(text: str, must: str) -> None:
    with pytest.raises(SettingsError, match=f"must {must}"):
        read_yaml(text, where="car.yaml")


def test_empty_file_is_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing yet\n")
    assert read_settings_file(path) == {}


# ---- overrides -----------------------------------------------------------------------------------------------


def test_override_reaches_sections_and_list_entries_and_leaves_its_input_alone() -> None:
    data = {"name": "car", "spares": [{"power": 1}, {"power": 2}]}
    put = apply_overrides(data, ["engine.power=3", "spares.1.power=5", "name=van", "options.colours=[red, blue]"])
    assert put == {
        "name": "van",
        "engine": {"power": 3},
        "spares": [{"power": 1}, {"power": 5}],
        "options": {"colours": ["red", "blue"]},
    }
    assert data == {"name": "car", "spares": [{"power": 1}, {"power": 2}]}


@pytest.mark.parametrize(
    "text,value", [("1", 1), ("1.5", 1.5), ("true", True), ("null", None), ("", None), ("a=b", "a=b"), ("'1'", "1")]
)
def test_override_value_is_read_as_yaml(text: str, value: object) -> None:
    assert apply_overrides({}, [f"key={text}"]) == {"key": value}


@given(data=st.dictionaries(KEYS, VALUES), keys=st.lists(KEYS, min_size=1, max_size=3), value=VALUES)
def test_override_changes_its_own_key_alone(data: Mapping[str, Any], keys: list[str], value: object) -> None:
    put = apply_overrides(data, [f"{'.'.join(keys)}={value!r}"])
    found: Any = put  # a YAML tree
    for key in keys:
        found = found[key]
    assert found == value
    assert {key: item for key, item in put.items() if key != keys[0]} == {k: v for k, v in data.items() if k != keys[0]}


@given(data=st.dictionaries(KEYS, VALUES), keys=st.lists(KEYS, min_size=1, max_size=3), first=VALUES, last=VALUES)
def test_last_override_of_a_key_wins(data: Mapping[str, Any], keys: list[str], first: object, last: object) -> None:
    dotted = ".".join(keys)
    once = apply_overrides(data, [f"{dotted}={last!r}"])
    assert apply_overrides(data, [f"{dotted}={first!r}", f"{dotted}={last!r}"]) == once


@pytest.mark.parametrize(
    "override,message",
    [
        ("power", "--set must be KEY=VALUE, got 'power' (command line); write a.b=1."),
        ("=3", "--set must be KEY=VALUE, got '=3' (command line); write a.b=1."),
        ("spares.2.power=1", "--set spares.2.power=1 must name an entry 0..0, got 2 (command line); count from 0."),
        ("spares.x=1", "--set spares.x=1 must name an entry 0..0, got x (command line); count from 0."),
        ("name.first=1", None),
        ("key={a: [", "value must be YAML, got '{a: [' (--set key={a: [); quote it."),
    ],
)
def test_override_that_leads_nowhere_is_one_sentence(override: str, message: str | None) -> None:
    data = {"name": "car", "spares": [{"power": 1}]}
    if message is None:  # a value becomes a section: the model that is built from it judges
        assert apply_overrides(data, [override])["name"] == {"first": 1}
        return
    with pytest.raises(SettingsError) as caught:
        apply_overrides(data, [override])
    assert str(caught.value) == message


# ---- models --------------------------------------------------------------------------------------------------


def fault(data: Mapping[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        build_settings(Car, data, where="car.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "data,must,do",
    [
        ({"engin": {}}, "settings key must be known, got engin", "did you mean engine?"),
        ({"engine": {"powr": 1}}, "settings key must be known, got engine.powr", "did you mean power?"),
        ({"spares": [{}, {"zzz": 1}]}, "settings key must be known, got spares.1.zzz", "known keys: fuel, power."),
        ({"name": ...}, "name must be set, got nothing", "add it to the file, or set it on the command line."),
        ({"engine": {"power": 0}}, "engine.power must be greater than or equal to 1, got 0", "correct the value."),
    ],
)
def test_unknown_and_missing_keys_and_values_out_of_range_say_the_rule(data: Any, must: str, do: str) -> None:
    car = {key: value for key, value in {"name": "car", **data}.items() if value is not ...}
    assert fault(car) == f"{must} (car.yaml); {do}"


@pytest.mark.parametrize(
    "key,value,must",
    [
        ("engine.power", 2.5, "be a whole number"),
        ("engine.power", "many", "be a whole number"),
        ("engine.power", [], "be a whole number"),
        ("weight", "heavy", "be a number"),
        ("weight", None, "be a number"),
        ("is_new", "perhaps", "be true or false"),
        ("is_new", 2.5, "be true or false"),
        ("engine.fuel", 3, "be text"),
        ("engine", 3, "be a mapping of keys"),
        ("spares", 3, "be a list"),
    ],
)
def test_value_of_another_kind_is_told_in_plain_words(key: str, value: object, must: str) -> None:
    data = apply_overrides({"name": "car"}, [f"{key}={json.dumps(value)}"])
    got = value if isinstance(value, str) else repr(value)
    assert fault(data) == f"{key} must {must}, got {got} (car.yaml); correct the value."


@pytest.mark.parametrize(
    "overrides,place",
    [
        (["engine.power=0"], "--set engine.power=0"),
        (["engine={power: 0}"], "--set engine={power: 0}"),
        (["engine.power=1", "spares=[]", "engine.power=0"], "--set engine.power=0"),
        (["engine.fuel=gas"], "car.yaml"),
        (["engin.power=0"], "car.yaml"),  # another key, with a fault of its own
        ([], "car.yaml"),
    ],
)
def test_fault_names_the_override_that_made_it(overrides: list[str], place: str) -> None:
    data = apply_overrides({"name": "car", "engine": {"power": 0}}, overrides)
    with pytest.raises(SettingsError) as caught:
        build_settings(Car, data, where="car.yaml", sources=places(overrides))
    assert f"engine.power must be greater than or equal to 1, got 0 ({place}); correct the value." in str(caught.value)


def test_fault_of_a_section_names_the_overrides_inside_it_beside_the_file() -> None:
    with pytest.raises(SettingsError) as caught:
        build_settings(Car, {"name": "car", "engin": {"power": 2}}, where="car.yaml", sources=places(["engin.power=2"]))
    assert str(caught.value) == (
        "settings key must be known, got engin (car.yaml, --set engin.power=2); did you mean engine?"
    )


def test_other_options_that_override_are_named_by_their_own_name() -> None:
    with pytest.raises(SettingsError, match=r"--agent-set must be KEY=VALUE, got 'level'"):
        apply_overrides({}, ["level"], option="--agent-set")
    assert places(["a=1", "b.c = 2"], option="--agent-set", under="agent.") == {
        "agent.a": "--agent-set a=1",
        "agent.b.c": "--agent-set b.c = 2",
    }


def test_every_fault_is_one_line() -> None:
    lines = fault({"engine": {"power": "strong"}, "wheels": 4}).splitlines()
    assert [line.split(" must ")[0] for line in lines] == ["name", "engine.power", "settings key"]


def test_key_that_is_no_text_is_refused() -> None:
    data: dict[Any, Any] = {"name": "car", 3: "x"}  # YAML allows it
    assert fault(data) == "3 must meet its rule (Keys should be strings), got 3 (car.yaml); correct the value."


def test_settings_are_frozen() -> None:
    car = build_settings(Car, {"name": "car"}, where="here")
    with pytest.raises(ValueError, match="frozen"):
        setattr(car, "name", "van")  # noqa: B010  # mypy knows that it may not be assigned


def bomb(first: str, form: str) -> str:
    """Return a document of thirty lines, each of which names the one before nine times."""
    return "\n".join(
        [f"a0: &a0 {first}", *(f"a{n}: &a{n} {form.format(','.join([f'*a{n - 1}'] * 9))}" for n in range(1, 30))]
    )


@pytest.mark.parametrize("text", [bomb("[1]", "[{}]"), bomb("{k: 1}", "{{<<: [{}]}}"), "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_that_blow_up_are_refused_before_they_do(text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"must be YAML, got more than 100,000 values, with every alias written out"
    ):
        read_yaml(text, where="run.yaml")
    with pytest.raises(SettingsError, match=r"value must be YAML"):
        read_yaml_value(text, where="--set")


def test_aliases_are_read_as_what_they_name() -> None:
    text = "base: &base {lr: 1}\noptim: {<<: *base, lr: 2}\nboth: [*base, *base]"
    assert read_yaml(text, where="run.yaml") == {"base": {"lr": 1}, "optim": {"lr": 2}, "both": [{"lr": 1}, {"lr": 1}]}


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 0.001), ("1E5", 100_000.0), (".5e3", 500.0), ("-1e3", -1000.0), ("+1.e2", 100.0), ("2e+4", 20_000.0),
        ("1.5", 1.5), ("12", 12), ("'1e-3'", "1e-3"), ("1e", "1e"), ("e5", "e5"), ("1e5x", "1e5x"),
        ("123e4567", "123e4567"), ("1e-3 2", "1e-3 2"),
    ],
)  # fmt: skip
def test_number_with_an_exponent_is_a_number_wherever_it_stands(text: str, value: object) -> None:
    data = read_yaml(f"a: {text}\nb:\n  - c: [{text}]\n", where="file")
    assert data == {"a": value, "b": [{"c": [value]}]}
    assert type(data["a"]) is type(value)
    assert apply_overrides({"envs": [{}]}, [f"envs.0.settings.rate={text}"])["envs"][0]["settings"]["rate"] == value


def test_numbers_of_numpy_are_settings() -> None:
    class Sized(Settings):
        size: int
        parts: dict[str, object]

    data = {"size": np.int64(3), "parts": {"rates": (np.float64(0.5), {"on": np.bool_(True)})}}
    built = build_settings(Sized, data, where="call")
    assert built.model_dump(mode="json") == {"size": 3, "parts": {"rates": [0.5, {"on": True}]}}
