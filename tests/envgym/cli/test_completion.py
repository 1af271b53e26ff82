"""`envgym completion`: what shells offer at a TAB, asked of the shells themselves."""

import contextlib
import io
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from envgym import list_ids
from envgym.agents.search.protocol import SEARCH
from envgym.cli.completion import actions_by_command
from envgym.cli.main import COMMANDS, build_parser, main
from envgym.cli.settings import read_settings_file_sections
from envgym.trainer.methods.protocols import CREDIT
from envgym.trainer.recipes import RECIPE

KEYS = [key.key for section in read_settings_file_sections() for key in section.keys]
OPTIM = [f"{key}.name=" if key == "optim.optimizer" else f"{key}=" for key in KEYS if key.startswith("optim.")]
PUZZLES = [env_id for env_id in list_ids() if env_id.startswith("puzzles/")]
LINES: Mapping[str, list[str]] = {
    "envgym tr": ["train", "trace"],
    "envgym train --re": ["--resume"],
    "envgym eval --env puz": PUZZLES,
    "envgym show math/": [
        "math/arithmetic-v0",
        "math/instructions-v0",
        "math/metamath-v0",
        "math/problems-v0",
        "math/proofs-v0",
        "math/z3-v0",
    ],
    "envgym check math/arithmetic-v0 puz": PUZZLES,
    "envgym recipes dr": ["dr_grpo"],
    "envgym list --kind cr": ["credit"],
    "envgym settings optim.d": ["optim.decay"],
    "envgym eval --search ": SEARCH.names(),
    "envgym completion ": ["bash", "zsh", "fish"],
    "envgym train a.yaml --set optim.": OPTIM,
    "envgym train a.yaml --set run.name=hot --set optim.": OPTIM,
    "envgym train a.yaml --set optim.decay=": ["constant", "linear", "cosine"],
    "envgym train a.yaml --set recipe=dr_": ["dr_grpo"],
    "envgym train a.yaml --set credit.name=": CREDIT.names(),
    "envgym train a.yaml --set envs.0.id=puz": PUZZLES,
    "envgym eval --agent-set max": ["max_turn_tokens=", "max_context_tokens="],
}
"""What was typed -> what is offered; after KEY= the value alone."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def write(shell: str) -> Path:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            assert main(["completion", shell]) == 0
        path = tmp_path_factory.mktemp(shell) / "_envgym"
        path.write_text(text.getvalue(), encoding="utf-8")
        return path

    return write


def in_bash(script: Path, *lines: str) -> list[list[str]]:
    """Return what bash offers at the end of each line, whose words it splits at blanks and "=" as at a prompt."""
    asks = [
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; COMPREPLY=()\n"
        '_envgym_complete 2>/dev/null; echo "${COMPREPLY[*]}"'
        for words in (line.replace("=", " = ").split(" ") for line in lines)
    ]
    program = f"source {script}\n" + "\n".join(asks)
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_offers_what_fits(script: Callable[[str], Path]) -> None:
    assert dict(zip(LINES, in_bash(script("bash"), *LINES), strict=True)) == LINES


def test_bash_offers_every_command_and_all_options_of_each(script: Callable[[str], Path]) -> None:
    path = script("bash")
    assert sorted(in_bash(path, "envgym ")[0]) == sorted(COMMANDS)
    offered = in_bash(path, *(f"envgym {name} -" for name in COMMANDS))
    for name, words in zip(COMMANDS, offered, strict=True):
        actions = actions_by_command(build_parser(name))[name]
        assert sorted(words) == sorted(option for action in actions for option in action.option_strings), name


def test_bash_takes_the_form_option_equals_value_and_offers_files(
    script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one.yaml", "two.txt"):
        (tmp_path / name).touch()
    path = script("bash")
    assert in_bash(path, "envgym train --set=optim.d", "envgym train --set run.name=hot ") == [
        ["optim.decay="],
        ["one.yaml"],
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish on this machine (Debian: apt-get install fish)")
def test_fish_offers_the_same(script: Callable[[str], Path]) -> None:
    path = script("fish")
    asks = "\n".join(f'set words (complete -C {line!r} | string split -f 1 \\t); echo "$words"' for line in LINES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {path}\n{asks}"], capture_output=True, text=True, check=True
    )
    for (line, words), said in zip(LINES.items(), done.stdout.splitlines(), strict=True):
        typed = line.rpartition(" ")[2]
        key = typed.partition("=")[0] + "=" if "=" in typed else ""
        assert sorted(word.removeprefix(key) for word in said.split()) == sorted(words), line


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine (Debian: apt-get install zsh)")
def test_zsh_reads_the_script_and_finds_every_command_in_it(script: Callable[[str], Path]) -> None:
    path = script("zsh")
    subprocess.run(["zsh", "-f", "-n", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    assert all(f"_shtab_envgym_{name.replace('-', '_')}_options=(" in text for name in COMMANDS)
    assert all(name in text for name in (*OPTIM, *RECIPE.names(), *PUZZLES))


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "SHELL must be one of 'bash', 'zsh', 'fish', got 'csh'" in capsys.readouterr().err
