"""The inventory of fenced blocks: every block of every page is run, loaded or compared, and a table names the test."""

import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
import yaml

from envgym.cli.main import main
from envgym.cli.plugin_kinds import KINDS
from envgym.config.plugins import import_path
from envgym.trainer.methods import protocols
from envgym.trainer.settings import train_settings
from scripts import papers
from tests.agents.policies.fake_server import running
from tests.examples.test_plugins import plugin
from tests.support.pages import BLOCKS, ROOT, blocks_of, read_blocks

SHELL: Final = "tests/docs/test_shell_blocks.py::test_lines_of_a_page_run"
SETTINGS: Final = "tests/docs/test_blocks.py::test_settings_show_a_batch"
PROGRAMS: Final = "tests/docs/test_programs.py::test_programs_of_a_page_run"
SHOWN: Final = "tests/docs/test_shown_output.py"
TASK_FOLDER: Final = "tests/envs/harbor/test_page.py::test_the_folder_of_the_page_is_checked_and_played"
DRAWING: Final = "none: a drawing or a formula"
RUNNERS: Final = MappingProxyType(
    {
        ("bash", ""): SHELL,  # an empty page: every page that has no entry of its own
        ("yaml", ""): SETTINGS,
        ("python", ""): PROGRAMS,
        ("python", "README.md"): "tests/docs/test_pages.py::test_program_of_the_readme_trains",
        ("bash", "docs/first_task.md"): "tests/docs/test_first_task.py::test_every_block_runs",
        ("yaml", "docs/first_task.md"): "tests/docs/test_first_task.py::test_every_block_runs",
        ("python", "docs/first_task.md"): "tests/docs/test_first_task.py::test_every_block_runs",
        ("text", "docs/first_task.md"): "tests/docs/test_first_task.py::test_every_block_runs",
        ("bash", "examples/third_party_env/README.md"): "tests/examples/test_third_party_env.py::test_commands_run",
        ("yaml", "examples/third_party_env/README.md"): "tests/examples/test_third_party_env.py::test_train_accepts_it",
        ("python", "docs/train.md"): "tests/docs/test_train.py::test_programs_run",
        ("python", "docs/notebooks.md"): "tests/docs/test_notebooks.py::test_blocks_run_inside_a_running_loop",
        ("ipython", "docs/notebooks.md"): "tests/docs/test_notebooks.py::test_blocks_run_in_a_kernel",
        ("text", "docs/notebooks.md"): "tests/docs/test_notebooks.py::test_blocks_run_in_a_kernel",
        ("python", "docs/policy_servers.md"): "tests/docs/test_pages.py::test_program_of_a_policy_connects_to_a_server",
        ("python", "docs/evaluate.md"): "tests/docs/test_pages.py::test_program_of_an_evaluation_runs",
        ("python", "docs/sandbox.md"): (
            "tests/docs/test_pages.py::test_program_of_a_sandbox_runs_and_shows_what_its_comments_say"
        ),
        ("python", "docs/write_an_environment.md"): "tests/docs/test_write_an_environment.py::my_games",
        ("python", "docs/curricula.md"): "tests/docs/test_blocks.py::test_signatures_of_a_page_are_those_of_the_code",
        ("toml", "docs/write_an_environment.md"): (
            "tests/docs/test_write_an_environment.py::test_entry_point_of_the_guide_names_the_registered_env"
        ),
        ("toml", "docs/plugins.md"): "tests/docs/test_blocks.py::test_entry_point_is_of_a_kind_and_names_a_credit",
        ("toml", "CONTRIBUTING.md"): "tests/docs/test_blocks.py::test_row_of_a_paper_is_one",
        ("text", "docs/environments.md"): "tests/docs/test_environments.py::test_page_shows_the_episode_of_the_oracle",
        ("text", "docs/evaluate.md"): f"{SHOWN}::test_results_have_the_form_that_the_page_shows",
        ("text", "docs/runs.md"): f"{SHOWN}::test_progress_and_the_error_have_the_form_that_the_page_shows",
        ("text", "docs/architecture.md"): f"{SHOWN}::test_commands_of_the_architecture_page_are_those_of_the_program",
        ("text", "docs/results/environments.md"): "tests/benchmarks/test_study.py::test_page_is_what_report_writes",
        ("yaml", "docs/processes.md"): (
            "tests/docs/test_processes.py::test_settings_of_the_page_have_as_many_addresses_as_they_say"
        ),
        ("text", "docs/processes.md"): "tests/docs/test_processes.py::test_page_shows_what_is_printed",
        ("text", "docs/cluster.md"): "tests/docs/test_cluster.py::test_page_shows_the_sentences_of_refusals",
        ("text", "docs/scaling.md"): "tests/docs/test_pages.py::test_limits_of_the_controller_are_those_of_the_model",
        ("yaml", "docs/gpu_quickstart.md"): "tests/docs/test_guides.py::test_settings_for_a_gpu_show_a_batch_on_a_cpu",
        ("text", "docs/monitoring.md"): (
            "tests/docs/test_guides.py::test_labels_of_the_progress_line_are_those_of_the_program"
        ),
        ("bash", "docs/gpu_quickstart.md"): "tests/docs/test_guides.py::test_plan_of_the_settings_for_a_gpu_fits",
        ("bash", "docs/connect.md"): "tests/docs/test_connect.py::test_conversations_of_the_page_are_learned",
        (
            "python",
            "docs/connect.md",
        ): "tests/docs/test_connect.py::test_programs_are_run_here_or_in_a_lane",
        ("json", "docs/connect.md"): "tests/docs/test_connect.py::test_conversations_of_the_page_are_learned",
        ("bash", "docs/use_the_model.md"): "tests/docs/test_use_the_model.py::test_the_page_runs_from_top_to_bottom",
        ("python", "docs/use_the_model.md"): "tests/docs/test_use_the_model.py::test_the_page_runs_from_top_to_bottom",
        ("toml", "docs/connect.md"): TASK_FOLDER,
        ("dockerfile", "docs/connect.md"): TASK_FOLDER,
        ("sh", "docs/connect.md"): TASK_FOLDER,
        ("text", "docs/objective.md"): DRAWING,
        ("text", "docs/packing.md"): DRAWING,
    }
)
"""(language, page) -> the test that runs the blocks, loads them, or compares them with what is printed."""
PROGRAMS_OF_THE_SYSTEM: Final = {
    "curl",
    "docker",
    "export",
    "hf",
    "inspect",
    "ray",
    "source",
    "systemd-run",
    "python3",
    "vf-eval",
}
SMALL: Final = (
    "run.steps=1",
    "model={name: tiny, tiny: {hidden_size: 64, num_layers: 1, num_heads: 2, num_kv_heads: 2, intermediate_size: 64}}",
    "agent.max_turn_tokens=8",
    "agent.on_length=close",
    "rollout.groups=2",
    "evaluation.tasks=1",
)
"""Laid over the settings of a page; all that is not named here stays."""
ENVS = {"envs": [{"id": "math/arithmetic-v0"}]}


def runner_of(language: str, page: str) -> str | None:
    """Return the test of the blocks of a language on a page; None: there is none."""
    return RUNNERS.get((language, page), RUNNERS.get((language, "")))


def test_every_block_has_a_test_that_runs_it() -> None:
    told = "needs a test that runs it, loads it, or compares what it shows: name the test in RUNNERS"
    missing = [block for block in BLOCKS if runner_of(block.language, block.page) is None]
    assert [f"{block.where} ({block.language}) {told}" for block in missing] == []
    assert len(BLOCKS) > 140


def test_every_fence_of_a_page_opens_or_closes_a_block() -> None:
    """No block is missed because it is indented, of another fence, or of a language written in another way."""
    for page in {block.page for block in BLOCKS}:
        text = (ROOT / page).read_text(encoding="utf-8")
        inside = "".join(block.text for block in read_blocks(page))
        fences = re.findall(r"^ *(?:`{3,}|~{3,})", text, re.MULTILINE)
        of_blocks = re.findall(r"^ *(?:`{3,}|~{3,})", inside, re.MULTILINE)
        assert len(fences) - len(of_blocks) == 2 * len(read_blocks(page)), page


@pytest.mark.parametrize("runner", sorted(set(RUNNERS.values()) - {DRAWING}))
def test_runner_exists(runner: str) -> None:
    path, _, name = runner.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_entry_is_of_a_block() -> None:
    there = {(block.language, block.page) for block in BLOCKS}
    assert [key for key in RUNNERS if key[1] and key not in there] == []


def settings_blocks() -> list[object]:
    """Return the blocks of settings; that of a suite is played by the commands after it."""
    own = [block for block in BLOCKS if block.language == "yaml" and runner_of("yaml", block.page) == SETTINGS]
    chosen = [block for block in own if not block.is_suite]
    return [pytest.param(block.text, id=block.where) for block in chosen]


@pytest.mark.docs
@pytest.mark.parametrize("text", settings_blocks())
@pytest.mark.usefixtures("folder")
def test_settings_show_a_batch(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A block that is a part of a settings file gets an environment, and models that are served a server."""
    with running() as server:
        server.script = [{"choices": [{"message": {"role": "assistant", "content": "YES"}, "finish_reason": "stop"}]}]
        data = yaml.safe_load(text.replace("http://localhost:8000/v1", server.url))
        if data.get("launch", {}).get("learners", 1) > 1:  # a batch is shown of what one process learns
            assert train_settings(data).launch.learners == data["launch"]["learners"]
            return
        if data.get("engine", {}).get("backend") == "vllm":  # it is installed in a lane of its own
            assert train_settings(ENVS | data).engine.vllm == data["engine"]["vllm"]
            return
        Path("block.yaml").write_text(yaml.safe_dump(ENVS | data))
        capsys.readouterr()
        words = ["train", "block.yaml", "--dry-run", "--json", *(word for item in SMALL for word in ("--set", item))]
        code = main(words)
    out, err = capsys.readouterr()
    assert code == 0, out + err
    told = json.loads(out)
    assert all(found["episodes"] for found in ([told] if "episodes" in told else told.values()))


def other_commands() -> list[object]:
    lines = [(block.page, line) for block in BLOCKS if block.language == "bash" for line in block.commands]
    return [pytest.param(line, id=f"{page}: {line}") for page, line in lines if "envgym " not in line]


@pytest.mark.parametrize("line", other_commands())
def test_command_names_a_target_a_script_or_a_program_that_exists(line: str) -> None:
    """Commands of envgym: tests/docs/test_pages.py."""
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    program = re.sub(r"^\.venv-\w+/bin/", "", words[0])
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
        assert program in PROGRAMS_OF_THE_SYSTEM, program
    files = [word for word in words[1:] if re.match(r"(tests|constraints|benchmarks|docker|scripts)/", word)]
    assert all((ROOT / name).exists() for name in files), line


SIGNATURES: Final[Mapping[str, Mapping[str, type]]] = {
    "docs/curricula.md": {"Curriculum": protocols.ObservingCurriculum, "Allocator": protocols.Allocator},
    "docs/engines.md": {"ContinuousBackend": import_path(plugin("continuous_batching.py:ContinuousBackend"))},
}


@pytest.mark.parametrize("page", SIGNATURES)
def test_signatures_of_a_page_are_those_of_the_code(page: str) -> None:
    nodes = [node for block in blocks_of(page, "python") for node in ast.parse(block.text).body]
    shown = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    assert shown.keys() == SIGNATURES[page].keys()
    for name, node in shown.items():
        for method in node.body:
            assert isinstance(method, ast.FunctionDef)
            arguments = [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)]
            written = getattr(SIGNATURES[page][name], method.name)
            assert arguments == list(inspect.signature(written).parameters)


def test_entry_point_is_of_a_kind_and_names_a_credit() -> None:
    (block,) = blocks_of("docs/plugins.md", "toml")
    ((group, named),) = tomllib.loads(block.text)["project"]["entry-points"].items()
    assert group.removeprefix("envgym.") in KINDS
    assert named == {"best_of_group": "my_package.credit:BestOfGroup"}


def test_row_of_a_paper_is_one() -> None:
    (block,) = blocks_of("CONTRIBUTING.md", "toml")
    ((key, row),) = tomllib.loads(block.text).items()
    assert papers.faults_of({"losses": {key: papers.Row.model_validate(row)}}) == []
