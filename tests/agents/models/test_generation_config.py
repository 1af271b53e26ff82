"""Generation configs of published models: their end tokens are read, and each can be saved into a checkpoint."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from envgym.agents.models.generation_config import end_token_ids, make_generation_config_valid, read_end_token_ids
from envgym.agents.models.loading import load, load_model_tokenizer, load_tokenizer
from envgym.agents.models.tiny import TinySettings, write_tiny
from envgym.agents.rendering.factory import AutoRendererFactory
from envgym.agents.settings import ModelSettings
from envgym.errors import InvalidInput

PUBLISHED = json.loads(Path(__file__).with_name("generation_configs.json").read_text(encoding="utf-8"))
SHAPE = TinySettings(hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=2, intermediate_size=64)
TEMPERATURE_ALONE = {"eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tiny(tmp_path, SHAPE)
    return tmp_path


def write(directory: Path, config: Any, name: str = "generation_config.json") -> str:  # JSON
    (directory / name).write_text(json.dumps(config), encoding="utf-8")
    return str(directory)


@pytest.mark.parametrize("published", PUBLISHED, ids=[item["model"] for item in PUBLISHED])
def test_end_tokens_of_a_published_model_are_all_read(published: dict[str, Any], tmp_path: Path) -> None:
    assert list(read_end_token_ids(write(tmp_path, published["config"]))) == published["end_token_ids"]


@pytest.mark.parametrize("published", PUBLISHED, ids=[item["model"] for item in PUBLISHED])
def test_the_generation_config_of_a_published_model_can_be_saved(
    published: dict[str, Any],
    directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = tmp_path_factory.mktemp("saved")
    with caplog.at_level(logging.WARNING, logger="envgym"):
        load(write(directory, published["config"])).model.save_pretrained(target)
    saved = json.loads((target / "generation_config.json").read_text(encoding="utf-8"))
    assert list(read_end_token_ids(str(target))) == published["end_token_ids"]
    versions = {"transformers_version", "_from_model_config"}
    changed = {key for key, value in published["config"].items() if saved.get(key, 1.0) != value} - versions
    assert (not changed and "do_sample" not in saved.keys() - published["config"].keys()) == bool(
        published["is_saved_unchanged"]
    )
    assert [record.name for record in caplog.records if "refuses to save" in record.message] == (
        [] if published["is_saved_unchanged"] else ["envgym.agents.models.generation_config"]
    )


@pytest.mark.parametrize(
    "config, wanted, told",
    [
        ({"temperature": 0.6, "top_p": 0.9}, {"do_sample": True, "temperature": 0.6, "top_p": 0.9}, "do_sample is now"),
        ({"do_sample": False, "temperature": 0.7}, {"do_sample": False}, "temperature=0.7 is removed"),
        ({"temperature": 0.0}, {}, "temperature=0.0 is removed"),
        ({"top_k": 1, "pad_token_id": -1}, {"do_sample": True, "top_k": 1}, "do_sample is now true, pad_token_id=-1"),
        ({"output_scores": True, "max_length": 64}, {"max_length": 64}, "output_scores=True is removed"),
        ({"early_stopping": True, "length_penalty": 2.0}, {}, "early_stopping=True is removed, length_penalty=2.0"),
        ({"early_stopping": True, "num_beams": 4, "top_p": 0.9, "do_sample": False},
         {"early_stopping": True, "num_beams": 4, "do_sample": False}, "top_p=0.9 is removed"),
    ],
)  # fmt: skip
def test_a_generation_config_keeps_whatever_can_be_saved(
    config: dict[str, Any], wanted: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import GenerationConfig

    class Model:
        generation_config = GenerationConfig(**config)

    model = Model()
    make_generation_config_valid(model, "owner/name")
    settings = model.generation_config.to_diff_dict()
    del settings["transformers_version"]
    assert settings == wanted
    model.generation_config.validate(strict=True)
    (record,) = [record for record in caplog.records if record.name.startswith("envgym")]
    assert told in record.message
    assert "owner/name" in record.message


def test_end_tokens_stay_with_a_model_that_is_saved_and_loaded_again(directory: Path, tmp_path: Path) -> None:
    loaded = load(write(directory, TEMPERATURE_ALONE))
    assert end_token_ids(loaded.tokenizer) == (2, 0)
    again = tmp_path / "again"
    loaded.model.save_pretrained(again)
    loaded.tokenizer.save_pretrained(again)
    assert end_token_ids(load_tokenizer(str(again))) == (2, 0)
    assert "end_token_ids" not in (again / "tokenizer_config.json").read_text(encoding="utf-8")


def test_without_a_generation_config_the_model_config_names_the_end_tokens(directory: Path) -> None:
    (directory / "generation_config.json").unlink()
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    assert read_end_token_ids(write(directory, {**config, "eos_token_id": [7, 2, 7]}, "config.json")) == (7, 2)
    nested = {"text_config": {"eos_token_id": [1, 106]}}
    assert read_end_token_ids(write(directory, nested, "config.json")) == (1, 106)
    assert read_end_token_ids(write(directory, {"eos_token_id": []})) == (1, 106)
    assert read_end_token_ids(write(directory, {"eos_token_id": 5})) == (5,)


def test_a_tokenizer_of_another_directory_ends_turns_as_the_model_does(directory: Path, tmp_path: Path) -> None:
    write(directory, TEMPERATURE_ALONE)
    other = tmp_path / "tokenizer"
    load_tokenizer(str(directory)).save_pretrained(other)
    write(other, {})
    write(other, {}, "config.json")
    settings = ModelSettings(name=str(directory), tokenizer=str(other))
    assert end_token_ids(load_model_tokenizer(settings)) == (2, 0)
    served = ModelSettings(name="a name that only an endpoint has", tokenizer=str(other))
    assert end_token_ids(load_model_tokenizer(served)) == ()


@pytest.mark.parametrize("value", ["</s>", [2, "</s>"], [True], {"id": 2}, 2.0])
def test_end_tokens_that_are_no_ids_are_refused_in_one_sentence(value: object, directory: Path) -> None:
    write(directory, {"eos_token_id": value})
    with pytest.raises(
        InvalidInput, match=r"^eos_token_id must be an id or a list of ids, got .*; correct eos_token_id"
    ):
        load_tokenizer(str(directory))


def test_a_generation_config_that_is_cut_short_is_refused_in_one_sentence(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [2,', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"^generation_config\.json must be a JSON file, got .*; download the file"):
        load_tokenizer(str(directory))


def test_a_renderer_stops_at_the_templates_closing_token_and_at_all_end_tokens(directory: Path) -> None:
    loaded = load(write(directory, TEMPERATURE_ALONE))
    assert AutoRendererFactory()(loaded.tokenizer).stop_token_ids == (2, 0)
