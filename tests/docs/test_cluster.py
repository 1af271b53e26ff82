"""The page on clusters shows sentences as they are printed, and settings whose sums are those of its text."""

import re
from dataclasses import replace

import pytest
import yaml

from envgym.errors import SettingsError
from envgym.runtime.ray.placement import Bundle, check_nodes, check_totals
from envgym.trainer.launch.settings import LaunchSettings, RaySettings
from tests.envgym.runtime.ray.test_placement import OTHER, OWN
from tests.support.pages import ROOT, blocks_of

PAGE = "docs/cluster.md"
(TEXT,) = (block.text for block in blocks_of(PAGE, "text"))
RUNS = [yaml.safe_load(block.text) for block in blocks_of(PAGE, "yaml")]


def test_page_shows_the_sentences_of_refusals() -> None:
    told = []
    with pytest.raises(SettingsError) as raised:
        check_totals([Bundle(role=str(n), cpus=1, gpus=1) for n in range(17)], [{"CPU": 64, "GPU": 8}], is_free=False)
    told.append(raised.value)
    for report in (replace(OTHER, version="0.0.9"), replace(OTHER, clock_s=-7.25)):
        with pytest.raises(SettingsError) as raised:
            check_nodes([report], OWN, tolerance_s=5)
        told.append(raised.value)
    assert TEXT.splitlines() == [f"envgym: {error}" for error in told]


@pytest.mark.parametrize("run, gpus, cpus", [(RUNS[0], 8, 64), (RUNS[1], 32, 224)], ids=["one node", "four nodes"])
def test_processes_of_the_page_take_what_it_says(run: dict[str, object], gpus: int, cpus: int) -> None:
    launch = LaunchSettings.model_validate(run["launch"])
    counts = {"learner": launch.learners, "server": launch.servers, "env_server": launch.env_servers}
    assert sum(count * getattr(launch.ray, f"{kind}_cpus") for kind, count in counts.items()) == cpus
    assert launch.learners + launch.servers == gpus
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"= {cpus}" in page
    assert f"**GPUs**: {gpus}" in page


def defaults_shown(section: str) -> dict[str, str]:
    _, _, rest = (ROOT / PAGE).read_text(encoding="utf-8").partition(f"\n## {section}\n")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", rest.partition("\n## ")[0], re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}


def test_table_has_every_setting_with_its_default() -> None:
    shown = defaults_shown("With Ray")
    defaults = RaySettings().model_dump()
    assert shown.keys() == defaults.keys()
    for name, default in defaults.items():
        expected = "1 on CUDA, else 0" if default is None else f"{default:g}" if isinstance(default, float) else default
        assert shown[name].strip("`") == expected


def test_variables_of_compose_have_the_defaults_of_the_page() -> None:
    compose = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    shown = defaults_shown("Without Ray")
    assert set(shown) == {"RUN", "RUNS", "CONFIG", "ENV", "ENV_SETTING", "ENV_SETTING_2", "MODEL"}
    for name, default in shown.items():
        (used,) = set(re.findall(rf"\$\{{{name}:-([^}}]*)\}}", compose))
        assert used == ("runs" if default == "a volume" else default.strip("`"))
    assert "runs" in yaml.safe_load(compose)["volumes"]
