"""A model's `generation_config.json`: the tokens that end a turn, and a version of it that can be saved.

The renderer reads the end tokens from the tokenizer, because every engine gets its stop tokens from the renderer.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envgym.errors import InvalidInput

if TYPE_CHECKING:
    from transformers import GenerationConfig

_log = logging.getLogger(__name__)

_FILES = ("generation_config.json", "config.json")
"""Files that may name the end tokens. The second file counts only if the first names none, as in transformers."""
_ATTRIBUTE = "envgym_end_token_ids"
_NOT_SETTINGS = ("transformers_version", "_from_model_config", "_commit_hash", "_original_object_hash")


# ---- end tokens ------------------------------------------------------------------------------------------------------


def read_end_token_ids(source: str) -> tuple[int, ...]:
    """Return the ids in `eos_token_id` of a model's generation config.

    Args:
        source: a directory, or a name on the hub.

    Returns: ids in the order of the file; none if the model has no such file, or the file names none.
    Raises: InvalidInput: the file is not JSON, or `eos_token_id` is neither an id nor a list of ids.
    """
    for name in _FILES:
        config = _read_config(source, name)
        text_config = config.get("text_config")
        nested = text_config.get("eos_token_id") if isinstance(text_config, Mapping) else None
        value = config.get("eos_token_id", nested)
        if value is None or value == []:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            do = f"correct eos_token_id in {name}"
            raise InvalidInput.of("eos_token_id", "be an id or a list of ids", value, where=f"{source}/{name}", do=do)
        return tuple(dict.fromkeys(item for item in ids if item >= 0))
    return ()


def _read_config(source: str, name: str) -> Mapping[str, Any]:  # JSON
    """Return a JSON file of a model; it is empty if the model has no such file, or the hub does not answer."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        source,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None or not Path(path).is_file():
        return {}
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        do = "download the file again, or correct it"
        raise InvalidInput.of(name, "be a JSON file", str(error), where=source, do=do) from error
    return config if isinstance(config, Mapping) else {}


def set_end_token_ids(tokenizer: Any, ids: Iterable[int]) -> None:  # PreTrainedTokenizerFast
    """Store the end tokens of a model's generation config with the model's tokenizer."""
    setattr(tokenizer, _ATTRIBUTE, tuple(ids))


def end_token_ids(tokenizer: Any) -> tuple[int, ...]:  # PreTrainedTokenizerFast
    """Return the ids that end a turn by the model's generation config; none if they were never stored."""
    ids: tuple[int, ...] = getattr(tokenizer, _ATTRIBUTE, ())
    return ids


def join_stop_token_ids(tokenizer: Any, ids: Iterable[int | None]) -> tuple[int, ...]:  # as above
    """Return a renderer's stop tokens, then the other end tokens of the model; each id once."""
    return tuple(dict.fromkeys(item for item in (*ids, *end_token_ids(tokenizer)) if isinstance(item, int)))


# ---- a generation config that can be saved ---------------------------------------------------------------------------


def make_generation_config_valid(model: Any, source: str) -> None:  # PreTrainedModel
    """Replace a generation config that transformers refuses to save, and log the changes.

    Several published models set a temperature or top-p without `do_sample`. transformers loads such a file with a
    warning, and refuses to write it into a checkpoint.
    """
    config: GenerationConfig | None = getattr(model, "generation_config", None)
    if config is None or _is_valid(config):
        return
    settings = {key: value for key, value in config.to_diff_dict().items() if key not in _NOT_SETTINGS}
    valid = _largest_valid(settings)
    samples = settings.get("do_sample") is None and settings.get("temperature") != 0
    with_sampling = _largest_valid({"do_sample": True} | {**settings, "do_sample": True}) if samples else {}
    if len(with_sampling) > len(valid) + 1:  # the other settings make sense only with sampling
        valid = with_sampling
    changes = ["do_sample is now true"] if valid.get("do_sample") is not settings.get("do_sample") else []
    changes += [f"{key}={settings[key]!r} is removed" for key in settings if key not in valid]
    _log.warning(
        "transformers refuses to save the generation config of %s; checkpoints of this run change it: %s",
        source,
        ", ".join(changes),
    )
    model.generation_config = type(config)(**valid)


def _largest_valid(settings: Mapping[str, Any]) -> dict[str, Any]:  # JSON
    """Return the settings that can be saved together, taken in order; later passes retry the refused settings."""
    from transformers import GenerationConfig

    valid: dict[str, Any] = {}
    size = -1
    while len(valid) > size:
        size = len(valid)
        for key in [key for key in settings if key not in valid]:
            try:
                candidate = GenerationConfig(**valid, **{key: settings[key]})
            except (ValueError, TypeError):
                continue
            if _is_valid(candidate):
                valid[key] = settings[key]
    return valid


def _is_valid(config: "GenerationConfig") -> bool:
    try:
        config.validate(strict=True)
    except (ValueError, TypeError):
        return False
    return True
