"""A dry run changes nothing and counts what a step would train on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from envgym.agents.models.generation_config import read_end_token_ids
from envgym.agents.models.tiny import TinySettings, write_tiny
from envgym.cli.batch_view import print_dry_run
from envgym.errors import RunError
from envgym.trainer.build import build_run_context, collect_plan
from envgym.trainer.phases import dry_runs
from envgym.trainer.settings import TrainSettings, train_settings
from envgym.trainer.train import train
from envgym.trainer.workflows.dry_run import backward_largest_micro_batch, collect_batch, try_saving

SHAPE = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 64}


def settings(**sections: Any) -> TrainSettings:  # plain data
    data: dict[str, Any] = {
        "run": {"steps": 3},
        "model": {"name": "tiny", "tiny": SHAPE},
        "engine": {"device": "cpu"},
        "envs": [{"id": "math/arithmetic-v0", "settings": {"level": 1}}],
        "agent": {"max_turn_tokens": 48, "max_context_tokens": 512},
        "rollout": {"groups": 2, "group_size": 3},
        "filter": {"name": "keep_all"},
    }
    return train_settings({**data, **sections})


def weights(model: Any) -> torch.Tensor:  # a transformers model
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_rehearsal_leaves_weights_and_optimizer_as_they_were() -> None:
    bench = build_run_context(settings())
    before = weights(bench.model)
    rows = collect_batch(bench, collect_plan(bench, settings())).train_rows
    tokens = backward_largest_micro_batch(bench.learner, rows, bench.method.objective)
    assert torch.equal(weights(bench.model), before)
    assert bench.learner.optimizer.state_dict()["state"] == {}
    prefixes = {row.token_ids[:end] for row in rows for end in range(1, len(row) + 1)}
    assert tokens == len(prefixes)  # one micro-batch, each shared prefix once


def test_scores_of_a_fresh_batch_are_those_of_the_sampler() -> None:
    bench = build_run_context(settings())
    rows = collect_batch(bench, collect_plan(bench, settings())).train_rows
    assert len(rows) == 6
    scores_NT = bench.learner.compute_logprobs(rows, 1.0)
    for row, scores_T in zip(rows, scores_NT, strict=True):
        sampled = torch.tensor(row.behavior_logprobs)
        assert torch.allclose(scores_T[: len(row)], sampled, atol=1e-4)
        assert not scores_T[len(row) :].any()


def test_counts_are_those_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = dry_runs([settings()])[0]
    counts = found.counts()
    assert (counts["groups"], counts["episodes"], counts["kept_groups"], counts["rows"]) == (2, 6, 2, 6)
    assert counts["trained_tokens"] == sum(sum(row.row.loss_mask) for row in found.batch.rows)
    assert list(tmp_path.iterdir()) == []


def test_dropped_groups_are_measured_when_nothing_is_left() -> None:
    found = dry_runs([settings(filter={"name": "zero_variance"})])[0]  # an untrained model is paid 0 throughout
    assert found.counts()["dropped_groups"] == {"zero_variance": 2}
    assert (len(found.rows), len(found.batch.rows)) == (6, 0)
    assert found.cost is not None
    assert found.cost.num_micro_batches == 1


def test_a_row_of_each_phase_of_the_warm_start_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    phases_of = {"episodes": 4, "next": {"source": {"name": "oracle"}, "episodes": 8}}
    asked = settings(sft=phases_of, filter={"name": "zero_variance"})
    print_dry_run(dry_runs([asked])[0])
    text = capsys.readouterr().out
    shown = r"^demonstration of warm-start phase (\d): .*reward 1, TERMINATED.*\n((?:  .*\n)+)"
    phases = re.findall(shown, text, re.MULTILINE)
    assert [number for number, _ in phases] == ["1", "2"]
    for _, row in phases:
        assert re.search(r"^  POLICY +A \+1\.00 +<tool_call>.*calculator.*</tool_call><\|im_end\|>$", row, re.MULTILINE)
    _, rows = text.split("the rows below were sampled from random weights (model tiny): their text is noise\n")
    assert re.findall(r"^row (\d) of 6:", rows, re.MULTILINE) == ["1", "2"]
    assert "... and 4 more rows" in rows
    assert "every group was dropped, as expected of noise: " in rows


@pytest.mark.parametrize(
    "optim,correction,objective,passes",
    [
        ({}, "none", {}, 1),
        ({"epochs": 2}, "none", {}, 2 + 1 / 3),
        ({}, "tis", {}, 1 + 1 / 3),
        ({"minibatches": 2}, "tis", {}, 4 / 3),
        ({"epochs": 2}, "geometric", {"old_policy": "rollout"}, 2),
        ({"epochs": 2}, "geometric", {"old_policy": "rollout", "kl_coef": 0.1}, 2 + 2 / 3),
    ],
)
def test_time_counts_every_pass_over_the_rows(
    optim: dict[str, int], correction: str, objective: dict[str, object], passes: float
) -> None:
    found = dry_runs([settings(optim=optim, correction={"name": correction}, objective=objective)])[0]
    assert found.cost is not None
    assert found.cost.passes == pytest.approx(passes)


def test_memory_of_each_device_is_planned_for_episodes_of_this_length(capsys: pytest.CaptureFixture[str]) -> None:
    """A policy server takes the sampler's cache, and a copy of the weights, from the learner."""
    alone, served = (
        dry_runs([settings(**sections)])[0] for sections in ({}, {"launch": {"servers": 1, "transport": "files"}})
    )
    assert alone.cost is not None
    assert served.cost is not None
    cache = alone.cost.devices["learner"] - served.cost.devices["learner"]
    assert cache > 0
    assert served.cost.devices["policy server"] == served.cost.state.weights + cache
    chunk = 3 * 256 * 448 * 4  # three buffers of the head for 256 tokens; the measured micro-batch may have fewer
    assert served.cost.memory <= served.cost.devices["learner"] <= served.cost.memory + chunk
    print_dry_run(served)
    text = capsys.readouterr().out
    assert f"bottleneck      {served.cost.bottleneck}\n" in text
    assert re.search(r"^each device     learner \d+\.\d MiB, policy server \d+\.\d MiB \(planned", text, re.MULTILINE)


def test_micro_batches_of_every_minibatch_are_counted() -> None:
    """Two groups of 3 rows: each of 3 minibatches has a row of each group, so every minibatch repeats both prompts."""
    found = dry_runs([settings(optim={"minibatches": 3})])[0]
    assert found.cost is not None
    assert found.cost.num_micro_batches == 3
    token_ids = [row.token_ids for row in found.batch.train_rows]
    prefixes = [{ids[:end] for ids in token_ids[part::3] for end in range(1, len(ids) + 1)} for part in range(3)]
    assert found.cost.computed_tokens == sum(len(of_minibatch) for of_minibatch in prefixes)


def tiny_directory(folder: Path, generation_config: dict[str, Any]) -> str:
    write_tiny(folder, TinySettings(**SHAPE))
    (folder / "generation_config.json").write_text(json.dumps(generation_config), encoding="utf-8")
    return str(folder)


def test_a_model_with_a_temperature_alone_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, model = tmp_path / "runs", tmp_path / "model"
    runs.mkdir()
    model.mkdir()
    monkeypatch.chdir(runs)
    name = tiny_directory(model, {"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9})
    found = dry_runs([settings(model={"name": name})])[0]
    assert found.counts()["episodes"] == 6
    assert list(runs.iterdir()) == []


def test_what_cannot_be_saved_is_told_before_collecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = settings()
    context = build_run_context(asked)
    context.model.generation_config.do_sample = False
    context.model.generation_config.temperature = 0.3
    refused = r"^checkpoint must hold a model that save_pretrained can write, got .*temperature.*; correct the model's"
    with pytest.raises(RunError, match=refused):
        try_saving(context)
    assert list(tmp_path.iterdir()) == []


def test_model_with_temperature_alone_gets_past_its_first_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    name = tiny_directory(tmp_path / "model", {"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9})
    asked = settings(run={"steps": 1, "name": "saved"}, model={"name": name}, objective={"kl_coef": 0.1})
    trained = train(asked)
    saved = trained.directory / "checkpoints" / "step-000001" / "model"
    config = json.loads((saved / "generation_config.json").read_text(encoding="utf-8"))
    assert (config["do_sample"], config["temperature"], config["eos_token_id"]) == (True, 0.6, [2, 0])
    assert read_end_token_ids(str(saved)) == (2, 0)
    assert (trained.directory / "reference" / "generation_config.json").exists()
