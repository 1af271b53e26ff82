"""The card of a model: rates with intervals, nothing made of invalid episodes, no path of the machine that trained."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from envgym.cli.main import build_parser
from envgym.config.settings import apply_overrides
from envgym.export.card import licence_head
from envgym.export.curve import CurvePoint
from envgym.export.model import (
    ModelSource,
    curve_points,
    evaluation_command,
    evaluations_of,
    export_model,
    model_index,
    portable,
)
from envgym.export.provenance import public_env_id
from envgym.runs.best import BestCheckpoint, write_best
from envgym.runs.directory import RunDirectory

CONFIG: dict[str, Any] = {
    "run": {"steps": 20, "seed": 3},
    "model": {"name": "smollm2", "precision": "bfloat16", "lora": {"rank": 8, "alpha": 16}},
    "recipe": "grpo",
    "agent": {"name": "tool_calling", "system_prompt": None, "max_turn_tokens": 64, "text_format": {"name": "hermes"}},
    "envs": [
        {"id": "math/arithmetic-v0", "settings": {"level": 2, "kinds": ["expression"], "data": "/home/me/a.jsonl"}}
    ],
    "evaluation": {"tasks": 4, "samples": 1, "temperature": 0.0, "success_at": 1.0, "split": "test"},
}
SOURCE = ModelSource(
    checkpoint="step-000020", step=20, form="merged", base="HuggingFaceTB/SmolLM2-135M-Instruct", licence="apache-2.0"
)


def evaluation(step: int, rewards: Sequence[float | None], label: str = "held-out") -> dict[str, Any]:
    return {
        "env_id": "math/arithmetic-v0",
        "step": step,
        "label": label,
        "temperature": 0.0,
        "success_at": 1.0,
        "rewards": {f"test/{number}": [reward] for number, reward in enumerate(rewards)},
        "endings": {"TERMINATED": len(rewards)},
        "costs": {},
    }


def make_run(folder: Path, *evaluations: dict[str, Any], **changes: Any) -> RunDirectory:
    run = RunDirectory.create(folder / "run", name="first | try", config={**CONFIG, **changes})
    for data in evaluations:
        run.write_eval(data["step"], data["label"], data)
    return run


def card_of(run: RunDirectory, out: Path, source: ModelSource = SOURCE) -> str:
    export_model(run, out, source, lambda folder: {"probe": 1})
    return (out / "README.md").read_text(encoding="utf-8")


def test_rates_stand_in_the_card_and_in_the_index_with_their_intervals(tmp_path: Path) -> None:
    before, after = evaluation(0, [0, 0, 0, 1]), evaluation(20, [1, 1, 1, None])
    run = make_run(tmp_path, before, evaluation(10, [1, 0, 0, 0]), after)
    card = card_of(run, tmp_path / "out")
    rows = [line for line in card.splitlines() if line.startswith("| `math/arithmetic-v0` | held-out")]
    # Wilson, 95 %: 1 of 4 is [4.6 %, 69.9 %], 3 of 3 is [43.9 %, 100 %].
    assert rows == [
        "| `math/arithmetic-v0` | held-out | 0 | 25.0% [4.6%, 69.9%] | 4 | 4 | 0 |",
        "| `math/arithmetic-v0` | held-out | 20 | 100.0% [43.9%, 100.0%] | 4 | 4 | 1 |",
    ]
    data: Any = ModelCard(card).data
    assert data.eval_results is not None
    (result,) = data.eval_results
    assert (result.metric_value, result.metric_args["interval_low"], result.metric_args["invalid"]) == (1.0, 0.4385, 1)
    assert (data.base_model, data.license, data.library_name) == (SOURCE.base, "apache-2.0", "transformers")
    assert "![Success rate over the train steps, with 95 % intervals](curve.png)" in card
    assert (tmp_path / "out" / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert "# first \\| try" in card


def test_an_evaluation_without_a_valid_episode_has_no_result_and_no_point(tmp_path: Path) -> None:
    run = make_run(tmp_path, evaluation(0, [1, 0]), evaluation(20, [None, None]))
    evaluations = evaluations_of(run)
    assert model_index("name", [item for item in evaluations if item.data.step == 20]) == []
    assert [point.step for point in curve_points(evaluations)] == [0]
    card = card_of(run, tmp_path / "out")
    assert "| `math/arithmetic-v0` | held-out | 20 | none is valid | 2 | 2 | 2 |" in card
    assert "model-index" not in card
    assert not (tmp_path / "out" / "curve.png").exists()


def test_a_checkpoint_that_was_not_evaluated_and_one_that_was_chosen_say_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, evaluation(0, [1, 0]))
    assert "The run did not evaluate this checkpoint." in card_of(run, tmp_path / "not")
    run.write_eval(20, "held-out", evaluation(20, [1, 0]))
    assert "so its rate is biased upwards" not in card_of(run, tmp_path / "last")
    write_best(run.path, BestCheckpoint(step=20, metric="success", mode="max", value=0.5))
    assert "by `success` of such an evaluation, so its rate is biased upwards" in card_of(run, tmp_path / "best")


def test_the_curve_is_that_of_the_label_with_the_most_evaluations(tmp_path: Path) -> None:
    own = [evaluation(step, [1, 0], "during") for step in (0, 10, 20)]
    points = curve_points(evaluations_of(make_run(tmp_path, *own, evaluation(0, [1]), evaluation(20, [1]))))
    assert [point.step for point in points] == [0, 10, 20]
    assert points[0] == CurvePoint(0, 0.5, points[0].low, points[0].high)
    assert 0 < points[0].low < 0.5 < points[0].high < 1
    assert curve_points([]) == []


def test_the_command_of_the_card_is_one_of_envgym_without_paths_of_the_machine() -> None:
    words = shlex.split(evaluation_command(CONFIG))
    args = build_parser("eval").parse_args(words[1:])
    assert (args.model, args.env, args.agent) == ("FOLDER", ["math/arithmetic-v0"], "tool_calling")
    assert args.env_set == ["level=2", 'kinds=["expression"]', "data=a.jsonl"]
    assert args.agent_set == ["max_turn_tokens=64", "text_format.name=hermes"]
    assert (args.tasks, args.samples, args.temperature, args.success_at, args.precision) == (4, 1, 0.0, 1.0, "bfloat16")
    assert (args.split, args.seed, args.top_p, args.top_k, args.search) == ("test", 3, 1.0, 0, None)
    several = {**CONFIG, "envs": [{"id": "a/b-v0", "settings": {"level": 1}}, {"id": "/home/me/env.py:Mine"}]}
    args = build_parser("eval").parse_args(shlex.split(evaluation_command(several))[1:])
    assert (args.env, args.env_set) == (["a/b-v0", "env.py:Mine"], [])


def test_the_command_of_the_card_is_of_the_tasks_and_the_sampling_of_the_evaluation(tmp_path: Path) -> None:
    search = {"name": "best_of", "n": 4}
    sampling = {"tasks": 200, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "split": "train", "search": search}
    run = make_run(tmp_path, evaluation(20, [1, 0, 0], "during"), evaluation=sampling)
    command = next(line for line in card_of(run, tmp_path / "out").splitlines() if line.startswith("envgym eval"))
    args = build_parser("eval").parse_args(shlex.split(command)[1:])
    assert (args.tasks, args.split, args.temperature, args.top_p, args.top_k) == (3, "train", 0.7, 0.9, 5)
    assert (args.search, args.search_set) == ("best_of", ["n=4"])


def test_a_card_without_the_settings_of_several_environments_says_so(tmp_path: Path) -> None:
    envs = [{"id": "math/arithmetic-v0", "settings": {"level": 1}}, {"id": "a/b-v0"}]
    card = card_of(make_run(tmp_path, envs=envs), tmp_path / "out")
    assert "A similar evaluation, without the settings of the environments" in card


def test_no_secret_of_the_settings_is_in_the_folder(tmp_path: Path) -> None:
    server = {"command": ["serve", "--api-key", "S3CRET"], "env": {"GITHUB_PAT": "github_pat_S3CRET"}}
    address = "openenv://user:S3CRET@host:8000"
    envs = [{"id": address, "settings": {"api_key": "S3CRET", "mcp": [server], "level": 1}}]
    agent = {"name": "tool_calling", "auxiliary": {"password": "S3CRET"}}
    result = {**evaluation(20, [1, 0]), "env_id": address}
    card = card_of(make_run(tmp_path, result, envs=envs, agent=agent), tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        assert b"S3CRET" not in file.read_bytes(), file.name
    assert "openenv://***@host:8000" in card
    assert "and your secrets in place of `***`:" in card
    assert "level=1" in card


@pytest.mark.parametrize(
    "value", ["yes", "1", "1e-05", "null", "a: b", "[x", "plain", "#c", "", True, [1, "2", "no"], 1e-05]
)
def test_settings_of_the_command_are_read_as_they_were(value: Any) -> None:
    config = {**CONFIG, "envs": [{"id": "a/b-v0", "settings": {"key": value}}]}
    args = build_parser("eval").parse_args(shlex.split(evaluation_command(config))[1:])
    assert apply_overrides({}, args.env_set) == {"key": value}


def test_absolute_paths_lose_their_folders_alone() -> None:
    names = ["/home/me/my_env.py:MyEnv", "my_env.py:MyEnv", "math/arithmetic-v0", "", "package.module:Env"]
    assert [portable(name) for name in names] == ["my_env.py:MyEnv", *names[1:]]
    assert [public_env_id(name) for name in names] == ["my_env.py:MyEnv", *names[1:]]


def test_texts_that_are_no_paths_stay(tmp_path: Path) -> None:
    texts = ["/no_think Answer.", "/no_think", "/a/b and more\n/c", "/" + "x" * 5000]
    assert [portable(text) for text in texts] == texts
    (tmp_path / "a b.jsonl").touch()
    assert portable(str(tmp_path / "a b.jsonl")) == "a b.jsonl"


@pytest.mark.parametrize(
    "licences, head",
    [
        (["Apache-2.0"], {"license": "apache-2.0"}),
        (["Tongyi Qianwen"], {"license": "other", "license_name": "tongyi qianwen"}),
        (["MIT", "mit"], {"license": "mit"}),
        (["MIT", "Apache-2.0"], {"license": "other"}),
        (["MIT", None], {}),
        ([], {}),
    ],
)
def test_a_card_names_licences_as_the_hub_does(licences: list[str | None], head: dict[str, str]) -> None:
    assert licence_head(licences) == head


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> dict[str, Any]:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_model(make_run(tmp_path), tmp_path / "out", SOURCE, fails)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
