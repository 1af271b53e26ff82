"""The page of settings: every field of every settings model is on it, with what it means."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from envgym.agents.settings import EnvSettings, EvalSettings
from envgym.cli.completion import actions_by_command
from envgym.cli.main import COMMANDS, build_parser, main
from envgym.cli.plugin_kinds import KINDS, plugin_rows
from envgym.cli.settings import read_settings_file_sections, settings_tables
from envgym.config.plugins import Choice
from envgym.config.reference import read_sections
from envgym.config.settings import Settings
from envgym.trainer.settings import TrainSettings
from scripts.mkdocs_hooks import on_page_markdown

ROOT = Path(__file__).resolve().parents[2]
FILE_KEYS = {key.key: key for section in read_settings_file_sections() for key in section.keys}
CHOSEN_WITHIN = {"agent.name", "recipe", "search.value", "search.select"}
"""Keys that choose a plug-in and are texts, or settings of another plug-in."""


def settings_models(model: type[BaseModel] = Settings) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        if child.__module__.startswith("envgym."):
            yield child
            yield from settings_models(child)


@pytest.fixture(scope="module")
def tables() -> str:
    """Return the tables of the page; making them imports every plug-in."""
    return settings_tables()


def test_every_field_of_every_settings_model_says_what_it_means(tables: str) -> None:
    models = set(settings_models())
    assert len(models) > 150
    silent = [
        f"{model.__module__}.{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if len((field.description or "").split()) < 2
    ]
    assert sorted(silent) == []


def test_every_key_of_a_file_is_on_the_page_with_its_default(tables: str) -> None:
    sections = tables.partition("## Plug-ins")[0]
    for key in FILE_KEYS.values():
        (row,) = [line for line in sections.splitlines() if line.startswith(f"| `{key.key}` | ")]
        assert key.description.replace("|", "\\|") in row
        assert key.default in row


def test_fields_of_the_models_are_the_keys_of_the_page() -> None:
    top = {name for name in FILE_KEYS if "." not in name}
    assert top == {*TrainSettings.model_fields, "phases", "self_training"}
    for name, field in TrainSettings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) and name != "agent":
            inner = {} if issubclass(field.annotation, Choice) else field.annotation.model_fields
            assert {key for key in FILE_KEYS if key.rpartition(".")[0] == name} == {f"{name}.{key}" for key in inner}


def test_an_evaluation_has_no_key_of_its_own() -> None:
    assert {key.key for section in read_sections(EvalSettings) for key in section.keys} <= FILE_KEYS.keys()


def test_help_of_eval_states_the_defaults_of_the_settings() -> None:
    settings = EvalSettings(envs=(EnvSettings(id="math/arithmetic-v0"),))
    sections = (settings.evaluation, settings.engine, settings.run)
    stated = {}
    for action in actions_by_command(build_parser("eval"))["eval"]:
        if told := re.search(r"default: ([\d.]+)\)", action.help or ""):
            name = {"max_invalid": "max_invalid_rate"}.get(action.dest, action.dest)
            stated[name] = float(told[1])
    names = ("tasks", "samples", "top_p", "top_k", "success_at", "max_invalid_rate", "seed", "concurrency", "max_batch")
    assert stated == {
        name: next(getattr(section, name) for section in sections if hasattr(section, name))
        for name in (*names, "cache_gib")
    }


def test_every_choice_of_a_file_is_of_one_kind() -> None:
    chosen = [key for kind in KINDS.values() for key in kind.keys]
    assert sorted(chosen) == sorted({*(key.key for key in FILE_KEYS.values() if key.is_choice), *CHOSEN_WITHIN})


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.keys], ids=lambda kind: kind.name)
def test_every_plugin_is_on_the_page_with_its_settings_and_what_they_mean(kind: Any, tables: str) -> None:
    part = tables.partition(f"{{ #kind-{kind.name} }}\n")[2].partition("\n### ")[0]
    rows = plugin_rows(kind)
    assert [row.name for row in rows if f"| **`{row.name}`** |" not in part] == []
    for row in rows:
        own = part.partition(f"| **`{row.name}`** |")[2].partition("| **")[0]
        for key in row.settings:
            assert f"\n| `{key.key}` | {key.type}" in own, row.name
            assert len(key.description.split()) >= 2, f"{row.path} {key.key} is documented"


def test_site_puts_the_tables_into_the_page(tables: str) -> None:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="settings.md"))
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert on_page_markdown(text, page).endswith(f"{tables}\n")


def test_site_puts_the_help_of_every_command_into_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="commands.md"))
    text = on_page_markdown((ROOT / "docs/commands.md").read_text(encoding="utf-8"), page)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(COMMANDS)
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert f"## plan\n\n```text\n{capsys.readouterr().out}```" in text


def test_command_shows_a_key_a_section_and_the_kind_of_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "envs.3.weight"]) == 0
    said = "envs.0.weight = 1.0  number, above 0\n    Share of the groups in training, relative to the other envs.\n"
    assert capsys.readouterr().out == said
    assert main(["settings", "optim"]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert shown == ["optim", *(name for name in FILE_KEYS if name.startswith("optim."))]
    assert main(["settings", "correction"]) == 0
    assert "one of: none, tis, mis, icepop, geometric, divergence (envgym list --kind correction)" in (
        capsys.readouterr().out
    )
    assert main(["settings", "optim.lrr"]) == 2
    assert "settings key must be a known name, got 'optim.lrr' (envgym settings); did you mean optim.lr" in (
        capsys.readouterr().err
    )
