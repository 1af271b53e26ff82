"""Code blocks of all pages: a run has their settings, what programs name of envgym exists, and so do commands."""

import ast
import inspect
import re
import runpy
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pydantic import BaseModel, ValidationError

import envgym
from envgym.cli.pipelines import PHASES, SELF_TRAINING
from envgym.cli.settings import kinds_by_key
from envgym.core.turns import Ending, Scored
from envgym.errors import EnvgymError
from envgym.plugins import Choice, PluginKind
from envgym.registry import creator_of, parameters
from envgym.trainer.catalog import SELF_TRAINING as PLAN
from envgym.trainer.methods import protocols
from envgym.trainer.sections import SelfTrainingSettings
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


def parts_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings of a run that a block has: its own, and those that each phase lays over them."""
    alone = {section: value for section, value in data.items() if section not in (PHASES, SELF_TRAINING)}
    phases = ({key: value for key, value in phase.items() if key != "name"} for phase in data.get(PHASES, ()))
    return [alone, *phases]


def values_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:  # YAML
    """Yield every path of a tree with what stands there, sections and lists before what they hold."""
    yield path, value
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from values_of(inner, (*path, key))


def kind_at(path: Sequence[str | int]) -> PluginKind[Any] | None:
    """Return the kind of plug-in that is chosen at a path, if one is."""
    keys = ["0" if isinstance(key, int) else key for key in path]
    if keys[:1] == ["models"]:
        keys[1:2] = ["NAME"]
    in_list_or_mapping = keys[-1:] == ["0"] or keys[-2:-1] == ["parties"]
    return None if keys[-1:] == ["parties"] else kinds_by_key().get(".".join(keys[:-1] if in_list_or_mapping else keys))


def check_choice(kind: PluginKind[Any], value: Any) -> None:  # a name, or a mapping with one
    """See that a plug-in of ours takes the settings that stand beside its name. Raises: whatever refuses them."""
    choice = Choice.model_validate(value)
    if ":" in choice.name:  # a class of the page, which its own test runs
        return
    plugin = kind.load(choice.name)
    if isinstance(plugin, type) and issubclass(plugin, BaseModel):
        assert choice.settings.keys() <= plugin.model_fields.keys()
        if not any(str(value).startswith("runs/") for value in choice.settings.values()):  # a run that is not here
            plugin.model_validate(choice.settings)
    elif kind.is_called(plugin):
        inspect.signature(plugin).bind(*kind.arguments, **choice.settings)
    else:
        assert choice.settings == {}


def check_settings(data: Mapping[str, Any]) -> None:
    """See that a run has every value of a block, and that its plug-ins and envs take what is meant for them."""
    settings = train_settings({"envs": [{"id": "math/arithmetic-v0"}], **data}).model_dump(mode="json")
    for path, value in values_of(data):
        kind = kind_at(path)
        if kind is not None and isinstance(value, str | Mapping):
            check_choice(kind, value)
        got: Any = settings  # a YAML tree
        for key in path:
            got = got[key]
        if not isinstance(value, Mapping | list):
            assert (got["name"] if isinstance(got, Mapping) else got) == value, path
    for env in data.get("envs", ()):
        if ":" not in env["id"]:
            known = parameters(creator_of(env["id"]))
            assert known is None or env.get("settings", {}).keys() <= known.keys(), env["id"]


@pytest.mark.parametrize("block", of("yaml"))
def test_settings_of_a_block_are_those_of_the_run(block: Block) -> None:
    """A block that is a part of a settings file gets an environment."""
    data = yaml.safe_load(block.text)
    for part in parts_of(data):
        check_settings(part)
    if SELF_TRAINING in data:
        SelfTrainingSettings.model_validate(data[SELF_TRAINING])
        check_choice(PLAN, data[SELF_TRAINING]["plan"])


@pytest.mark.parametrize(
    "text",
    [
        "optim: {lrr: 0.1}",
        "credit: {name: gigpo, discuont: 0.9}",
        "credit: {name: gigpo, discount: 2.0}",
        "loss: ppo_clipp",
        "objective: {terms: [{name: a, loss: {name: nll, min_rewrad: 1}}]}",
        "run: {trackers: [progress, {name: wandb}]}",
        "models: {judge: {kind: {name: local}}}",
        "envs: [{id: math/arithmetic-v0, settings: {levle: 2}}]",
        "envs: [{id: math/arithmetic-v0, wrappers: [{name: turn_limit, turns: 3}]}]",
        "optim: {lr: 1e-4}",  # YAML 1.1 reads a text, so that the page and the run would differ
    ],
)
def test_a_block_that_a_run_would_not_have_is_noticed(text: str) -> None:
    with pytest.raises((AssertionError, EnvgymError, ValidationError, TypeError)):
        check_settings(yaml.safe_load(text))


@pytest.mark.parametrize("block", of("python"))
def test_program_compiles_and_what_it_names_of_envgym_exists(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "envgym":
            assert hasattr(envgym, node.attr), f"envgym.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "envgym":
            names: dict[str, Any] = {}
            exec(f"from {node.module} import {', '.join(alias.name for alias in node.names)}", names)


def page_blocks(name: str) -> list[str]:
    return [block.text for block in BLOCKS if block.page.name == name and block.language == "python"]


def test_first_program_of_the_site_prints_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = page_blocks("index.md")
    space: dict[str, Any] = {}
    exec(compile(program, "index.md", "exec"), space)
    task = space["info"]["envgym"].task
    assert len(task.prompt) > 10
    assert task.prompt in capsys.readouterr().out


def test_program_of_the_architecture_page_runs() -> None:
    (program,) = page_blocks("architecture.md")
    space: dict[str, Any] = {"env": envgym.make("math/arithmetic-v0")}
    exec(compile(program, "architecture.md", "exec"), space)
    record = space["record"]
    assert (record.ending, space["terminated"], space["truncated"]) == (Ending.TERMINATED, True, False)
    assert record.action.content == "the answer is 12"
    assert isinstance(record.reward, Scored)
    assert record.reward.value == space["reward"]


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
    program = re.sub(r"^\.venv[\w-]*/bin/", "", words[0])
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
