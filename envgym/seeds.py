"""Seeds derived from names, so that every random choice can be repeated on its own."""

import hashlib
import operator

import numpy as np

from envgym.errors import InvalidInput


def derive_seed(*names: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every name and on their order.

    Example: `derive_seed(run_seed, "step", 17, task.key, sample, node)`.
    """
    text = "\x1f".join([f"{type(name).__name__[0]}{name}" for name in names])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(*names: int | str) -> np.random.Generator:
    """Return NumPy's generator seeded with `derive_seed(*names)`."""
    return np.random.default_rng(derive_seed(*names))


def read_seed(seed: object, *, where: str) -> int:
    """Return a seed as a Python int; integers of NumPy are seeds too. Raises: InvalidInput: it is none, or negative."""
    try:
        number = None if isinstance(seed, bool) else operator.index(seed)  # type: ignore[arg-type]  # refused below
    except TypeError:
        number = None
    if number is None or number < 0:
        raise InvalidInput.of("seed", "be a whole number of at least 0", repr(seed), where=where, do="pass e.g. seed=0")
    return number
