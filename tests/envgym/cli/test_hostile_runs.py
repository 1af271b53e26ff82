"""Run directories that somebody sent: whatever their settings and files say, no command runs code of theirs."""

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.settings import EvalSettings
from envgym.config.settings import apply_overrides, build_settings
from envgym.runs.directory import RunDirectory
from envgym.runs.files import write_json
from envgym.runs.trust import trusted_runs

Command = Callable[..., tuple[int, str, str]]
RESUMED = ("train", "sent", "--resume")
HOSTILE = (
    "envs.0={id: 'subprocess:Popen', settings: {args: [touch, marker]}}",
    "envs.0.id=evil:Env",
    "envs.0.id=evil.py:Env",
    "envs.0.id=sent/evil.py:Env",
    "envs.0.id='evil:math/arithmetic-v0'",
    "envs.0.wrappers=['evil:Wrapper']",
    "envs.0.wrappers=[{name: record, path: marker}]",
    "envs.0.parties={user: 'evil:Party'}",
    "agent.name=evil:AGENT",
    "agent.renderer=evil:Renderer",
    "recipe=evil:RECIPE",
    "credit=evil:Credit",
    "search={name: mcts, value: 'evil:Value'}",
    "evaluation.search=evil:Search",
    "rollout.metrics=['evil:Metric']",
    "run.trackers=['evil:Tracker']",
    "sft={source: 'evil:Source'}",
    "engine.backend=evil:Backend",
)


@pytest.fixture
def sent(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Receive it, with code in it and beside it, as a user who has begun no run, and go to where it lies."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(tmp_path / "inbox"))
    monkeypatch.syspath_prepend(str(tmp_path / "inbox" / "sent"))
    shutil.copytree(trained, tmp_path / "inbox" / "sent")
    monkeypatch.chdir(tmp_path / "inbox")
    for folder in (tmp_path / "inbox", tmp_path / "inbox" / "sent"):
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'inbox' / 'marker')!r}, 'w')\n")
    return tmp_path / "inbox" / "sent"


@pytest.fixture
def command(sent: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what runs a command line where the run lies, and sees that no code of the run was run."""
    from envgym.cli.main import main

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(words)
        assert not (sent.parent / "marker").exists(), "code of the run was run"
        assert not list(sent.parent.rglob("__pycache__")), "code of the run was imported"
        return code, *capsys.readouterr()

    return run


def change(run: Path, *overrides: str) -> None:
    write_json(run / "config.json", apply_overrides(RunDirectory.open(run).config, overrides))


def is_refused(done: tuple[int, str, str]) -> bool:
    lines = done[2].strip().splitlines()
    return done[0] == 2 and lines[-1].startswith("envgym: untrusted run must name no code")


@pytest.mark.parametrize("override", HOSTILE)
def test_training_command_runs_no_code_of_a_run(override: str, command: Command, sent: Path) -> None:
    change(sent, override)
    for words in (
        RESUMED,
        (*RESUMED, "--dry-run"),
        (*RESUMED, "--overfit-one-batch", "1"),
        ("sft", "sent", "--resume"),
        ("value", "sent"),
    ):
        assert is_refused(command(*words)), words


@pytest.mark.parametrize("override", [text for text in HOSTILE if text.startswith(("envs", "agent"))])
def test_evaluation_of_a_run_runs_no_code_of_it(override: str, command: Command, sent: Path) -> None:
    change(sent, override)
    assert is_refused(command("eval", "--model", "sent", "--tasks", "1"))


@pytest.mark.parametrize(
    "override", [text for text in HOSTILE if text.startswith(("envs", "agent", "evaluation", "engine"))]
)
def test_evaluation_that_is_resumed_runs_no_code_of_it(override: str, command: Command, sent: Path) -> None:
    settings = build_settings(EvalSettings, {"envs": [{"id": "math/arithmetic-v0"}]}, where="test")
    write_json(sent / "config.json", settings.model_dump(mode="json"))
    change(sent, override)
    assert is_refused(command("eval", "--out", "sent", "--resume"))


def test_resumed_evaluation_sends_no_key_to_an_endpoint_of_a_run(command: Command, sent: Path) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "SECRET"}
    data = {"envs": [{"id": "math/arithmetic-v0"}], "engine": {"backend": "openai", "endpoint": endpoint}}
    write_json(sent / "config.json", build_settings(EvalSettings, data, where="test").model_dump(mode="json"))
    assert is_refused(command("eval", "--out", "sent", "--resume"))


def test_critic_of_a_run_runs_no_code_of_it(command: Command, sent: Path) -> None:
    change(sent, "credit=evil:Credit")
    words = ("eval", "--model", "tiny", "--env", "math/arithmetic-v0", "--tasks", "1", "--search", "mcts")
    assert is_refused(command(*words, "--search-set", "value.name=critic", "--search-set", "value.run=sent"))


@pytest.mark.parametrize("override", HOSTILE)
def test_commands_that_read_import_nothing_that_a_run_names(override: str, command: Command, sent: Path) -> None:
    change(sent, override)
    assert command("view", "sent", "--export")[0] == 0
    assert command("view", "sent", "--json")[0] == 0
    label, step, tree = RunDirectory.open(sent).tree_ids()[0]
    assert command("view", "sent", "--tree", f"{label}/{step}/{tree}")[0] == 0


@pytest.mark.parametrize("override", [text for text in HOSTILE if text.startswith(("envs.0.id", "recipe", "credit"))])
def test_export_of_a_model_runs_no_code_of_a_run(override: str, command: Command, sent: Path) -> None:
    change(sent, override)
    code, _, err = command("export", "sent", "model", "out")
    assert code == 0, err
    assert (sent.parent / "out" / "model.safetensors").is_file()


def test_export_of_a_model_follows_no_link_of_a_run(command: Command, sent: Path) -> None:
    (weights,) = sent.glob("checkpoints/step-000001/model/model.safetensors")
    weights.rename("elsewhere")
    weights.symlink_to(sent.parent / "elsewhere")
    assert is_refused(command("export", "sent", "model", "out"))


def test_own_settings_are_compared_with_those_of_a_run_without_a_look_at_its_code(command: Command, sent: Path) -> None:
    shutil.copy(sent / "config.json", "own.yaml")
    change(sent, "recipe=evil:RECIPE")
    code, _, err = command("train", "own.yaml", "--resume", "--set", "run.directory=sent")
    assert (code, "changes in ['recipe']" in err) == (2, True)


def test_nothing_is_written_through_a_link_of_a_run(command: Command, sent: Path) -> None:
    shutil.copy(sent / "config.json", "own.yaml")
    Path("precious").write_text("mine")
    (sent / "metrics.jsonl").unlink()
    (sent / "metrics.jsonl").symlink_to("../precious")
    assert is_refused(command("train", "own.yaml", "--resume", "--set", "run.directory=sent"))
    assert Path("precious").read_text() == "mine"


def test_run_that_names_nothing_outside_is_used_as_it_is(command: Command, sent: Path) -> None:
    assert command(*RESUMED)[0] == 0
    assert command("eval", "--model", "sent", "--tasks", "1", "--out", "out")[0] == 0
    assert not trusted_runs().exists() or len(trusted_runs().read_bytes().splitlines()) == 1, "out alone was begun here"


def test_trust_is_given_once_to_settings_read(command: Command, sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    Path("measures_seven.py").write_text("def metric(episodes) -> dict[str, float]:\n    return {'seven': 7.0}\n")
    change(sent, "evaluation.metrics=['measures_seven:metric']")
    assert is_refused(command(*RESUMED))
    assert command(*RESUMED, "--trust")[0] == 0
    assert command(*RESUMED)[0] == 0
    change(sent, "evaluation.metrics=['measures_eight:metric']")
    assert is_refused(command(*RESUMED))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("marker", "w"))


@pytest.mark.parametrize("name", ["optimizer.pt", "critic.pt"])
def test_pickle_in_a_checkpoint_is_refused_unread(name: str, command: Command, sent: Path) -> None:
    file = sent / "checkpoints" / "step-000002" / name
    for write in (lambda: torch.save({"state": Evil()}, file), lambda: file.write_bytes(pickle.dumps(Evil()))):
        write()
        code, _, err = command(*RESUMED)
        assert (code, f"{name}: " in err, len(err.strip().splitlines())) == (2, True, 1)


def test_weights_in_a_pickle_are_no_checkpoint(command: Command, sent: Path) -> None:
    model = sent / "checkpoints" / "step-000002" / "model"
    (model / "model.safetensors").unlink()
    torch.save({"weight": Evil()}, model / "pytorch_model.bin")
    for words in (RESUMED, ("eval", "--model", "sent"), ("value", "sent")):
        code, _, err = command(*words)
        assert (code, "got model/model.safetensors: " in err) == (2, True), err


def test_code_of_a_model_is_never_run_and_nobody_is_asked(command: Command, sent: Path) -> None:
    model = sent / "checkpoints" / "step-000002" / "model"
    (model / "evil.py").write_text("open('marker', 'w')\n")
    config = json.loads((model / "config.json").read_text())
    classes: Mapping[str, str] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    write_json(model / "config.json", {**config, "model_type": "evil", "auto_map": classes})
    for words in (RESUMED, ("eval", "--model", "sent"), ("eval", "--model", str(model), "--env", "math/arithmetic-v0")):
        code, _, err = command(*words)
        assert (code, "model must be a directory or a hub name that loads" in err) == (2, True), err


def test_folder_that_one_works_in_is_searched_only_for_what_settings_name(
    command: Command, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = Path("evil-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[envgym.credit]\nplanted = evil:Credit\n")
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if "inbox" not in entry])
    change(sent, "credit=planted")
    code, _, err = command(*RESUMED)
    assert (code, "credit must be a known name, got 'planted'" in err) == (2, True)
