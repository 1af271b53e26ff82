"""Packing: each prefix that rows share is computed once, and losses see rows as if it had not been.

rows -> trie -> packs -> one forward pass a pack -> a log-prob a token of the trie -> rows [B, T]
"""
