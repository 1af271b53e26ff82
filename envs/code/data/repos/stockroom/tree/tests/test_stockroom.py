"""Parts, counts and reports."""

import unittest

from stockroom import FormatProblem, Stock, StockProblem, read_parts, read_price, show_price, table, write_parts

PARTS = "sku,name,price,minimum\nA1,bolt,0.10,50\nB2,nut,0.05,10\n"


class Reading(unittest.TestCase):
    """Lists of parts."""

    def test_parts(self):
        bolt, nut = read_parts(PARTS)
        self.assertEqual((bolt.sku, bolt.price, bolt.minimum), ("A1", 10, 50))
        self.assertEqual(nut.name, "nut")

    def test_missing_column(self):
        with self.assertRaises(FormatProblem):
            read_parts("sku,name\nA1,bolt\n")

    def test_written_parts_are_read_back(self):
        parts = read_parts(PARTS)
        self.assertEqual(read_parts(write_parts(parts)), parts)

    def test_prices(self):
        self.assertEqual(read_price("$1,234.50"), 123450)
        self.assertEqual(show_price(123450), "1,234.50")


class Counting(unittest.TestCase):
    """Movements."""

    def setUp(self):
        self.stock = Stock(read_parts(PARTS))
        self.stock.receive("A1", 40)

    def test_short(self):
        self.assertEqual(self.stock.short(), [("A1", 10), ("B2", 10)])

    def test_issue(self):
        self.stock.issue("A1", 15)
        self.assertEqual(self.stock.count("A1"), 25)
        with self.assertRaises(StockProblem):
            self.stock.issue("A1", 26)

    def test_unknown(self):
        with self.assertRaises(StockProblem):
            self.stock.receive("C3", 1)

    def test_table(self):
        self.assertEqual(table(["sku", "name"], [["A1", "bolt"]]), "sku  name\n---  ----\nA1   bolt")


if __name__ == "__main__":
    unittest.main()
