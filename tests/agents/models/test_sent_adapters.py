"""An adapter that somebody sent is loaded or refused in one sentence, and runs no code."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from envgym.agents.models.loading import load_adapter
from envgym.errors import InvalidInput
from tests.agents.policies.small_models import llama

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class Marks:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def changed(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        (folder / CONFIG).write_text(json.dumps({**config, **values}), encoding="utf-8")

    return change


def written(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Marks(folder / "mark")))


def pickled_as_safetensors(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(pickle.dumps(Marks(folder / "mark")))


def a_pipe(folder: Path) -> None:
    (folder / CONFIG).unlink()
    os.mkfifo(folder / CONFIG)


def a_pipe_of_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def without_config(folder: Path) -> None:
    (folder / CONFIG).unlink()


BAD = [
    pickled,
    pickled_as_safetensors,
    a_pipe,
    a_pipe_of_weights,
    without_config,
    written(CONFIG, b""),
    written(CONFIG, b"[]"),
    written(CONFIG, b"null"),
    written(CONFIG, b'{"a":' * 100_000),
    written(CONFIG, b"\xff\xfe"),
    written(WEIGHTS, b""),
    written(WEIGHTS, b"\xff" * 100),
    changed(peft_type="IA3"),
    changed(peft_type="PROMPT_TUNING"),
    changed(peft_type="XLORA"),
    changed(peft_type=None),
    changed(peft_type=["LORA"]),
    changed(peft_type="MOON"),
    changed(r=0),
    changed(r="x"),
    changed(r=[1]),
    changed(r=3),
    changed(target_modules=None),
    changed(target_modules=["nowhere"]),
    changed(target_modules=1),
    changed(target_modules="("),
    changed(target_modules="a" * 10_000),
    changed(megatron_config={"a": 1}, megatron_core="antigravity"),
    changed(layer_replication=[[0, 10**9]]),
    changed(layers_to_transform="x"),
    changed(modules_to_save=["nowhere", 1]),
    changed(init_lora_weights="moon"),
    changed(task_type="MOON"),
    changed(bias="moon"),
    changed(lora_alpha="x"),
    changed(rank_pattern=[1]),
]


@pytest.mark.parametrize("change", BAD, ids=range(len(BAD)))
def test_an_adapter_that_is_none_is_refused_in_one_sentence(change: Callable[[Path], None], adapter: Path) -> None:
    change(adapter)
    refusal = None
    try:
        load_adapter(llama(), str(adapter))  # peft takes some of these as they are
    except InvalidInput as error:
        refusal = str(error)
    assert refusal is None or (" must " in refusal and "\n" not in refusal)
    assert not (adapter / "mark").exists()


@pytest.mark.parametrize("change", BAD[:12])
def test_an_adapter_without_weights_or_settings_is_never_loaded(change: Callable[[Path], None], adapter: Path) -> None:
    change(adapter)
    with pytest.raises(InvalidInput):
        load_adapter(llama(), str(adapter))


def test_a_good_adapter_is_loaded(adapter: Path) -> None:
    assert load_adapter(llama(), str(adapter)).peft_config["default"].r == 2
