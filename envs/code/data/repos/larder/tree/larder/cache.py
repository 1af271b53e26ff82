"""A cache of bounded size: what was used least recently goes first."""

import time
from collections import OrderedDict
from dataclasses import dataclass

_MISSING = object()


@dataclass
class Stats:
    """What has happened to a cache."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def hit_rate(self):
        """Share of lookups that found something; 0.0 before the first."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0


class Cache:
    """Maps keys to values, at most `capacity` of them, each for at most `ttl` seconds."""

    def __init__(self, capacity, ttl=None, clock=time.monotonic):
        """Make an empty cache; without `ttl`, entries do not grow old."""
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.ttl = ttl
        self.clock = clock
        self.stats = Stats()
        self._entries = OrderedDict()

    def __len__(self):
        """Return the number of entries that are not too old."""
        self._drop_old()
        return len(self._entries)

    def __contains__(self, key):
        """Tell whether a key is there; this is no use of it, and is not counted."""
        return self._fresh(key) is not _MISSING

    def get(self, key, default=None):
        """Return the value of a key, which counts as a use; `default` where there is none."""
        value = self._fresh(key)
        if value is _MISSING:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return value

    def put(self, key, value, ttl=None):
        """Set the value of a key, which counts as a use; `ttl` is for this entry alone."""
        lifetime = self.ttl if ttl is None else ttl
        expires = None if lifetime is None else self.clock() + lifetime
        self._entries[key] = (value, expires)
        self._entries.move_to_end(key)
        if len(self._entries) > self.capacity:
            self._drop_old()
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)
            self.stats.evictions += 1

    def get_or_compute(self, key, compute):
        """Return the value of a key; where there is none, it is computed and kept."""
        value = self.get(key, _MISSING)
        if value is _MISSING:
            value = compute()
            self.put(key, value)
        return value

    def remove(self, key):
        """Drop a key; return whether it was there."""
        is_there = key in self
        self._entries.pop(key, None)
        return is_there

    def keys(self):
        """Return all keys, the one used least recently first."""
        self._drop_old()
        return list(self._entries)

    def resize(self, capacity):
        """Change the capacity; what does not fit any more is evicted."""
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self._drop_old()
        while len(self._entries) > capacity:
            self._entries.popitem(last=False)
            self.stats.evictions += 1

    def _fresh(self, key):
        """Return the value of a key, or _MISSING; an entry that is too old is dropped."""
        if key not in self._entries:
            return _MISSING
        value, expires = self._entries[key]
        if expires is not None and self.clock() >= expires:
            del self._entries[key]
            return _MISSING
        return value

    def _drop_old(self):
        for key in list(self._entries):
            self._fresh(key)
