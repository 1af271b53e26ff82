"""Packing: each prefix that rows share is computed once, and losses see rows as if it had not been.

rows -> trie -> packs -> one forward pass a pack -> a log-prob a token of the trie -> rows [B, T]
"""

from envgym.trainer.batch.packs import Pack, build_pack
from envgym.trainer.batch.trie import Trie, build_trie, cut
from envgym.trainer.learner.packing.states import packed_hidden_states, packed_logprobs, packed_states
from envgym.trainer.learner.packing.support import can_pack

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
