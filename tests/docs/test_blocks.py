"""Code blocks of all pages: settings load, programs compile and import, commands exist."""

import ast
import inspect
import re
import runpy
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from envgym.cli.pipelines import is_pipeline
from envgym.trainer.methods import protocols
from envgym.trainer.settings import train_settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"curl", "docker", "source", "systemd-run", "python3"}
"""Programs of the system."""


class Block(NamedTuple):
    """A code block of a page."""

    page: Path
    language: str
    title: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    pattern = r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$'
    text = re.sub(r"^````.*?^````$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [Block(page, *found) for found in re.findall(pattern, text, re.DOTALL | re.MULTILINE)]


BLOCKS = [block for page in PAGES if not page.is_symlink() for block in read_blocks(page)]


def of(*languages: str) -> list[Any]:
    chosen = [block for block in BLOCKS if block.language in languages]
    return [pytest.param(block, id=f"{block.page.name}-{number}") for number, block in enumerate(chosen)]


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in BLOCKS} == {"bash", "python", "text", "toml", "yaml"}
    assert len(BLOCKS) > 70


@pytest.mark.parametrize("block", of("yaml"))
def test_settings_load(block: Block) -> None:
    """A block that is a part of a settings file gets an environment."""
    data = yaml.safe_load(block.text)
    if not is_pipeline(data):  # pipelines: tests/envgym/cli/test_pipelines.py
        train_settings({"envs": [{"id": "math/arithmetic-v0"}]} | data)


@pytest.mark.parametrize("block", of("python"))
def test_program_compiles_and_its_imports_of_envgym_exist(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "envgym":
            names: dict[str, Any] = {}
            exec(f"from {node.module} import {', '.join(alias.name for alias in node.names)}", names)


def page_blocks(name: str) -> list[str]:
    return [block.text for block in BLOCKS if block.page.name == name and block.language == "python"]


def test_first_program_of_the_site_prints_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = page_blocks("index.md")
    exec(compile(program, "index.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_program_of_the_architecture_page_runs() -> None:
    import envgym

    (program,) = page_blocks("architecture.md")
    space: dict[str, Any] = {"env": envgym.make("math/arithmetic-v0")}
    exec(compile(program, "architecture.md", "exec"), space)
    assert space["record"].ending is not None


def test_program_of_the_retrieval_page_finds_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bm25s")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    texts = {"baikal": "Lake Baikal is the deepest lake of the world.", "nile": "The Nile is a river."}
    lines = [f'{{"id": "{name}", "title": "{name}", "text": "{text}"}}\n' for name, text in texts.items()]
    (tmp_path / "wiki.jsonl").write_text("".join(lines), encoding="utf-8")
    (program,) = page_blocks("search_envs.md")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    runpy.run_path("program.py")
    assert "baikal" in capsys.readouterr().out.splitlines()[0]


def commands() -> list[Any]:
    lines = [
        (block.page.name, line) for block in BLOCKS if block.language == "bash" for line in block.text.splitlines()
    ]
    kept = [(page, line.partition(" #")[0].strip()) for page, line in lines]
    return [pytest.param(line, id=f"{page}: {line}") for page, line in kept if line and "envgym " not in line]


@pytest.mark.parametrize("line", commands())
def test_command_names_a_target_a_script_or_a_program_that_exists(line: str) -> None:
    """Commands of envgym: tests/docs/test_commands.py."""
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif program == "pip":
        extras = re.findall(r"\[([\w,]+)\]", line)
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for extra in extras for name in extra.split(","))
    elif program == "python":
        named = words[2] if words[1] == "-m" else words[1]
        path = ROOT / (f"{named.replace('.', '/')}.py" if words[1] == "-m" else named)
        is_shown = any(block.title == named for block in BLOCKS)
        assert path.exists() or is_shown or named == "pytest", named
    else:
        assert program in PROGRAMS, program
    files = [word for word in words[1:] if re.match(r"(tests|constraints|benchmarks|docker|scripts)/", word)]
    assert all((ROOT / name).exists() for name in files), line


def test_protocols_of_the_page_on_curricula_are_those_of_the_code() -> None:
    shown_of = {"Curriculum": protocols.ObservingCurriculum, "Allocator": protocols.Allocator}
    shown = [node for text in page_blocks("curricula.md") for node in ast.parse(text).body]
    assert [node.name for node in shown if isinstance(node, ast.ClassDef)] == list(shown_of)
    for node in shown:
        assert isinstance(node, ast.ClassDef)
        for method in node.body:
            assert isinstance(method, ast.FunctionDef)
            arguments = [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)]
            assert arguments == list(inspect.signature(getattr(shown_of[node.name], method.name)).parameters)
