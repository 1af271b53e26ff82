"""Run directories with files that are cut short, or are something else: one sentence each, and a way to go on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from envgym.runs.files import sole_writer

NEWEST = "checkpoints/step-000002"
DEEP = "[" * 100_000


def half(path: Path) -> None:
    """Cut a file in the middle."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def be_directory(path: Path) -> None:
    """Put a directory in a file's place."""
    path.unlink(missing_ok=True)
    path.mkdir()


def be_text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        path.write_text(text)

    return write


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    return sentence


@pytest.mark.parametrize(
    "file,do,reason",
    [
        ("state.json", half, "state.json: "),
        ("state.json", be_text("[]"), "state.json: list indices must be integers"),
        ("state.json", be_text(DEEP), "state.json: maximum recursion depth exceeded"),
        ("optimizer.pt", half, "optimizer.pt: PytorchStreamReader failed reading zip archive"),
        ("optimizer.pt", Path.unlink, "optimizer.pt: "),
        ("optimizer.pt", be_directory, "optimizer.pt: Is a directory"),
        ("model/model.safetensors", half, "model/model.safetensors: "),
        ("model/model.safetensors", be_text(""), "model/model.safetensors: "),
        ("model/config.json", half, "model/config.json: "),
        ("model/tokenizer.json", half, "model/tokenizer.json: "),
        ("model", shutil.rmtree, "model/config.json: No such file or directory"),
        ("model", be_text("x"), "model/config.json: Not a directory"),
    ],
)
def test_checkpoint_that_cannot_be_read_is_named_and_the_last_good_one_offered(
    file: str, do: Callable[[Path], None], reason: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    do(run / NEWEST / file)
    commands = (("train", "run", "--resume"), ("eval", "--model", "run"), ("value", "run", "--episodes", "64"))
    for words in commands:
        sentence = told(capsys, *words)
        assert sentence.startswith(f"envgym: checkpoint must be complete, got {reason}")
        assert sentence.endswith(
            f"(run/{NEWEST}); to continue from step-000001, run "
            f"`mv run/{NEWEST} run/checkpoints/broken-step-000002 && envgym train run --resume`."
        )


def test_offered_command_goes_on_from_the_last_good_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half(run / NEWEST / "optimizer.pt")
    first, _, second = told(capsys, "train", "run", "--resume").split("`")[1].partition(" && ")
    _, source, target = first.split()
    Path(source).rename(target)
    assert main(second.split()[1:]) == 0
    assert [row["step"] for row in RunDirectory.open(run).metrics()] == [1, 2]
    assert (run / NEWEST / "state.json").exists()


def test_run_without_a_good_checkpoint_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        half(run / f"checkpoints/step-00000{step}/optimizer.pt")
    assert told(capsys, "train", "run", "--resume").endswith("(run/checkpoints/step-000002); start a new run.")


@pytest.mark.parametrize(
    "file,do,reason",
    [
        ("config.json", half, "run file must be as envgym wrote it, got JSONDecodeError"),
        ("config.json", be_text('{"a":' * 20_000 + "1" + "}" * 20_000), "got RecursionError"),
        ("config.json", be_directory, "Is a directory"),
        ("run.json", half, "run file must be as envgym wrote it, got JSONDecodeError"),
        ("metrics.jsonl", be_text('{"step": 1\n{"step": 2}\n'), "metrics.jsonl, line 1); restore it"),
        ("metrics.jsonl", be_text('{"step": 1}\n{"loss": 2}\n'), "run file must be as envgym wrote it"),
        ("metrics.jsonl", be_text('{"step": 1}\n{"step": 2, "loss": {}}\n'), "metrics.jsonl, line 2); restore it"),
        ("metrics.jsonl", be_text(f"{DEEP}\n"), "got RecursionError"),
        ("metrics.jsonl", be_directory, "Is a directory"),
        ("evals/step-000000-held-out.json", half, "evals/step-000000-held-out.json); restore it"),
        ("evals/step-000000-held-out.json", be_text("{}"), "evaluation must have a step and a label, got []"),
        ("episodes/step-000000-held-out.parquet", half, "got ArrowInvalid: "),
        ("episodes/step-000000-held-out.parquet", be_text(""), "got ArrowInvalid: "),
    ],
)
def test_record_that_cannot_be_read_is_one_sentence(
    file: str, do: Callable[[Path], None], reason: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    do(run / file)
    for words in (("train", "run", "--resume"), ("view", "run", "--export"), ("view", "run", "--json")):
        assert reason in told(capsys, *words)


@pytest.mark.parametrize("text", ["{}", '{"envs": 3, "model": [], "run": {}, "agent": "x", "evaluation": 1}'])
def test_report_of_foreign_settings_is_one_sentence(text: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.json").write_text(text)
    assert "run file must be as envgym wrote it, got " in told(capsys, "view", "run", "--export")


def test_section_that_is_none_is_one_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.json").write_text('{"run": null}')
    assert "(run/config.json)" in told(capsys, "train", "run", "--resume")


def test_files_with_other_names_are_left_alone(run: Path) -> None:
    for folder, names in {
        "checkpoints": ("step-abc/state.json", "step-/state.json", "step-000009.old/state.json", "step-²/state.json"),
        "evals": ("step-x.json", "step-.json", "step-000001-a.json.bak", "step-³-a.json"),
        "episodes": ("step-1.2.3.parquet", "step-000001-train.parquet.tmp", "other.parquet"),
    }.items():
        for name in names:
            (run / folder / name).parent.mkdir(exist_ok=True)
            (run / folder / name).write_text("?")
    assert main(("train", "run", "--resume")) == main(("view", "run", "--export")) == 0


@pytest.mark.parametrize("folder", ["evals", "checkpoints"])
def test_file_in_place_of_a_folder_is_one_sentence(folder: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    be_text("x")(run / folder)
    assert told(capsys, "train", "run", "--resume").startswith(f"envgym: run/{folder}")


def test_run_that_is_written_can_be_read_and_not_resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "report.html"}
    with sole_writer(run):
        for words in (("train", "run", "--resume"), ("sft", "run", "--resume", "--set", "run.steps=0")):
            assert main(words) == 2
        assert "run directory must have one writer at a time, got process " in told(capsys, "train", "run", "--resume")
        assert main(("view", "run", "--export")) == 0
        assert main(("eval", "--model", "run", "--tasks", "1", "--out", "out")) == 0
        with sole_writer(Path("out")):
            assert "got process " in told(capsys, "eval", "--out", "out", "--resume")
    assert {path: path.read_bytes() for path in before} == before
