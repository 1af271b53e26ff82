"""The tiny model: equal seeds give equal weights, its tokenizer loses nothing, its template stays short."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envgym.agents.models.loading import load, resolve_model
from envgym.agents.models.tiny import CALL_PARTS, MARKUP, VOCABULARY, TinySettings, tiny_tokenizer, write_tiny
from envgym.config.settings import build_settings
from envgym.errors import SettingsError

TOKENIZER = tiny_tokenizer()
SMALL = TinySettings(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=64)


@given(st.lists(st.text() | st.sampled_from([*VOCABULARY[:7], *MARKUP, *CALL_PARTS, "<0x41>"])).map("".join))
def test_any_unicode_text_survives_encoding_and_decoding(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_printable_ascii_is_one_token_a_character_and_all_else_its_bytes() -> None:
    text = "".join(map(chr, range(0x20, 0x7F))) + "\n"
    assert len(TOKENIZER.encode(text, add_special_tokens=False)) == 96
    assert len(TOKENIZER.encode("\t\u00e9\u20ac\U0001f389", add_special_tokens=False)) == 1 + 2 + 3 + 4


def test_ids_are_places_in_the_vocabulary() -> None:
    assert TOKENIZER.convert_ids_to_tokens(list(range(len(VOCABULARY)))) == list(VOCABULARY)
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 3 + 4 + 6 + 2 + 96 + 256
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (0, 2)


def test_the_frame_of_a_task_with_a_tool_costs_little() -> None:
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "calculator", "description": "x" * 500, "parameters": parameters}}
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": ""}]
    text = TOKENIZER.apply_chat_template(messages, tools=[tool], add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    # <system> \n calculator(expression: str) <end> \n <user> <end> \n <assistant>
    assert len(TOKENIZER.encode(text, add_special_tokens=False)) == 1 + 1 + 27 + 2 + 1 + 2 + 1


def test_equal_settings_give_equal_weights_and_another_seed_others(tmp_path: Path) -> None:
    models = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_tiny(tmp_path / name, SMALL.model_copy(update={"seed": seed}))
        models.append(load(tmp_path / name).model)
    first, same, other = (torch.nn.utils.parameters_to_vector(model.parameters()) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_building_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    write_tiny(tmp_path, SMALL)
    assert torch.equal(torch.rand(3), wanted)


def test_the_directory_holds_what_hugging_face_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    directory = Path(resolve_model("tiny", tiny=SMALL))
    files = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert files <= {path.name for path in directory.iterdir()}
    assert resolve_model("tiny", tiny=SMALL) == str(directory)
    assert resolve_model("tiny", tiny=SMALL.model_copy(update={"seed": 1})) != str(directory)
    loaded = load("tiny", tiny=SMALL, dtype="bfloat16", trainable=True)
    assert loaded.model.config.head_dim in (32, 64, 128)
    assert loaded.model.generation_config.eos_token_id == loaded.tokenizer.eos_token_id
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.tokenizer.chat_template == TOKENIZER.chat_template
    assert loaded.tokenizer.encode("<think>a") == TOKENIZER.encode("<think>a")


def test_the_model_continues_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path))
    loaded = load("tiny", tiny=SMALL)
    assert not loaded.model.training
    ids = torch.tensor([loaded.tokenizer.encode("1+1=")])
    logits = loaded.model(input_ids=ids).logits
    assert logits.shape == (1, 4, 384)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    "shape, fault",
    [
        ({"hidden_size": 100}, "hidden_size must be a multiple of 64, got 100"),
        (
            {"num_heads": 3, "hidden_size": 96 * 2, "num_kv_heads": 2},
            r"num_kv_heads divides num_heads \(num_kv_heads 2, num_heads 3\)",
        ),
        ({"hidden_size": 192}, r"times one of \(32, 64, 128\) \(hidden_size 192, num_heads 4\)"),
        ({"num_layers": 0}, "num_layers must be greater than or equal to 1, got 0"),
    ],
)
def test_impossible_shapes_are_refused(shape: dict[str, int], fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        build_settings(TinySettings, shape, where="tiny model")
