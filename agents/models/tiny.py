"""`tiny`: a small Llama-architecture model with a character-level tokenizer, made from a seed in seconds."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from envgym.config.settings import Settings
from envgym.core.json_types import content_hash
from envgym.runtime.cache import build_once, cache_directory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LAYOUT = 2
"""Raised whenever equal settings would give another model or tokenizer."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant", "tool")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
CALL_PARTS = ('{"name": "', '", "arguments": ')
"""The fixed parts of a Hermes call, one token each: a call then costs little more than its arguments."""
_CHARACTERS = ["\n", *map(chr, range(0x20, 0x7F))]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
VOCABULARY = (PAD, START, END, *(f"{START}{role}\n" for role in ROLES), *MARKUP, *CALL_PARTS, *_CHARACTERS, *_BYTES)
"""Every token; its id is its place. The opening of a turn is one token, though its text is plain ChatML."""
_HEAD_SIZES = (32, 64, 128)
"""What attention kernels support, vLLM's on CPU among them."""


class TinySettings(Settings):
    """The shape of a tiny model."""

    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights."""
    hidden_size: int = Field(default=128, ge=64, multiple_of=64)
    """Width of the hidden states: 32, 64 or 128 times `num_heads`."""
    num_layers: int = Field(default=4, ge=1)
    """Decoder layers."""
    num_heads: int = Field(default=4, ge=1)
    """Attention heads."""
    num_kv_heads: int = Field(default=4, ge=1)
    """Heads of keys and values; they divide `num_heads`."""
    intermediate_size: int = Field(default=384, ge=64, multiple_of=64)
    """Width of the feed-forward layers."""
    max_positions: int = Field(default=4096, ge=64)
    """Longest context in tokens."""

    @model_validator(mode="after")
    def _check_heads(self) -> "TinySettings":
        if self.num_heads % self.num_kv_heads:
            both = f"num_kv_heads {self.num_kv_heads}, num_heads {self.num_heads}"
            raise ValueError(f"shaped so that num_kv_heads divides num_heads ({both})")
        if self.hidden_size not in {size * self.num_heads for size in _HEAD_SIZES}:
            both = f"hidden_size {self.hidden_size}, num_heads {self.num_heads}"
            raise ValueError(f"shaped so that hidden_size is num_heads times one of {_HEAD_SIZES} ({both})")
        return self


def cached_tiny(settings: TinySettings) -> Path:
    """Return the directory of the tiny model with these settings, built at first use."""
    key = content_hash({**settings.model_dump(), "layout": LAYOUT})[:12]
    return build_once(cache_directory() / "models" / f"tiny-{key}", lambda draft: write_tiny(draft, settings))


def write_tiny(directory: Path, settings: TinySettings) -> None:
    """Write model, tokenizer and generation settings into `directory`."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    end, pad = VOCABULARY.index(END), VOCABULARY.index(PAD)
    # Llama's own 0.02 suits a width of thousands; at a width of 128 it takes twice the updates to learn to copy.
    config = LlamaConfig(
        vocab_size=-(-len(VOCABULARY) // 64) * 64,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_kv_heads,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        initializer_range=settings.hidden_size**-0.5,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    model.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """Return the tokenizer: one token per printable ASCII character and newline, bytes for all else, a few whole words.

    Encoding and decoding any Unicode text gives the text back.
    """
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    model = BPE(vocab={token: index for index, token in enumerate(VOCABULARY)}, merges=[], byte_fallback=True)
    backend = Tokenizer(model)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    openings = [f"{START}{role}\n" for role in ROLES]
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in (PAD, START, END, *openings)])
    backend.add_tokens([AddedToken(text, normalized=False) for text in (*MARKUP, *CALL_PARTS)])
    template = files("envgym.agents.models").joinpath("tiny_chat.jinja").read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )
