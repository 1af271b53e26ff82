"""The cache and the store."""

import os
import tempfile
import unittest

from larder import Cache, Store


class CacheTest(unittest.TestCase):
    """Entries come and go."""

    def test_least_recently_used_goes_first(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("c", 3)
        self.assertEqual(cache.keys(), ["b", "c"])
        self.assertEqual(cache.stats.evictions, 1)

    def test_misses(self):
        cache = Cache(2)
        self.assertIsNone(cache.get("a"))
        self.assertEqual(cache.get("a", 0), 0)
        self.assertEqual(cache.stats.misses, 2)

    def test_old_entries_are_gone(self):
        now = [0.0]
        cache = Cache(2, ttl=10, clock=lambda: now[0])
        cache.put("a", 1)
        now[0] = 9.0
        self.assertEqual(cache.get("a"), 1)
        now[0] = 11.0
        self.assertIsNone(cache.get("a"))

    def test_computed_once(self):
        cache = Cache(2)
        calls = []
        for _ in range(2):
            cache.get_or_compute("a", lambda: calls.append(1) or "value")
        self.assertEqual(len(calls), 1)


class StoreTest(unittest.TestCase):
    """Values are kept."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "log")

    def tearDown(self):
        self.folder.cleanup()

    def test_values_survive(self):
        Store(self.path).set("a", [1, 2])
        self.assertEqual(Store(self.path).get("a"), [1, 2])

    def test_deleted(self):
        store = Store(self.path)
        store.set("a", 1)
        store.delete("a")
        self.assertEqual(len(Store(self.path)), 0)
        with self.assertRaises(KeyError):
            store.delete("a")

    def test_compact(self):
        store = Store(self.path)
        for number in range(5):
            store.set("a", number)
        store.compact()
        self.assertEqual(Store(self.path).get("a"), 4)
        self.assertEqual(Store(self.path).num_lines, 1)


if __name__ == "__main__":
    unittest.main()
