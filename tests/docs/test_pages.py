"""Pages: their settings load, their programs run, their tables name what there is, their links and paths exist."""

import re
import runpy
import shlex
import subprocess
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgym.agents.search import Mcts, SurprisalFork
from envgym.agents.search.protocol import TreeStrategy
from envgym.cli.main import build_parser
from envgym.cli.plugin_kinds import KINDS
from envgym.config.plugins import Choice
from envgym.config.settings import apply_overrides, read_value
from envgym.report.from_run import declare
from envgym.runtime.http.access import MAX_HEAD_BYTES
from envgym.sandbox import MIB, BwrapSandbox, Limits, RunEnding, why_unusable
from envgym.tools import MAX_RESULT_CHARS
from envgym.trainer.method import build_method
from envgym.trainer.methods.annotators.base import ANNOTATOR
from envgym.trainer.recipes import RECIPE
from envgym.trainer.settings import recipe_settings, train_settings
from tests.agents.policies.serving.running import serving
from tests.agents.policies.small_models import llama
from tests.support.pages import BLOCKS, blocks_of
from tests.support.plugins import LOSSES, STRATEGIES
from tests.support.sources import ROOT

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}


def test_settings_of_annotators_can_be_built() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", TEXTS["annotate"], re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    for text in blocks:
        method = build_method(train_settings({"envs": [{"id": "math/arithmetic-v0"}], **yaml.safe_load(text)}))
        assert method.annotators


def test_every_annotator_is_named() -> None:
    assert [name for name in ANNOTATOR.table if f"`{name}`" not in TEXTS["annotate"]] == []


def test_every_loss_is_named_with_its_settings() -> None:
    table = TEXTS["losses"][TEXTS["losses"].index("| `loss.name` |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in table]
    named = {row[0].strip(" `"): re.findall(r"`(\w+)`", row[3]) for row in cells}
    assert sorted(named) == sorted(LOSSES)
    for name, build in LOSSES.items():
        assert set(named[name]) == set(type(build()).model_fields), name  # type: ignore[attr-defined]  # all are settings


def test_every_kind_of_plug_in_is_in_the_table() -> None:
    assert [kind for kind in KINDS if f"`{kind}`" not in TEXTS["plugins"]] == []


def test_every_example_of_a_plug_in_is_named() -> None:
    examples = sorted((ROOT / "examples" / "plugins").glob("*.py"))
    assert len(examples) >= 8
    assert [path.name for path in examples if f"`{path.name}`" not in TEXTS["plugins"]] == []


def test_program_of_a_policy_connects_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks_of("docs/policy_servers.md", "python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with serving(llama()) as server:
        exec(block.text.replace("http://127.0.0.1:8001", server.http.url), names)
    assert type(names["policy"]).__name__ == "ServedPolicy"


SMALLER_SHOP = """"tiny", "tiny": {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}},
    "agent": {"max_turn_tokens": 8, "on_length": "close"}, "rollout": {"groups": 2, "group_size": 2},
    "evaluation": {"tasks": 4}, "run": {"name": "shop", "steps": 1"""


@pytest.mark.docs
def test_program_of_the_readme_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = blocks_of("README.md", "python")
    made_small = program.text.replace('"Qwen/Qwen3-0.6B"}', SMALLER_SHOP + "}").replace('"run": {"name": "shop"}, ', "")
    (tmp_path / program.title).write_text(made_small)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(program.title, run_name="__main__")
    assert re.search(r"held-out: success .* -> .*, change \+0\.0 points \[", capsys.readouterr().out)


@pytest.mark.docs
def test_program_of_an_evaluation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, text),) = re.findall(r'^```python title="([^"]*)"\n(.*?)^```$', TEXTS["evaluate"], re.DOTALL | re.MULTILINE)
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(name, run_name="__main__")
    assert (tmp_path / "runs/measured/report.html").exists()


def test_table_of_resolutions_is_computed() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) points \| ([\d.]+) points \|$", TEXTS["evaluate"], re.MULTILINE)
    assert len(rows) == 3
    for tasks, one, four in rows:
        for samples, told in ((1, one), (4, four)):
            effect = declare(int(tasks), samples).minimum_detectable_effect
            assert float(told) == round(100 * effect, 1)


EPISODES, CONTEXT, SERVERS, GIGABYTES = 100_000, 4_000, 800, 14
TURN_S = 500 / 40 + 2


def row(name: str) -> list[float]:
    (cells,) = re.findall(rf"^\| {re.escape(name)}[^|]*\|(.+)\|$", TEXTS["scaling"], re.MULTILINE)
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", cells)]


def test_limits_of_the_controller_are_those_of_the_model() -> None:
    constant, per_thousand = row("the run's own process")
    turns_per_s = 1e6 / (constant + per_thousand * CONTEXT / 1000)
    needed, has, episodes = row("controller: one event loop")[:3]
    assert needed == round(EPISODES / TURN_S)
    assert has == round(turns_per_s)
    assert episodes == round(turns_per_s * TURN_S, -2)


def test_updates_and_connections_are_those_of_the_model() -> None:
    per_gb, per_server = row("float32 weights of 0.1 to 0.6 GB")
    hours = GIGABYTES * (per_gb + SERVERS * per_server) / 3600
    gigabytes, servers, told = row("update by files")
    assert (gigabytes, servers) == (GIGABYTES, SERVERS)
    assert abs(told - hours) <= 0.2  # the page rounds its constants
    assert row("update by `nccl`")[:2] == [GIGABYTES, GIGABYTES / 50]
    assert row("environment sessions")[:3] == [EPISODES, 512, -(-EPISODES // 512)]


SHOWN = {"wall_s": "10", "cpu_s": "10", "processes": "64", "open_files": "256"} | {
    name: f"{getattr(Limits(), name) // MIB} MiB" for name in ("memory", "output", "disk")
}


def test_program_of_a_sandbox_runs_and_shows_what_its_comments_say() -> None:
    reason = why_unusable(BwrapSandbox())
    if reason is not None:
        pytest.skip(reason)
    program, _ = re.findall(r"```python\n(.*?)```", TEXTS["sandbox"], re.DOTALL)
    space: dict[str, Any] = {}  # what the program names
    exec(program, space)
    done = space["done"]
    assert (done.stdout, done.exit_code, done.ending) == (b"7\n", 0, RunEnding.EXITED)
    assert space["twin"].run("x").output == "[1, 2]\n"
    space["twin"].close()


def test_tables_name_every_limit_of_a_sandbox_with_its_default_and_every_ending() -> None:
    for item in fields(Limits):
        assert f"| `{item.name}` | {SHOWN[item.name]} |" in TEXTS["sandbox"]
    for ending in RunEnding:
        assert f"`{ending.value}`" in TEXTS["sandbox"]


def test_limits_of_servers_are_those_of_the_code() -> None:
    pytest.importorskip("bm25s")
    from envgym.retrieval.http_client import TOKEN_VARIABLE
    from envgym.retrieval.server import LIMITS, MAX_ANSWERS, MAX_BATCH, MAX_REPLY_CHARS

    page = " ".join(TEXTS["security"].split())
    for told in (
        f"{LIMITS.connections} connections",
        f"arrived {LIMITS.request_s:g} s after its first byte",
        f"an idle connection is closed after {LIMITS.idle_s:g} s",
        f"a reply must be taken within {LIMITS.reply_s:g} s",
        f"{MAX_HEAD_BYTES >> 10} KiB of headers, {LIMITS.body_bytes >> 20} MiB of body, {MAX_BATCH} queries",
        f"replies of {MAX_REPLY_CHARS >> 20} million characters, {MAX_ANSWERS} of them worked on at a time",
        f"`max_chars` ({MAX_RESULT_CHARS:,} characters)",
        f"`${TOKEN_VARIABLE}`",
    ):
        assert told in page, told


def test_what_the_page_on_security_names_is_there() -> None:
    for name in re.findall(r"`((?:constraints|scripts|docker)/[\w./]+\.\w+)`", TEXTS["security"]):
        assert (ROOT / name).exists(), name


def block(language: str) -> tuple[str, str]:
    ((name, text),) = re.findall(
        rf'^```{language} title="([^"]*)"\n(.*?)^```$', TEXTS["search"], re.DOTALL | re.MULTILINE
    )
    return name, text


def test_configuration_loads_and_its_leaves_make_up_its_group() -> None:
    settings = train_settings(yaml.safe_load(block("yaml")[1]))
    strategy = STRATEGIES[settings.search.name](**settings.search.settings)
    assert isinstance(strategy, TreeStrategy)
    assert strategy.num_trees(settings.rollout.group_size) == 2


def test_value_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text = block("python")
    (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert not Mcts(value=Choice(name="my_value:Critic")).selection.is_oracle


def test_every_strategy_and_every_setting_of_the_searches_is_named() -> None:
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]*`", TEXTS["search"]))))
    assert set(STRATEGIES) <= named
    assert set(Mcts.model_fields) | set(SurprisalFork.model_fields) <= named


def test_table_is_what_the_recipes_choose() -> None:
    header, _, *rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in TEXTS["recipes"][TEXTS["recipes"].index("| recipe |") :].split("\n\n")[0].splitlines()
    ]
    points = header[1:]
    assert [name for name, *_ in rows] == list(RECIPE.table)
    assert points == [
        *("curriculum", "search", "filter", "shaping", "credit", "loss", "correction"),
        "objective.aggregation",
    ]
    for name, *cells in rows:
        chosen = recipe_settings(name)
        assert cells == [attrgetter(f"{point}.name")(chosen) for point in points], name


def test_every_recipe_is_described() -> None:
    assert re.findall(r"^\*\*`(\w+)`\*\*", TEXTS["recipes"], re.MULTILINE) == list(RECIPE.table)


def test_compositions_can_be_set() -> None:
    rows = [line for line in TEXTS["recipes"].splitlines() if re.match(r"\| .* \| `\w+\.\w+=", line)]
    assert len(rows) == 8
    for row in rows:
        overrides = re.findall(r"`([\w.]+=[^`]+)`", row)
        settings = train_settings(apply_overrides({"envs": [{"id": "math/arithmetic-v0"}]}, overrides))
        build_method(settings)
        for path, _, value in (override.partition("=") for override in overrides):
            got = read_value(settings.model_dump(mode="json"), path)
            assert (got["name"] if isinstance(got, dict) else got) == yaml.safe_load(value), row


PAGES = sorted(
    {path.resolve() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))} - {ROOT / "CHANGELOG.md"}
)
ROOMS = ("envgym", "envs", "agents", "trainer", "tests", "examples", "studies", "benchmarks", "scripts", "docker")
EXAMPLES = {"envs/x.py", "envgym/envs/x.py"}
"""Files of your own, in instructions."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8")))
    assert sorted(name for name in named - EXAMPLES if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    missing = []
    for name in set(re.findall(r"`(envgym(?:\.\w+)+)`", page.read_text(encoding="utf-8"))):
        path = ROOT / name.replace(".", "/")
        places = (path, path.with_suffix(".py"), path.parent.with_suffix(".py"), path.parent / "__init__.py")
        if not any(place.exists() for place in places):
            missing.append(name)
    assert missing == []


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert targets
    assert missing == []


def test_installation_by_hand_is_in_an_environment_of_its_own_and_pinned() -> None:
    (block,) = (
        block for block in re.findall(r"^```bash\n(.*?)^```$", README, re.DOTALL | re.MULTILINE) if "pip" in block
    )
    first, *rest = block.splitlines()
    assert first == "python3 -m venv .venv && source .venv/bin/activate"
    assert all("--no-deps" in line or "-c constraints/core.txt" in line for line in rest)
    assert "torch==" in (ROOT / "constraints/core.txt").read_text(encoding="utf-8")


def test_a_second_demo_goes_on_with_the_first(tmp_path: Path) -> None:
    def command() -> str:
        (tmp_path / "venv").mkdir(exist_ok=True)
        asked = ["make", "-n", "--no-print-directory", "-f", str(ROOT / "Makefile"), "demo"]
        asked += [f"VENV={tmp_path}/venv", "STAMP="]
        return subprocess.run(asked, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.splitlines()[-1]

    assert command().endswith("envgym train examples/demo.yaml ")
    (tmp_path / "runs/demo").mkdir(parents=True)
    assert command().endswith("envgym train examples/demo.yaml --resume")


LINES = [
    pytest.param(line, id=f"{block.page}: {line}")
    for block in BLOCKS
    if block.language == "bash"
    for line in block.commands
    if line.startswith("envgym ")
]


@pytest.mark.parametrize("line", LINES)
def test_command_line_is_understood_and_no_word_of_it_is_lost(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    values = vars(build_parser(name).parse_args([name, *words])).values()  # exits where it does not understand
    understood = {str(item) for value in values for item in (value if isinstance(value, list) else [value])}
    assert {word for word in words if not word.startswith("-")} <= understood


def test_there_are_lines_to_read() -> None:
    assert len(LINES) >= 15
