"""Every kind of plug-in, every registered environment in Gymnasium, and the public names of the package."""

import inspect
import itertools
import re
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import envgym
from envgym.cli.plugin_kinds import KINDS
from envgym.errors import InvalidInput, SettingsError
from tests.support.lanes import env_params

ENTRIES = [(kind, name) for kind in KINDS for name in KINDS[kind].table]


@pytest.mark.parametrize("kind, name", ENTRIES)
def test_entry_of_a_table_imports_fits_its_kind_and_is_documented(kind: str, name: str) -> None:
    plugin = KINDS[kind].load(name)
    summary = getattr(plugin, "summary", None) or inspect.getdoc(plugin)
    assert summary


@pytest.mark.parametrize("kind, other", list(itertools.permutations(KINDS, 2)))
def test_plugin_of_another_kind_is_refused(kind: str, other: str) -> None:
    path = next(iter(KINDS[other].table.values()))
    with pytest.raises(SettingsError, match=rf"^{kind}\.name must name a .*, got {re.escape(path)} "):
        KINDS[kind].load(path)


MODULE = '''
calls = []


class Recorder:
    """Record that it was made."""

    def __init__(self, *arguments, **settings):
        calls.append(arguments)


def factory(scale=1):
    """Return nothing that is known."""
    calls.append(scale)
'''


@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_no_kind_is_never_called(kind: str, tmp_path: Path) -> None:
    (tmp_path / "recorder.py").write_text(MODULE)
    for name in ("Recorder", "factory"):
        with pytest.raises(SettingsError):
            KINDS[kind].load(f"{tmp_path}/recorder.py:{name}")
    (module,) = {module for name, module in sys.modules.items() if str(tmp_path) in str(vars(module).get("__file__"))}
    assert module.calls == []


@pytest.mark.parametrize("kind", KINDS)
def test_entry_points_belong_to_their_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "envgym_test_kinds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: envgym_test_kinds\nVersion: 1.0\n")
    name, path = next(iter(KINDS[kind].table.items()))
    (info / "entry_points.txt").write_text(f"[envgym.{kind}]\nmine = {path}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert KINDS[kind].names()[-1] == "mine"
    assert KINDS[kind].load("mine") is KINDS[kind].load(name)


@pytest.fixture(params=env_params(envgym.list_ids()))
def env_id(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        envgym.make(name).close()
    except InvalidInput as error:
        pytest.skip(str(error))
    return name


def test_gymnasium_makes_it_and_its_checkers_say_nothing(env_id: str) -> None:
    env = gymnasium.make(f"envgym:{env_id}", disable_env_checker=False)
    first, _ = env.reset(seed=3)
    assert first == envgym.make(env_id).reset(seed=3).observation
    env.step("hello")
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("is_shared", [True, False])
def test_vector_envs_of_both_kinds_agree(env_id: str, is_shared: bool) -> None:
    makers = [lambda: envgym.make(env_id)] * 2
    sync, parallel = SyncVectorEnv(makers), AsyncVectorEnv(makers, shared_memory=is_shared)
    try:
        assert sync.reset(seed=[5, 6])[0] == parallel.reset(seed=[5, 6])[0]
        for actions in (("hello", "42"), ("7", ""), ("a", "b")):
            expected, got = sync.step(actions), parallel.step(actions)
            assert expected[0] == got[0]
            for before, now in zip(expected[1:4], got[1:4], strict=True):
                assert before.tolist() == now.tolist()
    finally:
        parallel.close()
        sync.close()


def test_every_public_name_loads() -> None:
    assert dir(envgym) == envgym.__all__
    for name in envgym.__all__:
        assert getattr(envgym, name) is not None


def test_unknown_attribute_is_an_attribute_error() -> None:
    assert not hasattr(envgym, "no_such_name")
