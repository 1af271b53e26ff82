"""A cache and a key-value store."""

from larder.cache import Cache
from larder.store import Store

__all__ = ["Cache", "Store"]
