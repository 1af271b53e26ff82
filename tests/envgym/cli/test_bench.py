"""`envgym bench envs`: every environment has a row, with its figures or with what is missing."""

import json

import pytest

import envgym
from envgym.cli.main import main

QUICK = ("math/arithmetic-v0", "puzzles/guess_number-v0")


def test_figures_are_positive_and_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "envs", *QUICK, "search/qa-v0", "--seconds", "0.02", "--json"]) == 0
    out = capsys.readouterr()
    told = json.loads(out.out)
    assert set(told["envs"]) == {*QUICK, "search/qa-v0"}
    for name in QUICK:
        assert set(told["envs"][name]) == {"reset_us", "step_us", "fork_us", "fork_step_us", "episodes_per_s", "turns"}
        assert min(told["envs"][name].values()) > 0
    assert told["envs"]["math/arithmetic-v0"]["turns"] == 2  # the calculator, then the answer
    assert told["envs"]["search/qa-v0"]["missing"].startswith("data and one of corpus and retriever_url must be given")
    assert told["machine"]["cores"] >= 1
    assert "[3/3] search/qa-v0" in out.err


def test_markdown_is_a_table_of_seven_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "envs", QUICK[0], "--seconds", "0.01", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("|") for line in lines[:3]] == [8, 8, 8]
    assert lines[2].startswith("| `math/arithmetic-v0` | ")


def test_env_without_forks_has_no_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    env_class = type(envgym.make(QUICK[1]).unwrapped)
    monkeypatch.setattr(env_class, "fork_capability", envgym.ForkCapability.NONE)
    assert main(["bench", "envs", QUICK[1], "--seconds", "0.01", "--json"]) == 0
    speed = json.loads(capsys.readouterr().out)["envs"][QUICK[1]]
    assert speed["fork_us"] is speed["fork_step_us"] is None


def test_settings_reach_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "envs", QUICK[1], "--set", "size=2", "--seconds", "0.01", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["envs"][QUICK[1]]["turns"] <= 2


@pytest.mark.parametrize(
    "words, said",
    [
        (["envs", "math/arithmetik-v0"], "did you mean math/arithmetic-v0"),
        (["envs", "--seconds", "0"], "--seconds must be above 0"),
        (["envs", QUICK[0], "--set", "level"], "KEY=VALUE"),
        (["trainer"], "what"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err
