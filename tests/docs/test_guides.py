"""Guides for users: the settings, metrics, recipes and labels that they name exist, and the settings for a GPU run."""

import json
import re
from pathlib import Path
from typing import Final

import pytest
import yaml
from transformers import Qwen3Config

from envgym.cli.main import main
from envgym.cli.plugin_kinds import KINDS, plugin_rows
from envgym.cli.settings import read_settings_file_sections
from envgym.trainer.metrics.callbacks import LiveProgress
from envgym.trainer.recipes import RECIPE
from envgym.trainer.settings import train_settings
from tests.support.pages import SMALL, blocks_of
from tests.support.sources import ROOT

GUIDES: Final = ("monitoring", "gpu_quickstart", "choose_a_recipe", "migrate", "install")
KEYS: Final = {key.key for section in read_settings_file_sections() for key in section.keys}
SECTIONS: Final = {key.partition(".")[0] for key in KEYS}
ON_A_CPU: Final = ("engine={backend: transformers, device: cpu}", "model.lora=null", "model.precision=float32")


def text_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def named_settings(page: str) -> set[str]:
    """Return what a page writes as `section.key`, in prose and in every cell but the first of a row."""
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    own = re.sub(r"^\|[^|]*\|", "|", outside, flags=re.MULTILINE)
    return {name for name in re.findall(r"`([a-z]+\.[a-z_.]+)[`=:]", own) if name.partition(".")[0] in SECTIONS}


def is_setting(name: str) -> bool:
    """Return whether a name is a key of a settings file, or a setting of a plug-in of its kind."""
    section, _, rest = name.partition(".")
    plugins = plugin_rows(KINDS[section]) if section in KINDS else []
    is_name = rest == "name" and section in KINDS
    return name in KEYS or is_name or any(rest == key.key for row in plugins for key in row.settings)


def test_a_name_that_is_no_setting_is_found() -> None:
    assert named_settings("Set `optim.rate=1`. | `rollout.groups` |\n| `model.gone` | `loss.clip_high` |") == {
        "optim.rate",
        "rollout.groups",
        "loss.clip_high",
    }
    assert [is_setting(name) for name in ("optim.rate", "loss.clip_high", "credit.name", "rollout.groups")] == [
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("name", GUIDES)
def test_settings_of_a_guide_exist(name: str) -> None:
    assert [key for key in sorted(named_settings(text_of(name))) if not is_setting(key)] == []


def test_pages_that_add_an_extra_link_the_page_on_installation() -> None:
    """No index has the package: without an installation `pip install 'envgym[...]'` fails."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    adding = {name for name, text in pages.items() if re.search(r"pip install '?envgym", text)} - {
        "install",
        "changelog",
    }
    assert len(adding) >= 4
    assert [name for name in sorted(adding) if "](install.md" not in pages[name]] == []
    assert [name for name, text in pages.items() if re.search(r"pip install '?envgym[ `\n]", text)] == []


def test_labels_of_the_progress_line_are_those_of_the_program() -> None:
    page = text_of("monitoring")
    assert tuple(re.findall(r"^\| `(\w+)` \| `([\w/]+)` \|", page, re.MULTILINE)) == LiveProgress.SHOWN
    (line,) = blocks_of("docs/monitoring.md", "text")
    assert re.findall(r"  ([a-z]+) [\d.]", line.text) == [label for label, _ in LiveProgress.SHOWN]


def test_metrics_of_the_diagnosis_are_in_the_table_of_metrics() -> None:
    listed = set(re.findall(r"`([a-z_]+/\w+)`", text_of("train")))
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|[^|]*\|[^|]*\|$", text_of("monitoring"), re.MULTILINE)
    named = {name for cell in rows for name in re.findall(r"`([a-z_]+/\w+)`", cell)}
    assert len(named) > 20
    families = {name for name in named if name.startswith(("ending/", "time/"))}  # `ending/NAME`, `time/NAME_s`
    assert sorted(named - listed - families) == []


def test_table_of_recipes_is_short_and_names_recipes() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", text_of("choose_a_recipe"), re.MULTILINE)[1:]
    assert len(rows) <= 8
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} - {"sft"}
    assert named
    assert named <= set(RECIPE.table)


@pytest.mark.docs
@pytest.mark.usefixtures("folder")
def test_settings_for_a_gpu_show_a_batch_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks_of("docs/gpu_quickstart.md", "yaml")
    settings = train_settings(yaml.safe_load(block.text))
    assert (settings.engine.backend.name, settings.engine.colocate) == ("vllm", True)
    assert Path(block.title).read_text(encoding="utf-8") == block.text
    capsys.readouterr()
    small = [word for item in (*SMALL, *ON_A_CPU) for word in ("--set", item) if not item.startswith("sft=")]
    code = main(["train", block.title, "--dry-run", "--json", *small])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    assert json.loads(out)["episodes"]


def test_plan_of_the_settings_for_a_gpu_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks_of("docs/gpu_quickstart.md", "yaml")
    (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (line,) = [
        line for shell in blocks_of("docs/gpu_quickstart.md", "bash") for line in shell.commands if " plan " in line
    ]
    Qwen3Config(
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    ).save_pretrained(tmp_path / "Qwen3-4B")  # without a network
    sizes = []
    for words in (("--set", "model.name=Qwen3-4B"), ("--size", "7B")):
        assert main([*line.split()[1:], *words, "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert 20 * 2**30 < plan["memory_bytes"]["sampler"]["total"] < 0.9 * 79.2 * 2**30
        sizes.append(plan["parameters"])
    assert 4e9 < sizes[0] < sizes[1]
