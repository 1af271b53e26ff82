"""Finding a command, errors as one sentence, and exit codes."""

import subprocess
import sys

import pytest

import envgym
from envgym.cli.main import COMMANDS, main
from envgym.errors import UnknownName

COUNTER = "tests.support.toys:Counter"


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n    {name}" in text for name in COMMANDS)
    code = (
        "import sys\nfrom envgym.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'rich', 'yaml', 'pydantic', 'envgym.env', 'envgym.conformance', 'torch', 'jsonschema'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"envgym {name}" in text
    assert "examples:" in text
    assert "--traceback" in text


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"envgym {envgym.__version__}\n"


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: envgym" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, told",
    [
        (["lits"], "command must be a known name, got 'lits' (envgym --help); did you mean list?"),
        (["show", "maths/arithmetic-v0"], "did you mean math/arithmetic-v0"),
        (["tasks", COUNTER, "--split", "tets"], "split must be a known name, got 'tets'"),
        (["tasks", COUNTER, "-n", "0"], "-n must be at least 1, got 0"),
        (["tasks", COUNTER, "--set", "max_turn=3"], "did you mean max_turns?"),
        (["tasks", COUNTER, "--set", "max_turns"], "--set must be KEY=VALUE"),
        (["tasks", COUNTER, "--set", "max_turns=[1"], "value must be YAML"),
        (["play", COUNTER, "--index", "100000"], "index must lie in"),
        (["check"], "envgym check must be given ids or --all, got neither"),
        (["check", COUNTER, "--all"], "envgym check must be given ids or --all, got both"),
        (["check", COUNTER, "--only", "fork_agree"], "did you mean fork_agrees"),
        (["check", "no_such_package:Env"], "got no no_such_package"),
        (["list", "--jsn"], "argument must be a known one, got --jsn (envgym list); did you mean --json?"),
        (
            ["list", "all", "now"],
            "argument must be a known one, got now (envgym list); run `envgym list --help` for",
        ),
        (
            ["show"],
            'got "the following arguments are required: ENV" (envgym show); run ',
        ),
        (
            ["show", COUNTER, "--set"],
            'arguments must be complete and fit together, got "--set expected one argument" (envgym show); run ',
        ),
        (
            ["train", "--dry-run", "--overfit-one-batch", "3"],
            'fit together, got "--overfit-one-batch not allowed with argument --dry-run" (',
        ),
        (["eval", "--success-at", "x"], "--success-at must be a number, got 'x' (envgym eval); "),
        (["tasks", COUNTER, "-n", "x"], "-n must be a whole number, got 'x' (envgym tasks); "),
        (["play", COUNTER, "--seed", "-1"], "--seed must be a whole number of at least 0, got -1 (envgym play); "),
        (["check", COUNTER, "--seed", "x"], "--seed must be a whole number of at least 0, got x (envgym check); "),
        (["new", "9dice"], "NAME must be letters, digits and underscores, begin with a letter"),
        (["new", "dice", "--shape", "cube"], "--shape"),
        (["new", "my_games/dice-v7"], "got my_games/dice-v7 (envgym new); leave the version out: my_games/dice."),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("envgym: ")
    assert told in streams.err
    assert streams.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--traceback", "show", "x/y-v0"], ["show", "x/y-v0", "--traceback"]])
def test_traceback_is_shown_on_demand(words: list[str]) -> None:
    with pytest.raises(UnknownName):
        main(words)


def test_reader_of_a_pipe_may_leave() -> None:
    command = f"{sys.executable} -m envgym tasks {COUNTER} -n 300 --answers | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("train/0")
    assert result.stderr == ""


def test_module_runs_as_the_command_does() -> None:
    result = subprocess.run([sys.executable, "-m", "envgym", "list"], capture_output=True, text=True, check=True)
    assert "\nmath/arithmetic-v0 " in f"\n{result.stdout}"
    assert "\033" not in result.stdout, "no colour outside a terminal"
