"""A trained checkpoint as a Hugging Face directory that needs nothing of the run: adapters merged, or kept for a base.

The weights are those that the run evaluated. Merging is checked: the logits of the merged model must be those of the
base with its adapter, up to a share of what the adapter changes.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envgym.errors import InvalidInput, RunError
from envgym.runs.files import read_regular, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from envgym.agents.settings import ModelSettings

_ADAPTER_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json")
_INDEX: Final = "model.safetensors.index.json"
_TOKENIZER: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
_CONFIG: Final = ("config.json", "generation_config.json")
_PROBE_TOKENS: Final = 32
_LARGEST_LOSS: Final = 0.5
"""Largest change of the logits by rounding the merged weights, as a share of the change that the adapter makes."""
_NOISE: Final = 1e-5
"""Changes of float32 logits that are no more than this share of their size are noise."""


def copy_model(checkpoint: Path, folder: Path) -> None:
    """Copy weights, configuration and tokenizer of a model directory; nothing else of it.

    Args:
        checkpoint: the folder `model` of a checkpoint without adapters.
        folder: exists.

    Raises: RunError: a file is missing, or is no regular file.
    """
    _copy(checkpoint, folder, (*_CONFIG, *_TOKENIZER), needed=("config.json",))


def write_adapter(checkpoint: Path, folder: Path, *, base: str) -> None:
    """Copy a LoRA adapter with its tokenizer, and name the base model that it belongs to.

    Args:
        checkpoint: the folder `model` of a checkpoint with adapters.
        folder: exists.
        base: name of the base model on the hub, which replaces a path of the machine that trained.

    Raises: RunError: a file is missing, or is no regular file.
    """
    _copy(checkpoint, folder, (_ADAPTER_CONFIG, *_TOKENIZER), needed=(_ADAPTER_CONFIG,))
    config = json.loads((folder / _ADAPTER_CONFIG).read_text(encoding="utf-8"))
    write_json(folder / _ADAPTER_CONFIG, {**config, "base_model_name_or_path": base, "inference_mode": True})


def write_merged(settings: "ModelSettings", folder: Path) -> float:
    """Write a model with its adapter merged into the weights, W + (alpha / r) B A, and its tokenizer.

    Args:
        settings: of the base model, with the directory of the `adapter`.
        folder: exists.

    Returns: the difference between the logits of the merged model and of the model with its adapter on fixed tokens:
        its root mean square, as a share of that of the logits. Both are computed in float32, so that only the rounding
        of the merged weights counts.
    Raises: UnknownName, InvalidInput: as `load_frozen_model`. RunError: rounding loses a large part of the adapter.
    """
    import torch

    from envgym.agents.models.loading import load_frozen_model

    adapter = settings.adapter
    assert adapter is not None, "there is something to merge"
    # The adapters were trained on the learner's weights, which are not those of a separate sampler.
    settings = settings.on("cpu")
    settings = settings.model_copy(update={"precision": settings.dtype})
    adapted = load_frozen_model(settings, torch.device("cpu")).float()
    expected = _logits(adapted)
    with adapted.disable_adapter():
        effect = _difference(_logits(adapted), expected)
    del adapted  # before the next model needs memory
    merged = load_frozen_model(settings, torch.device("cpu")).merge_and_unload(progressbar=False, safe_merge=True)
    merged.save_pretrained(folder)
    difference = _difference(_logits(merged.float()), expected)
    must = f"lose at most {_LARGEST_LOSS:.0%} of what the adapter changes"
    got = f"logits that differ by {difference:.2g} of their size, where the adapter changes {effect:.2g}"
    do = "export the adapter itself with --adapter"
    is_kept = difference <= max(_LARGEST_LOSS * effect, _NOISE)
    RunError.unless(is_kept, f"model merged in {settings.dtype}", must, got, where=settings.name, do=do)
    _copy(Path(adapter), folder, _TOKENIZER, needed=(), weights=False)
    return difference


def _difference(logits: "Tensor", expected: "Tensor") -> float:
    return float((logits - expected).norm() / expected.norm().clamp(min=1e-12))


def _logits(model: Any) -> "Tensor":  # PreTrainedModel or PeftModel
    """Return the logits of fixed tokens, shape [T, V], in float32."""
    import torch

    size = model.get_input_embeddings().weight.shape[0]
    token_ids = torch.randint(size, (1, _PROBE_TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits: Tensor = model(input_ids=token_ids).logits[0].float()
    return logits


def _copy(source: Path, folder: Path, names: Sequence[str], *, needed: Sequence[str], weights: bool = True) -> None:
    where, do = str(source), "name a checkpoint that is complete"
    try:
        needed = [*needed, *(file.name for file in indexed_files(source) if weights)]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise RunError.of(_INDEX, "list the files of the weights", got, where=where, do=do) from error
    missing = [name for name in needed if not (source / name).is_file()]
    RunError.unless(not missing, "checkpoint", "hold the files of a model", f"no {missing[:1]}", where=where, do=do)
    files = [file for file in sorted(source.iterdir()) if file.name in names or (weights and _is_weights(file))]
    for file in files:
        if file.is_symlink() or not file.is_file():
            raise RunError.of(file.name, "be a regular file", "a link or another kind of file", where=where, do=do)
        if file.suffix == ".safetensors":
            _check_whole(file, do)
        shutil.copyfile(file, folder / file.name)
    if weights and not any(map(_is_weights, files)):
        raise RunError.of("checkpoint", "hold weights as safetensors", "none", where=where, do=do)


def indexed_files(folder: Path) -> list[Path]:
    """Return the files of weights that the index of a model directory lists; none where it has no index."""
    index = folder / _INDEX
    files = json.loads(read_regular(index))["weight_map"].values() if index.exists() else ()
    return [folder / Path(name).name for name in sorted(set(files))]


def _check_whole(file: Path, do: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        raise RunError.of("weights", "be complete", str(error).splitlines()[0], where=str(file), do=do) from error


def _is_weights(file: Path) -> bool:
    return file.name.endswith(_WEIGHTS)


# ---- the base model --------------------------------------------------------------------------------------------------

_BUILT_IN: Final = {"smollm2": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"), "tiny": (None, None)}
"""Name -> id on the hub and licence; `tiny` begins with random weights."""


def base_model(name: str, *, base: str | None = None, licence: str | None = None) -> tuple[str | None, str | None]:
    """Return the id of a base model on the hub, and its licence; None where one is not known.

    Args:
        name: as `model.name` in settings: a built-in name, a directory, or a name on the hub.
        base: the id, where the user names it.
        licence: the licence, where the user names it.

    Raises: InvalidInput: `base` is no name of the hub.
    """
    from envgym.agents.models.loading import is_hub_name

    if base is not None and (Path(base).exists() or not is_hub_name(base)):
        do = "name the model that was trained, such as Qwen/Qwen3-0.6B"
        raise InvalidInput.of("base model", "be a name of the hub, owner/name", base, where="--base", do=do)
    if name in _BUILT_IN:
        known_id, known_licence = _BUILT_IN[name]
        return base or known_id, licence or known_licence
    folder = Path(name).expanduser()
    card = folder / "README.md" if folder.is_dir() else _cached_card(name)
    hub_id = None if folder.is_dir() else name
    return base or hub_id, licence or (None if card is None else _licence_of(card))


def _cached_card(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    card = try_to_load_from_cache(name, "README.md")
    return Path(card) if isinstance(card, str) else None


def _licence_of(card: Path) -> str | None:
    """Return the licence in the YAML head of a model card; None: there is none."""
    import yaml

    try:
        text = read_regular(card).decode("utf-8", errors="replace")
    except OSError:
        return None
    head = text.split("\n---", 1)[0].removeprefix("---") if text.startswith("---") else ""
    try:
        data = yaml.safe_load(head)
    except yaml.YAMLError:
        return None
    licence = data.get("license") if isinstance(data, dict) else None
    return licence if isinstance(licence, str) else None
