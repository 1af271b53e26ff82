"""Seeds derived from names, so that every random choice can be repeated on its own."""

import hashlib

import numpy as np


def derive_seed(*names: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every name and on their order.

    Example: `derive_seed(run_seed, "step", 17, task.key, sample, node)`.
    """
    text = "\x1f".join([f"{type(name).__name__[0]}{name}" for name in names])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(*names: int | str) -> np.random.Generator:
    """Return NumPy's generator seeded with `derive_seed(*names)`."""
    return np.random.default_rng(derive_seed(*names))
