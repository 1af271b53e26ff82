"""The run directory: nothing is lost when a process dies, whatever it was doing."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from envgym.runs.episodes import Advantages, episode_rows, trees_of
from envgym.errors import RunError, SettingsError
from envgym.runs.files import write_atomic, write_json
from envgym.runs.changes import check_same
from envgym.runs.directory import SCHEMA_VERSION, RunDirectory, check_labels, file_step, read_json
from tests.support.example_trees import HARD_CASES

CONFIG = {"run": {"name": "cat"}, "envs": [{"id": "math/arithmetic-v0"}]}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", name="cat", config=CONFIG)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# ---- atomic writes -------------------------------------------------------------------------------------------


@given(old=st.binary(max_size=100), new=st.binary(max_size=100))
def test_atomic_write_replaces_all_content(
    old: bytes, new: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("atomic")
    for content in (old, new):
        write_atomic(folder / "deep" / "file", content)
        assert (folder / "deep" / "file").read_bytes() == content
    assert names(folder) == ["deep/file"]


@pytest.mark.parametrize("moment", ["fsync", "chmod", "replace"])
def test_failed_write_leaves_the_old_content_alone(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os if moment == "fsync" else Path, moment, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_process_that_dies_in_the_middle_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from envgym.runs.files import write_atomic\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomic(Path(sys.argv[1]), 'new')\n"
    )
    died = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_json_that_no_reader_takes_is_never_written(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", {"loss": 1.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file.json", {"loss": float("nan")})
    assert read_json(tmp_path / "file.json") == {"loss": 1.5}


# ---- opening -------------------------------------------------------------------------------------------------


def test_new_run_says_what_it_is_and_what_it_was_made_with(run: RunDirectory) -> None:
    assert names(run.path) == ["config.json", "run.json", "versions.json"]
    opened = RunDirectory.open(run.path)
    assert (opened.name, opened.config) == ("cat", CONFIG)
    assert opened.versions["gymnasium"].split(".")[0].isdigit()


def test_directory_that_holds_anything_is_not_made_into_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="run directory must be new or empty"):
        RunDirectory.create(tmp_path, name="cat", config=CONFIG)
    assert names(tmp_path) == ["notes.txt"]


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="run directory must be new or empty"):
        RunDirectory.create(tmp_path / "run", name="cat", config=CONFIG)
    assert (tmp_path / "run").read_text() == "mine"


def test_empty_directory_is_made_into_a_run(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, name="cat", config=CONFIG).name == "cat"


def test_what_is_no_run_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run directory must hold run.json, got none \(.*envgym train"):
        RunDirectory.open(tmp_path)


def test_run_that_is_not_there_has_near_names_and_a_folder_that_is_none_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("first", "second"):
        RunDirectory.create(tmp_path / "runs" / name, name=name, config=CONFIG)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "fist.txt").touch()
    runs = tmp_path / "runs"
    for place, told in (
        ("runs/frist", f"run must be a directory, got no such directory (@); did you mean {runs / 'first'}?"),
        ("runs/fist.txt", f"run must be a directory, got a file (@); did you mean {runs / 'first'}?"),
        (
            "runs",
            f"run directory must hold run.json, got none (@); did you mean {runs / 'first'} or {runs / 'second'}?",
        ),
        ("runs/notes", "run directory must hold run.json, got none (@); name a directory that `envgym train` or"),
        ("no/first", "run must be a directory, got no such directory (@); name a directory that `envgym train` or"),
    ):
        with pytest.raises(RunError) as caught:
            RunDirectory.open(tmp_path / place)
        assert str(caught.value).startswith(told.replace("@", str(tmp_path / place)))


@pytest.mark.parametrize("schema", [SCHEMA_VERSION + 1, 0, None, "1"])
def test_run_of_another_schema_is_refused(run: RunDirectory, schema: object) -> None:
    write_json(run.path / "run.json", {"schema": schema, "name": "cat"})
    with pytest.raises(
        RunError, match=rf"run schema must be 1\.\.{SCHEMA_VERSION}, got .*; read it with a newer envgym"
    ):
        RunDirectory.open(run.path)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "null", '{"schema": 1, "name": "\udcff"}'])
def test_run_file_that_is_broken_is_one_sentence(run: RunDirectory, text: str) -> None:
    (run.path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunError):
        RunDirectory.open(run.path)


def test_same_settings_are_those_of_the_run() -> None:
    check_same(CONFIG, json.loads(json.dumps(CONFIG)), where=Path("runs/cat"))


def test_settings_that_changed_are_named_one_by_one() -> None:
    before = {
        "run": {"name": "a", "directory": "x"},
        "optim": {"lr": 1, "eps": 2},
        "engine": {"device": "cpu"},
        "sft": {},
    }
    now = {"run": {"name": "b", "directory": "y"}, "optim": {"lr": 3, "eps": 2}, "engine": {}, "sft": None, "new": [1]}
    with pytest.raises(RunError) as caught:
        check_same(before, now, where=Path("runs/cat"), but=("run.directory", "engine"))
    assert str(caught.value) == (
        "resumed settings must be those of the run, got changes in ['new', 'optim.lr', 'run.name', 'sft'] (runs/cat); "
        "resume with its own, or start another run; only engine may change."
    )


# ---- metrics -------------------------------------------------------------------------------------------------


def test_metrics_come_back_in_order(run: RunDirectory) -> None:
    rows = [{"step": float(step), "loss/policy": 1 / (step + 3)} for step in range(4)]
    for row in rows:
        run.append_metrics(row)
    assert run.metrics() == rows


@given(cut=st.integers(min_value=0, max_value=60))
def test_torn_last_line_is_ignored_and_nothing_else_is(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = RunDirectory.create(tmp_path_factory.mktemp("torn"), name="torn", config={})
    for step in range(3):
        run.append_metrics({"step": step, "loss/policy": 0.5})
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    kept = whole[: len(whole) - min(cut, len(whole))]
    path.write_bytes(kept)
    assert [row["step"] for row in run.metrics()] == list(range(kept.count(b"\n")))


def test_line_that_is_whole_but_no_json_is_told_and_not_dropped(run: RunDirectory) -> None:
    text = '{"step": 0}\nhm\n{"step": 2}\n'
    (run.path / "metrics.jsonl").write_text(text)
    with pytest.raises(RunError, match=r"run file must be as envgym wrote it, got JSON.* \(.*metrics.jsonl, line 2\)"):
        run.forget_after(2)
    assert (run.path / "metrics.jsonl").read_text() == text


def test_metrics_that_are_not_finite_are_null_on_disk_and_nan_when_read(run: RunDirectory) -> None:
    run.append_metrics({"step": 1, "ratio/max": float("inf"), "loss/policy": float("nan"), "loss/kl": 0.5})
    run.append_metrics({"step": 2})
    line = '{"step": 1, "ratio/max": null, "loss/policy": null, "loss/kl": 0.5}\n'
    assert (run.path / "metrics.jsonl").read_text() == line + '{"step": 2}\n'
    run.forget_after(1)
    assert (run.path / "metrics.jsonl").read_text() == line
    (row,) = run.metrics()
    assert math.isnan(row["ratio/max"])
    assert row["loss/kl"] == 0.5


def test_line_that_follows_a_torn_one_is_a_line_of_its_own(run: RunDirectory) -> None:
    run.append_metrics({"step": 0})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "loss/pol')
    run.forget_after(0)
    run.append_metrics({"step": 1})
    assert [row["step"] for row in run.metrics()] == [0, 1]


def test_run_without_a_step_has_no_metrics(run: RunDirectory) -> None:
    assert run.metrics() == []
    assert (run.evals(), run.episodes(), run.episode_steps()) == ([], [], [])


@settings(max_examples=8)  # every example waits for the disk
@given(steps=st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted), last=st.integers(0, 9))
def test_forgetting_keeps_exactly_what_was_recorded_up_to_a_step(
    steps: Sequence[int], last: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = RunDirectory.create(tmp_path_factory.mktemp("forget") / "run", name="cat", config=CONFIG)
    for step in steps:
        run.append_metrics({"step": step})
        run.write_eval(step, "held-out", {"step": step, "label": "held-out"})
        run.write_episodes(step, [{"step": step}])
    run.forget_after(last)
    kept = [step for step in steps if step <= last]
    assert [row["step"] for row in run.metrics()] == kept
    assert [data["step"] for data in run.evals()] == kept
    assert run.episode_steps() == kept
    run.forget_after(last)  # a second time changes nothing
    assert [row["step"] for row in run.metrics()] == kept


# ---- episodes ------------------------------------------------------------------------------------------------


def test_episodes_come_back_from_parquet_by_step_and_label(run: RunDirectory) -> None:
    trees = [case() for case in HARD_CASES]
    run.write_episodes(1, episode_rows(trees[:3], step=1))
    run.write_episodes(2, episode_rows(trees[3:], step=2))
    run.write_episodes(2, episode_rows(trees[:1], step=2), label="held-out")
    assert trees_of(run.episodes(label="train")) == trees
    assert trees_of(run.episodes([2], label="train")) == trees[3:]
    assert trees_of(run.episodes(label="held-out")) == trees[:1]
    assert (run.episode_steps(), run.episode_steps(label="held-out")) == ([1, 2], [2])


def test_one_tree_is_found_without_reading_the_others(run: RunDirectory) -> None:
    trees = [case() for case in HARD_CASES]
    run.write_episodes(1, episode_rows(trees, step=1))
    run.write_episodes(2, episode_rows(trees[:1], step=2), label="held-out")
    ids = [("train", 1, tree.id) for tree in trees]
    assert run.tree_ids() == [*ids, ("held-out", 2, trees[0].id)]
    for tree in trees:
        assert trees_of(run.episodes(label="train", tree_id=tree.id)) == [tree]


def test_label_is_the_whole_of_it(run: RunDirectory) -> None:
    run.write_episodes(1, episode_rows([HARD_CASES[0]()], step=1), label="pre-train")
    assert (run.episodes(label="train"), run.episode_steps(label="train")) == ([], [])
    assert run.episode_steps(label="pre-train") == [1]


def test_steps_are_in_order_of_their_numbers(run: RunDirectory) -> None:
    for step in (1_000_000, 999_999, 3):
        run.write_eval(step, "held-out", {"step": step, "label": "held-out"})
    assert [data["step"] for data in run.evals()] == [3, 999_999, 1_000_000]


def test_step_is_read_from_a_file_name() -> None:
    assert file_step(Path("episodes/step-000012-held-out.parquet")) == 12
    assert file_step(Path("evals/step-1000000-during.json")) == 1_000_000


def test_columns_have_their_types_whatever_a_step_holds(run: RunDirectory) -> None:
    files = [
        run.write_episodes(1, []),
        run.write_episodes(2, episode_rows([HARD_CASES[0]()], step=2)),  # nothing invalid, nothing trained on
        run.write_episodes(3, episode_rows([case() for case in HARD_CASES], step=3)),
    ]
    schemas = [pq.read_schema(file) for file in files]
    assert schemas[0].equals(schemas[1])
    assert schemas[1].equals(schemas[2])
    assert {str(kind) for kind in schemas[0].types} == {"int64", "double", "string"}


def test_text_that_is_no_utf8_can_be_saved(run: RunDirectory) -> None:
    tree = replace(HARD_CASES[0](), task_id="\ud800")
    run.write_episodes(1, episode_rows([tree], step=1))
    assert trees_of(run.episodes()) == [tree]


def test_label_with_a_slash_is_one_file_and_is_found_by_either_form(run: RunDirectory) -> None:
    tree = HARD_CASES[0]()
    run.write_eval(1, "held-out math/a", {"step": 1})
    run.write_episodes(1, episode_rows([tree], step=1), label="held-out math/a")
    assert names(run.path)[:2] == ["config.json", "episodes/step-000001-held-out math_a.parquet"]
    assert trees_of(run.episodes(label="held-out math/a")) == trees_of(run.episodes(label="held-out math_a")) == [tree]
    assert run.episode_steps(label="held-out math/a") == [1]


@pytest.mark.parametrize(
    "given,got", [(("a", "b", "a"), "a"), (("math/a", "b", "math_a"), "math/a and math_a, whose files have one name")]
)
def test_envs_whose_files_would_have_one_name_are_refused(given: Sequence[str], got: str) -> None:
    check_labels(("a/b", "a b", "a-b"), where="envs")
    with pytest.raises(SettingsError) as caught:
        check_labels(given, where="envs")
    assert str(caught.value) == f"env name must be unique, got {got} (envs); give one of them another `name`."


@pytest.mark.slow
def test_data_sets_library_reads_the_episodes(run: RunDirectory, tmp_path: Path) -> None:
    from datasets import load_dataset

    trees = [case() for case in HARD_CASES]
    given: Advantages = {(trees[0].id, trees[0].leaves[0]): (0.0, 0.5)}
    files = [
        run.write_episodes(1, episode_rows(trees[:1], step=1)),
        run.write_episodes(2, episode_rows(trees, step=2, advantages=given)),
    ]
    table = load_dataset("parquet", data_files=[str(file) for file in files], split="train", cache_dir=str(tmp_path))
    assert trees_of(dict(row) for row in table) == [trees[0], *trees]
    assert table[0]["advantages"] is None
    assert sum(row["advantages"] is not None for row in table) == 1
    assert json.loads(table[0]["components"]) == {"answer": 1.0}
