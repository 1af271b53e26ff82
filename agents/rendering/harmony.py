"""gpt-oss: the vocabulary of the package `openai-harmony`, written from the model's tokenizer, not downloaded."""

import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from envgym.runtime.cache import build_once, cache_directory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_MARKUP = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|return|>")
_FILE = "o200k_base.tiktoken"
_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Of the file that the package accepts."""
_FOLDER = "TIKTOKEN_ENCODINGS_BASE"
"""Environment variable from which the package reads the folder of its vocabulary."""


def is_harmony(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Return whether a tokenizer has all tokens of the Harmony format and a chat template that uses them."""
    return "<|channel|>" in str(tokenizer.chat_template) and set(_MARKUP) <= tokenizer.get_added_vocab().keys()


def after_analysis(turn: list[int], opening: list[int], end: list[int]) -> list[int]:
    """Return the part of a turn that the policy samples after an opening that begins an analysis.

    A turn without an analysis ends the opened one at once.
    """
    return turn[len(opening) :] if turn[: len(opening)] == opening else [*end, *turn]


def provide_vocabulary(tokenizer: "PreTrainedTokenizerFast") -> None:
    """Write the vocabulary into the cache and name its folder, unless the user named one or the vocabulary differs."""
    if _FOLDER in os.environ:
        return
    folder = cache_directory() / "harmony"
    if not (folder / _FILE).is_file():
        data = _vocabulary_file(tokenizer)
        if hashlib.sha256(data).hexdigest() != _SHA256:
            return

        def write(draft: Path) -> None:
            (draft / _FILE).write_bytes(data)

        folder = build_once(folder, write)
    os.environ[_FOLDER] = str(folder)


def _vocabulary_file(tokenizer: "PreTrainedTokenizerFast") -> bytes:
    """Return the vocabulary in tiktoken's format: the bytes of a token in base64, and its id, a line each."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    lines = []
    for text, index in sorted(vocabulary.items(), key=lambda item: item[1]):
        if not all(char in byte_of for char in text):
            return b""
        lines.append(base64.b64encode(bytes(byte_of[char] for char in text)) + f" {index}\n".encode())
    return b"".join(lines)
