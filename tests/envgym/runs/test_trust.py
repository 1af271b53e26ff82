"""Which runs are this user's own, and what a run of somebody else may not name."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import envgym
from envgym.runs import trust as run_trust
from envgym.errors import RunError, UnknownName
from envgym.runs.files import write_json
from envgym.runs.trust import names_code, trust, trusted_runs
from envgym.runs.directory import RunDirectory

CODE = {"envs": [{"id": "worlds:Vowels"}]}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a user who has begun no run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def forget() -> None:
    trusted_runs().unlink(missing_ok=True)


def test_own_run_may_name_anything_and_one_of_somebody_else_may_not(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config=CODE)
    assert run.trusted_config() == {**CODE, "run": {"directory": str(run.path)}}
    forget()
    with pytest.raises(RunError) as caught:
        run.trusted_config()
    assert str(caught.value) == (
        "untrusted run must name no code, URL or file outside itself, got envs.0.id: worlds:Vowels "
        f"({run.path}); read its config.json, and pass --trust if you trust its author."
    )
    assert run.config == CODE, "reading is free"
    trust(run.path)
    assert run.trusted_config()["envs"] == CODE["envs"]


def test_run_is_known_by_its_settings_and_wherever_it_lies(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config=CODE)
    moved = RunDirectory(run.path.rename(tmp_path / "moved"))
    assert moved.trusted_config() == {**CODE, "run": {"directory": str(moved.path)}}
    write_json(moved.path / "config.json", {"envs": [{"id": "others:Vowels"}]})
    with pytest.raises(RunError, match="others:Vowels"):
        moved.trusted_config()
    copied = RunDirectory.create(tmp_path / "copied", name="run", config={})
    write_json(copied.path / "config.json", CODE)  # the settings of a run of ours, under the id of another
    with pytest.raises(RunError, match="worlds:Vowels"):
        copied.trusted_config()


@pytest.mark.parametrize(
    "config,found",
    [
        ({"agent": {"name": "evil:AGENT"}}, "agent.name: evil:AGENT"),
        ({"agent": {"program": {"run": ["sh", "x"]}}}, "agent.program.run.0: sh"),
        ({"agent": {"program": {"run": "evil:play"}}}, "agent.program.run: evil:play"),
        ({"envs": [{"settings": {"mcp": [{"command": ["sh", "x"]}]}}]}, "envs.0.settings.mcp.0.command.0: sh"),
        ({"envs": [{"settings": {"mcp": [{"url": "http://a/mcp"}]}}]}, "envs.0.settings.mcp.0.url: http://a/mcp"),
        ({"search": {"name": "mcts", "value": {"name": "my.py:V"}}}, "search.value.name: my.py:V"),
        ({"envs": [{"id": "evil:math/arithmetic-v0"}]}, "envs.0.id: evil:math/arithmetic-v0"),
        ({"envs": [{"id": "a/b-v0", "wrappers": ["evil:W"]}]}, "envs.0.wrappers.0: evil:W"),
        ({"envs": [{"id": "a/b-v0", "wrappers": [{"name": "record", "path": "x"}]}]}, "envs.0.wrappers.0.name: record"),
        ({"envs": [{"settings": {"sandbox": "local", "unsafe": True}}]}, "envs.0.settings.unsafe: True"),
        ({"engine": {"endpoint": {"base_url": "http://a/v1"}}}, "engine.endpoint.base_url: http://a/v1"),
    ],
)
def test_what_reaches_outside_is_named_by_its_key(config: Mapping[str, Any], found: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config=config)
    forget()
    with pytest.raises(RunError) as caught:
        run.trusted_config()
    assert f"got {found} (" in str(caught.value)


def test_sections_that_are_not_used_do_not_count(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config={**CODE, "credit": {"name": "grpo"}})
    forget()
    assert run.trusted_config("credit")["credit"] == {"name": "grpo"}
    with pytest.raises(RunError, match="worlds:Vowels"):
        run.trusted_config("credit", "envs")


def test_link_out_of_a_run_counts_as_a_file_outside(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config={})
    (run.path / "metrics.jsonl").symlink_to(tmp_path / "precious")
    assert list(run.trusted_config()) == ["run"]
    forget()
    with pytest.raises(RunError, match=r"got a link, metrics\.jsonl"):
        run.trusted_config()


def test_names_and_numbers_are_no_code() -> None:
    plain = {"name": "grpo", "seed": 1, "id": "math/arithmetic-v0", "text": "Answer: yes", "none": None, "at": "12:30"}
    assert not names_code([plain, ("tiny", True)])
    for path in ("a.py:B", "a.b:C", "a:b/c-v0", "a:2048/c-v0", "a:-/c-v0"):
        assert names_code([plain, ("tiny", path)])


@pytest.mark.parametrize("env_id", ["marks: 1/a-v0", "1:1/a-v0", "marks:/a-v0"])
def test_what_is_no_code_imports_nothing(env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not names_code(env_id)
    for name in ("marks", "1"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownName):
        envgym.make(env_id)
    assert not (tmp_path / "marker").exists()


def test_list_forgets_its_oldest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trust, "_MAX_RUNS", 4)
    runs = [RunDirectory.create(tmp_path / str(n), name="run", config=CODE) for n in range(7)]
    known = [run for run in runs if _is_known(run)]
    assert known == runs[-len(known) :]
    assert 2 <= len(known) <= 4
    before = trusted_runs().read_bytes()
    trust(known[0].path)
    assert trusted_runs().read_bytes() == before, "no run is listed twice"


def _is_known(run: RunDirectory) -> bool:
    try:
        run.trusted_config()
    except RunError:
        return False
    return True


def test_user_without_a_place_for_state_can_begin_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", os.fspath(tmp_path / "file"))
    run = RunDirectory.create(tmp_path / "run", name="run", config=CODE)
    assert not _is_known(run)


@pytest.mark.parametrize(
    "config,found",
    [
        ({"engine": {"backend": {"name": "policy_servers", "weights": "/srv/thesis"}}}, "engine.backend.weights"),
        ({"engine": {"backend": {"name": "policy_servers", "weights": "thesis"}}}, "engine.backend.weights"),
        ({"engine": {"backend": {"name": "policy_servers", "weights": "~/thesis"}}}, "engine.backend.weights"),
        ({"engine": {"backend": {"name": "policy_servers", "weights": "RUN/../thesis"}}}, "engine.backend.weights"),
        ({"model": {"name": "/home/me/model"}}, "model.name: /home/me/model"),
        ({"model": {"name": "a/../../b"}}, "model.name: a/../../b"),
        ({"trackers": [{"name": "mine", "anything": "/home/me"}]}, "trackers.0.anything: /home/me"),
        ({"trackers": [{"name": "trackio", "space_id": "me/cats"}]}, "trackers.0.space_id: me/cats"),
        ({"trackers": [{"name": "mlflow", "uri": "sqlite:///a.db"}]}, "trackers.0.uri: sqlite:///a.db"),
        ({"envs": [{"id": "math/problems-v0", "settings": {"data": "secret.jsonl"}}]}, "envs.0.settings.data"),
        ({"teacher": {"notes": "mine/notes.txt"}}, "teacher.notes: mine/notes.txt"),
        ({"a": {"directory": "x\0y"}}, "a.directory: x"),
        ({"a": {"directory": "x" * 100_000}}, "a.directory: xxx"),
    ],
)
def test_paths_outside_a_run_need_trust(
    config: dict[str, Any], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    text = json.dumps(config).replace("RUN", str(tmp_path / "run"))
    run = RunDirectory.create(tmp_path / "run", name="run", config=json.loads(text))
    assert run.trusted_config(), "whoever began it may name anything"
    forget()
    with pytest.raises(RunError) as caught:
        run.trusted_config()
    assert f"got {found}" in str(caught.value)


def test_paths_below_a_run_and_names_with_a_slash_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run"
    config = {
        "run": {"directory": "/where/it/was", "name": "run"},
        "model": {"name": "organisation/model", "adapter": None},
        "envs": [{"id": "math/arithmetic-v0", "settings": {"kinds": "word"}}],
        "engine": {"backend": {"name": "policy_servers", "weights": str(path / "weights")}},
        "demonstrations": {"name": "recorded", "directory": "run/episodes"},
        "advantages": {"weights": {"a": 1.0}},
    }
    run = RunDirectory.create(path, name="run", config=config)
    forget()
    assert run.trusted_config()["model"] == config["model"]


@pytest.mark.parametrize("name", ["run.json", "config.json"])
def test_a_pipe_in_place_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", name="run", config=CODE)
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    with pytest.raises(RunError, match="run file must be readable, got no regular file"):
        RunDirectory.open(run.path).trusted_config()


def test_a_long_text_is_searched_in_linear_time() -> None:
    for text in ("x" * 5_000_000, "x" * 5_000_000 + ":", "1:" * 1_000_000, "a.: " * 1_000_000):
        started = time.thread_time()
        assert not names_code(text)
        assert time.thread_time() - started < 5
