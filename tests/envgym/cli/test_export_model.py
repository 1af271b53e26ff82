"""`envgym export RUN model`: what transformers, peft, huggingface_hub and `envgym eval` read of it."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, metadata_load
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from envgym.agents.models.loading import load
from envgym.agents.models.tiny import TinySettings
from envgym.api import evaluate
from envgym.cli.main import main
from envgym.runs.directory import RunDirectory
from envgym.trainer.train import train
from tests.support.tiny_runs import tiny_settings

EVALUATION = {"tasks": 4, "tasks_during": 4, "every": 1, "temperature": 1.0, "success_at": 0.5}


@pytest.fixture(scope="module", params=["full", "lora"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two steps, of all weights or of adapters."""
    folder = tmp_path_factory.mktemp("runs") / str(request.param)
    lora = {"rank": 4} if request.param == "lora" else None
    settings = tiny_settings(
        folder,
        run={"name": "even words", "keep_best": "success", "keep_checkpoints": 3},
        model={"lora": lora},
        evaluation=EVALUATION,
        optim={"lr": 0.02},
    )
    train(settings)
    return folder


def export(run: Path, out: Path, *words: str) -> dict[str, Any]:
    """Export, and return the provenance."""
    assert main(["export", str(run), "model", str(out), *words]) == 0
    record: dict[str, Any] = json.loads((out / "provenance.json").read_text())
    return record


def refusal(run: Path, out: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["export", str(run), "model", str(out), *words]) == 2
    assert not out.exists()
    return capsys.readouterr().err


def test_an_exported_model_is_evaluated_as_the_run_is(run: Path, tmp_path: Path) -> None:
    record = export(run, tmp_path / "out")
    assert record["kind"] == "model"
    assert record["form"] == ("merged" if "lora" in run.name else "full")
    assert record["run"]["id"] == RunDirectory.open(run).id
    assert (record["checkpoint"], record["step"]) == ("step-000002", 2)
    assert record["envs"] == [{"id": "tests.support.tiny_runs:EvenWords", "licence": None}]
    card = (tmp_path / "out" / "README.md").read_text()
    (command,) = re.findall(r"^envgym eval .*$", card, flags=re.MULTILINE)
    words = [str(tmp_path / "out") if word == "FOLDER" else word for word in shlex.split(command)[1:]]
    assert main([*words, "--device", "cpu", "--out", str(tmp_path / "eval")]) == 0
    (of_export,) = RunDirectory.open(tmp_path / "eval").evals()
    own = evaluate(run, tasks=4, temperature=1.0, engine={"device": "cpu"}, directory=tmp_path / "own")
    assert of_export["rewards"] == {name: list(rewards) for name, rewards in own.evaluations[0].rewards.items()}
    assert of_export["endings"] == dict(own.evaluations[0].endings)
    assert of_export["success_at"] == 0.5


def test_transformers_reads_model_tokenizer_and_template(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "Say an even one."}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )  # as the card has it
    reply = model.generate(**inputs, max_new_tokens=4)
    assert inputs["input_ids"].shape[1] < reply.shape[1] <= inputs["input_ids"].shape[1] + 4
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "curve.png",
        "generation_config.json",
        "model.safetensors",
        "provenance.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in (tmp_path / "out").iterdir())
    told = [file.read_text() for file in (tmp_path / "out").iterdir() if file.suffix in (".json", ".md", ".jinja")]
    assert not any(str(run.parent) in text for text in told), "no path of this machine"


def test_the_card_has_the_evaluations_of_the_run_in_the_form_of_the_hub(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "--license", "mit", "--base", "owner/base")
    head = metadata_load(tmp_path / "out" / "README.md")
    assert head is not None
    assert (head["license"], head["base_model"], head["pipeline_tag"]) == ("mit", "owner/base", "text-generation")
    data = ModelCard.load(tmp_path / "out" / "README.md").data
    assert data.model_name == "even words"
    recorded = [data for data in RunDirectory.open(run).evals() if data["step"] == 2]
    assert data.eval_results is not None
    assert len(data.eval_results) == len(recorded) == 1
    result, rewards = data.eval_results[0], [value for own in recorded[0]["rewards"].values() for value in own]
    assert result.dataset_type == "tests.support.tiny_runs:EvenWords"
    assert result.metric_type == "success_rate"
    assert result.metric_value == sum(reward >= 0.5 for reward in rewards) / 2
    args = result.metric_args
    assert args["interval_low"] <= result.metric_value <= args["interval_high"]
    assert (args["interval_level"], args["tasks"], args["samples"], args["invalid"]) == (0.95, 2, 2, 0)


def test_a_named_and_the_best_checkpoint_are_exported(run: Path, tmp_path: Path) -> None:
    best = json.loads((run / "best.json").read_text())["step"]
    assert export(run, tmp_path / "best", "--checkpoint", "best")["step"] == best
    assert "so its rate is biased upwards" in (tmp_path / "best" / "README.md").read_text()
    assert export(run, tmp_path / "number", "--checkpoint", "1")["checkpoint"] == "step-000001"
    export(run, tmp_path / "name", "--checkpoint", "step-000001")
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("number", "name")]
    assert same[0] == same[1]
    export(run, tmp_path / "last")
    assert (tmp_path / "last" / "model.safetensors").read_bytes() != same[0]


def test_adapters_are_kept_for_a_base_of_the_hub(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "full" in run.name:
        told = refusal(run, tmp_path / "out", "--adapter", "--base", "owner/base", capsys=capsys)
        assert "checkpoint must hold LoRA adapters, got all weights (envgym export RUN model --adapter)" in told
        return
    told = refusal(run, tmp_path / "out", "--adapter", capsys=capsys)
    assert "base model must be known by its name on the Hub, got tiny" in told
    assert "add --base OWNER/NAME, or merge the adapters" in told
    export(run, tmp_path / "out", "--adapter", "--base", "owner/base")
    head = metadata_load(tmp_path / "out" / "README.md")
    assert head is not None
    assert (head["library_name"], head["base_model_relation"]) == ("peft", "adapter")
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == "owner/base"
    export(run, tmp_path / "merged")
    tiny = TinySettings(**RunDirectory.open(run).config["model"]["tiny"])
    adapted = PeftModel.from_pretrained(load("tiny", tiny=tiny).model, tmp_path / "out")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    ids = torch.tensor([[5, 60, 70]])
    with torch.inference_mode():
        assert torch.allclose(adapted(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-4)


def test_bad_input_is_one_sentence_and_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert "checkpoint must be a known name, got 'step-000007'" in refusal(run, out, "--checkpoint", "7", capsys=capsys)
    assert "must be a name of the hub, owner/name, got base" in refusal(run, out, "--base", "base", capsys=capsys)
    assert "options must be among --checkpoint, --adapter, --base, --license, --trust, got --label" in refusal(
        run, out, "--label", "train", capsys=capsys
    )
    assert "run must hold a checkpoint, got none" in refusal(_evaluated(tmp_path), out, capsys=capsys)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    assert main(["export", str(run), "model", str(tmp_path / "taken")]) == 2
    assert "OUT must be new or an empty folder" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "taken").iterdir()] == ["file"]


def _evaluated(folder: Path) -> Path:
    config = {"run": {}, "envs": [], "model": {"name": "tiny"}, "evaluation": {"tasks": 1, "samples": 1}}
    return RunDirectory.create(folder / "evaluated", name="evaluated", config=config).path


def test_a_run_without_a_best_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny_settings(tmp_path / "run", run={"steps": 0}))
    told = refusal(tmp_path / "run", tmp_path / "out", "--checkpoint", "best", capsys=capsys)
    assert "run must name its best checkpoint, got none" in told
    assert "train with run.keep_best" in told
    export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out" / "curve.png").exists(), "one evaluation is no curve"
