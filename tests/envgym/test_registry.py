"""Ids: lazy, strict, near names; the same environment through Gymnasium and through envgym."""

import importlib.metadata
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import envgym
from envgym import registry
from envgym.config.arguments import parameters
from envgym.conformance.contract import passes_gymnasium_checker
from envgym.conformance.env_under_test import EnvUnderTest
from envgym.core.tasks import Split, TaskSource
from envgym.errors import InvalidInput, UnknownName
from envgym.wrappers import TurnLimit
from tests.support.toys import Counter

COUNTER = "tests.support.toys:Counter"


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registrations", dict(registry._registrations))
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def limited_counter(max_turns: int) -> TurnLimit:
    return TurnLimit(Counter(), max_turns)


def no_env() -> str:
    return "no env"


number = 3


def test_import_registers_the_catalog_and_imports_no_environment() -> None:
    code = (
        "import sys, gymnasium, envgym\n"
        "assert set(envgym.list_ids()) <= set(gymnasium.registry), 'all ids are known to Gymnasium'\n"
        "print(len(envgym.list_ids()), [name for name in sys.modules if name.startswith('envgym.envs')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, loaded = result.stdout.split(maxsplit=1)
    assert int(count) >= 3
    assert loaded.strip() == "[]"


def test_every_built_in_is_in_one_of_the_families() -> None:
    built_in = [registry.find(env_id) for env_id in envgym.list_ids() if registry.find(env_id).origin == "envgym"]
    assert {entry.id.split("/")[0] for entry in built_in} <= set(registry.FAMILIES)
    assert all(entry.summary for entry in built_in)


def test_registered_env_is_made_by_both_libraries() -> None:
    envgym.register("toys/counter-v0", COUNTER, max_turns=3, summary="Count.")
    ours = envgym.make("toys/counter-v0")
    theirs = gymnasium.make("envgym:toys/counter-v0")
    assert type(ours) is type(theirs.unwrapped) is Counter
    assert ours.max_turns == theirs.unwrapped.max_turns == 3
    assert ours.name == "toys/counter-v0"
    assert ours.reset(seed=4).observation == theirs.reset(seed=4)[0]
    assert envgym.make("envgym:toys/counter-v0").name == "toys/counter-v0"


def test_passive_checker_has_nothing_to_say() -> None:
    envgym.register("toys/counter-v0", COUNTER)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        env = gymnasium.make("envgym:toys/counter-v0", disable_env_checker=False)
        for _ in range(2):
            env.reset(seed=1)
            while not any(env.step("DONE")[2:4]):
                pass
    assert "PassiveEnvChecker" in str(env)
    assert [str(warning.message) for warning in said] == []


def test_spec_makes_an_equal_env_again() -> None:
    env = envgym.make(COUNTER, max_turns=5)
    assert env.spec is not None
    again = env.spec.make()
    assert isinstance(again.unwrapped, Counter)
    assert again.unwrapped.max_turns == 5
    assert again.unwrapped.name == COUNTER


def test_factory_without_render_mode_is_rendered_by_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_factory", sys.modules[__name__])
    envgym.register("toys/limited-v0", "a_factory:limited_counter")
    ours = envgym.make("toys/limited-v0", max_turns=1, render_mode="ansi")
    theirs = gymnasium.make("envgym:toys/limited-v0", max_turns=1, render_mode="ansi")
    assert ours.unwrapped.render_mode == theirs.unwrapped.render_mode == ours.unwrapped.fresh().render_mode == "ansi"
    subject = EnvUnderTest(make=lambda: envgym.make("toys/limited-v0", max_turns=3))
    assert passes_gymnasium_checker(subject) == "check_env"


def test_env_of_a_file_is_named_by_its_file_and_made_again_by_its_spec(tmp_path: Path) -> None:
    path = tmp_path / "my games" / "count er.py"
    path.parent.mkdir()
    path.write_text(f"from {COUNTER.replace(':', ' import ')}\ndef no_env() -> str: ...\n")
    env = envgym.make(f"{path}:Counter", max_turns=5)
    assert env.spec is not None
    assert env.name == "count_er.py:Counter"
    again = env.spec.make().unwrapped
    assert isinstance(again, Counter)
    assert again.max_turns == 5
    with pytest.raises(InvalidInput, match=r"count er.py:no_env must make an envgym.Env, got str \(make\)"):
        envgym.make(f"{path}:no_env")


FILE_ENV = """
from tests.support.toys import Counter
class Mine(Counter):
    version = {version}
"""


def test_file_that_has_changed_is_imported_again_and_what_was_made_of_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE_ENV.format(version=1))
    make_first, first = registry.maker(f"{path}:Mine"), envgym.make(f"{path}:Mine")
    assert type(envgym.make(f"{path}:Mine")) is type(first)
    path.write_text(FILE_ENV.format(version=2))  # as long as before, and in the same second
    second: Any = envgym.make(f"{path}:Mine")
    others: list[Any] = [first, first.fresh(), make_first(), pickle.loads(pickle.dumps(first))]
    assert (second.version, [other.version for other in others]) == (2, [1, 1, 1, 1])


def test_task_file_that_has_changed_is_read_again_and_who_has_the_old_tasks_keeps_them(tmp_path: Path) -> None:
    path, rows = tmp_path / "quiz.py", tmp_path / "rows.jsonl"
    path.write_text(f"""
from envgym.authoring import FileTasks, RubricEnv
def never(answer: str) -> bool:
    return False
class Quiz(RubricEnv):
    tasks, rubric = FileTasks({str(rows)!r}), never
""")

    def tasks(count: int) -> TaskSource:
        rows.write_text('{"prompt": "a", "answer": "b"}\n' * count)
        return envgym.make(f"{path}:Quiz").unwrapped.tasks

    first = tasks(3)
    side = Split.TRAIN if first.size(Split.TRAIN) else Split.TEST
    assert envgym.make(f"{path}:Quiz").unwrapped.tasks is first
    assert (tasks(5).size(side), first.size(side)) == (5, 3)


WEATHER = f"""
from {COUNTER.replace(":", " import ")}
class Reading: ...
class Weather(Counter): ...
class Climate(Counter): ...
limit = 3
"""


@pytest.mark.parametrize(
    "env_id, sentence",
    [
        ("weather.py:Wether", "weather.py must have a class Wether; did you mean Weather?"),
        ("weather.py:Storm", "weather.py must have a class Storm; choose one of: Climate, Reading, Weather."),
        ("weather.py", "name its class too, such as weather.py:Weather."),
        ("weather.py:", "name its class too, such as weather.py:Weather."),
        ("weather", "name its class too, such as weather.py:Weather."),
        ("rain_gauge.py", "name its class too, such as rain_gauge.py:RainGauge."),
        ("wether.py:Weather", "(no file wether.py, but weather.py); check the path"),
        ("weather.py:limit", "weather.py:limit must be a class or function, got 3 (make)"),
        ("faulty.py:Env", "the code of faulty.py:Env must be importable, got AttributeError: "),
    ],
)
def test_file_without_the_class_is_refused_with_the_names_of_its_classes(
    env_id: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather.py").write_text(WEATHER)
    (tmp_path / "faulty.py").write_text("import math\nmath.pie\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as refusal:
        envgym.make(env_id)
    assert sentence in str(refusal.value)
    assert "envgym_plugin_" not in str(refusal.value)


def test_callers_arguments_win_over_registered_ones() -> None:
    envgym.register("toys/counter-v0", COUNTER, max_turns=3, render_mode="ansi")
    env = envgym.make("toys/counter-v0", max_turns=7)
    assert (env.max_turns, env.render_mode) == (7, "ansi")


def test_factory_may_return_a_wrapped_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_factory", sys.modules[__name__])
    env: Any = envgym.make("a_factory:limited_counter", max_turns=1)  # made as a wrapper
    assert isinstance(env, TurnLimit)
    env.reset(seed=0)
    assert env.step("hello").truncated


@pytest.mark.parametrize(
    "env_id, hint",
    [
        ("maths/arithmetic-v0", "did you mean math/arithmetic-v0"),
        ("math/arithmetic-v7", "did you mean math/arithmetic-v0"),
        ("math/arithmetic", "did you mean math/arithmetic-v0"),
        ("Math/Arithmetic-v0", "did you mean math/arithmetic-v0"),
        ("xyz", "choose one of: code/harbor-v0, code/humaneval-v0, "),
    ],
)
def test_unknown_id_lists_near_names(env_id: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=hint):
        envgym.make(env_id)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "https://example.org/"])
def test_an_address_without_an_id_is_told_what_is_missing(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"have the id of an environment after the address, got http.*append it"):
        envgym.make(address)


def test_unknown_argument_lists_near_names() -> None:
    with pytest.raises(
        UnknownName, match=r"keyword argument must be a known name, got 'max_turn' .*did you mean max_turns"
    ):
        envgym.make(COUNTER, max_turn=3)


def test_missing_argument_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_factory", sys.modules[__name__])
    with pytest.raises(InvalidInput, match="must be given max_turns"):
        envgym.make("a_factory:limited_counter")


@pytest.mark.parametrize(
    "path, rule",
    [
        ("no_such_package.env:Env", r"no no_such_package .*check the import path"),
        ("__main__:Gone", r"__main__:Gone must be defined as Gone, got nothing \(.*\); define it again first."),
        ("tests.support.toys:NoSuchEnv", r"must be defined as NoSuchEnv, got nothing \(module tests.support.toys\)"),
        ("a_factory:number", r"must be a class or function, got 3"),
        ("a_factory:no_env", r"must make an envgym.Env, got str"),
    ],
)
def test_entry_point_that_leads_nowhere_is_one_sentence(path: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_factory", sys.modules[__name__])
    with pytest.raises(InvalidInput, match=rule):
        envgym.make(path)


def test_module_before_the_colon_is_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registers_toys.py").write_text(f"import envgym\nenvgym.register('toys/late-v0', '{COUNTER}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert envgym.make("registers_toys:toys/late-v0").name == "toys/late-v0"
    with pytest.raises(InvalidInput, match="module no_such_module must be importable, got no no_such_module"):
        envgym.make("no_such_module:toys/late-v0")


def test_missing_extra_is_named() -> None:
    entry = registry.Registration(
        id="puzzles/x-v0", entry_point="no_such_package:Env", origin="envgym", requires="puzzles"
    )
    registry._add(entry)
    with pytest.raises(InvalidInput, match=r"no no_such_package \(make\); pip install 'envgym\[puzzles\]'\."):
        envgym.make("puzzles/x-v0")


@pytest.mark.parametrize("env_id", ["counter-v0", "toys/counter", "toys/counter-v", "toys/a b-v0", "a/b/c-v0", ""])
def test_id_must_have_the_form_family_name_version(env_id: str) -> None:
    with pytest.raises(InvalidInput, match="must have the form family/name-vN"):
        envgym.register(env_id, COUNTER)


@pytest.mark.parametrize("entry_point", ["Counter", "module.Counter", "module:", "a module:Counter"])
def test_entry_point_must_have_the_form_module_class(entry_point: str) -> None:
    with pytest.raises(InvalidInput, match="must have the form module:Class"):
        envgym.register("toys/counter-v0", entry_point)


def test_id_is_registered_once_but_equal_registrations_agree() -> None:
    envgym.register("toys/counter-v0", COUNTER, max_turns=3)
    envgym.register("toys/counter-v0", COUNTER, max_turns=3)
    with pytest.raises(InvalidInput, match="env id toys/counter-v0 must be new"):
        envgym.register("toys/counter-v0", COUNTER, max_turns=4)


def test_built_in_outside_the_families_is_refused() -> None:
    with pytest.raises(InvalidInput, match="family must be known"):
        registry._add(registry.Registration(id="toys/x-v0", entry_point=COUNTER, origin="envgym"))


def test_installed_package_registers_by_its_entry_point(tmp_path: Path) -> None:
    info = tmp_path / "my_games-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-games\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[envgym.envs]\nmy_games/count-v0 = {COUNTER}\nbadly named = x:Y\n")
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import envgym\n"
        "from envgym.registry import find\n"
        "print(find('my_games/count-v0').origin, envgym.make('my_games/count-v0').name)\n"
        "print([str(item.message) for item in caught])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    first, second = result.stdout.splitlines()
    assert first == "my-games my_games/count-v0"
    told = "the plug-in badly named of my-games is left out: env id must have the form family/name-vN, got badly named"
    assert told in second


def test_parameters_are_read_through_a_constructor_that_passes_them_on() -> None:
    class Inner(Counter):
        def __init__(self, *, level: int = 1, **kwargs: int | None) -> None:
            super().__init__(max_turns=kwargs["max_turns"])

    assert list(parameters(Inner) or ()) == ["level", "max_turns", "render_mode"]
    assert parameters(lambda **anything: None) is None


def test_entry_point_group_is_the_documented_one() -> None:
    assert registry.ENTRY_POINT_GROUP == "envgym.envs"
    assert all(point.group == "envgym.envs" for point in importlib.metadata.entry_points(group="envgym.envs"))


@pytest.mark.parametrize(
    "kwargs, told",
    [
        ({"max_turns": "many"}, "max_turns must be a whole number or None, got 'many'"),
        ({"max_turns": True}, "max_turns must be a whole number or None, got True"),
        ({"turn_reward": "off"}, r"turn_reward must be true or false, got 'off' \(puzzles/sokoban-v0\); pass e.g. "),
        ({"size": 7.0}, "size must be a whole number, got 7.0"),
    ],
)
def test_values_of_another_kind_are_refused(kwargs: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        envgym.make("puzzles/sokoban-v0", **kwargs)


def test_values_of_the_kind_are_taken() -> None:
    assert envgym.make("puzzles/sokoban-v0", max_turns=None).unwrapped.max_turns is None
    assert envgym.make("puzzles/sokoban-v0", max_turns=np.int64(5), turn_reward=True).unwrapped.max_turns == 5
