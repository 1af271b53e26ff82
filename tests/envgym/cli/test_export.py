"""`envgym export` writes folders that are complete or absent, and refuses what cannot be exported in one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from envgym import Split, ToolCall
from envgym.cli.main import main
from envgym.core.tree import Tree
from tests.support.recorded_runs import answer, recorded_run

Export = Callable[..., tuple[int, str]]
CALLS = (ToolCall(name="add", arguments={"a": 1}, id="1"),)
KINDS = ("chat", "sharegpt", "preferences", "steps", "tokens")


def four_episodes(step: int) -> list[Tree]:
    """Return two groups of a right and a wrong answer."""
    return [
        answer(text, reward, place=f"step-{step:06d}/{number:03d}/{index:02d}", number=number)
        for number in range(2)
        for index, (text, reward) in enumerate([("right", 1.0), ("wrong", 0.0)])
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (1, 2):
        recorded_run(tmp_path / "run", four_episodes(step), step=step)
    held_out = [answer("held", 1.0, place="held-out/test/0/0", split=Split.TEST)]
    recorded_run(tmp_path / "run", held_out, step=2, label="held-out")
    return tmp_path / "run"


@pytest.fixture
def export(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    def call(kind: str, *options: str, out: Path = tmp_path / "out", source: Path = run) -> tuple[int, str]:
        code = main(["export", str(source), kind, str(out), *options])
        printed = capsys.readouterr()
        return code, printed.out if code == 0 else printed.err

    return call


def rows(folder: Path, split: str = "train") -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pq.read_table(folder / "data" / f"{split}.parquet").to_pylist()
    return table


def answers(folder: Path) -> list[str]:
    return [row["messages"][-1]["content"] for row in rows(folder)]


@pytest.mark.parametrize("kind", KINDS)
def test_trees_with_a_hint_are_left_out_and_counted(kind: str, run: Path, export: Export, tmp_path: Path) -> None:
    hinted = [replace(tree, prompts={"plain": (1,)}) for tree in four_episodes(3)]
    recorded_run(run, hinted, step=3)
    code, text = export(kind, "--json")
    assert (code, json.loads(text)["left_out"].get("with a hint in the prompt")) == (0, 4)
    assert {row["step"] for row in rows(tmp_path / "out")} == {1, 2}


@pytest.mark.parametrize("margin", ["-0.5", "nan", "inf", "much"])
def test_a_margin_is_a_finite_number_of_at_least_0(margin: str, export: Export) -> None:
    code, told = export("preferences", f"--min-margin={margin}")
    assert code == 2
    assert f"--min-margin must be a finite number of at least 0, got {margin}" in told


# ---- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_folders_load_in_datasets_without_a_cast_and_have_a_card(kind: str, export: Export, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    hub = pytest.importorskip("huggingface_hub")
    code, text = export(kind, "--json")
    assert code == 0
    out = tmp_path / "out"
    loaded = datasets.load_dataset("parquet", data_files=str(out / "data" / "*.parquet"), cache_dir=str(tmp_path / "c"))
    assert loaded["train"].to_list() == rows(out)
    assert json.loads(text)["rows"] == {"train": len(rows(out))}
    card = hub.metadata_load(out / "README.md")
    assert card["license"] == "apache-2.0"
    assert card["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/train.parquet"}]}
    ]
    record = json.loads((out / "provenance.json").read_text())
    assert record["kind"] == kind
    assert record["envs"] == [{"id": "math/arithmetic-v0", "licence": "Apache-2.0"}]
    assert (record["seed"], record["episode_seeds"]) == (7, [11, 11])
    assert len(record["settings_sha256"]) == 64
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "data", "provenance.json"]
    assert out.stat().st_mode & 0o777 == 0o755


def test_the_card_states_whether_test_tasks_are_in_it(export: Export, tmp_path: Path) -> None:
    export("chat", out=tmp_path / "a")
    assert "test tasks of the environments are not in this data set" in (tmp_path / "a" / "README.md").read_text()
    code, text = export("chat", "--label", "held-out", "--include-test", out=tmp_path / "b")
    assert (code, "rows         test 1" in text) == (0, True)
    assert "must not be evaluated on these tasks" in (tmp_path / "b" / "README.md").read_text()
    assert [row["messages"][-1]["content"] for row in rows(tmp_path / "b", "test")] == ["held"]


@pytest.mark.parametrize(
    "options, expected",
    [
        ((), ["right", "wrong"] * 4),
        (("--only", "success"), ["right"] * 4),
        (("--steps", "2"), ["right", "wrong"] * 2),
        (("--steps", "2-"), ["right", "wrong"] * 2),
        (("--steps", "-1"), ["right", "wrong"] * 2),
        (("--per-task", "1"), ["right"] * 2),
        (("--only", "success", "--success-at", "0"), ["right", "wrong"] * 4),
    ],
)
def test_options_choose_episodes(options: tuple[str, ...], expected: list[str], export: Export, tmp_path: Path) -> None:
    code, text = export("chat", *options)
    assert code == 0, text
    assert answers(tmp_path / "out") == expected


def test_json_lines_have_every_column_and_the_fields_that_some_message_has(export: Export, tmp_path: Path) -> None:
    export("chat", "--format", "jsonl", "--steps", "1")
    lines = (tmp_path / "out" / "data" / "train.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["messages"] == [
        {"role": "user", "content": "Question 0"},
        {"role": "assistant", "content": "right"},
    ]
    assert (first["tools"], first["rewrite"]) == (None, None)


def test_redaction_changes_every_text(export: Export, tmp_path: Path) -> None:
    (tmp_path / "hide.py").write_text("def upper(text):\n    return text.upper()\n")
    code, text = export("chat", "--redact", f"{tmp_path / 'hide.py'}:upper", "--steps", "1")
    assert code == 0, text
    assert [message["content"] for message in rows(tmp_path / "out")[0]["messages"]] == ["QUESTION 0", "RIGHT"]
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["choices"]["redacted"] is True


def test_an_empty_folder_is_filled(export: Export, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert export("chat")[0] == 0
    assert len(answers(tmp_path / "out")) == 8


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_exported_is_one_sentence(export: Export, run: Path, tmp_path: Path) -> None:
    (tmp_path / "hide.py").write_text("def none(text):\n    return None\n\n\ndef fail(text):\n    return {}[text]\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    empty = recorded_run(tmp_path / "empty", [], step=1).path
    for file in (empty / "episodes").iterdir():
        file.unlink()
    refusals: list[tuple[tuple[str, ...], dict[str, Path], str]] = [
        (("chats",), {}, "kind of export must be a known name, got 'chats' (envgym export); did you mean chat?"),
        (("chat",), {"out": tmp_path / "full"}, "OUT must be new or an empty folder, got "),
        (("chat",), {"out": tmp_path / "full" / "a.txt" / "out"}, "OUT must be in a folder, got "),
        (("chat", "--label", "held-out"), {"out": tmp_path / "no" / "out"}, "; add --include-test "),
        (("chat",), {"source": empty}, "run must have saved episodes, got none "),
        (("chat",), {"source": tmp_path / "full"}, "run directory must hold run.json, got none "),
        (("chat", "--label", "held-in"), {}, "label must be one of the run, got 'held-in' "),
        (("chat", "--label", "held-out"), {}, "got none of 1 episodes: 1 of test tasks "),
        (("chat", "--steps", "7-9"), {}, "--steps must include steps with saved episodes, got 7-9 "),
        (("chat", "--steps", "3-2"), {}, "--steps must end at or after its first step, got 3-2 "),
        (("chat", "--steps", "x"), {}, "--steps must be a range such as 10-20, got x "),
        (("chat", "--success-at", "2", "--only", "success"), {}, "got none of 8 episodes: 8 without success "),
        (("chat", "--min-margin", "1"), {}, "options must be among --label, --steps, "),
        (("tokens", "--redact", "a.py:b"), {}, "options must be among --label, --steps, "),
        (("chat", "--redact", f"{tmp_path / 'hide.py'}:other"), {}, "--redact must name an importable function, got "),
        (("chat", "--redact", f"{tmp_path / 'hide.py'}:none"), {}, "must return text, got None (--redact); "),
        (("chat", "--redact", f"{tmp_path / 'hide.py'}:fail"), {}, "must return text, got KeyError: 'Question 0' "),
        (("preferences", "--min-margin", "1"), {}, "export must have at least one row, got none of 8 episodes "),
    ]
    for words, places, sentence in refusals:
        code, text = export(*words, **places)
        lines = [line for line in text.splitlines() if not line.startswith("export: ")]
        assert (code, sentence in text, len(lines)) == (2, True, 1), (words, text)
    assert (tmp_path / "full" / "a.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"run", "empty", "full", "hide.py"}


def test_trees_without_messages_are_exported_as_tokens_alone(tmp_path: Path, export: Export) -> None:
    (tree, *_) = four_episodes(1)
    old = Tree(**{name: getattr(tree, name) for name in tree.__dataclass_fields__ if name not in ("messages", "tools")})
    source = recorded_run(tmp_path / "old", [old]).path
    code, text = export("chat", source=source)
    assert code == 2
    assert "got none of 1 episodes: 1 recorded before messages were kept" in text
    assert "; export the kind tokens, " in text
    assert export("tokens", source=source)[0] == 0
    assert rows(tmp_path / "out")[0]["labels"] == [-100, -100, 10, 11]


def test_a_failure_leaves_nothing(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("envgym.export.dataset.write_json", full)
    before = {path.name for path in tmp_path.iterdir()}
    code, text = export("chat")
    assert (code, "disk must have space left" in text) == (2, True)
    assert {path.name for path in tmp_path.iterdir()} == before


# ---- splits and formats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_all_files_of_a_folder_load_as_one_data_set(format: str, run: Path, export: Export, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    plain = [answer("x" * 4000, 1.0, place=f"step-000003/000/{number:02d}") for number in range(150)]
    called = [answer("", 1.0, place=f"step-000004/000/{number:02d}", calls=CALLS) for number in range(2)]
    recorded_run(run, plain, step=3)
    recorded_run(run, called, step=4)
    tested = [answer("", 1.0, place=f"train/test/0/{number}", split=Split.TEST, calls=CALLS) for number in range(2)]
    recorded_run(run, tested, step=5)
    assert export("chat", "--include-test", "--format", format)[0] == 0
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "c"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 160, "test": 2}
    for split in loaded:
        assert loaded[split][-1]["messages"][-1]["tool_calls"][0]["function"]["name"] == "add"
    fields = [frozenset(entry) for split in loaded for row in loaded[split] for entry in row["messages"]]
    assert len(set(fields)) == 1
