"""Checkpoints as Hugging Face directories: merged models compute what their adapters did."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from envgym.agents.models.export import base_model, copy_model, write_adapter, write_merged
from envgym.agents.models.loading import load, load_frozen_model
from envgym.agents.models.tiny import TinySettings
from envgym.agents.settings import ModelSettings
from envgym.errors import InvalidInput, RunError

SHAPE = TinySettings(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=2, intermediate_size=64)
IDS = torch.tensor([[5, 60, 70, 80, 90]])


def save_adapter(folder: Path, *, dtype: torch.dtype = torch.float32, std: float = 0.1) -> ModelSettings:
    """Save a LoRA adapter with weights that are not zero, and return the settings that load it."""
    is_short = dtype is torch.bfloat16
    loaded = load("tiny", tiny=SHAPE, dtype="bfloat16" if is_short else "float32")
    model = get_peft_model(loaded.model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * std
    model.save_pretrained(str(folder))
    loaded.tokenizer.save_pretrained(folder)
    return ModelSettings(name="tiny", tiny=SHAPE, adapter=str(folder), precision="bfloat16" if is_short else "float32")


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(input_ids=IDS).logits.float()
    return result


@pytest.mark.parametrize("head_dtype", ["same", "float32"])
def test_a_merged_model_gives_the_logits_of_the_adapted_one(head_dtype: str, tmp_path: Path) -> None:
    settings = save_adapter(tmp_path / "adapter").model_copy(update={"head_dtype": head_dtype})
    (tmp_path / "out").mkdir()
    difference = write_merged(settings, tmp_path / "out")
    assert difference < 1e-5
    adapted = logits(load_frozen_model(settings, torch.device("cpu")))
    base = logits(load("tiny", tiny=SHAPE).model)
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    assert torch.allclose(merged, adapted, atol=1e-4 * float(adapted.abs().max()))
    assert not torch.allclose(merged, base, atol=0.1), "the adapter does something"
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert "adapter_config.json" not in files
    told = [file.read_text() for file in (tmp_path / "out").glob("*.json")]
    assert not any(str(tmp_path) in text or ".cache" in text for text in told), "no path of this machine"


def test_rounding_to_bfloat16_is_no_difference(tmp_path: Path) -> None:
    settings = save_adapter(tmp_path / "adapter", dtype=torch.bfloat16)
    (tmp_path / "out").mkdir()
    assert 0 < write_merged(settings, tmp_path / "out") < 0.05
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


@pytest.mark.parametrize("dtype, std", [(torch.float32, 0.001), (torch.bfloat16, 0.1), (torch.bfloat16, 0.01)])
def test_a_merge_without_the_adapter_is_refused(
    dtype: torch.dtype, std: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel

    settings = save_adapter(tmp_path / "adapter", dtype=dtype, std=std)
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self, **options: self.unload(), raising=False)
    (tmp_path / "out").mkdir()
    with pytest.raises(RunError, match="must lose at most 50% of what the adapter changes, got logits that differ by"):
        write_merged(settings, tmp_path / "out")


def test_an_adapter_that_rounding_loses_is_refused_and_one_that_does_nothing_is_not(tmp_path: Path) -> None:
    for std in (0.001, 0.0):
        settings = save_adapter(tmp_path / f"adapter {std}", dtype=torch.bfloat16, std=std)
        (out := tmp_path / f"out {std}").mkdir()
        if std:
            with pytest.raises(RunError, match=r"merged in bfloat16 must .* export the adapter itself with --adapter"):
                write_merged(settings, out)
        else:
            assert write_merged(settings, out) == 0


def test_an_adapter_names_its_base_on_the_hub_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    save_adapter(tmp_path / "adapter")
    before = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert Path(before["base_model_name_or_path"]).is_dir(), "what peft writes"
    (tmp_path / "out").mkdir()
    write_adapter(tmp_path / "adapter", tmp_path / "out", base="owner/base")
    after = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert after == {**before, "base_model_name_or_path": "owner/base", "inference_mode": True}
    assert not any(isinstance(value, str) and Path(value).is_absolute() for value in after.values())
    weights = "adapter_model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (tmp_path / "adapter" / weights).read_bytes()
    assert not (tmp_path / "out" / "README.md").exists(), "peft's card names the folder"


def test_a_full_model_is_copied_with_its_tokenizer_and_nothing_else(tmp_path: Path) -> None:
    loaded = load("tiny", tiny=SHAPE)
    (checkpoint := tmp_path / "model").mkdir()
    loaded.model.save_pretrained(checkpoint)
    loaded.tokenizer.save_pretrained(checkpoint)
    (checkpoint / "training_args.bin").write_bytes(b"pickle")
    (checkpoint / "README.md").write_text("of another")
    (out := tmp_path / "out").mkdir()
    copy_model(checkpoint, out)
    assert {file.name for file in checkpoint.iterdir()} - {file.name for file in out.iterdir()} == {
        "training_args.bin",
        "README.md",
    }
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(out)), logits(loaded.model))
    messages = [{"role": "user", "content": "Hi."}]
    expected = loaded.tokenizer.apply_chat_template(messages, tokenize=False)
    assert AutoTokenizer.from_pretrained(out).apply_chat_template(messages, tokenize=False) == expected


@pytest.mark.parametrize("fault", ["truncated", "link", "no weights", "no config"])
def test_a_damaged_checkpoint_is_refused(fault: str, tmp_path: Path) -> None:
    (checkpoint := tmp_path / "model").mkdir()
    load("tiny", tiny=SHAPE).model.save_pretrained(checkpoint)
    weights = checkpoint / "model.safetensors"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif fault == "link":
        weights.rename(tmp_path / "elsewhere")
        weights.symlink_to(tmp_path / "elsewhere")
    else:
        (weights if fault == "no weights" else checkpoint / "config.json").unlink()
    (tmp_path / "out").mkdir()
    with pytest.raises(RunError, match=r"name a checkpoint that is complete"):
        copy_model(checkpoint, tmp_path / "out")


def test_the_base_and_its_licence_are_those_of_the_hub(tmp_path: Path) -> None:
    assert base_model("smollm2") == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")
    assert base_model("tiny") == (None, None)
    assert base_model("nobody/nothing") == ("nobody/nothing", None)
    assert base_model(str(tmp_path)) == (None, None)
    (tmp_path / "README.md").write_text("---\nlicense: mit\ntags: [a]\n---\n# Base\n")
    assert base_model(str(tmp_path)) == (None, "mit")
    assert base_model(str(tmp_path), base="owner/base", licence="other") == ("owner/base", "other")
    for text in ("no head", "---\n[", "---\nlicense: [a, b]\n---\n"):
        (tmp_path / "README.md").write_text(text)
        assert base_model(str(tmp_path)) == (None, None)


@pytest.mark.parametrize("base", ["base", "/models/base", "a/b/c", "."])
def test_a_base_that_is_no_name_of_the_hub_is_refused(base: str) -> None:
    with pytest.raises(InvalidInput, match=r"base model must be a name of the hub, owner/name, got"):
        base_model("tiny", base=base)


@pytest.mark.parametrize(
    "index, told",
    [
        ("{}", "model.safetensors.index.json must list the files of the weights, got KeyError"),
        ("[", "model.safetensors.index.json must list the files of the weights, got JSONDecodeError"),
        (
            '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}',
            r"checkpoint must hold the files of a model, got no \['model-00001-of-00002.safetensors'\]",
        ),
    ],
)
def test_weights_that_are_not_all_there_are_told_before_any_is_copied(index: str, told: str, tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors.index.json").write_text(index)
    with pytest.raises(RunError, match=told):
        copy_model(source, out)
    assert list(out.iterdir()) == []
