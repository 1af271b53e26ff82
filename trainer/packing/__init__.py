"""Packing: each prefix that rows share is computed once, and losses see rows as if it had not been.

rows -> trie -> packs -> one forward pass a pack -> a log-prob a token of the trie -> rows [B, T]
"""

from envgym.trainer.packing.logprobs import packed_hidden_states, packed_logprobs, packed_states
from envgym.trainer.packing.pack import Pack, build_pack
from envgym.trainer.packing.support import can_pack
from envgym.trainer.packing.trie import Trie, build_trie, cut

__all__ = [
    "Pack",
    "Trie",
    "build_pack",
    "build_trie",
    "can_pack",
    "cut",
    "packed_hidden_states",
    "packed_logprobs",
    "packed_states",
]
