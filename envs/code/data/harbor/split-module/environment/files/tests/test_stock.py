"""Tests of the stock."""

import unittest

from shop.everything import Stock


class TestStock(unittest.TestCase):
    def test_counts_add_up(self):
        stock = Stock()
        stock.add("fork", 2, 4.0)
        stock.add("fork", 5, 4.0)
        self.assertEqual(stock.cnt("fork"), 7)


if __name__ == "__main__":
    unittest.main()
